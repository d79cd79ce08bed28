"""Every command in any order, dying anywhere, and faults: nothing is lost or doubled, and erased rows never come back.

Each order is made of its number alone, which a failure names; LAKE_TEST_LANDING_ORDERS plays so many instead. A death
is an exception at a failpoint, which no code catches: what the command had not committed by then is not there.
`test_operations.py` and `test_loader.py` end whole processes at the same points. Of faults, a manifest or a storage is
lost or comes back from a backup, both are, or a file rots; then commands are refused until the operator has repaired.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

from lake_assets.base import failpoints
from lake_assets.base.failpoints import FILE_POINTS, TAILING_POINTS
from lake_assets.errors import FileDamaged, UsageError, ZoneMismatch
from lake_assets.landing.cutover import Policy, cut
from lake_assets.landing.heal import decide, repair
from lake_assets.landing.kafka import Place
from lake_assets.landing.manifest import ALL_STAGES, begun_offsets, files_of, shards_of
from lake_assets.landing.messages import Feed, Scrub
from lake_assets.landing.operations import (
    drop_leftovers,
    merge,
    open_reshards,
    remove_unscrubbed,
    scrub,
    sweep,
    to_columns,
)
from lake_assets.landing.records import DataFile, Record, parse_shard
from lake_assets.landing.reshard import reshard
from lake_assets.landing.state import DeletionRequest, SharedState
from lake_assets.landing.tail import Delivery, Tail, starts_of
from lake_assets.landing.zone_tailer import _belongs_to, lost_files, missing_files
from lake_assets.membership.raw import SIGNUPS
from lake_assets.settings import Settings
from lake_assets_tests.landing.made import path_of
from lake_assets_tests.landing.scenario import EVER, LIMITS, TOPIC, Landed
from lake_assets_tests.matrices import one_now

ORDERS = int(os.environ.get("LAKE_TEST_LANDING_ORDERS", "0"))
STEPS = 14
LENGTH = 15
POLICY = Policy(max_messages=3, max_bytes=1 << 20, max_age_ms=1 << 40)
FEED = Feed(TOPIC, SIGNUPS, "account_id")
BY = Scrub(FEED.distinct_id_of, lambda identity: f"hash of {identity}", FEED.sent)
MINUTE = timedelta(minutes=1)
POINTS = (*FILE_POINTS, *TAILING_POINTS)


class Death(BaseException):
    """A process ends here."""


def message(partition: int, offset: int) -> Record:
    """A signup of one of four accounts, or a dead letter."""
    if (offset + partition) % 4 == 1:
        return Record(partition, offset, 1_000 * offset, None, b"broken")
    account = f"account{offset % 7 % 4}"
    row = {"signup_id": f"s{offset}", "account_id": account, "event_ts": "2026-01-01T00:00:00Z"}
    return Record(partition, offset, 1_000 * offset, account.encode(), json.dumps(row).encode())


MESSAGES = {partition: [message(partition, offset) for offset in range(LENGTH)] for partition in range(2)}


class Order:
    """Two zones, two partitions, commands of a person, and faults of machines."""

    def __init__(self, settings: Settings, number: int, patch: pytest.MonkeyPatch, *, faults: bool) -> None:
        self.chance = random.Random(number)
        self.landed = Landed(settings)
        self.shards = 2 + number % 2
        self.faults = faults
        self.sent = dict.fromkeys(MESSAGES, 0)
        self.erased: list[tuple[str, dict[int, int]]] = []
        self.broken: set[str] = set()
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
        if self.faults:
            commands |= {"erase": self.erase, "rot": self.rot, "lose": self.lose, "repair": self.repair}
        for _ in range(STEPS):
            self.landed.clock += MINUTE
            zone = self.chance.choice("ab")
            name = self.chance.choice(["run", "run", "run", *commands])
            self.fuse = self.chance.choice([0, 1, 2, 3, 4, 6])
            self.log.append(f"{name} {zone}")
            try:
                commands[name](zone)
            except Death:
                self.start_again()
            except (ZoneMismatch, FileDamaged):
                assert self.broken, "nothing is refused where nothing was broken"
            finally:
                self.fuse = 0
            if not self.faults:  # the findings of a file that is being landed again are true; an error would not be
                self.landed.findings()

    def start_again(self) -> None:
        """Nothing of the memory of a process is left."""
        self.landed = Landed(self.landed.settings, clock=self.landed.clock)

    def run(self, zone: str) -> None:
        """What a tailer does when it starts, with the messages sent by now; its open files are lost."""
        for partition in self.sent:
            self.sent[partition] = min(self.sent[partition] + self.chance.randint(0, 5), LENGTH)
        writer = self.landed.writers[zone]
        manifest = writer.manifest
        for file in (*missing_files(manifest, TOPIC), *lost_files(manifest, TOPIC)):
            found = self.of(file)
            writer.land(writer.zone.draft(file.shard, file.ranges, found, kind=file.kind), now=self.landed.clock)
        files = files_of(manifest.entries(topic=TOPIC, stages=ALL_STAGES))
        begun = begun_offsets(manifest, TOPIC, [file for file in files if not file.holds_dead_letters])
        delivery = Delivery(writer, lambda: self.landed.clock, scrubs={TOPIC: BY} if self.faults else {})
        state = SharedState(manifest)
        for partition, start in starts_of(zone, files, MESSAGES, begun=begun, earliest={}).items():
            policies = state.policies(TOPIC, partition, default=POLICY)
            tail = Tail(Place(TOPIC, partition), FEED, lambda found=policies: found, start.offset)  # type: ignore[misc]
            for record in MESSAGES[partition][start.offset or 0 : self.sent[partition]]:
                closed = tail.take(record)
                if closed and not start.has_landed(closed):
                    delivery.take(start.without_landed_dead_letters(closed, writer.records))

    def erase(self, zone: str) -> None:
        """Of an account, what was sent by now; both zones are scrubbed, as far as they are there."""
        account, cut = f"account{self.chance.randrange(4)}", dict(self.sent)
        request = DeletionRequest(f"r{len(self.erased)}", TOPIC, BY.hashed(account), -1, cut)
        SharedState(self.landed.writers[zone].manifest).request_deletions(TOPIC, [request], now=self.landed.clock)
        self.erased.append((account, cut))
        for each in self.landed.zones:
            self.scrub_all(each)

    def rot(self, zone: str) -> None:
        """A file of a zone is torn, or a byte of it flips."""
        self.broken.add(zone)
        paths = [path_of(self.landed.writers[zone].zone, file.name) for file in self.landed.files(zone)]
        found = [path for path in paths if path.exists()]
        if found:
            path = self.chance.choice(found)
            content = bytearray(path.read_bytes())
            content[self.chance.randrange(len(content))] ^= 1
            path.write_bytes(content[: self.chance.choice([len(content), len(content) // 2])])

    def lose(self, zone: str) -> None:
        """A manifest, a storage or both are lost, or the storage or the manifest comes back as it was."""
        if self.broken:
            return  # one fault at a time: what a zone has alone would be lost for good
        self.broken.add(zone)
        home = self.landed.settings
        storage, manifest = home.landing_folder / zone, home.home / ("landing.db" if zone == "a" else "landing-b.db")
        kept = home.home / f"backup of {zone}"
        kind = self.chance.choice(["manifest", "storage", "both", "old manifest"])
        self.log[-1] += f": {kind}"
        for writer in self.landed.writers.values():
            writer.manifest.engine.dispose()
        if kind == "old manifest":
            if kept.exists():
                shutil.copy(kept, manifest)
            else:
                shutil.copy(manifest, kept)
        if kind in ("manifest", "both"):
            manifest.unlink()
        if kind in ("storage", "both") and storage.exists():
            shutil.rmtree(storage)
        self.start_again()

    def repair(self, _: str) -> None:
        """The operator: what cannot be mended from the other zone is discarded, and lands again."""
        writers = list(self.landed.writers.values())
        for done in repair(writers, now=self.landed.clock, deadline=MINUTE):
            if done.problem:
                with suppress(UsageError):
                    decide(writers, done.zone, done.name, "discard", now=self.landed.clock)
        self.broken.clear()

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
        with suppress(UsageError):  # another number is not finished yet
            of = self.chance.choice([1, 2, 3, 4]) if self.faults else self.shards
            reshard(self.landed.writers[zone], TOPIC, of, FEED.distinct_id_of, now=self.landed.clock)

    def scrub(self, zone: str) -> None:
        if self.chance.random() < 0.5:
            self.landed.clock += MINUTE
            wanted = f"n{len(SharedState(self.landed.manifest).deletions(TOPIC))}"
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
        if self.faults:
            self.start_again()
            self.landed.clock += 2 * MINUTE
            self.repair("")
        before = None
        while before != (before := [(e.file.zone, e.file.name, e.verdict) for e in self.landed.manifest.entries()]):
            for command in (self.run, self.scrub_all, self.finish, self.compact):
                for zone in "ab":
                    command(zone)
        for zone, writer in self.landed.writers.items():
            remove_unscrubbed(writer, TOPIC, now=self.landed.clock)
            self.sweep(zone)
            drop_leftovers(writer, before=EVER)

    def finish(self, zone: str) -> None:
        """A reshard that is under way, then the last one."""
        begun = open_reshards(self.landed.writers[zone], TOPIC)
        for of in (*(found.of for found in begun[-1:]), self.shards):
            with suppress(UsageError):
                reshard(self.landed.writers[zone], TOPIC, of or 1, FEED.distinct_id_of, now=self.landed.clock)

    def scrub_all(self, zone: str) -> None:
        scrub(self.landed.writers[zone], TOPIC, BY, now=self.landed.clock)

    def expected(self) -> list[Record]:
        """All messages of closed files, without those of whom was erased."""
        found = []
        for partition, messages in MESSAGES.items():
            for record in messages[: cut(messages, POLICY)[-1].last + 1]:
                key = (record.key or b"").decode()
                if not any(key == account and record.offset < ends[partition] for account, ends in self.erased):
                    found.append(record)
        return found


def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, numbers: Iterable[int], *, faults: bool) -> None:
    for number in numbers:
        order = Order(Settings(home=tmp_path / str(number)), number, monkeypatch, faults=faults)
        try:
            if number % 2 == 0:
                order.begin()
            order.play()
            order.settle()
            order.landed.assert_equal()
            assert any(not file.holds_dead_letters and file.count for file in order.landed.files("a"))
            for zone in "ab":
                assert order.landed.records(zone) == order.expected()
        except BaseException as error:
            error.add_note(f"order {number}: {'; '.join(order.log)}")
            raise


def test_no_order_of_commands_and_deaths_needs_a_hand_in_the_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(tmp_path, monkeypatch, range(ORDERS) or (0, 1), faults=False)


def test_dead_letters_that_are_discarded_in_both_zones_are_told_and_land_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = Order(Settings(home=tmp_path), 0, monkeypatch, faults=False)
    order.sent = dict.fromkeys(order.sent, LENGTH)
    for zone in "ab":
        order.run(zone)
    writers = list(order.landed.writers.values())
    dead = next(file for file in order.landed.files("a") if file.holds_dead_letters)
    for zone in "ab":
        path_of(order.landed.writers[zone].zone, dead.name).write_bytes(b"")
        decide(writers, zone, dead.name, "discard", now=order.landed.clock)
    ((partition, (first, last)),) = dead.ranges.items()
    told = f"dead letters of p{partition}:[{first}:{last}] are in no file of any zone any more"
    assert {(found.zone, found.problem) for found in order.landed.findings()} == {("a", told), ("b", told)}
    for zone in "ab":
        order.run(zone)
    order.landed.assert_equal()
    assert order.landed.records("a") == order.expected()


@pytest.mark.parametrize("numbers", one_now([range(1), *(range(n, n + 4) for n in range(1, 29, 4))]), ids=str)
def test_after_any_fault_a_repair_and_the_same_commands_bring_both_zones_to_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, numbers: range
) -> None:
    play(tmp_path, monkeypatch, range(ORDERS) or numbers, faults=True)
