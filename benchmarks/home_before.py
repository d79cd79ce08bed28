"""Data directories as a revision leaves them in the midst of its work, packed for the tests of upgrades.

    python -m benchmarks.home_before REVISION FOLDER [HOME ...]

The revision's own commands and servers make them; where a process has to die, `LAKE_FAILPOINT` names the point. FOLDER
receives one file for each home; `test_golden_homes.py` and `test_golden_services.py` of `lake_assets_tests/doors` go on
with them. Each file has the folders `home` (the data directory), `tables` (the declarations, if it has its own)
and `bucket`, in which the keys are paths: Iceberg's metadata name their files by absolute addresses, and those of an
object store do not depend on where a home is unpacked.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from confluent_kafka import Producer
from pyiceberg.catalog.sql import SqlCatalog

from benchmarks.before import code_of
from benchmarks.cluster.stack import BUCKET, KEY, KEY_ID, s3
from benchmarks.sizing.lake import Store
from lake_assets.base.failpoints import EXIT_CODE, SESSION_POINTS
from lake_assets.services.service import free_port, running

LEFT_OUT = ("logs", "run", "spark.token", "spark-warehouse")
"""What belongs to running processes, and is not packed."""

RUNNING_SPARK = "LAKE_TESTS_SPARK"
"""A variable with the address of a Spark Connect server that runs already, as for tests; else one is started."""

SERVERS = """
import json, sys
from lake_assets.connections.addresses import create_spark_token, spark_address
from lake_assets.services.servers import kafka
from lake_assets.services.service import all_running, free_port
from lake_assets.services.servers import spark
from lake_assets.services.servers import zookeeper
from lake_assets.settings import settings

found = settings()
services, addresses = [], {}
for name in sys.argv[1:]:
    port = free_port()
    if name == "kafka":
        addresses["LAKE_KAFKA"] = f"127.0.0.1:{port}"
        services.append(kafka(found, port, free_port()))
    elif name == "zookeeper":
        addresses["LAKE_ZOOKEEPER"] = f"127.0.0.1:{port}"
        services.append(zookeeper(found.home, port))
    else:
        create_spark_token(found.home)
        addresses["LAKE_SPARK_REMOTE"] = spark_address(found.home, port)
        services.append(spark(found, port))
with all_running(services):
    print(json.dumps(addresses), flush=True)
    sys.stdin.read()
