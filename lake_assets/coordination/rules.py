"""The rules of turns: which stream may run next. Pure functions of the registry's content; no ZooKeeper, no clock.

Streams take turns on one lock. A turn is *running* until its work is checkpointed, then *done*.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from lake_assets.errors import ConfigurationError, claim_refused

ANY = "*"
"""Instead of a predecessor's name: the stream may run after any stream, or as the first one."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""Valid names of streams and locks: they become parts of paths."""


@dataclass(frozen=True)
class Stream:
    """A stream that takes turns on a lock.

    Attributes:
        name: Unique on its lock.
        accepts: Names of the streams after which it may run, or `ANY`.
        first: Whether it may run when no stream has run yet. A stream that accepts any stream always may.
    """

    name: str
    accepts: frozenset[str]
    first: bool = False

    def __post_init__(self) -> None:
        checked_name(self.name)
        for name in self.accepts - {ANY}:
            checked_name(name)
        if not self.accepts and not self.first:
            raise ConfigurationError(
                f"{self.name} accepts no predecessor and is not declared as first, so it would never run.",
                remedy="Name a predecessor, or declare it as first.",
            )

    @property
    def accepts_any(self) -> bool:
        """Whether it may run after any stream."""
        return ANY in self.accepts

    @property
    def starts(self) -> bool:
        """Whether it may run when no stream has run yet."""
        return self.first or self.accepts_any

    def follows(self, name: str) -> bool:
        """Return whether it may run after the stream `name`."""
        return self.accepts_any or name in self.accepts


@dataclass(frozen=True)
class Turn:
    """The last turn, as the registry records it.

    Attributes:
        name: The stream that ran.
        state: Running until its work is checkpointed.
        token: Of the lock under which it was registered.
        predecessor: The stream that ran before; None if there was none.
        note: Why the turn is not done, for a person; empty if its stream left no note.
    """

    name: str
    state: Literal["running", "done"]
    token: int
    predecessor: str | None = None
    note: str = ""


@dataclass(frozen=True)
class Granted:
    """The stream may run.

    Attributes:
        predecessor: The stream that ran before; None if there was none.
        redo: Whether it resumes its own interrupted turn.
    """

    predecessor: str | None
    redo: bool = False


@dataclass(frozen=True)
class Refused:
    """The stream may not run. reason: for a person; it names both streams."""

    reason: str


def stream(name: str, predecessor: str | Collection[str], *, first: bool = False) -> Stream:
    """Return a stream that runs after one predecessor, after one of several, or after any (`ANY`)."""
    predecessors = {predecessor} if isinstance(predecessor, str) else predecessor
    return Stream(name, frozenset(predecessors), first)


def checked_name(name: str) -> str:
    """Return the name if it can be part of a path.

    Raises:
        ConfigurationError: It cannot.
    """
    if not NAME.fullmatch(name):
        raise ConfigurationError(
            f"{name!r} is not a valid name for a stream or a lock.", remedy=f"It must match {NAME.pattern}"
        )
    return name


def decide(asking: Stream, last: Turn | None, waiting: Mapping[str, frozenset[str]]) -> Granted | Refused:
    """Return whether a stream may run.

    Args:
        asking: The stream that holds the lock.
        last: The last turn; None if no stream has run.
        waiting: Streams that were refused, each with the streams that it accepts as predecessors.
    """
    if last is None:
        return _decide_first(asking)
    if last.state == "running":
        return _decide_interrupted(asking, last)
    if not asking.follows(last.name):
        return Refused(f"it waits for {' or '.join(sorted(asking.accepts))}, and {last.name} ran last")
    if asking.accepts_any:
        other = _waiting_for(last.name, waiting, asking.name)
        if other is not None:
            return Refused(f"{other} is waiting to run after {last.name}")
    return Granted(last.name)


def _decide_first(asking: Stream) -> Granted | Refused:
    if asking.starts:
        return Granted(None)
    return Refused("no stream has run yet, and it is not declared as first")


def _decide_interrupted(asking: Stream, last: Turn) -> Granted | Refused:
    if last.name == asking.name:
        return Granted(last.predecessor, redo=True)
    note = f": {last.note}" if last.note else ""
    return Refused(f"the last turn, of {last.name}, is not done{note}")


def _waiting_for(last: str, waiting: Mapping[str, frozenset[str]], asking: str) -> str | None:
    """Return a waiting stream that accepts `last` by name: it has fewer choices than a stream that accepts any."""
    for name in sorted(waiting):
        if name != asking and last in waiting[name]:
            return name
    return None


def check_turn_order(streams: Iterable[Stream]) -> None:
    """Check that the streams of one lock can take turns for ever.

    Each stream must have a predecessor among them, be reachable from a first stream, and be followed by a stream.

    Raises:
        ConfigurationError: It names the streams that wait, and what they wait for.
    """
    by_name = {declared.name: declared for declared in streams}
    _check_predecessors(by_name)
    _check_reachable(by_name)
    _check_followed(by_name)


def _check_predecessors(by_name: Mapping[str, Stream]) -> None:
    for declared in by_name.values():
        unknown = declared.accepts - {ANY, *by_name}
        if unknown:
            raise ConfigurationError(
                f"{declared.name} waits for {', '.join(sorted(unknown))}, but no stream has that name.",
                remedy=f"The streams are {', '.join(sorted(by_name))}: correct the predecessor of {declared.name}.",
            )


def _check_reachable(by_name: Mapping[str, Stream]) -> None:
    reachable = _reachable(by_name)
    unreachable = [declared for declared in by_name.values() if declared.name not in reachable]
    if unreachable:
        waits = [f"{declared.name} waits for {', '.join(sorted(declared.accepts))}" for declared in unreachable]
        raise ConfigurationError(
            f"These streams would never run: {'; '.join(waits)}.", remedy="Declare one of them as first."
        )


def _reachable(by_name: Mapping[str, Stream]) -> set[str]:
    """Return the streams that can run at all, from the first streams on."""
    reachable: set[str] = set()
    added = {declared.name for declared in by_name.values() if declared.starts}
    while added:
        reachable |= added
        followers = {declared.name for declared in by_name.values() if declared.accepts & reachable}
        added = followers - reachable
    return reachable


def _check_followed(by_name: Mapping[str, Stream]) -> None:
    not_followed = []
    for name in sorted(by_name):
        if not any(declared.follows(name) for declared in by_name.values()):
            not_followed.append(name)
    if not_followed:
        names = ", ".join(not_followed)
        raise ConfigurationError(
            f"No stream accepts {names} as predecessor, so no stream could run after it.",
            remedy="Let a stream accept it, or accept any.",
        )


def check_claim(resource: str, found: int | None, token: int) -> None:
    """Check a claim, or a commit, against the token on the guarded resource.

    Args:
        resource: Its name, for the error.
        found: The token on the resource; None if it was never claimed.
        token: The caller's.

    Raises:
        CoordinationError: A later holder has claimed the resource.
    """
    if found is not None and found > token:
        raise claim_refused(resource, token=token, found=found)
