"""Where the messages of a partition are cut into files: by what they say, never by a clock or by how they were read.

So two zones, at different speeds and with different restarts, cut at the same offsets.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from lake_assets.errors import ConfigurationError, SourceError


class Message(Protocol):
    """What cutting looks at; a `Record` has it.

    timestamp: milliseconds since 1970. size: bytes.
    """

    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def size(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Policy:
    """The limits of a file: the message with which it reaches one closes it, and is its last.

    max_bytes: of the messages together. max_age_ms: milliseconds between the timestamps of a file's first message and
    of a later one. from_offset: the policy holds for files that begin there or later, until another one does.
    """

    max_messages: int
    max_bytes: int
    max_age_ms: int
    from_offset: int = 0

    def __post_init__(self) -> None:
        limits = {"max_messages": self.max_messages, "max_bytes": self.max_bytes, "max_age_ms": self.max_age_ms}
        for name, limit in limits.items():
            if limit < 1:
                raise ConfigurationError(f"{name} of a cutover policy is {limit}.", remedy="Set it to 1 or more.")


@dataclass(frozen=True, slots=True)
class Span:
    """A closed file of one partition: offsets first to last, both inclusive. size: bytes of its messages together."""

    first: int
    last: int
    count: int
    size: int


def cut(messages: Iterable[Message], policy: Policy | Sequence[Policy]) -> list[Span]:
    """The closed files of messages of one partition, in order of offset. What is behind the last is still open.

    messages: from the first of a file on. Those of the open file, and what follows them, give the same cuts as all at
    once. policy: or several, each effective from its offset. Raises `SourceError` if an offset does not grow.
    """
    cutter = Cutter(policy)
    return [closed for message in messages if (closed := cutter.add(message))]


@dataclass
class Cutter:
    """The open file of one partition, as far as cutting must know it: constant memory."""

    policy: Policy | Sequence[Policy]
    _open: _Open | None = field(default=None, init=False)
    _last: int = field(default=-1, init=False)

    def add(self, message: Message) -> Span | None:
        """Take the next message; the file that it closed, as its last message, if it did.

        Raises `SourceError` if its offset is not greater than the last one's.
        """
        if message.offset <= self._last:
            raise SourceError(
                f"Offset {message.offset} follows offset {self._last}.",
                remedy="Read each partition by itself, from the last committed offset on.",
            )
        self._last = message.offset
        if self._open is None:
            self._open = _Open(message, effective(self.policy, message.offset))
        if not self._open.closed_by(message):
            return None
        closed = Span(self._open.first, message.offset, self._open.count, self._open.size)
        self._open = None
        return closed


class _Open:
    __slots__ = ("_began", "count", "first", "policy", "size")

    def __init__(self, message: Message, policy: Policy) -> None:
        self.policy = policy
        self.first, self._began = message.offset, message.timestamp
        self.count = self.size = 0

    def closed_by(self, message: Message) -> bool:
        self.count += 1
        self.size += message.size
        # Apart either way: behind a first message dated 2099 none would ever be old enough to close the file.
        age = abs(message.timestamp - self._began)
        limits = self.policy
        return self.count >= limits.max_messages or self.size >= limits.max_bytes or age >= limits.max_age_ms


def effective(policy: Policy | Sequence[Policy], offset: int) -> Policy:
    """The policy of a file that begins at an offset: of several, the last that is effective by then."""
    if isinstance(policy, Policy):
        return policy
    ordered = sorted(policy, key=lambda p: p.from_offset)
    place = bisect_right(ordered, offset, key=lambda p: p.from_offset)
    if not place:
        raise ConfigurationError(
            f"No cutover policy is effective at offset {offset}.", remedy="Record one that is effective from offset 0."
        )
    return ordered[place - 1]