"""


@dataclass(frozen=True)
class Revision:
    """A data directory, and the `lake` command of the revision on it.

    Attributes:
        code: The folder of the revision's code.
        folder: Holds `home`, `tables` and files for the commands.
        environment: Of the commands.
    """

    code: Path
    folder: Path
    environment: Mapping[str, str]

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def tables(self) -> Path:
        return self.folder / "tables"

    def lake(self, *words: str | Path, dies_at: str = "", code: int = 0, **variables: str) -> str:
        """Run a command; return what it printed.

        Args:
            dies_at: The failpoint that it has to reach.
            code: The exit code that it has to end with, if it does not die.
        """
        command = [sys.executable, "-m", "lake_assets.cli.main", *map(str, words)]
        environment = {**self.environment, "LAKE_FAILPOINT": dies_at, **variables}
        if self.tables.exists():
            modules = [f"{module.stem}:PIPELINE" for module in self.tables.glob("*.py")]
            environment["LAKE_PIPELINES"] = ",".join([str(self.tables), *modules])
        print("lake", *words, dies_at)
        done = subprocess.run(command, cwd=self.code, env=environment, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode != (EXIT_CODE if dies_at else code):
            raise SystemExit(f"lake {' '.join(map(str, words))} ended with {done.returncode}:\n{done.stdout}")
        return done.stdout

    def declare(self, kind: str, **attributes: Any) -> None:
        """Write a declaration."""
        file = self.tables / f"{attributes['table']}.yaml"
        file.parent.mkdir(exist_ok=True)
        document = {"type": f"lake_assets.{kind}", "attributes": attributes}
        file.write_text(yaml.safe_dump(document, sort_keys=False))

    def land(self, table: str, header: str, rows: str, *, through: str | None = None) -> None:
        """Land rows of CSV, whose times are written as `HH:MM` of one day."""
        file = self.folder / "rows.csv"
        file.write_text("\n".join([header, *(_with_day(row) for row in rows.split())]))
        self.lake("land", table, file, *(["--through", f"2026-01-01-{through}"] if through else []))

    def catalog(self) -> SqlCatalog:
        """Return the catalog, as any other program opens it."""
        return SqlCatalog(
            "lake",
            **{
                "uri": f"sqlite:///{self.home / 'catalog.db'}",
                "s3.endpoint": self.environment["LAKE_CATALOG__S3__ENDPOINT"],
                "s3.region": "us-east-1",
                "s3.access-key-id": KEY_ID,
                "s3.secret-access-key": KEY,
            },
        )


def _with_day(row: str) -> str:
    return ",".join(f"2026-01-01T{cell}:00Z" if cell[2:3] == ":" else cell for cell in row.split(","))


# Engine

PAYMENTS, PAYMENT = "raw.payments", "payment_id,account_id,amount,event_ts"
VISITS, VISIT = "raw.visits", "visit_id,account_id,event_ts"
REFUNDS, REFUND = "raw.refunds", "refund_id,customer_id,event_ts"
CUSTOMERS, CUSTOMER = "raw.customers", "customer_id,name,event_ts"
ORDERS, ORDER = "raw.orders", "order_id,status,updated_at,event_ts"
READINGS = "raw.readings"
FILES = 205
"""Files of the readings: the least number for an index is 200."""

TYPES = {"amount": "decimal(9, 2)", "event_ts": "timestamptz", "updated_at": "timestamptz"}
EACH = "SELECT payment_id, account_id, amount, event_ts AS paid_at FROM payments"
BY_HOUR = """
SELECT account_id, CAST(sum(amount) AS decimal(19, 2)) AS amount, date_trunc('HOUR', event_ts) AS paid_at
FROM payments GROUP BY account_id, date_trunc('HOUR', event_ts)
"""
SO_FAR = """
SELECT payment_id, account_id, event_ts AS paid_at,
  CAST(sum(amount) OVER (PARTITION BY account_id ORDER BY event_ts) AS decimal(19, 2)) AS paid_so_far
FROM payments
"""
BALANCE = """
WITH changes AS (
  SELECT account_id, paid, visits, at_hour AS at FROM previous
  UNION ALL
  SELECT account_id, amount, 0, event_ts FROM payments WHERE event_ts >= (SELECT min(hour) FROM session_hours)
  UNION ALL
  SELECT account_id, 0, 1, event_ts FROM visits WHERE event_ts >= (SELECT min(hour) FROM session_hours)
)
SELECT h.hour AS at_hour, c.account_id, CAST(sum(c.paid) AS decimal(19, 2)) AS paid,
  CAST(sum(c.visits) AS bigint) AS visits
