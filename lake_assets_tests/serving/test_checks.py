"""What the checks of a push say when something is wrong."""

from __future__ import annotations

import dagster as dg
import pytest

from lake_assets.serving.dagster import check_push
from lake_assets.serving.push import PushReport, Rows
from lake_assets.serving.served_tables import Serving, open_serving
from lake_assets.serving.sources import NewestHour, Reading
from lake_assets.settings import Settings
from lake_assets_tests.serving.scenario import ROWS, World, now, snapshot

KEY = dg.AssetKey(["serving", "t"])


@pytest.fixture
def serving(served: World) -> Serving:
    return open_serving(served.zk, Settings(serving_folder=served.files.folder), clock=now)


def verdicts(serving: Serving, report: PushReport, *, expected: int) -> dict[str, bool]:
    source, reading = (
        NewestHour(report.table, "core.t", "hour"),
        Reading(Rows.of(snapshot(1)), "an hour", expected, "1@hour"),
    )
    return {str(found.check_name): found.passed for found in check_push(serving, KEY, source, report, reading)}


def test_a_push_of_other_rows_than_its_source_has_fails_its_count(served: World, serving: Serving) -> None:
    report = served.push(1)
    assert verdicts(serving, report, expected=ROWS) == {"row_count": True, "served_checksum": True}
    assert verdicts(serving, report, expected=ROWS + 1) == {"row_count": False, "served_checksum": True}


def test_a_routed_file_that_is_not_what_was_pushed_fails_its_checksum(served: World, serving: Serving) -> None:
    """It could still be read, and has as many rows. No query reads it."""
    report, other = served.push(1), served.push(2)
    kept, taken = (served.files.path(served.table, found.segments[0]) for found in (other, report))
    kept.write_bytes(taken.read_bytes())
    assert verdicts(serving, other, expected=ROWS) == {"row_count": False, "served_checksum": False}
