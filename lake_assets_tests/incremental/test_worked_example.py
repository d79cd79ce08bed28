"""The worked example of the guide comes out exactly: session rows, published and marked partitions, data."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lake_assets.base.grain import HOUR
from lake_assets.base.hours import hour_key
from lake_assets.demo.membership_simulator import land, worked_example
from lake_assets.incremental.execution.engine import utc_now
from lake_assets.incremental.monitoring import verify
from lake_assets.membership import PIPELINE
from lake_assets_tests.incremental.in_process_daemon import in_process_daemon
from lake_assets_tests.incremental.scenario import START, Lake

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession


def newest(lake: Lake, name: str) -> tuple[str, list[int]]:
    """What a target's newest session did: its load, and the hours that it built."""
    record = lake.engine.store.state(f"core.{name}").session
    assert record is not None
    assert record.state == "committed"
    return record.plan.load, [hour - START for hour in record.built]


def left(lake: Lake) -> dict[str, tuple[str, ...]]:
    """What targets have not taken in, where there is anything; but for the day, which is not complete."""
    due = [target for target in PIPELINE.targets if target.grain is HOUR]
    return {target.name: found for target in due if (found := verify.left(lake.engine, target))}


@pytest.mark.slow
def test_g6_g15_only_the_hours_that_changed_are_rebuilt_and_marked(catalog: Catalog, spark: SparkSession) -> None:
    lake, (first, late, rest) = Lake(catalog, spark), worked_example()
    with in_process_daemon(PIPELINE, catalog, utc_now, end=hour_key(START + 20), spark=spark) as daemon:
        land(spark, catalog, first)
        assert daemon.catch_up()["account_state_dim"] == [list(range(6))]

        land(spark, catalog, late)
        expected = {
            "signup_fact": ("append", [2, 3, 6]),
            "plan_fact": ("append", [2, 3, 6]),
            "cancel_request_fact": ("none", []),
            "cancel_fact": ("overwrite", [5, 6, 7]),
            "account_state_dim": ("overwrite", [2, 3, 4, 5, 6]),
        }
        assert daemon.catch_up() == {name: [hours] for name, (_, hours) in expected.items()}
        assert {name: newest(lake, name) for name in expected} == expected
        assert 7 not in daemon.hours_of("core.account_state_dim")
        dimension = lake.engine.store.state("core.account_state_dim").committed
        assert (dimension.pending, dimension.complete_through) == ({START + 7}, START + 6)

        assert left(lake) == {"account_state_dim": (f"{hour_key(START + 7)}: pending",)}
        land(spark, catalog, rest)
        assert left(lake)["signup_fact"] == ("raw.signups has snapshots that were not read",)
        marked = daemon.catch_up()
        assert marked["account_state_dim"] == [[7]]
        assert marked.get("cancel_fact", [[]]) == [[]]
        assert lake.complete_through("core.account_state_dim") == 7
    assert left(lake) == {}
    lake.assert_true()
