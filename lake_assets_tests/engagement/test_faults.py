"""Batches and turns that are hit, on real services: what is seen is what docs/engagement-faults.md says."""

from __future__ import annotations

from itertools import islice, pairwise
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lake_assets.base.failpoints import MAINTENANCE_POINTS, batch_points
from lake_assets.engagement.lake import STREAMS, StreamName
from lake_assets.engagement.lakes import EMAIL_EVENT
from lake_assets.engagement.tables import LakeTables
from lake_assets.engagement.turn import open_stream
from lake_assets.engagement.turn_order import MAINTENANCE
from lake_assets_tests.engagement.faults import PAGE, PARTS, PLAYED, page, seen
from lake_assets_tests.engagement.interrupted import (
    ANEW,
    die,
    prepare,
    reached,
    settle,
    stretches,
    walk,
)
from lake_assets_tests.engagement.several import Case, Crowd, cases, kind_of, play
from lake_assets_tests.engagement.world import World
from lake_assets_tests.matrices import one_now

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake_assets.settings import Settings


@pytest.fixture
def world(home: Settings, spark: SparkSession, kafka: str, zookeeper: str) -> World:
    return World(home, spark, kafka, zookeeper)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("part", one_now(PLAYED))
def test_d2_d4_whatever_hits_a_batch_the_next_attempt_goes_on_as_the_page_says(part: str, world: World) -> None:
    said = seen()
    for column, outcomes in PARTS[part](world).items():
        assert outcomes == {point: said[column][point] for point in outcomes}


@pytest.mark.faults
@pytest.mark.timeout(1200)
def test_d4_what_an_erasure_has_written_and_not_recorded_is_not_written_again(world: World) -> None:
    """Where a redo could lose or double something; the other points are played by hand."""
    mail = world.mail("written_retention")
    prepare(mail, "retention")
    deaths = [f"written-{process}" for process in ("erasure", "data", "requests", "redaction")]
    assert die(mail, "retention", deaths) == {point: seen()["retention"][point] for point in deaths}
    settle(mail)


@pytest.mark.faults
@pytest.mark.timeout(1200)
def test_d4_streams_that_die_one_after_the_other_leave_what_a_replay_leaves(world: World) -> None:
    """One of the cases that are played by hand."""
    case: Case = [("ingestion", "written-data"), ("mutation", "written-request")]
    play(Crowd(world.mail("one_case")), case, seen())


def test_deaths_that_are_drawn_can_be_reached() -> None:
    points = {name: batch_points(("request", "data", "notification"))[:-2] for name in STREAMS}
    found = list(islice(cases(points, 1), 500))
    assert found == list(islice(cases(points, 1), 500))
    assert {kind_of(case) for case in found} == {
        f"{number} of {streams}" for number in ("pairs", "triples") for streams in ("one stream", "several streams")
    }
    for case in found:
        for (name, point), (next_name, next_point) in pairwise(case):
            assert STREAMS.index(name) <= STREAMS.index(next_name)
            assert name != next_name or next_point in reached(points[name], point)


def test_the_page_says_nothing_else() -> None:
    assert page(seen()) == PAGE.read_text()


@pytest.mark.parametrize("name", STREAMS)
def test_the_page_has_the_points_of_each_stream_also_where_they_are_not_played(name: StreamName) -> None:
    """A process does what is written of it only if nothing of it was there, and those after it are left."""
    tables = LakeTables(EMAIL_EVENT, "file:/nowhere")
    processes = open_stream(name, tables, cast("SparkSession", None), "nowhere:1").commit_names
    expected = {"before-intent": ANEW, "after-intent": ", ".join(processes)}
    for number, process in enumerate(processes):
        rest = ", ".join(processes[number + 1 :])
        expected[f"before-{process}"] = ", ".join(processes[number:])
        expected[f"written-{process}"] = ", ".join(filter(None, (f"{process} (written)", rest)))
        expected[f"recorded-{process}"] = rest or ANEW
    assert seen()[name] == expected
    assert tuple(expected) == batch_points(processes)[:-2]


def test_the_page_has_the_points_of_maintenance() -> None:
    assert tuple(seen()[MAINTENANCE]) == MAINTENANCE_POINTS


def test_stretches_of_deaths_have_all_pairs() -> None:
    for most in (2, 3, 7):
        found = list(stretches("abcdefg", most))
        assert [pair for deaths in found for pair in pairwise(deaths)] == list(pairwise("abcdefg"))
        assert max(map(len, found)) <= most


def test_an_attempt_after_a_death_begins_where_that_one_had_got_to() -> None:
    every = batch_points(("data", "notification"))[:-2]
    assert reached(every, "before-intent") == every
    assert reached(every, "after-intent")[0] == "before-data"
    assert reached(every, "before-data")[0] == reached(every, "written-data")[0] == "before-data"
    assert reached(every, "recorded-data")[0] == "before-notification"
    assert reached(every, "recorded-notification") == every


@given(st.integers(1, 5))
def test_a_walk_goes_every_way(count: int) -> None:
    every = batch_points(map(str, range(count)))[:-2]
    ways = {point: reached(every, point) for point in every}
    found = walk(ways, every[0], every[-1])
    taken = set(pairwise(found))
    assert taken == {(point, further) for point in every for further in ways[point]}
