"""What a session costs with one month, one year and five years of hourly partitions behind it.

The lakes have the same newest hours, some rows an hour, and differ in how far they go back. The older data are written
once and belong to all lakes. Then the same late rows land in each lake, round by round, and the targets take turns.
Files and bytes are those of the warehouse and of the shared data: Spark's by its event log, this process's by the calls
of pyiceberg's file IO. Bytes read are those of all reads of both processes, so they contain the server's requests, too.

    python -m benchmarks.history [--months 1 12 60] [--rounds 3] [--late 60] [--before REVISION]

An earlier revision, if one is named, is measured first, by this benchmark in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.conversions import to_bytes
from pyiceberg.io.pyarrow import PyArrowFileIO, schema_to_pyarrow
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record

from benchmarks.before import code_of
from benchmarks.event_log import SCANNED_FILES, SCANNED_MANIFESTS, logged, scan_metric
from benchmarks.processes import cpu_seconds, spark_server
from lake_assets.base.hours import hour_key, hour_of, hour_start
from lake_assets.connections.catalog import open_catalog
from lake_assets.connections.spark import open_spark
from lake_assets.incremental.engine import iceberg
from lake_assets.incremental.engine.engine import Engine
from lake_assets.incremental.engine.model import Committed, SessionPlan, SessionReport, SourceRange
from lake_assets.incremental.engine.state import after_session, commit_state
from lake_assets.membership import PIPELINE
from lake_assets.services.servers import spark as spark_service
from lake_assets.services.service import free_port, running
from lake_assets.settings import Settings, settings

if TYPE_CHECKING:
    from pyiceberg.io.pyarrow import PyArrowFile
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

    from lake_assets.incremental.declaration import Source, Target

OWN_FILES = ("history.py", "event_log.py", "processes.py")
"""What an earlier revision is measured with."""

END = hour_of(datetime(2026, 1, 1, tzinfo=UTC))
HOURS_OF_MONTH = 730
LATE_HOURS = 24
RECENT_HOURS = 200
"""Requests and cancels are of accounts that signed up in so many hours before: each lake has those of the late rows."""

TARGETS = ("signup_fact", "cancel_request_fact", "cancel_fact")
UNREAD = ("raw.signups", "raw.cancel_requests")
READ_HOURS = 24
"""Tables whose older data no session reads, but of the newest hours: the rest has metadata, and no data files."""

ROWS_AN_HOUR = {"signups": 3, "cancel_requests": 2, "cancels": 2}
HOUR = timedelta(hours=1)

Row = dict[str, Any]


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--months", type=int, nargs="+", default=[1, 12, 60])
    parser.add_argument("--rounds", type=int, default=3, help="rounds that count; one more comes first")
    parser.add_argument("--late", type=int, default=60, help="late rows of each raw table in a round")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    parser.add_argument("--before", metavar="REVISION", help="also measure an earlier revision")
    parser.add_argument(
        "--past", type=Path, help="folder of the older data, for several runs. Default: a temporary one"
    )
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    OPENED.watch()
    with tempfile.TemporaryDirectory(prefix="lake-bench-") as name:
        folder = Path(name)
        past = arguments.past or folder / "past"
        if arguments.before:
            _measure_before(arguments, past)
        found = _run(folder, past, arguments.months, arguments.rounds, arguments.late)
    _print(found)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))


def _measure_before(arguments: argparse.Namespace, past: Path) -> None:
    """Measure an earlier revision with the present benchmark and the same older data."""
    print(f"before: {arguments.before}", flush=True)
    months = map(str, arguments.months)
    figures = f"--rounds={arguments.rounds}", f"--past={past}", f"--late={arguments.late}", "--months", *months
    with code_of(arguments.before, own_files=OWN_FILES) as (folder, environment):
        command = (sys.executable, "-m", "benchmarks.history", *figures)
        subprocess.run(command, cwd=folder, env=environment, check=True)
    print("now", flush=True)


Figures = dict[str, dict[int, dict[str, float]]]
"""Target → months → what was measured → median."""


def _run(folder: Path, older: Path, months: Sequence[int], rounds: int, late: int) -> Figures:
    log = folder / "events"
    log.mkdir()
    began = time.time()
    hours = max(months) * HOURS_OF_MONTH
    past = Past(older / str(hours), hours)
    home = Settings(home=folder / "server", jars=settings().jars, spark_memory="3g", spark_java_options="")
    with running(logged(spark_service(home, free_port()), log)) as service:
        server = spark_server(home.home)
        lakes = []
        for number in months:
            own = home.model_copy(
                update={"home": folder / str(number), "spark_remote": f"sc://127.0.0.1:{service.port}"}
            )
            lakes.append(LakeWithPast(own, past, number * HOURS_OF_MONTH))
            print(f"{number} months are ready after {time.time() - began:.0f} s", flush=True)
        for number in range(rounds + 1):
            order = lakes[number % len(lakes) :] + lakes[: number % len(lakes)]
            for lake in order:
                lake.land(number, late)
                lake.measure(server)
        for lake in lakes:
            lake.spark.stop()
    return _figures(lakes, log)


def _figures(lakes: Sequence[LakeWithPast], log: Path) -> Figures:
    found: Figures = defaultdict(dict)
    for lake in lakes:
        spans = {
            f"{name} {number}": [each.span] for name, all_of in lake.costs.items() for number, each in enumerate(all_of)
        }
        files = scan_metric(log, spans, SCANNED_FILES)
        manifests = scan_metric(log, spans, SCANNED_MANIFESTS)
        for name, costs in lake.costs.items():
            for number, cost in enumerate(costs):
                cost.values["files by Spark"] = files[f"{name} {number}"]
                cost.values["manifests by Spark"] = manifests[f"{name} {number}"]
            kinds = costs[0].values
            counted = costs[1:]
            found[name][lake.hours // HOURS_OF_MONTH] = {
                kind: statistics.median(c.values[kind] for c in counted) for kind in kinds
            }
    return found


def _print(found: Figures) -> None:
    for name, by_months in found.items():
        print(name)
        first = next(iter(by_months.values()))
        for kind, least in first.items():
            row = []
            for months, values in by_months.items():
                ratio = values[kind] / least if least else float(values[kind] > 0)
                row.append(f"{months:>3} months {values[kind]:12,.2f} ({ratio:5.2f})")
            print(f"  {kind:<18} {'   '.join(row)}", flush=True)


@dataclass
class Cost:
    """The cost of one session."""

    span: tuple[float, float]
    values: dict[str, float]


class Opened:
    """Counts the files that pyiceberg opens in this process."""

    def __init__(self) -> None:
        self.files = 0

    def watch(self) -> None:
        """Count from now on, until the process ends."""
        new_input = PyArrowFileIO.new_input

        def counted(io: PyArrowFileIO, location: str) -> PyArrowFile:
            self.files += 1
            return new_input(io, location)

        PyArrowFileIO.new_input = counted  # type: ignore[method-assign, assignment]


OPENED = Opened()


class Past:
    """The older rows of all tables, deterministic by hour, in one data file for each table and hour."""

    def __init__(self, folder: Path, hours: int) -> None:
        self.folder = folder
        self.first = END - hours
        self.files: dict[str, list[DataFile]] = {}

    def rows(self, table: str, hour: int) -> list[Row]:
        """Return the rows of a table of one event hour, as a raw table or as a fact."""
        namespace, name = table.split(".")
        kind = name if namespace == "raw" else name.removesuffix("_fact") + "s"
        found = []
        for number in range(ROWS_AN_HOUR[kind]):
            at = hour_start(hour) + timedelta(minutes=7 * number + 1)
            found.append(raw_row(kind, f"{hour}-{number}", self.account(kind, hour, number), at, at))
        if namespace == "core":
            return [fact_row(kind, row) for row in found]
        return found

    def account(self, kind: str, hour: int, number: int) -> str:
        """Return the account of a row. A request or a cancel is of an account that signed up in `RECENT_HOURS` before.

        So the newest rows have the same accounts in every lake, and depend on the same rows.
        """
        if kind == "signups":
            return account_id(hour, number)
        draw = random.Random(f"{hour}-{number}-account")  # a request and a cancel have the same account
        first = max(self.first, hour - RECENT_HOURS)
        return account_id(draw.randint(first, hour), draw.randrange(ROWS_AN_HOUR["signups"]))

    def data_files(self, table: Table, name: str) -> list[DataFile]:
        """Return the data file of each hour, oldest first, and write it if sessions may read it."""
        if name not in self.files:
            self.files[name] = [self._file(table, name, hour) for hour in range(self.first, END)]
        return self.files[name]

    def _file(self, table: Table, name: str, hour: int) -> DataFile:
        schema = table.schema()
        rows = self.rows(name, hour)
        path = self.folder / name / f"{hour}.parquet"
        size = 2_000
        if name not in UNREAD or hour >= END - READ_HOURS:
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                arrow = pa.Table.from_pylist(rows, schema=schema_to_pyarrow(schema, include_field_ids=True))
                pq.write_table(arrow, path, compression="zstd")
            size = path.stat().st_size
        return described(table, f"file://{path}", rows, size, hour)


def described(table: Table, path: str, rows: Sequence[Row], size: int, hour: int) -> DataFile:
    """Return the manifest's description of a data file with the rows of one hour."""
    lower, upper, nulls = {}, {}, {}
    for column in table.schema().fields:
        values = [row[column.name] for row in rows if row[column.name] is not None]
        nulls[column.field_id] = len(rows) - len(values)
        if values:
            lower[column.field_id] = to_bytes(column.field_type, _stored(min(values)))  # type: ignore[arg-type]
            upper[column.field_id] = to_bytes(column.field_type, _stored(max(values)))  # type: ignore[arg-type]
    partition = Record(hour)
    if "landing_hour" in rows[0]:
        partition = Record(
            (rows[0]["landing_date"] - date(1970, 1, 1)).days, rows[0]["landing_hour"], rows[0]["batch_id"]
        )
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=partition,
        record_count=len(rows),
        file_size_in_bytes=size,
        column_sizes={},
        value_counts={c.field_id: len(rows) for c in table.schema().fields},
        null_value_counts=nulls,
        nan_value_counts={},
        lower_bounds=lower,
        upper_bounds=upper,
    )
    file.spec_id = table.spec().spec_id
    return file