FROM session_hours h JOIN changes c ON c.at < h.hour + INTERVAL 1 HOUR
GROUP BY h.hour, c.account_id
"""
SEEN = """
SELECT r.sensor_id, h.hour AS at_hour, count(*) AS seen
FROM session_hours h JOIN readings r ON r.event_ts < h.hour + INTERVAL 1 HOUR
GROUP BY r.sensor_id, h.hour HAVING max(r.event_ts) >= h.hour
"""
REFUNDED = """
SELECT refund_id, r.customer_id, name, r.event_ts AS refunded_at
FROM refunds r LEFT JOIN customers c ON r.customer_id = c.customer_id
"""
ORDER_FACT = '''
from lake_assets import Pipeline, RawTable, Source, Stateless, incremental_asset

TYPES = {"order_id": "string", "status": "string", "updated_at": "timestamptz", "event_ts": "timestamptz"}
ORDERS = RawTable("raw.orders", TYPES, "event_ts")


@incremental_asset(
    mode=Stateless(),
    sources=[
        Source(
            "raw.orders", "event_ts", key="order_id", keep="last", order_by="updated_at", deleted="status = 'deleted'"
        )
    ],
    key="order_id",
    time_column="ordered_at",
    columns={"order_id": "string", "status": "string", "ordered_at": "timestamptz"},
)
def order_fact(session, orders):
    """Orders, as their last version says."""
    return orders.selectExpr("order_id", "status", "event_ts AS ordered_at")


PIPELINE = Pipeline(raw=(ORDERS,), targets=(order_fact,), start="2026-01-01-00:00")
'''


def engine(lake: Revision) -> None:
    """A session interrupted at each point, and all that may wait in a home.

    Hours pending, held and deferred, two external sessions, an erasure that is done and one that is half done, rows in
    quarantine, an index of keys, corrected rows, and a catch-up with chunks left.
    """
    _declare_engine(lake)
    lake.lake("init")
    lake.land(PAYMENTS, PAYMENT, "p1,a1,10,00:05 p2,a2,20,00:10 p3,a1,5,01:05", through="01:00")
    lake.land(PAYMENTS, PAYMENT, "n1,a1,-1,01:40 p6,a2,2,02:30", through="02:00")
    lake.land(VISITS, VISIT, "v1,a1,00:20 v2,a2,01:00", through="02:00")
    lake.land(CUSTOMERS, CUSTOMER, "c1,Ann,00:00 c2,Bob,00:00 c3,Cid,00:00 c4,Dan,00:00", through="02:00")
    lake.land(REFUNDS, REFUND, "r1,c1,00:30 r2,c2,01:30 r6,c3,01:40 r7,c4,02:10", through="02:00")
    lake.land(ORDERS, ORDER, "o1,new,00:10,00:10 o2,new,01:00,01:00 o3,new,01:20,01:20", through="02:00")
    _land_readings(lake)
    lake.lake("catch-up")
    lake.lake("erase", "customer", "c3")

    late = "p7,a1,3,00:50 p8,a2,4,03:05 n2,a2,-2,03:10 p9,a1,6,04:10 p1,a1,10,00:05"
    lake.land(PAYMENTS, PAYMENT, late, through="04:00")
    lake.land(VISITS, VISIT, "v3,a1,03:30")
    lake.land(CUSTOMERS, CUSTOMER, "c2,Bob,00:00", through="04:00")
    lake.land(REFUNDS, REFUND, "r3,c1,02:30 r4,c6,03:30 r5,c2,04:30", through="04:00")
    lake.land(ORDERS, ORDER, "o1,paid,02:10,02:10 o2,deleted,03:00,01:00 o4,new,03:30,03:30", through="04:00")
    lake.land(READINGS, "reading_id,sensor_id,event_ts", "x1,s3,03:15", through="03:00")
    for point in SESSION_POINTS:
        lake.lake("catch-up", at(point), dies_at=point)
    lake.lake("catch-up", "balance_dim", "late_fact", "seen_fact")
    lake.lake("catch-up", "refund_fact", code=1)
    lake.lake("catch-up", "so_far_fact", dies_at="after-committed")
    lake.lake("catch-up", "order_fact", dies_at="after-staged")
    for name in ("opened_fact", "written_fact"):
        opened = json.loads(lake.lake("session", "init", name, "--json"))
    # Too few: another program has to write p1 and p2 for its session, too.
    _append_payments(lake, "core.written_fact", opened["wap_id"], ("p7", "p8", "p9"))

    lake.land(PAYMENTS, PAYMENT, "p10,a2,8,01:15 p11,a5,9,05:00 p8,a2,4,03:05", through="05:00")
    lake.land(REFUNDS, REFUND, "r8,c3,04:40")
    lake.land(ORDERS, ORDER, "o1,stale,00:30,00:30 o3,paid,05:00,01:20", through="05:00")
    lake.land(READINGS, "reading_id,sensor_id,event_ts", "x2,s3,04:15", through="04:00")
    lake.lake("erase", "customer", "c4", dies_at="erasure-rows-deleted")


def at(point: str) -> str:
    """Return the name of the table whose session has died at a point."""
    return f"at_{point.replace('-', '_')}"


def _declare_engine(lake: Revision) -> None:
    for table, header in ((PAYMENTS, PAYMENT), (VISITS, VISIT), (REFUNDS, REFUND), (CUSTOMERS, CUSTOMER)):
        columns = {name: TYPES.get(name, "string") for name in header.split(",")}
        subjects = {"customer": ["customer_id"]} if "customer_id" in columns else {}
        lake.declare("SourceTable", table=table, columns=columns, time_column="event_ts", subjects=subjects)
    readings = {"reading_id": "string", "sensor_id": "string", "event_ts": "timestamptz"}
    lake.declare("SourceTable", table=READINGS, columns=readings, time_column="event_ts")

    payments = {"table": PAYMENTS, "time_column": "event_ts", "key": "payment_id", "rules": {"negative": "amount < 0"}}
    each = {"mode": "stateless", "key": "payment_id", "time_column": "paid_at", "sql": EACH}
    by_hour = {"mode": {"stateful": {"load": "changed"}}, "key": "account_id", "time_column": "paid_at", "sql": BY_HOUR}
    of_payments: dict[str, dict[str, Any]] = {}
    for number, point in enumerate(SESSION_POINTS):
        of_payments[at(point)] = by_hour if number % 2 else each
    of_payments["opened_fact"] = of_payments["written_fact"] = each
    of_payments["late_fact"] = {**each, "late": {"older_than": "1 hour", "at_most": "3650 days"}}
    of_payments["so_far_fact"] = {**each, "mode": {"stateful": {"chunk_hours": 1}}, "sql": SO_FAR}
    for name, attributes in of_payments.items():
        audits = ["source_target_counts", "unique_key"] if attributes["mode"] == "stateless" else ["unique_key"]
        lake.declare("IncrementalTable", table=f"core.{name}", sources=[payments], audits=audits, **attributes)
    lake.declare(
        "IncrementalTable",
        table="core.balance_dim",
        mode="sequential",
        sources=[payments, {"table": VISITS, "time_column": "event_ts", "key": "visit_id"}],
        key="account_id",
        time_column="at_hour",
        columns={"at_hour": "timestamptz", "account_id": "string", "paid": "decimal(19, 2)", "visits": "long"},
        sql=BALANCE,
    )
    lake.declare(
        "IncrementalTable",
        table="core.refund_fact",
        mode={"stateful": {"load": "changed"}},
        sources=[
            {"table": REFUNDS, "time_column": "event_ts", "key": "refund_id"},
            {"table": CUSTOMERS, "time_column": "event_ts", "key": "customer_id"},
        ],
        key="refund_id",
        time_column="refunded_at",
        sql=REFUNDED,
        audits=[{"not_null": ["name"]}],
    )
    lake.declare(
        "IncrementalTable",
        table="core.seen_fact",
        mode={"stateful": {"load": "changed", "entity": "sensor_id"}},
        sources=[{"table": READINGS, "time_column": "event_ts", "key": "reading_id"}],
        key="sensor_id",
        time_column="at_hour",
        sql=SEEN,
    )
    (lake.tables / "own_tables.py").write_text(ORDER_FACT)


def _land_readings(lake: Revision) -> None:
    """Land three hours of five sensors, each reading in a file of its own."""
    day = datetime(2026, 1, 1, tzinfo=UTC)
    rows = [
        {
            "reading_id": f"r{number}",
            "sensor_id": f"s{number % 5}",
            "event_ts": day + timedelta(hours=number // 70, seconds=number),
            "landed_at": day + timedelta(hours=3),
            "landing_date": day.date(),
            "landing_hour": 3,
            "batch_id": str(number),
        }
        for number in range(FILES)
    ]
    table = lake.catalog().load_table(READINGS)
    table.append(pa.Table.from_pylist(rows, schema=table.schema().as_arrow()))
    lake.lake("complete", READINGS, "2026-01-01-02:00")


def _append_payments(lake: Revision, name: str, wap_id: str, payments: Sequence[str]) -> None:
    """Stage payments as another program does for its session."""
    table = lake.catalog().load_table(name)
    listed = ", ".join(f"'{payment}'" for payment in payments)
    found = lake.catalog().load_table(PAYMENTS).scan(f"payment_id in ({listed})").to_arrow()
    rows = found.select(["payment_id", "account_id", "amount", "event_ts"])
    rows = rows.rename_columns(["payment_id", "account_id", "amount", "paid_at"]).cast(table.schema().as_arrow())
    table.append(rows, snapshot_properties={"wap.id": wap_id}, branch=None)


# What may wait for longer: the second home of the engine

BALANCE_OF_PAYMENTS = """
WITH changes AS (
  SELECT account_id, paid, at_hour AS at FROM previous
  UNION ALL
  SELECT account_id, amount, event_ts FROM payments WHERE event_ts >= (SELECT min(hour) FROM session_hours)
)
SELECT h.hour AS at_hour, c.account_id, CAST(sum(c.paid) AS decimal(19, 2)) AS paid
FROM session_hours h JOIN changes c ON c.at < h.hour + INTERVAL 1 HOUR
GROUP BY h.hour, c.account_id
"""


def waiting(lake: Revision) -> None:
    """Hours that were skipped, chunks that follow from others, and a session that an audit has stopped.

    Besides, a repair that died when its rows were staged, a reset that died when they were published, and two
    external sessions: one is opened, one published and not committed.
    """
    columns = {name: TYPES.get(name, "string") for name in PAYMENT.split(",")}
    lake.declare("SourceTable", table=PAYMENTS, columns=columns, time_column="event_ts")
    payments = {"table": PAYMENTS, "time_column": "event_ts", "key": "payment_id", "rules": {"negative": "amount < 0"}}
    each = {"sources": [payments], "key": "payment_id", "time_column": "paid_at", "sql": EACH, "audits": ["unique_key"]}
    changed = {"stateful": {"load": "changed", "catchup_threshold": 2}}
    lake.declare("IncrementalTable", table="core.skipped_fact", mode=changed, **each)
    lake.declare("IncrementalTable", table="core.blocked_fact", mode="stateless", quarantine_limit=0, **each)
    for name in ("repaired_fact", "reset_fact", "published_fact", "opened_fact"):
        lake.declare("IncrementalTable", table=f"core.{name}", mode="stateless", **each)
    lake.declare(
        "IncrementalTable",
        table="core.balance_dim",
        mode={"sequential": {"chunk_hours": 2}},
        sources=[payments],
        key="account_id",
        time_column="at_hour",
        columns={"at_hour": "timestamptz", "account_id": "string", "paid": "decimal(19, 2)"},
        sql=BALANCE_OF_PAYMENTS,
    )
    lake.lake("init")
    rows = "p1,a1,10,00:05 p2,a2,20,01:10 p3,a1,5,02:05 p4,a1,1,05:30 p5,a2,3,07:20"
    lake.land(PAYMENTS, PAYMENT, rows, through="07:00")
    lake.lake("catch-up")
    lake.catalog().load_table("core.repaired_fact").delete("payment_id = 'p3'")
    lake.lake("repair", "repaired_fact", dies_at="after-staged")

    lake.land(PAYMENTS, PAYMENT, "p6,a1,2,00:40 p7,a2,7,06:45 n1,a1,-4,06:50 p8,a1,9,08:10", through="08:00")
    lake.lake("catch-up", "skipped_fact")
    lake.lake("catch-up", "blocked_fact", code=1)
    lake.lake("catch-up", "balance_dim", dies_at="after-committed")
    lake.lake("rebuild", "reset_fact", "2026-01-01-00:00", "2026-01-01-02:00", "--reset", dies_at="after-published")
    lake.lake("session", "init", "opened_fact")
    opened = json.loads(lake.lake("session", "init", "published_fact", "--json"))
    _append_payments(lake, "core.published_fact", opened["wap_id"], ("p6", "p7", "p8"))
    lake.lake("session", "publish", "published_fact")

    lake.land(PAYMENTS, PAYMENT, "p9,a2,4,03:15 p10,a1,8,09:05", through="09:00")


# The other parts

SIGNUPS = "raw.signups"
SENT_MS = 1_767_247_200_000
"""2026-01-01 06:00:00 UTC."""


def landing(lake: Revision) -> None:
    """Files that one zone lacks, a round of compaction, two erasures that one zone or none has finished, dead letters.

    Messages go to partition 0 and 1 by turns, and a file is closed after five: none is left open.
    """
    columns = {"signup_id": "string", "account_id": "string", "event_ts": "timestamptz"}
    lake.declare(
        "SourceTable", table=SIGNUPS, columns=columns, time_column="event_ts", subjects={"account": ["account_id"]}
    )
    lake.declare(
        "IncrementalTable",
        table="core.signup_fact",
        mode="stateless",
        sources=[{"table": SIGNUPS, "time_column": "event_ts", "key": "signup_id"}],
        key="signup_id",
        time_column="signed_up_at",
        sql="SELECT signup_id, account_id, event_ts AS signed_up_at FROM signups",
        audits=["source_target_counts", "unique_key"],
    )
    lake.lake("init")
    lake.lake("landing", "init", "--partitions", "2")
    run = ("landing", "run", "--once", "--no-heartbeats")
    _send_signups(lake, range(18), broken=2)
    lake.lake(*run)
    lake.lake("catch-up")
    lake.lake("landing", "compact", SIGNUPS, dies_at="landing-added")
    lake.lake("erase", "account", "a3", dies_at="erasing-scrubbed")
    lake.lake("landing", "scrub", SIGNUPS, "a4", "--request", "a4-in-one-zone", "--zone", "a")
    _send_signups(lake, range(18, 38))
    lake.lake(*run, "--zone", "a")
    lake.lake(*run, "--zone", "b", dies_at="landing-put")
    _send_signups(lake, range(38, 48))


def _send_signups(lake: Revision, numbers: range, *, broken: int = 0) -> None:
    rows = [
        {"signup_id": f"s{n}", "account_id": f"a{n % 5}", "event_ts": f"2026-01-01T0{n // 10}:{n % 10:02}:00Z"}
        for n in numbers
    ]
    values = [*(json.dumps(row) for row in rows), *("broken" for _ in range(broken))]
    _send(lake, SIGNUPS, values)


def _send(lake: Revision, topic: str, values: Sequence[str], *, partitions: int = 2) -> None:
    producer = Producer({"bootstrap.servers": lake.environment["LAKE_KAFKA"]})
    for number, value in enumerate(values):
        producer.produce(topic, value.encode(), partition=number % partitions, timestamp=SENT_MS)
    if producer.flush(60):
        raise SystemExit(f"Kafka did not take all messages of {topic}.")


def engagement(lake: Revision) -> None:
    """Three lakes with an open batch of ingestion, mutation or retention, whose turn was never released.

    Of the requests for mutation, one waits for its rows.
    """
    for name in ("email_event", "meeting_event", "voice_insight"):
        _in_own_warehouse(lake, "init", name, "--org", "acme", "--partitions", "1")
        emails = [_engaged(number, f"w{number % 3}") for number in range(6)]
        _send(lake, f"{name}.ingestion", [*emails, emails[0], "broken"], partitions=1)
        _in_own_warehouse(lake, "ingest", name)

    later = [_engaged(6, "w1"), _engaged(7, "w9"), _engaged(0, "w0"), "{}"]
    _send(lake, "email_event.ingestion", later, partitions=1)
    _in_own_warehouse(lake, "ingest", "email_event", dies_at="written-data")

    asked = [_request("convert", "w1", "c1"), _request("merge", "w2", "w0"), _request("convert", "w9", "c9"), "broken"]
    _send(lake, "meeting_event.mutation", asked, partitions=1)
    _in_own_warehouse(lake, "mutate", "meeting_event", dies_at="written-request")

    _in_own_warehouse(lake, "mutate", "voice_insight")
    erased = {
        "org_id": "acme",
        "request_id": "g1",
        "op": "gdpr",
        "who_id": "w2",
        "requested_at": "2026-01-02T00:00:00Z",
    }
    _send(lake, "voice_insight.retention", [json.dumps(erased)], partitions=1)
    _in_own_warehouse(lake, "retain", "voice_insight", dies_at="written-data")


def _in_own_warehouse(lake: Revision, *words: str, dies_at: str = "") -> None:
    """Run a command of an engagement lake. Its Delta tables are in the home: their paths are relative."""
    lake.lake("engagement", *words, dies_at=dies_at, LAKE_WAREHOUSE=f"file://{lake.home / 'warehouse'}")


def _engaged(number: int, who: str) -> str:
    values = {"org_id": "acme", "engagement_id": f"e{number}", "who_id": who, "kind": "sent"}
    return json.dumps({**values, "engaged_at": f"2026-01-01T0{number}:00:00Z"})


def _request(op: str, old: str, new: str) -> str:
    values = {"org_id": "acme", "request_id": f"{op}-{old}", "op": op, "old_id": old, "new_id": new}
    return json.dumps({**values, "executed_at": "2026-01-01T12:00:00Z"})


def serving(lake: Revision) -> None:
    """A table with two snapshots, and two whose third push is in progress: it died while it uploaded."""
    file = lake.folder / "rows.parquet"
    for table, pushes in (("numbers", 3), ("other_numbers", 3), ("whole_numbers", 2)):
        for number in range(1, pushes + 1):
            pq.write_table(pa.table({"id": range(40), "number": [number] * 40}), file)
            dies_at = "push-half-uploaded" if number == 3 else ""
            lake.lake("serving", "push", table, "--file", file, dies_at=dies_at)


HOMES: Mapping[str, tuple[Callable[[Revision], None], tuple[str, ...]]] = {
    "engine": (engine, ("spark",)),
    "waiting": (waiting, ("spark",)),
    "landing": (landing, ("spark", "kafka")),
    "engagement": (engagement, ("spark", "kafka", "zookeeper")),
    "serving": (serving, ("zookeeper",)),
}
"""Name → what makes it, and the servers that it needs."""


def main(revision: str, folder: Path, wanted: Sequence[str] = ()) -> None:
    """Make the files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in wanted or HOMES:
        with tempfile.TemporaryDirectory(prefix="lake-before-") as made, code_of(revision) as (code, environment):
            with running(s3(Path(made) / "s3", free_port())) as service:
                store = Store(service)
                store.bucket.create()
                variables = {**environment, **_variables(code, Path(made), store)}
                (Path(made) / "home").mkdir()
                make, servers = HOMES[name]
                with _servers(code, variables, servers) as addresses:
                    make(Revision(code, Path(made), {**variables, **addresses}))
                for found in store.bucket.objects.all():
                    if found.key.endswith("/"):
                        continue  # the mark of a folder
                    target = Path(made) / "bucket" / found.key
                    target.parent.mkdir(parents=True, exist_ok=True)
                    store.bucket.download_file(found.key, str(target))
            _pack(Path(made), folder / f"{name}.tar.xz")


