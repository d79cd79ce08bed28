"""Tables that other programs have created: read as they are, through late rows, rewrites, overwrites and deletes."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, HourTransform
from pyiceberg.types import DoubleType, NestedField, StringType, TimestampType, TimestamptzType

from lake_assets.base.hours import hour_key, parse_hour
from lake_assets.errors import ConfigurationError, SourceError, UsageError
from lake_assets.incremental.declaration import (
    Pipeline,
    RawTable,
    Source,
    Stateful,
    Stateless,
    Subject,
    incremental_asset,
)
from lake_assets.incremental.engine import iceberg
from lake_assets.incremental.engine.columns import existing_problems, subject_columns
from lake_assets.incremental.engine.engine import Engine
from lake_assets.incremental.engine.model import NoSession, SessionPlan, SessionReport
from lake_assets.incremental.engine.planner import declare_complete, present_heads
from lake_assets.incremental.operations.health import freshness
from lake_assets.incremental.operations.maintain import Maintainer, tables_of
from lake_assets_tests.incremental.clicks import at

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import DataFrame, SparkSession

    from lake_assets.incremental.declaration import SessionContext, Target

START = parse_hour("2026-01-01-00:00")
EVENTS = RawTable("prod.events", time_column="EventTs", complete_after="30 minutes")
REFUNDS = RawTable("prod.refunds", time_column="at")


@incremental_asset(
    mode=Stateless(),
    sources=[Source("prod.events", time_column="EventTs", key="event_id")],
    key="event_id",
    time_column="happened_at",
    columns={"event_id": "string", "happened_at": "timestamptz", "amount": "long"},
)
def event_fact(session: SessionContext, events: DataFrame) -> DataFrame:
    """Events."""
    return events.selectExpr("event_id", "EventTs AS happened_at", "`amount in ct` AS amount")


@incremental_asset(
    mode=Stateful(load="changed"),
    sources=[
        Source("prod.events", time_column="EventTs", key="event_id"),
        Source("prod.refunds", time_column="at", key="refund_id"),
    ],
    key="kind",
    time_column="hour",
    columns={"kind": "string", "hour": "timestamptz", "rows": "long"},
)
def hourly(session: SessionContext, events: DataFrame, refunds: DataFrame) -> DataFrame:
    """Rows of each kind by hour."""
    both = events.selectExpr("'event' AS kind", "date_trunc('hour', EventTs) AS hour").unionByName(
        refunds.selectExpr("'refund' AS kind", "date_trunc('hour', at) AS hour")
    )
    return both.groupBy("kind", "hour").count().withColumnRenamed("count", "rows")


PIPELINE = Pipeline(raw=(EVENTS, REFUNDS), targets=(event_fact, hourly), start=hour_key(START))


def create_tables(catalog: Catalog) -> None:
    """As other programs might: an odd partition spec, a time without a zone, and no bounds of the time."""
    catalog.create_namespace("prod")
    events = Schema(
        NestedField(1, "event_id", StringType(), required=True),
        NestedField(2, "EventTs", TimestampType()),
        NestedField(3, "amount in ct", DoubleType()),
        NestedField(4, "loaded", TimestamptzType()),
    )
    table = catalog.create_table("prod.events", events)
    with table.update_spec() as spec:
        spec.add_field("event_id", BucketTransform(2), "shard")
        spec.add_field("loaded", HourTransform(), "landing_hour")
    refunds = Schema(NestedField(1, "refund_id", StringType()), NestedField(2, "at", TimestamptzType()))
    properties = {"write.metadata.metrics.column.at": "none"}
    catalog.create_table("prod.refunds", refunds, properties=properties)


def events(catalog: Catalog, **moments: datetime) -> pa.Table:
    rows = [
        {"event_id": name, "EventTs": moment.replace(tzinfo=None), "amount in ct": 7, "loaded": at(9)}
        for name, moment in moments.items()
    ]
    return pa.Table.from_pylist(rows, schema=catalog.load_table("prod.events").schema().as_arrow())


def refunds(catalog: Catalog, **moments: datetime) -> pa.Table:
    rows = [{"refund_id": name, "at": moment} for name, moment in moments.items()]
    return pa.Table.from_pylist(rows, schema=catalog.load_table("prod.refunds").schema().as_arrow())


def session(engine: Engine, target: Target) -> SessionReport:
    report = engine.run(target)
    assert isinstance(report, SessionReport), report
    return report


def built(engine: Engine, target: Target) -> list[int]:
    return [hour - START for hour in session(engine, target).hours_built]


def facts(catalog: Catalog) -> dict[str, datetime]:
    rows = catalog.load_table("core.event_fact").scan().to_arrow().to_pylist()
    assert {row["amount"] for row in rows} == {7}
    assert len({row["event_id"] for row in rows}) == len(rows)
    return {row["event_id"]: row["happened_at"] for row in rows}


def counts(catalog: Catalog) -> Counter[tuple[str, int]]:
    rows = catalog.load_table("core.hourly").scan().to_arrow().to_pylist()
    return Counter({(row["kind"], row["hour"].hour): row["rows"] for row in rows})


def test_tables_of_others_are_read_as_they_are(catalog: Catalog, spark: SparkSession) -> None:
    engine = Engine(catalog, PIPELINE, clock=lambda: at(9), spark=lambda: spark)
    create_tables(catalog)
    before = [iceberg.load(catalog, raw.table).metadata_location for raw in PIPELINE.raw]
    assert not {"prod.events", "prod.refunds"} & set(engine.create_tables())
    assert not existing_problems(catalog, PIPELINE)
    assert [iceberg.load(catalog, raw.table).metadata_location for raw in PIPELINE.raw] == before

    catalog.load_table("prod.events").append(events(catalog, a=at(0, 10), b=at(1, 20), c=at(2, 40)))
    catalog.load_table("prod.refunds").append(refunds(catalog, r=at(0, 5), s=at(1, 5)))
    assert built(engine, event_fact) == [0, 1, 2]
    waits = engine.run(hourly)
    assert isinstance(waits, NoSession)
    assert "prod.refunds" in waits.reason
    declare_complete(catalog, PIPELINE, "prod.refunds", START + 5)
    assert built(engine, hourly) == [0, 1]
    assert counts(catalog) == Counter({("event", 0): 1, ("event", 1): 1, ("refund", 0): 1, ("refund", 1): 1})

    # A late event, new ones, and one from the far future, which completes nothing.
    far = datetime(2199, 1, 1, 12, tzinfo=UTC)
    late = events(catalog, late=at(0, 50), d=at(4, 10), far=far)
    catalog.load_table("prod.events").append(late)
    assert built(engine, event_fact) == [0, 4, (far - at(0)) // timedelta(hours=1)]
    hours = session(engine, hourly)
    assert [hour - START for hour in hours.hours_built] == [0, 2]
    assert hours.plan.complete_through == START + 2
    assert facts(catalog) == {"a": at(0, 10), "b": at(1, 20), "c": at(2, 40), "late": at(0, 50), "d": at(4, 10)} | {
        "far": far
    }

    # A rewrite changes no row, so it changes no hour.
    for name in ("prod.events", "prod.refunds"):
        options = "options => map('rewrite-all', 'true')"
        spark.sql(f"CALL lake.system.rewrite_data_files(table => '{name}', {options})").collect()
    for target in PIPELINE.targets:
        found = engine.run(target)
        assert isinstance(found, NoSession) or not found.hours_built
    rewrite = engine.raw_activity(EVENTS, since=None)[-1]
    assert (rewrite.operation, rewrite.rows_by_hour) == ("replace", {})

    # An event moves from hour 1 to hour 2, and one of hour 0 is deleted.
    moved = events(catalog, b=at(2, 20))
    catalog.load_table("prod.events").overwrite(moved, overwrite_filter="event_id = 'b'")
    catalog.load_table("prod.events").delete("event_id = 'a'")
    planned = engine.decide(event_fact)
    assert isinstance(planned, SessionPlan)
    assert {START, START + 1, START + 2} <= set(planned.hour_numbers)
    assert built(engine, event_fact) == [0, 1, 2]
    assert built(engine, hourly) == [0, 1, 2]
    assert facts(catalog) == {"b": at(2, 20), "c": at(2, 40), "late": at(0, 50), "d": at(4, 10), "far": far}
    assert counts(catalog) == Counter({("event", 0): 1, ("event", 2): 2, ("refund", 0): 1, ("refund", 1): 1})

    with catalog.load_table("prod.events").update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("EventTs")
    with pytest.raises(SourceError, match=r"no column 'EventTs'(.|\n)*time_column=: loaded"):
        engine.decide(event_fact)


def test_what_is_wrong_with_a_table_is_said_in_two_lines(catalog: Catalog) -> None:
    def message(pipeline: Pipeline) -> str:
        return "\n".join(map(str, existing_problems(catalog, pipeline)))

    assert re.search(r"prod\.events is not in the catalog.*\n.*no table in prod", message(PIPELINE))
    assert "prod.refunds is not in the catalog" in message(PIPELINE), "every one is named"
    create_tables(catalog)
    for wrong, expected in [
        (replace(EVENTS, table="prod.evnts"), r"prod\.evnts is not in the catalog.*\n.*prod has: prod\.events, prod\."),
        (replace(EVENTS, time_column="event_ts"), r"has no column 'event_ts'.*\n.*time_column=: EventTs, loaded"),
        (replace(EVENTS, time_column="event_id"), r"has the column 'event_id' as string.*\n.*EventTs, loaded"),
    ]:
        assert re.search(expected, message(replace(PIPELINE, raw=(wrong,), targets=())))
    with catalog.load_table("prod.refunds").update_schema() as update:
        update.add_column("landed_at", StringType())
    assert not message(PIPELINE)
    landed = replace(REFUNDS, landed_column="landed_at")
    of_landed = message(replace(PIPELINE, raw=(landed,), targets=()))
    assert re.search(r"has the column 'landed_at' as string.*\n.*landed_column=: at", of_landed)
    with catalog.load_table("prod.events").update_schema() as update:
        update.add_column("person", DoubleType())
    with pytest.raises(ConfigurationError, match=r"prod\.events\.person, an id of the subject person, is double"):
        subject_columns(catalog, EVENTS, Subject("person", columns=("person",)))


def test_a_plan_follows_the_rule(catalog: Catalog) -> None:
    create_tables(catalog)
    engine = Engine(catalog, PIPELINE, clock=lambda: at(9))
    engine.create_tables()
    catalog.load_table("prod.events").append(events(catalog, a=at(0, 10), c=at(2, 40)))
    planned = engine.decide(event_fact)
    assert isinstance(planned, SessionPlan)
    assert (planned.hour_numbers, planned.complete_through) == ((START, START + 2), START + 1)
    (head,) = present_heads(catalog, PIPELINE, ["prod.events"]).values()
    assert head[1] == START + 1
    late = replace(event_fact, max_delay=timedelta(0))
    assert freshness(catalog, PIPELINE, late, at(2)).remedy.startswith("Its sources are complete.")


def test_maintenance_leaves_them_to_their_programs(catalog: Catalog) -> None:
    assert tables_of(PIPELINE, {})[:2] == ("core.event_fact", "core.hourly")
    maintainer = Maintainer(Engine(catalog, PIPELINE, clock=lambda: at(9)))
    with pytest.raises(UsageError, match=r"prod\.events belongs to the program"):
        maintainer.table("prod.events")
