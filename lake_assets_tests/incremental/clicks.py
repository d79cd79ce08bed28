"""The smallest pipeline with two hops, and rows for it: raw.clicks → core.click_fact → core.click_state. No Spark."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa

from lake_assets.base.hours import hour_key, hour_start, parse_hour
from lake_assets.incremental.declaration import (
    Pipeline,
    RawTable,
    Sequential,
    SessionContext,
    Source,
    Stateless,
    incremental_asset,
)
from lake_assets.incremental.engine.engine import Engine
from lake_assets.incremental.engine.iceberg import COMPLETE_THROUGH
from lake_assets_tests.incremental.committing import carry

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import DataFrame

START = parse_hour("2026-01-01-00:00")


@incremental_asset(
    mode=Stateless(),
    sources=[Source("raw.clicks", time_column="event_ts")],
    key="click_id",
    time_column="clicked_at",
    columns={"click_id": "string", "clicked_at": "timestamptz"},
    lineage={"clicked_at": ["raw.clicks.event_ts"]},
)
def click_fact(session: SessionContext, clicks: DataFrame) -> DataFrame:
    """Clicks."""
    return clicks.selectExpr("click_id", "event_ts AS clicked_at")


@incremental_asset(
    mode=Sequential(),
    sources=[Source("core.click_fact", time_column="clicked_at")],
    key="click_id",
    time_column="state_hour",
    columns={"click_id": "string", "state_hour": "timestamptz"},
)
def click_state(session: SessionContext, clicks: DataFrame) -> DataFrame:
    """The last click of each hour."""
    return clicks.selectExpr("click_id", "date_trunc('hour', clicked_at) AS state_hour")


CLICKS = Pipeline(
    raw=(RawTable("raw.clicks", {"click_id": "string", "event_ts": "timestamptz"}, time_column="event_ts"),),
    targets=(click_fact, click_state),
    start=hour_key(START),
)


def land_clicks(catalog: Catalog, hours: Iterable[int], *, landing: int, complete: bool = True) -> None:
    """One click in each event hour, landed together; hours are counted from the start. complete: through `landing`."""
    landed_at = hour_start(START + landing)
    rows = [
        {
            "click_id": f"c{landing}-{hour}",
            "event_ts": hour_start(START + hour),
            "landed_at": landed_at,
            "landing_date": landed_at.date(),
            "landing_hour": landed_at.hour,
            "batch_id": f"b{landing}",
        }
        for hour in hours
    ]
    _append(catalog, "raw.clicks", rows, START + landing if complete else None)


def publish_clicks(catalog: Catalog, hours: Iterable[int], *, complete_through: int) -> None:
    """Rows of core.click_fact as a session of it would leave them, for what reads it. What it has read stays."""
    write_clicks(catalog, hours)
    engine = Engine(catalog, CLICKS, clock=lambda: at(8))
    carry(engine, click_fact, complete_through=START + complete_through)


def write_clicks(catalog: Catalog, hours: Iterable[int]) -> None:
    """Rows of core.click_fact that no session has written."""
    rows = [{"click_id": f"c{hour}", "clicked_at": hour_start(START + hour)} for hour in hours]
    _append(catalog, "core.click_fact", rows, None)


def at(hour: int, minute: int = 0, second: int = 0) -> datetime:
    """A moment of the pipeline's first day."""
    return datetime(2026, 1, 1, hour, minute, second, tzinfo=UTC)


def _append(catalog: Catalog, name: str, rows: list[dict[str, object]], complete_through: int | None) -> None:
    table = catalog.load_table(name)
    with table.transaction() as tx:
        tx.append(pa.Table.from_pylist(rows, schema=table.schema().as_arrow()))
        if complete_through is not None:
            tx.set_properties({COMPLETE_THROUGH: hour_key(complete_through)})