@contextmanager
def _servers(code: Path, variables: Mapping[str, str], names: Sequence[str]) -> Iterator[dict[str, str]]:
    """Run the revision's servers, with their data in the home; yield the variables with their addresses."""
    running_spark = os.environ.get(RUNNING_SPARK)
    if running_spark:
        names = [name for name in names if name != "spark"]
    process = subprocess.Popen(
        [sys.executable, "-c", SERVERS, *names],
        cwd=code,
        env=dict(variables),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        found: dict[str, str] = json.loads(process.stdout.readline())
        yield {**found, **({"LAKE_SPARK_REMOTE": running_spark} if running_spark else {})}
    finally:
        process.stdin.close()
        process.wait()


def _variables(code: Path, folder: Path, store: Store) -> dict[str, str]:
    return {
        "PYTHONPATH": f"{code}:{folder / 'tables'}",
        "LAKE_HOME": str(folder / "home"),
        "LAKE_LAKES": "email_event,meeting_event,voice_insight",
        "LAKE_LANDING_FILE_MESSAGES": "5",
        "LAKE_WAREHOUSE": f"s3://{BUCKET}/warehouse",
        "LAKE_CATALOG__S3__ENDPOINT": store.address,
        "LAKE_CATALOG__S3__REGION": "us-east-1",
        "LAKE_CATALOG__S3__ACCESS_KEY_ID": KEY_ID,
        "LAKE_CATALOG__S3__SECRET_ACCESS_KEY": KEY,
    }


def _pack(made: Path, file: Path) -> None:
    left_out = {f"home/{name}" for name in LEFT_OUT}
    with tarfile.open(file, "w:xz", preset=9) as packed:
        for name in ("home", "tables", "bucket"):
            if (made / name).exists():
                packed.add(made / name, name, filter=lambda found: None if found.name in left_out else found)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
