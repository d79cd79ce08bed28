"""Waiting for changes: a loop that looks every few seconds looks at once when a file was written or a server changed.

A look at a file costs one `stat`. It is taken ten times a second, which needs no library and works on every file
system. A server is asked less often.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

LOOK_SECONDS = 0.1
"""Time between two looks at the files."""


class Stop(Protocol):
    """What ends a loop, such as a `threading.Event`."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the loop shall end; return whether it shall."""
        ...

    def is_set(self) -> bool:
        """Return whether the loop shall end."""
        ...


@dataclass(frozen=True)
class Pace:
    """How often a loop goes on.

    Attributes:
        least_seconds: Least time between two rounds.
        awake_seconds: For this long after a change, the loop runs every `least_seconds`. The effects of a change can
            become due a little later, and changes often come in groups.
    """

    least_seconds: float = 0.25
    awake_seconds: float = 3.0

    def goes_on(self, *, waited: float, since_change: float | None) -> bool:
        """Return whether the loop goes on before its usual time.

        Args:
            waited: Seconds since the last round.
            since_change: Seconds since the last change; None if there was none.
        """
        if since_change is None or waited < self.least_seconds:
            return False
        return since_change <= self.awake_seconds or since_change <= waited


class Changes(Protocol):
    """Something that may have changed since the last question."""

    def seen(self) -> bool:
        """Return whether it changed since the last call."""
        ...


class FileChanges:
    """Whether any of some files was written since the last question.

    A file may be missing. An empty file counts as missing: SQLite creates and removes an empty log for each reader.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = tuple(files)
        self._seen = self._states()

    def seen(self) -> bool:
        """Return whether a file was written, created or removed since the last call."""
        before, self._seen = self._seen, self._states()
        return before != self._seen

    def _states(self) -> list[tuple[int, int, int] | None]:
        return [_state(file) for file in self._files]


class PolledChanges:
    """Whether the answer to a question has changed since the last one, such as what a database has.

    If there is no answer, nothing has changed: what depends on the server reports that it is gone.

    Args:
        ask: Returns the answer. It may raise any error.
        seconds: Least time between two questions. The first one is asked at once.
        clock: Returns seconds.
    """

    def __init__(
        self, ask: Callable[[], Hashable], *, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ask = ask
        self._seconds = seconds
        self._clock = clock
        self._asked_at = clock()
        self._answers: set[Hashable] = set()
        self._has_changed()

    def seen(self) -> bool:
        """Return whether the answer differs from the last one. The first answer does not count."""
        now = self._clock()
        if now - self._asked_at < self._seconds:
            return False
        self._asked_at = now
        return self._has_changed()

    def _has_changed(self) -> bool:
        try:
            answers = {self._ask()}
        except Exception:
            return False
        before, self._answers = self._answers, answers
        return bool(before) and before != answers


class FollowingChanges:
    """Changes of one kind, and those of another kind that follow them: others of that kind do not count.

    Args:
        first: Changes that count.
        second: Changes that count for some seconds after the newest of the first kind.
        seconds: How long that is.
        clock: Returns seconds.
    """

    def __init__(
        self, first: Changes, second: Changes, *, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._first = first
        self._second = second
        self._seconds = seconds
        self._clock = clock
        self._at: float | None = None

    def seen(self) -> bool:
        """Return whether there was a change that counts since the last call."""
        first, second = self._first.seen(), self._second.seen()
        now = self._clock()
        if first:
            self._at = now
        follows = self._at is not None and now - self._at <= self._seconds
        return first or (second and follows)


class WakingStop:
    """A stop whose `wait` also returns when something changes, so that the loop that waits for it goes on.

    It returns before its time only as often as the pace allows.
    """

    def __init__(
        self,
        stop: Stop,
        changes: Changes,
        pace: Pace,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stop = stop
        self._changes = changes
        self._pace = pace
        self._clock = clock
        self._changed_at: float | None = None

    def is_set(self) -> bool:
        """Return whether the loop shall end."""
        return self._stop.is_set()

    def since_change(self) -> float | None:
        """Return the seconds since a wait has seen the last change; None if none has seen one."""
        return None if self._changed_at is None else self._clock() - self._changed_at

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the loop shall end, it is time, or something has changed. Return whether the loop shall end."""
        began = self._clock()
        while not self._stop.is_set():
            now = self._clock()
            if self._changes.seen():
                self._changed_at = now
            is_time = timeout is not None and now - began >= timeout
            if is_time or self._pace.goes_on(waited=now - began, since_change=self.since_change()):
                return False
            self._stop.wait(LOOK_SECONDS)
        return True


def _state(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size, found.st_ino) if found.st_size else None
