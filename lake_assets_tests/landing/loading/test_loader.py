"""From Kafka into raw tables: each row once, whoever dies where; complete as far as heartbeats say."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from lake_assets.base.failpoints import LOADING_POINTS, TAILING_POINTS
from lake_assets.base.hours import parse_hour
from lake_assets.demo.membership_simulator import worked_example
from lake_assets.errors import PublishConflict
from lake_assets.incremental.engine.erasures import Erasures, create_table
from lake_assets.incremental.engine.iceberg import complete_through, load
from lake_assets.landing.heal import decide, verify
from lake_assets.landing.loading import Batch, commit, read_progress
from lake_assets.landing.operations import GroupLimits, merge
from lake_assets.landing.records import Shard
from lake_assets.landing.reshard import reshard
from lake_assets.membership.raw import RAW, SIGNUPS
from lake_assets_tests.landing.kafka_scenario import NOW, Landings, sent
from lake_assets_tests.landing.scenario import quarantine

if TYPE_CHECKING:
    from lake_assets.settings import Settings

EARLIER = datetime(2025, 12, 31, tzinfo=UTC)
LANDING_STEPS = ("landing-drafted", "landing-put", "landing-added")


@pytest.fixture
def landings(bare_home: Settings, kafka: str) -> Landings:
    found = Landings(bare_home, kafka)
    found.create()
    return found


def test_two_zones_at_different_speeds_bring_every_row_once(landings: Landings) -> None:
    first, late, last = worked_example()
    landings.send([first, late])
    landings.tail("a", read_at_once=7)
    assert landings.load() == []  # nothing is verified yet
    landings.tail("b")
    assert {entry.verdict for entry in landings.manifest.entries()} == {"verified"}
    landings.load()
    landings.send([last])
    landings.settle(last.landed_at + timedelta(minutes=30))
    for zone in ("b", "a"):
        landings.tail(zone)
    landings.load()
    assert landings.load() == []
    assert landings.rows() == sent([first, late, last])
    for raw in RAW:
        table = load(landings.catalog, raw.table)
        assert complete_through(table, raw.table) == last.complete_through[raw.table]


def test_whoever_dies_anywhere_the_same_comes_of_it(landings: Landings) -> None:
    first = worked_example()[0]
    landings.send([first])
    broken = landings.send_broken()
    landings.settle(first.landed_at + timedelta(hours=1))
    landings.die(*(f"{point}:a" for point in (*TAILING_POINTS, *LANDING_STEPS)))
    for zone in ("a", "b"):
        assert not landings.tail(zone).stopped
    landings.die(*(f"{point}:load" for point in LOADING_POINTS))
    landings.load()
    assert landings.rows() == sent([first])
    assert {entry.verdict for entry in landings.manifest.entries()} == {"verified"}
    for zone in ("a", "b"):
        assert landings.dead_letters(zone) == broken


def test_a_message_of_2099_completes_nothing_and_who_was_erased_is_dropped_at_the_door(landings: Landings) -> None:
    first = worked_example()[0]
    accounts = sorted(set(first.rows[SIGNUPS.table]["account_id"].to_pylist()))
    erased = Erasures(landings.catalog, key=lambda: b"key")
    create_table(landings.catalog)
    erased.record("account", accounts[0], "requested", erased_at=first.landed_at, now=first.landed_at)
    erased.record("account", accounts[1], "requested", erased_at=EARLIER, now=EARLIER)
    landings.send([first])
    landings.send_signup(accounts[2], datetime(2099, 1, 1, tzinfo=UTC), "of 2099")
    landings.settle(first.landed_at + timedelta(hours=1))
    for zone in ("a", "b"):
        landings.tail(zone)
    loaded = landings.load()
    signups = landings.rows()[SIGNUPS.table]
    assert datetime(2099, 1, 1, tzinfo=UTC) in {r["event_ts"] for r in signups if r["signup_id"] == "of 2099"}
    found = {row["account_id"] for row in signups}
    assert found == set(accounts) - {accounts[0]}
    assert sum(batch.erased for batch in loaded) == sum(
        rows["account_id"].to_pylist().count(accounts[0]) for rows in first.rows.values()
    )
    for raw in RAW:
        assert complete_through(load(landings.catalog, raw.table), raw.table) == parse_hour("2026-01-01-06:00")


def test_a_file_that_differs_stops_its_partition_and_once_it_is_decided_on_the_gap_is_landed_again(
    landings: Landings,
) -> None:
    first = worked_example()[0]
    landings.send([first])
    landings.settle(first.landed_at + timedelta(hours=1))
    landings.tail("a", spoil=150)
    stopped = landings.tail("b").stopped
    signups = landings.feeds[0].topic
    assert {place.topic for place in stopped} == {signups}
    assert len(landings.alarms) == len(stopped)
    assert f"zone b: stopped at {signups} partition" in landings.alarms[0]
    for place, differ in stopped.items():
        assert f"p{place.partition}:[150:" in differ.problem
    landings.load()
    assert landings.rows()[SIGNUPS.table] != sent([first])[SIGNUPS.table]
    writers = [landings.writer(zone) for zone in ("a", "b")]
    for entry in landings.manifest.entries(verdicts=("quarantined",)):
        for other in decide(writers, "b", entry.file.name, "release", now=NOW):
            decide(writers, "a", other.file.name, "discard", now=NOW)
    for zone in ("a", "b"):
        assert not landings.tail(zone).stopped
    landings.load()
    assert landings.rows() == sent([first])
    every = landings.manifest.entries(verdicts=("provisional", "verified", "quarantined"))
    assert {entry.verdict for entry in every} == {"verified"}


def test_what_is_discarded_beside_dead_letters_and_other_shards_is_landed_again(landings: Landings) -> None:
    first = worked_example()[0]
    landings.send([first])
    broken = landings.send_broken()
    landings.settle(first.landed_at + timedelta(hours=1))
    for zone in ("a", "b"):
        landings.tail(zone)
    feed, writers = landings.feeds[0], [landings.writer(zone) for zone in ("a", "b")]
    for writer in writers:
        merge(writer, Shard(feed.topic), GroupLimits(3, 1 << 20), now=NOW)
    for place in (0, 1, 0):
        reshard(writers[place], feed.topic, 2, feed.distinct_id_of, now=NOW)
    files = [e.file for e in landings.manifest.entries("b", feed.topic)]
    ends = ("dead-letters", "0-of-2")
    gone = [max((f for f in files if f.shard.endswith(end)), key=lambda f: len(f.ranges)) for end in ends]
    for file in gone:
        quarantine(writers[1].manifest, "b", file.name)
        decide(writers, "b", file.name, "discard", now=NOW)
    found = verify(writers, now=NOW, deadline=timedelta(minutes=15)).findings
    assert len(gone[1].ranges) == 2
    assert {(f.zone, f.name) for f in found if "is missing here" in f.problem} == {("b", file.name) for file in gone}
    landings.die("landing-put:b")
    assert not landings.tail("b").not_refetched
    assert verify(writers, now=NOW, deadline=timedelta(minutes=15)).findings == []
    assert landings.dead_letters("b") == broken
    landings.load()
    assert landings.rows() == sent([first])


def test_a_loader_that_was_overtaken_begins_anew(landings: Landings) -> None:
    first = worked_example()[0]
    landings.send([first])
    landings.settle(first.landed_at + timedelta(hours=1))
    for zone in ("a", "b"):
        landings.tail(zone)
    table = load(landings.catalog, SIGNUPS.table)
    progress = read_progress(table.metadata.properties, landings.feeds[0].topic)
    landings.load()
    with pytest.raises(PublishConflict):
        commit(landings.catalog, table, Batch([], progress.after({0: 1}, {}), None))
    assert landings.load() == []
    assert landings.rows() == sent([first])
