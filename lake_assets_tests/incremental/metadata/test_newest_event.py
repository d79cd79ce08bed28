"""Complete-through by a rule, against an oracle that looks at each row. Real metadata, no Spark."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import count
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, TimestampType, TimestamptzType

from lake_assets.base.hours import hour_key
from lake_assets.errors import UsageError
from lake_assets.incremental.declaration import Pipeline, RawTable
from lake_assets.incremental.engine import iceberg
from lake_assets.incremental.engine.planner import (
    complete_by_rule,
    declare_complete,
    newest_event,
    source_complete_through,
)

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
START = 490896
FIRST = datetime(2026, 1, 1, tzinfo=UTC)
NUMBERS = count()
MINUTES = st.integers(-300, 300)


def create(catalog: Catalog, name: str, *, has_zone: bool, metrics: str) -> Table:
    catalog.create_namespace_if_not_exists("prod")
    schema = Schema(NestedField(1, "at", TimestamptzType() if has_zone else TimestampType()))
    merged = {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "3"}
    return catalog.create_table(name, schema, properties={"write.metadata.metrics.default": metrics, **merged})


def append(table: Table, minutes: list[int | None]) -> None:
    """Rows at FIRST + minutes."""
    column = table.schema().as_arrow().field("at").type
    moments = [None if m is None else FIRST + timedelta(minutes=m) for m in minutes]
    naive = [m if m is None or column.tz else m.replace(tzinfo=None) for m in moments]
    table.append(pa.table({"at": pa.array(naive, column)}))


def committed_at(table: Table, minutes: list[int], *, expired: int = 0) -> None:
    """Let the snapshots have been committed at FIRST + minutes, and let the first ones have expired."""
    first_ms = int(FIRST.timestamp() * 1000)
    ordered = sorted(table.metadata.snapshots, key=lambda s: s.sequence_number or 0)
    dated = [
        s.model_copy(update={"timestamp_ms": first_ms + 60_000 * m}) for s, m in zip(ordered, minutes, strict=True)
    ]
    table.metadata = table.metadata.model_copy(update={"snapshots": dated[expired:]})


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    commits=st.lists(
        st.tuples(st.integers(1, 200), st.lists(st.none() | MINUTES, min_size=1, max_size=3)), min_size=1, max_size=4
    ),
    expired=st.integers(0, 3),
    has_zone=st.booleans(),
    metrics=st.sampled_from(["full", "none"]),
)
@example(commits=[(10, [5, 100]), (60, [20])], expired=1, has_zone=True, metrics="full")
@example(commits=[(10, [5, 11]), (60, [None])], expired=0, has_zone=False, metrics="none")
def test_the_newest_event_is_that_of_the_rows_up_to_their_commit(
    catalog: Catalog,
    commits: list[tuple[int, list[int | None]]],
    expired: int,
    has_zone: bool,
    metrics: str,
) -> None:
    table = create(catalog, f"prod.events{next(NUMBERS)}", has_zone=has_zone, metrics=metrics)
    times: list[int] = []
    for wait, rows in commits:
        append(table, rows)
        times.append(wait + (times[-1] if times else 0))
    expired = min(expired, len(commits) - 1)
    committed_at(table, times, expired=expired)

    newest = None
    for number, (_, rows) in enumerate(commits):
        limit = times[max(number, expired)]
        for minute in rows:
            if minute is not None and minute <= limit and (newest is None or minute > newest):
                newest = minute
    found = newest_event(table, "at")
    expected = None if newest is None else (FIRST + timedelta(minutes=newest) - EPOCH) // timedelta(microseconds=1)
    assert found == expected


@given(newest=st.integers(-(10**11), 10**11), lag=st.integers(0, 200_000))
def test_an_hour_is_complete_if_its_end_is_far_enough_behind(newest: int, lag: int) -> None:
    newest_at = FIRST + timedelta(microseconds=newest)
    hour = START - 200
    while FIRST + timedelta(hours=hour + 2 - START) + timedelta(seconds=lag) <= newest_at:
        hour += 1
    found = complete_by_rule((newest_at - EPOCH) // timedelta(microseconds=1), timedelta(seconds=lag))
    assert found == hour
    assert complete_by_rule(None, timedelta(seconds=lag)) is None


def test_the_later_of_the_rule_and_the_property_counts(catalog: Catalog) -> None:
    table = create(catalog, "prod.events", has_zone=False, metrics="full")
    raw = RawTable("prod.events", time_column="at", complete_after="30 minutes")
    pipeline = Pipeline(raw=(raw,), targets=(), start=hour_key(START))

    def through() -> int | None:
        found = source_complete_through(iceberg.load(catalog, "prod.events"), "prod.events", pipeline)
        return None if found is None else found - START

    assert through() is None
    append(table, [10, 150])  # 02:30
    assert through() == 1
    append(table, [10_000_000])  # in the year 2045
    assert through() == 1
    with pytest.raises(UsageError, match=r"complete through 2026-01-01-01:00 already"):
        declare_complete(catalog, pipeline, "events", START)
    assert declare_complete(catalog, pipeline, "events", START + 4).before == START + 1
    assert through() == 4
    append(iceberg.load(catalog, "prod.events"), [389])  # 06:29
    assert through() == 4
    append(iceberg.load(catalog, "prod.events"), [390])
    assert through() == 5


def test_a_table_of_the_kafka_connect_sink_is_complete_through_what_its_snapshots_say(catalog: Catalog) -> None:
    table = create(catalog, "prod.events", has_zone=True, metrics="full")
    raw = RawTable("prod.events", time_column="at", complete_after="valid-through")
    pipeline = Pipeline(raw=(raw,), targets=(), start=hour_key(START))
    rows = pa.table({"at": [FIRST]}, schema=table.schema().as_arrow())
    said = {
        "2026-01-01T02:59:59.999Z": 1,
        None: 1,  # some partitions had not answered
        "2026-01-01T05:00Z": 4,  # Java leaves out seconds that are zero
        "2026-01-01T05:00:00.123456789+01:00": 3,
        "no time": 3,
    }
    for text, through in said.items():
        properties = {} if text is None else {"kafka.connect.valid-through-ts": text}
        table.append(rows, snapshot_properties=properties)
        found = source_complete_through(iceberg.load(catalog, "prod.events"), "prod.events", pipeline)
        assert found == START + through, text
    assert raw.lag is None
