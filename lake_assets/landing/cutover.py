"""File cutover: where the messages of a partition are cut into files.

The messages alone decide, never a clock or the way they were read. So two zones cut at the same offsets, at whatever
speed they read and however often they restart.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Protocol

from lake_assets.errors import ConfigurationError, SourceError


class TimedMessage(Protocol):
    """What cutover needs of a message; a `Record` has it.

    Attributes:
        timestamp: Milliseconds since 1970.
        size: Bytes.
    """

    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def size(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Policy:
    """The limits of a file. The message that reaches a limit closes the file and is its last message.

    Attributes:
        max_messages: Number of messages.
        max_bytes: Bytes of all messages together.
        max_age_ms: Milliseconds by the clock of heartbeats, see `by_heartbeats`.
        from_offset: The policy applies to files that begin at this offset or later, until the next policy applies.
        max_idle_ms: The same as long as all messages are heartbeats; it is longer, so that an idle partition has few
            files. None: heartbeats are treated as other messages, as in the policies of earlier versions.
        by_heartbeats: Only heartbeats close a file by its age, so a file of some age holds one, and files are as many
            as heartbeats at most, whatever clocks producers have. Age begins with the first message that is no
            heartbeat, if it was sent at most half an age before a heartbeat of its file, else with that heartbeat.
            False, as in the policies of earlier versions: any two timestamps that are so far apart close a file.
    """

    max_messages: int
    max_bytes: int
    max_age_ms: int
    from_offset: int = 0
    max_idle_ms: int | None = None
    by_heartbeats: bool = True

    def __post_init__(self) -> None:
        limits = {
            "max_messages": self.max_messages,
            "max_bytes": self.max_bytes,
            "max_age_ms": self.max_age_ms,
            "max_idle_ms": 1 if self.max_idle_ms is None else self.max_idle_ms,
        }
        for name, limit in limits.items():
            if limit < 1:
                raise ConfigurationError(f"{name} of a cutover policy is {limit}.", remedy="Set it to 1 or more.")


@dataclass(frozen=True, slots=True)
class Span:
    """A closed file of one partition.

    Attributes:
        first: First offset, inclusive.
        last: Last offset, inclusive.
        count: Number of messages.
        size: Bytes of all messages together.
    """

    first: int
    last: int
    count: int
    size: int


def cut(messages: Iterable[TimedMessage], policy: Policy | Sequence[Policy]) -> list[Span]:
    """Return the closed files of messages of one partition, in order of offset.

    The messages after the last closed file belong to the open file. Cutting these messages and the following ones later
    gives the same files as cutting all messages at once.

    Args:
        messages: In order of offset; the first one begins a file.
        policy: One policy, or several that apply from different offsets.

    Raises:
        SourceError: An offset is not greater than the one before it.
    """
    cutter = Cutter(policy)
    spans = []
    for message in messages:
        span = cutter.add(message)
        if span is not None:
            spans.append(span)
    return spans


@dataclass
class Cutter:
    """The open file of one partition, reduced to what cutover needs. Uses constant memory."""

    policy: Policy | Sequence[Policy]
    _open: _OpenFile | None = field(default=None, init=False)
    _last: int = field(default=-1, init=False)

    def add(self, message: TimedMessage, *, is_heartbeat: bool = False) -> Span | None:
        """Add the next message.

        Args:
            message: The message.
            is_heartbeat: Whether it is a heartbeat.

        Returns:
            The closed file if this message closes it, else None.

        Raises:
            SourceError: The offset is not greater than the one before it.
        """
        if message.offset <= self._last:
            raise SourceError(
                f"Offset {message.offset} follows offset {self._last}.",
                remedy="Read each partition by itself, from the last committed offset on.",
            )
        self._last = message.offset
        if self._open is None:
            self._open = _OpenFile(message, effective(self.policy, message.offset))
        if not self._open.add(message, is_heartbeat=is_heartbeat):
            return None
        closed = Span(self._open.first, message.offset, self._open.count, self._open.size)
        self._open = None
        return closed


class _OpenFile:
    __slots__ = ("_beat", "_began", "_is_idle", "_sent", "count", "first", "policy", "size")

    def __init__(self, message: TimedMessage, policy: Policy) -> None:
        self.policy = policy
        self.first = message.offset
        self.count = 0
        self.size = 0
        self._began = None if policy.by_heartbeats else message.timestamp
        self._beat: int | None = None
        self._sent: int | None = None
        self._is_idle = policy.max_idle_ms is not None

    def add(self, message: TimedMessage, *, is_heartbeat: bool) -> bool:
        """Count a message; return whether it closes the file."""
        at = message.timestamp
        if self._is_idle and not is_heartbeat:
            self._is_idle = False
            self._began = self._beat if self.policy.by_heartbeats else at
        self.count += 1
        self.size += message.size
        limits = self.policy
        if self.count >= limits.max_messages or self.size >= limits.max_bytes:
            return True
        if limits.by_heartbeats:
            if not is_heartbeat:
                self._sent = at if self._sent is None else self._sent
                return False
            self._beat = at
            if self._began is None:
                is_near = self._sent is not None and 0 <= at - self._sent <= limits.max_age_ms // 2
                self._began = self._sent if is_near else at
        assert self._began is not None
        max_age_ms = limits.max_idle_ms if self._is_idle and limits.max_idle_ms else limits.max_age_ms
        # The distance in both directions: after a first time of 2099 no later one would be old enough.
        return abs(at - self._began) >= max_age_ms


def effective(policy: Policy | Sequence[Policy], offset: int) -> Policy:
    """Return the policy of a file that begins at an offset: the last one that applies by then.

    Raises:
        ConfigurationError: No policy applies at the offset.
    """
    if isinstance(policy, Policy):
        return policy
    from_offset = attrgetter("from_offset")
    ordered = sorted(policy, key=from_offset)
    count = bisect_right(ordered, offset, key=from_offset)
    if count == 0:
        raise ConfigurationError(
            f"No cutover policy is effective at offset {offset}.",
            remedy="Record one that is effective from offset 0.",
        )
    return ordered[count - 1]
