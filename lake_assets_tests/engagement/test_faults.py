"""Batches and turns that are hit, on real services: what is seen is what docs/engagement-faults.md says."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lake_assets.engagement.failpoints import points
from lake_assets_tests.engagement.faults import PAGE, PARTS, PLAYED, page, seen
from lake_assets_tests.engagement.interrupted import reached, walk
from lake_assets_tests.engagement.world import World

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake_assets.settings import Settings


@pytest.fixture
def world(home: Settings, spark: SparkSession, kafka: str, zookeeper: str) -> World:
    return World(home, spark, kafka, zookeeper)


@pytest.mark.parametrize("part", PLAYED)
def test_d2_whatever_hits_a_batch_the_next_attempt_goes_on_as_the_page_says(part: str, world: World) -> None:
    said = seen()
    for column, outcomes in PARTS[part](world).items():
        assert outcomes == {point: said[column][point] for point in outcomes}


def test_the_page_says_nothing_else() -> None:
    assert page(seen()) == PAGE.read_text()


def test_an_attempt_after_a_death_begins_where_that_one_had_got_to() -> None:
    every = points(("data", "notification"))[:-2]
    assert reached(every, "before-intent") == every
    assert reached(every, "after-intent")[0] == "before-data"
    assert reached(every, "before-data")[0] == reached(every, "written-data")[0] == "before-data"
    assert reached(every, "recorded-data")[0] == "before-notification"
    assert reached(every, "recorded-notification") == every


@given(st.integers(1, 5))
def test_a_walk_goes_every_way(count: int) -> None:
    every = points(map(str, range(count)))[:-2]
    ways = {point: reached(every, point) for point in every}
    found = walk(ways, every[0], every[-1])
    taken = set(pairwise(found))
    assert taken == {(point, further) for point in every for further in ways[point]}
