"""Whose turn it is. Pure: what the registry holds goes in, a decision comes out. No ZooKeeper, no clock.

Streams take turns on one lock. A turn is *running* until its work is checkpointed, then *done*.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from lake_assets.errors import ClaimRefused, ConfigurationError

ANY = "*"
"""Instead of a predecessor's name: any stream may have run last, or none at all."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""What a stream or a lock can be called: it becomes part of a path."""


@dataclass(frozen=True)
class Stream:
    """One of those who take turns. accepts: who may have run last, by name, or `ANY`.

    first: whether it may start when nobody has run yet. A stream that accepts any always may.
    """

    name: str
    accepts: frozenset[str]
    first: bool = False

    def __post_init__(self) -> None:
        for name in (self.name, *(self.accepts - {ANY})):
            checked_name(name)
        if not self.accepts and not self.first:
            raise ConfigurationError(
                f"{self.name} accepts no predecessor, and is no first stream: it would never run.",
                remedy="Name a predecessor, or declare it first.",
            )

    @property
    def accepts_any(self) -> bool:
        return ANY in self.accepts

    @property
    def starts(self) -> bool:
        """Whether it may be the first ever to run."""
        return self.first or self.accepts_any

    def follows(self, name: str) -> bool:
        """Whether it may run after this one."""
        return self.accepts_any or name in self.accepts


@dataclass(frozen=True)
class Turn:
    """What the registry holds: who ran last, and how far. token: of the lock under which it was registered.

    predecessor: who had run before; None if nobody had.
    """

    name: str
    state: Literal["running", "done"]
    token: int
    predecessor: str | None = None


@dataclass(frozen=True)
class Granted:
    """predecessor: who ran before; None if nobody did. redo: the stream's own turn was interrupted, and goes on."""

    predecessor: str | None
    redo: bool = False


@dataclass(frozen=True)
class Refused:
    """reason: for people, naming the waiting pair."""

    reason: str


def stream(name: str, predecessor: str | Collection[str], *, first: bool = False) -> Stream:
    """A stream from one predecessor, several, or `ANY`."""
    accepts = frozenset({predecessor} if isinstance(predecessor, str) else predecessor)
    return Stream(name, accepts, first)


def checked_name(name: str) -> str:
    """The name, if it can be part of a path; else `ConfigurationError`."""
    if not NAME.fullmatch(name):
        raise ConfigurationError(f"{name!r} is no name for a stream or a lock.", remedy=f"It must match {NAME.pattern}")
    return name


def decide(asking: Stream, last: Turn | None, waiting: Mapping[str, frozenset[str]]) -> Granted | Refused:
    """Whether it is a stream's turn. last: None if nobody has run. waiting: who was refused → whom it accepts."""
    if last is None:
        return Granted(None) if asking.starts else Refused("nobody has run yet, and it is no first stream")
    if last.state == "running":
        if last.name == asking.name:
            return Granted(last.predecessor, redo=True)
        return Refused(f"the last turn, of {last.name}, is not done")
    if not asking.follows(last.name):
        return Refused(f"it waits for {' or '.join(sorted(asking.accepts))}, and {last.name} ran last")
    if asking.accepts_any and (other := _in_need_of(last.name, waiting, asking.name)):
        return Refused(f"{other} waits for just what {last.name} has done")
    return Granted(last.name)


def _in_need_of(last: str, waiting: Mapping[str, frozenset[str]], asking: str) -> str | None:
    """A waiting stream that has fewer choices than any, and the last turn among them."""
    return next((name for name in sorted(waiting) if name != asking and last in waiting[name]), None)


def check_turn_order(streams: Iterable[Stream]) -> None:
    """`ConfigurationError` when the streams of one lock would not go round, naming who waits, and for whom.

    Everyone must have a predecessor that is there, be reached from a first stream, and be followed by somebody.
    """
    ring = {s.name: s for s in streams}
    for s in ring.values():
        if unknown := sorted(s.accepts - {ANY, *ring}):
            raise ConfigurationError(
                f"{s.name} waits for {', '.join(unknown)}, and no stream is called that.",
                remedy=f"The streams are {', '.join(sorted(ring))}: correct the predecessor of {s.name}.",
            )
    reached = _reached(ring)
    if never := [s for s in ring.values() if s.name not in reached]:
        waits = "; ".join(f"{s.name} waits for {', '.join(sorted(s.accepts))}" for s in never)
        raise ConfigurationError(f"These would never run: {waits}.", remedy="Declare one of them first.")
    if last := [s.name for s in ring.values() if not any(other.follows(s.name) for other in ring.values())]:
        raise ConfigurationError(
            f"After {', '.join(sorted(last))} nobody could run: no stream accepts it as predecessor.",
            remedy="Let one accept it, or any.",
        )


def _reached(ring: Mapping[str, Stream]) -> set[str]:
    """Who runs at all, from the first streams on."""
    reached = {s.name for s in ring.values() if s.starts}
    while more := {s.name for s in ring.values() if s.accepts & reached} - reached:
        reached |= more
    return reached


def check_claim(resource: str, found: int | None, token: int) -> None:
    """`ClaimRefused` if the token found on a guarded resource is a later holder's. For claims, and for each commit."""
    if found is not None and found > token:
        raise ClaimRefused(resource, token=token, found=found)
