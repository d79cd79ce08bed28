"""Every command in any order, dying anywhere: no order needs a hand in the manifest, and nothing is lost or doubled.

LAKE_TEST_LANDING_ORDERS says how many orders are played, by default a few; each is made of its number alone. A death is
an exception at a failpoint, which no code catches: what the command had not committed by then is not there.
`test_operations.py` and `test_loader.py` end whole processes at the same points.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from lake_assets.base import failpoints
from lake_assets.base.failpoints import FILE_POINTS, TAILING_POINTS
from lake_assets.landing.cutover import Policy, cut
from lake_assets.landing.heal import decide
from lake_assets.landing.kafka import Place
from lake_assets.landing.manifest import ALL_STAGES, begun_offsets, files_of, shards_of
from lake_assets.landing.messages import Feed, Scrub
from lake_assets.landing.operations import drop_leftovers, merge, remove_unscrubbed, scrub, sweep, to_columns
from lake_assets.landing.records import DataFile, Record, parse_shard
from lake_assets.landing.reshard import reshard
from lake_assets.landing.state import SharedState
from lake_assets.landing.tail import Delivery, Tail, starts_of
from lake_assets.landing.zone_tailer import _belongs_to, missing_files
from lake_assets.membership.raw import SIGNUPS
from lake_assets.settings import Settings
from lake_assets_tests.landing.loads import signup
from lake_assets_tests.landing.made import path_of
from lake_assets_tests.landing.scenario import EVER, LIMITS, TOPIC, Landed

ORDERS = range(int(os.environ.get("LAKE_TEST_LANDING_ORDERS", "0"))) or (0, 1, 6, 20)
STEPS = 16
LENGTH = 15
POLICY = Policy(max_messages=3, max_bytes=1 << 20, max_age_ms=1 << 40)
FEED = Feed(TOPIC, SIGNUPS, "account_id")
BY = Scrub(FEED.distinct_id_of, lambda identity: f"hash of {identity}", FEED.sent)
MINUTE = timedelta(minutes=1)
POINTS = (*FILE_POINTS, *TAILING_POINTS)


class Death(BaseException):
    """A process ends here."""


def message(partition: int, offset: int) -> Record:
    """A signup, or a dead letter."""
    if (offset + partition) % 4 == 1:
        return Record(partition, offset, 1_000 * offset, None, b"broken")
    return signup(offset)._replace(partition=partition)


MESSAGES = {partition: [message(partition, offset) for offset in range(LENGTH)] for partition in range(2)}


class Order:
    """Two zones, two partitions, and commands of a person."""

    def __init__(self, settings: Settings, number: int, patch: pytest.MonkeyPatch) -> None:
        self.chance = random.Random(number)
        self.landed = Landed(settings)
        self.shards = 2 + number % 2
        self.sent = dict.fromkeys(MESSAGES, 0)
        self.fuse = 0
        self.dies_at = ""
        self.log: list[str] = []
        patch.setattr(failpoints, "_strike", self.strike)

    def strike(self, point: str) -> None:
        self.fuse -= 1
        if self.fuse == 0 or point == self.dies_at:
            self.log.append(f"dies at {point}")
            raise Death

    def begin(self) -> None:
        """Zone a dies between dead letters and their file, which then have another form when it starts again."""
        self.sent = dict.fromkeys(self.sent, 2 * POLICY.max_messages)
        self.dies_at = "tailing-dead-letters-landed"
        with pytest.raises(Death):
            self.run("a")
        self.dies_at = ""
        for command, zone in ((self.run, "b"), (self.compact, "a"), (self.sweep, "a")):
            command(zone)

    def play(self) -> None:
        commands: dict[str, Callable[[str], object]] = {
            "run": self.run,
            "compact": self.compact,
            "reshard": self.reshard,
            "scrub": self.scrub,
            "sweep": self.sweep,
            "discard": self.discard,
        }
        for _ in range(STEPS):
            self.landed.clock += MINUTE
            zone = self.chance.choice("ab")
            name = self.chance.choice(["run", "run", "run", *commands])
            self.fuse = self.chance.choice([0, 1, 2, 3, 4, 6])
            self.log.append(f"{name} {zone}")
            try:
                commands[name](zone)
            except Death:
                pass
            finally:
                self.fuse = 0
            # The findings of a file that is being landed again are true; an error would not be.
            self.landed.findings()

    def run(self, zone: str) -> None:
        """What a tailer does when it starts, with the messages sent by now; its open files are lost."""
        for partition in self.sent:
            self.sent[partition] = min(self.sent[partition] + self.chance.randint(0, 5), LENGTH)
        manifest, writer = self.landed.manifest, self.landed.writers[zone]
        for file in missing_files(manifest, zone, TOPIC):
            found = self.of(file)
            writer.land(writer.zone.draft(file.shard, file.ranges, found, kind=file.kind), now=self.landed.clock)
        files = files_of(manifest.entries(topic=TOPIC, stages=ALL_STAGES))
        begun = begun_offsets(manifest, TOPIC, [file for file in files if not file.holds_dead_letters])
        delivery, state = Delivery(writer, lambda: self.landed.clock), SharedState(manifest)
        for partition, start in starts_of(zone, files, MESSAGES, begun=begun, earliest={}).items():
            policies = state.policies(TOPIC, partition, default=POLICY)
            tail = Tail(Place(TOPIC, partition), FEED, lambda found=policies: found, start.offset)  # type: ignore[misc]
            for record in MESSAGES[partition][start.offset or 0 : self.sent[partition]]:
                closed = tail.take(record)
                if closed and not start.has_landed(closed):
                    delivery.take(start.without_landed_dead_letters(closed))

    def of(self, file: DataFile) -> list[Record]:
        """The messages that a file holds when it lands again."""
        shard = parse_shard(file.shard)
        spans = [MESSAGES[p][first : last + 1] for p, (first, last) in file.ranges.items()]
        return [record for span in spans for record in span if _belongs_to(shard, record, FEED)]

    def compact(self, zone: str) -> None:
        writer = self.landed.writers[zone]
        for shard in shards_of(writer.manifest, TOPIC):
            merge(writer, shard, LIMITS, now=self.landed.clock)
        to_columns(writer, TOPIC, now=self.landed.clock)

    def reshard(self, zone: str) -> None:
        reshard(self.landed.writers[zone], TOPIC, self.shards, FEED.distinct_id_of, now=self.landed.clock)

    def scrub(self, zone: str) -> None:
        if self.chance.random() < 0.5:
            self.landed.clock += MINUTE
            wanted = f"r{len(SharedState(self.landed.manifest).deletions(TOPIC))}"
            self.landed.ask("nobody", wanted, sent_through=0)
        writer = self.landed.writers[zone]
        scrub(writer, TOPIC, BY, now=self.landed.clock)
        remove_unscrubbed(writer, TOPIC, now=self.landed.clock)

    def sweep(self, zone: str) -> None:
        writer = self.landed.writers[zone]
        sweep(writer.manifest, writer.zone, retired_before=self.landed.clock + MINUTE)

    def discard(self, zone: str) -> None:
        """A file of a zone is damaged, and a person discards it."""
        files = self.landed.files(zone)
        if files:
            file = self.chance.choice(files)
            path_of(self.landed.writers[zone].zone, file.name).write_bytes(b"")
            decide(list(self.landed.writers.values()), zone, file.name, "discard", now=self.landed.clock)

    def settle(self) -> None:
        """Both zones come to the end of everything, without dying."""
        self.sent = dict.fromkeys(self.sent, LENGTH)
        for _ in range(3):
            for command in (self.run, self.scrub_all, self.reshard, self.compact, self.reshard):
                for zone in "abab":
                    command(zone)
        for zone, writer in self.landed.writers.items():
            self.sweep(zone)
            drop_leftovers(writer, before=EVER)

    def scrub_all(self, zone: str) -> None:
        scrub(self.landed.writers[zone], TOPIC, BY, now=self.landed.clock)


def expected() -> list[Record]:
    """All messages of closed files."""
    ends = {partition: cut(messages, POLICY)[-1].last for partition, messages in MESSAGES.items()}
    return [record for partition in MESSAGES for record in MESSAGES[partition][: ends[partition] + 1]]


def test_no_order_of_commands_and_deaths_needs_a_hand_in_the_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in ORDERS:
        order = Order(Settings(home=tmp_path / str(number)), number, monkeypatch)
        try:
            if number % 2 == 0:
                order.begin()
            order.play()
            order.settle()
            order.landed.assert_equal()
            for zone in "ab":
                assert order.landed.records(zone) == expected()
        except BaseException as error:
            error.add_note(f"order {number}: {'; '.join(order.log)}")
            raise
