"""One lake for the engine's tests: real tables and Spark, made-up rows of few accounts, and the truth to compare with.

Rows land through pyiceberg, as another program would land them; that is also quick.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING

import pyarrow as pa

from lake_assets.base.hours import hour_key, hour_start
from lake_assets.incremental.engine import iceberg, publish
from lake_assets.incremental.engine.engine import Engine
from lake_assets.incremental.engine.iceberg import QUARANTINE, OneCopyTransaction
from lake_assets.incremental.engine.model import NoSession, SessionReport
from lake_assets.membership import PIPELINE
from lake_assets.membership.raw import RAW
from lake_assets_tests.membership import oracle
from lake_assets_tests.membership.in_memory import ARROW, COLUMNS, in_order

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

    from lake_assets.demo.membership_simulator import Landing
    from lake_assets.incremental.declaration import Pipeline, Target
    from lake_assets.incremental.engine.session_log import SessionRecord
    from lake_assets.incremental.engine.state import State
    from lake_assets_tests.membership.in_memory import Lake as Rows
    from lake_assets_tests.membership.oracle import Row

START = PIPELINE.start_hour
NOW = datetime(2026, 1, 2, tzinfo=UTC)


@dataclass
class Lake:
    """A home's tables and an engine on them. Hours are counted from the start of the pipeline."""

    catalog: Catalog
    spark: SparkSession
    pipeline: Pipeline = PIPELINE
    engine: Engine = field(init=False)

    def __post_init__(self) -> None:
        self.engine = self.engine_of(self.pipeline)
        self.engine.create_tables()

    def engine_of(self, pipeline: Pipeline) -> Engine:
        return Engine(self.catalog, pipeline, clock=lambda: NOW, spark=lambda: self.spark)

    def target(self, name: str) -> Target:
        return self.pipeline.target(name)

    def land(self, landing: Landing, only: Sequence[str] | None = None) -> None:
        """Rows and complete-through, of all raw tables or some: one commit each."""
        for raw in RAW:
            if only is None or raw.table in only:
                rows, through = landing.rows[raw.table], landing.complete_through[raw.table]
                with OneCopyTransaction(iceberg.load(self.catalog, raw.table)) as transaction:
                    if rows.num_rows:
                        transaction.append(rows.cast(transaction.table_metadata.schema().as_arrow()))
                    if through is not None:
                        transaction.set_properties({iceberg.COMPLETE_THROUGH: hour_key(through)})

    def append(self, table: str, rows: pa.Table | Iterable[Row]) -> None:
        found = iceberg.load(self.catalog, table)
        if not isinstance(rows, pa.Table):
            schema = pa.schema([(name, ARROW[kind]) for name, kind in COLUMNS[table].items()])
            rows = pa.Table.from_pylist(list(rows), schema=schema)
        with OneCopyTransaction(found) as transaction:
            transaction.append(rows.cast(found.schema().as_arrow()))

    def complete(self, table: str, hour: int) -> None:
        """Declare a table complete through an hour, a number."""
        self.set_property(table, iceberg.COMPLETE_THROUGH, hour_key(hour))

    def set_property(self, table: str, name: str, value: str) -> None:
        with OneCopyTransaction(iceberg.load(self.catalog, table)) as transaction:
            transaction.set_properties({name: value})

    def compact(self, table: str) -> int:
        """Rewrite all data files of a table into one for each partition; how many files that added."""
        call = f"CALL lake.system.rewrite_data_files(table => '{table}', options => map('rewrite-all', 'true'))"
        return int(self.spark.sql(call).collect()[0]["added_data_files_count"])

    def set_main(self, table: str, snapshot_id: int) -> None:
        """Roll a table back, or forth."""
        iceberg.load(self.catalog, table).manage_snapshots().set_current_snapshot(snapshot_id=snapshot_id).commit()

    def expire(self, table: str) -> None:
        """Forget all snapshots of a table but the newest, and those that a branch or a tag names."""
        found = iceberg.load(self.catalog, table)
        named = {ref.snapshot_id for ref in found.metadata.refs.values()}
        old = [s.snapshot_id for s in found.metadata.snapshots if s.snapshot_id not in named]
        found.maintenance.expire_snapshots().by_ids(old).commit()

    def state(self, name: str) -> State:
        """What the sessions of a target have left."""
        return self.engine.state(self.target(name))

    def history(self, name: str) -> list[SessionRecord]:
        """The sessions of a target, oldest first."""
        return self.engine.history(self.target(name))

    def bad_rows(self, raw: str) -> int:
        """How many rows of a raw table belong in quarantine."""
        rows = iceberg.load(self.catalog, raw).scan().to_arrow().to_pylist()
        return len(rows) - len(oracle.sound(raw, rows, hour_start(START)))

    def run(self, name: str) -> SessionReport | NoSession:
        return self.engine.run(self.target(name))

    def session(self, name: str) -> SessionReport:
        """Run a session that must be due."""
        report = self.run(name)
        assert isinstance(report, SessionReport), report
        return report

    def catch_up(self, *names: str) -> list[SessionReport]:
        """Every session that is due, of all targets or some, in order."""
        reports = []
        for target in self.pipeline.in_order():
            while not names or target.name in names:
                report = self.engine.run(target)
                if isinstance(report, NoSession):
                    break
                reports.append(report)
        return reports

    def rows(self, *names: str) -> Rows:
        """Rows of tables as they are now, in an order of their own."""
        return in_order({n: iceberg.load(self.catalog, n).scan().to_arrow().to_pylist() for n in names})

    def truth(self) -> Rows:
        """What a full rebuild from all raw rows gives."""
        raw = {r.table: iceberg.load(self.catalog, r.table) for r in RAW}
        through = {name: iceberg.complete_through(table, name) for name, table in raw.items()}
        ends = {name: hour_start(START - 1 if hour is None else hour) for name, hour in through.items()}
        rows = {name: table.scan().to_arrow().to_pylist() for name, table in raw.items()}
        return in_order(oracle.expected(rows, start=hour_start(START), through=ends))

    def assert_true(self, *names: str, note: object = "") -> None:
        """Targets, all or some, have exactly the rows that a full rebuild gives."""
        tables = [self.target(n).table for n in names] or [t.table for t in self.pipeline.targets]
        truth = self.truth()
        assert self.rows(*tables) == {table: truth[table] for table in tables}, note

    def main(self, name: str) -> int | None:
        return publish.main_id(iceberg.load(self.catalog, name))

    def complete_through(self, name: str) -> int | None:
        through = iceberg.complete_through(iceberg.load(self.catalog, name), name)
        return None if through is None else through - START

    def published(self, name: str) -> list[str]:
        """The sessions whose snapshots are in a table's history, oldest first, one entry for each snapshot."""
        table = iceberg.load(self.catalog, name)
        ids = [s.summary.additional_properties.get(publish.WAP_ID) for s in publish.ancestors(table) if s.summary]
        return [i.rsplit(".", 1)[0] for i in reversed(ids) if i]

    def quarantined(self, name: str) -> list[Row]:
        rows: list[Row] = iceberg.load(self.catalog, QUARANTINE).scan(f"target = '{name}'").to_arrow().to_pylist()
        return rows


