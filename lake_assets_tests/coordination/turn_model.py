"""A slow model of one lock: sensors that look now and then, runs that occupy slots, turns that take their time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from lake_assets.coordination.registry import DueStream, LockState, why_not_now
from lake_assets.coordination.rules import Granted, Stream, Turn, decide

STEP, TICK, START, RETRY = 5, 30, 5, 60
"""Seconds: of a step, between two looks of a sensor, until a run has started, and after a run that failed."""


@dataclass
class Model:
    """One lock.

    seconds: stream → interval. lasts: stream → duration of its turns. off: streams that nobody requests.
    by_sensor: whether a sensor waits for the turn; otherwise a run is requested when it is due, and waits in its slot.
    begun: stream → when its turns began. held: seconds of slots held by runs that wait. failed: runs that gave up.
    """

    streams: Mapping[str, Stream]
    seconds: Mapping[str, int]
    lasts: Mapping[str, int]
    by_sensor: bool
    max_wait: int = 300
    patience: int = 90
    off: frozenset[str] = frozenset()
    begun: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    held: int = 0
    failed: int = 0
    last: Turn | None = None
    changed_at: int = 0
    holder: str | None = None
    runs: dict[str, int] = field(default_factory=dict)
    waiting: dict[str, frozenset[str]] = field(default_factory=dict)
    next_ask: dict[str, int] = field(default_factory=dict)
    due_at: dict[str, int] = field(default_factory=dict)

    def play(self, seconds: int) -> Model:
        for now in range(0, seconds, STEP):
            self._end_turn(now)
            self._grant(now)
            self._wait(now)
            for place, name in enumerate(self.streams):
                if (now + 7 * STEP * place) % TICK == 0:
                    self._look(name, now)
        return self

    def _end_turn(self, now: int) -> None:
        if self.holder and now >= self.begun[self.holder][-1] + self.lasts[self.holder]:
            self.last, self.changed_at = Turn(self.holder, "done", 1), now
            self.due_at[self.holder] = now + self.seconds[self.holder]
            del self.runs[self.holder]
            self.holder = None

    def _grant(self, now: int) -> None:
        for name, asked_at in sorted(self.runs.items(), key=lambda run: run[1]):
            if self.holder is None and now >= asked_at + START:
                if isinstance(decide(self.streams[name], self.last, self.waiting), Granted):
                    self.holder, self.last, self.changed_at = name, Turn(name, "running", 1), now
                    self.begun[name].append(now)
                    self.waiting.pop(name, None)
                else:
                    self.waiting[name] = self.streams[name].accepts

    def _wait(self, now: int) -> None:
        for name, asked_at in list(self.runs.items()):
            if name == self.holder or now < asked_at + START:
                continue
            self.held += STEP
            if now >= asked_at + START + self.max_wait:
                del self.runs[name]
                self.waiting.pop(name, None)
                self.failed += 1
                self.next_ask[name] = min(self.next_ask[name], now + RETRY)

    def _look(self, name: str, now: int) -> None:
        since = self.next_ask.get(name, 0)
        if name in self.runs or name in self.off or now < since:
            return
        may_ask = self._may_ask(name, since, now) if self.by_sensor else self._asks_early(name)
        if may_ask:
            self.runs[name] = now
            self.next_ask[name] = now + self.seconds[name]

    def _asks_early(self, name: str) -> bool:
        """As sensors were before they read the registry: only that of maintenance waited, for a run of retention."""
        return (
            name != "maintenance" or "retention" in self.runs or (self.last or Turn("", "done", 1)).name == "retention"
        )

    def _may_ask(self, name: str, since: int, now: int) -> bool:
        contenders = () if self.holder is None else (self.holder,)
        seen = LockState(self.last, self.changed_at, contenders, self.waiting)
        due = [(other, self.due_at.get(other, 0)) for other in self.streams if other != name]
        others = [DueStream(self.streams[other], at) for other, at in due if at <= now]
        return why_not_now(DueStream(self.streams[name], since), others, seen, now=now, patience=self.patience) is None
