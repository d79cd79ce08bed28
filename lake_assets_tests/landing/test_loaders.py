"""Loaders beside each other, and what the zones have while they read: each row comes once, and none is passed over."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import pytest
from pyiceberg.types import IntegerType

from lake_assets.base.hours import hour_of
from lake_assets.connections.catalog import open_catalog
from lake_assets.errors import FileDamaged, SourceError
from lake_assets.incremental.engine import iceberg
from lake_assets.incremental.engine.planner import declare_complete
from lake_assets.landing.files import Zone
from lake_assets.landing.loading import HEARTBEATS, MAX_AHEAD
from lake_assets.landing.messages import HEARTBEAT
from lake_assets.landing.records import DataFile, Record, Shard
from lake_assets.landing.reshard import reshard
from lake_assets.landing.state import IdleSpan, record_idle
from lake_assets.membership import PIPELINE
from lake_assets.settings import Settings
from lake_assets_tests.landing.loads import FEED, die, loader, rows, signup
from lake_assets_tests.landing.made import path_of
from lake_assets_tests.landing.scenario import NOW, TOPIC, Landed, quarantine


@pytest.fixture
def landed(bare_home: Settings) -> Landed:
    return Landed(bare_home)


def land(landed: Landed, first: int, zones: Iterable[str] = "ab") -> None:
    """Three signups from an offset on, in zones."""
    for zone in zones:
        landed.land(zone, 0, first, [signup(offset) for offset in range(first, first + 3)])


def named(offsets: Iterable[int]) -> list[str]:
    return sorted(f"s{offset}" for offset in offsets)


def test_who_stages_the_same_batch_at_the_same_time_publishes_nothing_but_its_own(landed: Landed) -> None:
    """One loader reads; another one, of fewer files, stages the same batch and dies; the first one goes on."""
    land(landed, 0)
    land(landed, 3, "a")
    home = landed.settings
    list(loader(home, provisional=True, meanwhile=lambda: die(home, "loading-staged")).load())
    assert rows(home) == named(range(6))


def test_who_is_overtaken_between_reading_and_staging_begins_anew(landed: Landed) -> None:
    home = landed.settings
    for first in (0, 3):
        land(landed, first)
        list(loader(home, meanwhile=lambda: list(loader(home).load())).load())
    assert rows(home) == named(range(6))


def test_a_batch_that_ends_within_a_file_leaves_the_rest_to_the_next(
    landed: Landed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lake_assets.landing.loading.MAX_OFFSETS", 2)
    for first in (0, 3):
        land(landed, first)
    batches = list(loader(landed.settings).load())
    assert [(dict(batch.offsets), batch.rows) for batch in batches] == [
        ({0: (0, 2)}, 2),
        ({0: (2, 4)}, 2),
        ({0: (4, 6)}, 2),
    ]
    assert rows(landed.settings) == named(range(6))


def test_a_range_is_read_when_all_its_shards_may_be(landed: Landed) -> None:
    land(landed, 0)
    for zone in "aba":
        reshard(landed.writers[zone], TOPIC, 2, FEED.distinct_id_of, now=NOW)
    for number, zone in enumerate("ab"):
        (aside,) = (f for f in landed.files(zone) if f.shard == str(Shard(TOPIC, number, 2)))
        quarantine(landed.writers[zone].manifest, zone, aside.name)
    assert list(loader(landed.settings).load()) == []
    landed.writers["b"].manifest.release("b", aside.name, now=NOW)
    list(loader(landed.settings).load())
    assert rows(landed.settings) == named(range(3))


def test_a_partition_begins_with_its_first_file_though_that_is_in_quarantine(landed: Landed) -> None:
    land(landed, 0)
    land(landed, 3)
    for zone in "ab":
        quarantine(landed.writers[zone].manifest, zone, landed.files(zone)[0].name)
    assert list(loader(landed.settings).load()) == []


def test_a_damaged_file_is_read_in_the_other_zone(landed: Landed) -> None:
    home = landed.settings
    land(landed, 0)
    (file,) = landed.files("a")
    path_of(landed.writers["a"].zone, file.name).write_bytes(b"")
    (loaded,) = loader(home).load()
    assert (loaded.zone, loaded.rows) == ("b", 3)
    land(landed, 3)
    for zone in "ab":
        path_of(landed.writers[zone].zone, landed.files(zone)[1].name).write_bytes(b"")
    with pytest.raises(FileDamaged):
        list(loader(home).load())


@dataclass(frozen=True)
class Overtaken(Zone):
    """A zone in which something happens between the choice of the files and the first read."""

    happens: list[Callable[[], object]] = field(default_factory=list)

    def records(self, file: DataFile) -> Iterator[Record]:
        while self.happens:
            self.happens.pop()()
        yield from super().records(file)


def test_files_that_were_replaced_and_removed_since_they_were_chosen_are_no_damage(landed: Landed) -> None:
    for first in (0, 3):
        land(landed, first)

    def replace_all() -> None:
        """Both zones compact their files, and remove those that were replaced."""
        for zone in "abab":
            landed.run("merge", zone)
        landed.clock = NOW + timedelta(days=1)
        for zone in "ab":
            landed.run("sweep", zone)

    found = loader(landed.settings)
    happens: list[Callable[[], object]] = [replace_all]
    zones = [Overtaken(zone.name, zone.storage, happens) for zone in found.zones]
    (loaded,) = replace(found, zones=zones).load()
    assert (loaded.rows, happens) == (6, [])
    assert {file.kind for file in landed.files("a")} == {"columnar"}
    assert rows(landed.settings) == named(range(6))


def test_a_raw_table_with_other_columns_than_declared_is_refused(landed: Landed) -> None:
    land(landed, 0)
    found = loader(landed.settings)
    table = iceberg.load(open_catalog(landed.settings), FEED.raw.table)
    with table.update_schema(allow_incompatible_changes=True) as schema:
        schema.delete_column("plan")
    with table.update_schema() as schema:
        schema.add_column("plan", IntegerType())
    with pytest.raises(SourceError, match="plan"):
        list(found.load())
    assert rows(landed.settings) == []


def heartbeat(offset: int, time: datetime) -> Record:
    return Record(0, offset, offset, None, b"", ((HEARTBEAT, time.isoformat().encode()),))


def test_a_heartbeat_of_the_future_completes_nothing_and_what_is_forced_back_stays_back(landed: Landed) -> None:
    home, catalog = landed.settings, open_catalog(landed.settings)
    soon, far = NOW + MAX_AHEAD, datetime(2028, 6, 1, tzinfo=UTC)

    def complete(first: int, *beats: datetime) -> tuple[int | None, dict[int, datetime]]:
        """The complete-through after a file of heartbeats, and those that were ignored."""
        records = [heartbeat(first + number, beat) for number, beat in enumerate(beats)]
        for zone in "ab":
            landed.land(zone, 0, first, records)
        (loaded,) = loader(home, now=NOW).load()
        table = iceberg.load(catalog, FEED.raw.table)
        return iceberg.complete_through(table, FEED.raw.table), dict(loaded.ignored)

    assert complete(0, far, soon + timedelta(microseconds=1)) == (None, {0: far})
    assert complete(3, soon, far) == (hour_of(NOW) - 1, {0: far})

    # a version before has believed it
    table = iceberg.load(catalog, FEED.raw.table)
    believed = {HEARTBEATS: json.dumps({TOPIC: {"0": far.isoformat()}}), iceberg.COMPLETE_THROUGH: "2028-05-31-23:00"}
    with table.transaction() as transaction:
        transaction.set_properties(believed)
    declare_complete(catalog, PIPELINE, FEED.raw.table, hour_of(NOW) - 2, force=True)
    assert complete(6, soon) == (hour_of(NOW) - 1, {})


def test_idle_partitions_are_complete_without_files_as_far_as_both_zones_have_read(landed: Landed) -> None:
    home, hours = landed.settings, [NOW - timedelta(hours=number) for number in (4, 3, 2)]

    def read(zone: str, first: int, last: int, time: datetime) -> None:
        landed.writers[zone].require_storage()
        record_idle(landed.writers[zone].manifest, zone, [IdleSpan(TOPIC, 0, first, last, time)])

    def loaded() -> list[int | None]:
        batches = list(loader(home, now=NOW).load())
        assert [batch.rows for batch in batches if not batch.offsets] == [0] * len(batches)
        return [batch.complete_through for batch in batches]

    read("a", 0, 9, hours[1])
    assert loaded() == []  # zone b may see a row
    read("b", 0, 5, hours[0])
    assert loaded() == [hour_of(hours[0]) - 1]
    assert loaded() == []
    read("b", 0, 3, hours[0] - timedelta(hours=1))  # after a restart it reads them again
    read("b", 0, 9, hours[1])
    assert loaded() == [hour_of(hours[1]) - 1]
    assert landed.files("a") == landed.files("b") == []

    land(landed, 10, "a")
    for zone in "ab":
        read(zone, 13, 14, hours[2])
    assert loaded() == []  # a file is not verified yet
    land(landed, 10, "b")
    batches = list(loader(home, now=NOW).load())
    assert [(batch.rows, batch.complete_through) for batch in batches] == [
        (3, hour_of(hours[1]) - 1),
        (0, hour_of(hours[2]) - 1),
    ]
    for zone in "ab":
        read(zone, 13, 20, NOW + timedelta(days=700))
    assert loaded() == []  # of the future