def signup(number: int, hour: int, **values: object) -> Row:
    """A raw signup, landed when it happened. number: minutes into its hour, and part of its key: `s07-1`."""
    moment = hour_start(START + hour) + timedelta(minutes=number)
    return {
        "signup_id": f"s{number:02}-{hour}",
        "account_id": "a",
        "plan": "basic",
        "monthly_price": Decimal("7.99"),
        "event_ts": moment,
        "landed_at": moment,
        "landing_date": moment.date(),
        "landing_hour": moment.hour,
        "batch_id": str(hour),
        **values,
    }


def raw_row(table: str, number: int, hour: int, **values: object) -> Row:
    """A row of any raw table, as `signup` makes one; of requests, with a reason."""
    key, time = oracle.KEY[table]
    row = signup(number, hour, reason="price")
    return {**row, key: row["signup_id"], time: row["event_ts"], **values}


def landed(catalog: Catalog, *accounts: str) -> Table:
    """The table raw.signups, created if need be, with a signup of each account in one file more. Needs no Spark."""
    iceberg.create_raw(catalog, RAW[0])
    table = iceberg.load(catalog, "raw.signups")
    schema = pa.schema([(name, ARROW[kind]) for name, kind in COLUMNS["raw.signups"].items()])
    rows = pa.Table.from_pylist([signup(i, 1, account_id=a) for i, a in enumerate(accounts)], schema=schema)
    table.append(rows.cast(table.schema().as_arrow()))
    return table


def with_target(pipeline: Pipeline, changed: Target) -> Pipeline:
    """The pipeline with another declaration of one of its targets."""
    return replace(pipeline, targets=tuple(changed if t.table == changed.table else t for t in pipeline.targets))
