"""Zones at their own speeds, with restarts, and everything done to their files in any order: never a false alarm.

LAKE_TEST_LANDING_SCHEDULES says how many schedules are played; each is made of its number alone. `kafka_schedule` is a
program that plays others on a Kafka.
"""

from __future__ import annotations

import os
import random
from datetime import timedelta
from itertools import groupby
from pathlib import Path

from lake_assets.errors import FilesDiffer
from lake_assets.landing.coverage import Cover, ready_ends
from lake_assets.landing.cutover import Policy, cut
from lake_assets.landing.files import Draft
from lake_assets.landing.heal import decide
from lake_assets.landing.manifest import ALL_STAGES
from lake_assets.landing.records import Record
from lake_assets.landing.zones import ZoneWriter
from lake_assets.settings import Settings
from lake_assets_tests.landing.made import key_of
from lake_assets_tests.landing.scenario import BY, DEADLINE, OPERATIONS, WHOLE, Landed, sent

SCHEDULES = int(os.environ.get("LAKE_TEST_LANDING_SCHEDULES", "5"))
POLICY = Policy(max_messages=4, max_bytes=1 << 20, max_age_ms=3_000)
LENGTH = 14
SPOILT = 0.2
"""Of the files."""

MINUTE = timedelta(minutes=1)
"""From step to step: all of a schedule is within the deadline of waiting files."""


class Schedule:
    """Two zones, two partitions, a few deletion requests."""

    def __init__(self, settings: Settings, number: int) -> None:
        self.chance = random.Random(number)
        self.landed = Landed(settings)
        self.seen = {(zone, partition): 0 for zone in ("a", "b") for partition in range(2)}
        self.asked: list[tuple[str, int]] = []

    def play(self, steps: int) -> None:
        """Random steps; no add and no look may find anything."""
        for _ in range(steps):
            zone = self.chance.choice("ab")
            self.landed.clock += MINUTE
            step = self.chance.choice(["tail", "tail", "tail", "ask", *OPERATIONS])
            if step == "tail":
                self.tail(zone, self.chance.randrange(2), self.chance.randint(1, 6))
            elif step == "ask":
                self.ask()
            else:
                self.landed.run(step, zone)
            assert self.landed.findings() == []

    def tail(self, zone: str, partition: int, count: int) -> None:
        """So many messages more are there to read; the files that they close are landed, the open one is lost."""
        end = self.seen[zone, partition] = min(self.seen[zone, partition] + count, LENGTH)
        covers = [Cover(e.file.ranges, readable=True) for e in self.landed.manifest.entries(zone, stages=ALL_STAGES)]
        begin = ready_ends(covers, {partition: 0})[partition]
        messages = [sent(partition, offset) for offset in range(begin, end)]
        writer = self.landed.writers[zone]
        for span in cut(messages, POLICY):
            inside = [m for m in messages if span.first <= m.offset <= span.last]
            ranges = {partition: (span.first, span.last)}
            if self.chance.random() < SPOILT:
                self.spoil(writer, writer.zone.draft(str(WHOLE), ranges, inside[1:]))
            writer.land(writer.zone.draft(str(WHOLE), ranges, inside), now=self.landed.clock)

    def spoil(self, writer: ZoneWriter, draft: Draft) -> None:
        """Land what lacks a record, and have it decided on: discarded at once, or released first, by mistake."""
        zone, name, writers = writer.zone.name, draft.file.name, list(self.landed.writers.values())
        try:
            writer.land(draft, now=self.landed.clock)
        except FilesDiffer:
            for other in self.landed.manifest.entries("b" if zone == "a" else "a"):
                if other.file.name == name and self.chance.random() < 0.5:
                    decide(writers, zone, name, "release", now=self.landed.clock)
                    decide(writers, other.file.zone, name, "release", now=self.landed.clock)
        decide(writers, zone, name, "discard", now=self.landed.clock)

    def ask(self) -> None:
        person, through = f"person {self.chance.randrange(5)}", self.chance.randrange(LENGTH) * 1_000
        self.asked.append((person, through))
        self.landed.ask(person, f"r{len(self.asked)}", through)

    def settle(self) -> None:
        """Both zones come to the end of everything; a reshard to its end needs each zone twice."""
        for zone, partition in self.seen:
            self.tail(zone, partition, LENGTH)
        for operation in ("scrub", "merge", "reshard", "merge", "scrub", "columns", "reshard", "merge"):
            for zone in "abab":
                self.landed.run(operation, zone)

    def expected(self) -> list[Record]:
        """All messages of closed files, but those of whoever asked."""
        everything = [sent(partition, offset) for partition in range(2) for offset in range(LENGTH)]
        ends = {p: cut(list(stream), POLICY)[-1].last for p, stream in groupby(everything, lambda m: m.partition)}
        gone = {BY.hashed(person): max(t for p, t in self.asked if p == person) for person, _ in self.asked}
        closed = [m for m in everything if m.offset <= ends[m.partition]]
        return [m for m in closed if m.timestamp > gone.get(BY.hashed(str(key_of(m))), -1)]


def test_no_schedule_raises_an_alarm_and_all_end_in_the_same_files(tmp_path: Path) -> None:
    for number in range(SCHEDULES):
        schedule = Schedule(Settings(home=tmp_path / str(number)), number)
        schedule.play(12)
        schedule.settle()
        schedule.landed.clock += 2 * DEADLINE
        schedule.landed.assert_equal()
        for zone in "ab":
            assert schedule.landed.records(zone) == schedule.expected(), f"schedule {number}, zone {zone}"