def _stored(value: Any) -> Any:
    if isinstance(value, datetime):
        return (value - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    if isinstance(value, date):
        return (value - date(1970, 1, 1)).days
    return value


def account_id(hour: int, number: int) -> str:
    """Return a random-looking id."""
    return f"{random.Random(f'{hour}.{number}').getrandbits(64):016x}"


def raw_row(kind: str, key: str, account: str, at: datetime, landed: datetime) -> Row:
    """Return a row of a raw table."""
    row: Row = {"account_id": account}
    if kind == "signups":
        row |= {"signup_id": f"s{key}", "plan": "basic", "monthly_price": Decimal("7.99"), "event_ts": at}
    elif kind == "cancel_requests":
        row |= {"request_id": f"r{key}", "reason": None, "event_ts": at}
    else:
        row |= {"cancel_id": f"c{key}", "processing_ts": at}
    batch = f"{hour_of(landed)}-{landed:%M%S}"
    landing = {"landed_at": landed, "landing_date": landed.date(), "landing_hour": landed.hour, "batch_id": batch}
    return {**row, **landing}


def fact_row(kind: str, row: Row) -> Row:
    """Return the row of a fact, from its raw row."""
    if kind == "signups":
        return {**_without(row, "event_ts"), "signed_up_at": row["event_ts"]}
    if kind == "cancel_requests":
        return {**_without(row, "event_ts"), "requested_at": row["event_ts"]}
    request = {"request_id": None, "requested_at": None, "reason": None}
    fact = {"cancel_id": row["cancel_id"], "account_id": row["account_id"], "canceled_at": row["processing_ts"]}
    return {**fact, "churn_type": "involuntary", **request}


def _without(row: Row, column: str) -> Row:
    left = ("landing_date", "landing_hour", "batch_id", column)
    return {name: value for name, value in row.items() if name not in left}


@dataclass
class LakeWithPast:
    """A lake whose tables have the past, and whose targets are built up to its end."""

    home: Settings
    past: Past
    hours: int
    costs: dict[str, list[Cost]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        self.first = END - self.hours
        targets = tuple(t for t in PIPELINE.targets if t.name in TARGETS)
        self.pipeline = replace(PIPELINE, targets=targets, start=hour_key(self.past.first))
        self.spark: SparkSession = open_spark(self.home)
        catalog = open_catalog(self.home)
        self.engine = Engine(catalog, self.pipeline, clock=lambda: hour_start(END), spark=lambda: self.spark)
        self.engine.create_tables()
        for raw in self.pipeline.raw:
            if raw.table.split(".")[1] in ROWS_AN_HOUR:
                self._fill(raw.table)
        for target in targets:
            self._fill(target.table)
        for target in self.pipeline.in_order():
            self._commit(target)

    def _fill(self, name: str) -> None:
        """Append the past of a table, a month in one commit, so that a manifest has the hours of a month."""
        table = iceberg.load(self.engine.catalog, name)
        files = self.past.data_files(table, name)[self.first - self.past.first :]
        for start in range(0, len(files), HOURS_OF_MONTH):
            with table.transaction() as change, change.update_snapshot().fast_append() as append:
                for file in files[start : start + HOURS_OF_MONTH]:
                    append.append_data_file(file)
        self._complete(name, END - 1)

    def _complete(self, name: str, hour: int) -> None:
        table = iceberg.load(self.engine.catalog, name)
        with table.transaction() as change:
            change.set_properties({iceberg.COMPLETE_THROUGH: hour_key(hour)})

    def _commit(self, target: Target) -> None:
        """Record that a target is built from all that its sources have."""
        spans = tuple(self._span(source) for source in target.sources)
        before = self.engine.state(target)
        assert before.table is not None
        plan = SessionPlan(target.table, f"{target.name}-past", "session", "append", spans, ())
        committed = Committed(last_built=END - 1, complete_through=END - 1, code_version=target.code_version)
        after = after_session(before, plan, committed, pattern_id=1, run_id="", started_at=hour_start(END))
        commit_state(self.engine.catalog, before.table, after, None)

    def _span(self, source: Source) -> SourceRange:
        table = iceberg.load(self.engine.catalog, source.table)
        head = table.current_snapshot()
        assert head is not None
        return SourceRange(
            source=source.table,
            table_uuid=str(table.metadata.table_uuid),
            from_snapshot_id=None,
            to_snapshot_id=head.snapshot_id,
            to_sequence_number=head.sequence_number or 0,
            to_timestamp_ms=head.timestamp_ms,
            complete_through=END - 1,
            last_hour=END - 1,
            appends_only=True,
        )

    def land(self, number: int, late: int) -> None:
        """Land late rows in all raw tables."""
        for kind in ROWS_AN_HOUR:
            table = iceberg.load(self.engine.catalog, f"raw.{kind}")
            schema = schema_to_pyarrow(table.schema(), include_field_ids=False)
            table.append(pa.Table.from_pylist(self.late_rows(kind, number, late), schema=schema))

    def run(self) -> dict[str, SessionReport]:
        """Run the session of every target, which must be due."""
        reports = {}
        for target in self.pipeline.in_order():
            report = self.engine.run(target)
            assert isinstance(report, SessionReport), report
            reports[target.name] = report
        return reports

    def late_rows(self, kind: str, number: int, late: int) -> list[Row]:
        """Return the late rows of a raw table in a round: of the same hours and accounts in every lake."""
        landed = hour_start(END) + timedelta(minutes=number)
        rows = []
        for place in range(late):
            hour = END - 1 - place % LATE_HOURS
            at = hour_start(hour) + timedelta(minutes=50, seconds=place)
            rows.append(raw_row(kind, f"late-{number}-{place}", self._late_account(kind, number, place), at, landed))
        return rows

    def _late_account(self, kind: str, number: int, place: int) -> str:
        """Return an account that all lakes have."""
        if kind == "signups":
            return account_id(END + number, place)
        draw = random.Random(f"late-{number}-{place}")
        return account_id(draw.randint(END - RECENT_HOURS, END - 1), draw.randrange(ROWS_AN_HOUR["signups"]))

    def measure(self, server: psutil.Process) -> None:
        """Run the session of every target, and record what each costs."""
        for target in self.pipeline.in_order():
            self.costs[target.name].append(self._measured(target, server))

    def _measured(self, target: Target, server: psutil.Process) -> Cost:
        own = psutil.Process()
        before = _readings(own, server)
        began = time.time()
        report = self.engine.run(target)
        ended = time.time()
        assert isinstance(report, SessionReport), report
        after = _readings(own, server)
        values = {kind: after[kind] - before[kind] for kind in after}
        values |= {f"wall {step}": seconds for step, seconds in report.seconds.items()}
        return Cost((began, ended), {"wall s": ended - began, **values})


def _readings(own: psutil.Process, server: psutil.Process) -> Mapping[str, float]:
    return {
        "CPU here s": cpu_seconds(own),
        "CPU of Spark s": cpu_seconds(server),
        "MB read here": own.io_counters().read_chars / 1e6,
        "MB read by Spark": server.io_counters().read_chars / 1e6,
        "files opened here": OPENED.files,
    }


if __name__ == "__main__":
    main()
