"""What one large batch of mutation costs through the stream: time, memory, and rows that equal a replay.

    python -m benchmarks.engagement_large_batch [--requests 1000000] [--orgs 1] [--heap 3g]

Spark and Kafka are started in a temporary data directory. Each person has one row and three requests, which come as the
chain lead → contact → account → customer. The last request of one person in ten deletes, and that of another one in ten
merges into a customer of its org that many share. Printed are seconds of the batch and of each of its commits, the
highest memory of Spark and of its largest Python worker during the batch, and whether the rows equal a replay of the
requests one by one.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from deltalake import QueryBuilder
from pyspark.sql import functions as F

from benchmarks.engagement_mutation import NoGuard
from benchmarks.kafka_messages import send
from benchmarks.processes import SPARK, service_of
from lake_assets.connections.spark import open_spark
from lake_assets.engagement.batch import BatchCommit, Stream, run_batch
from lake_assets.engagement.checkpoint import Batch
from lake_assets.engagement.delta_log import open_table
from lake_assets.engagement.lakes import EMAIL_EVENT
from lake_assets.engagement.tables import ENGAGEMENT, SENT_WHO_ID, LakeTables, open_tables
from lake_assets.engagement.topics import KafkaTopic
from lake_assets.engagement.turn import open_stream
from lake_assets.services.lifecycle import lake_services
from lake_assets.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REQUESTS_OF_A_PERSON = 3
DELETED, MERGED = 0, 1
"""Remainders, by ten, of the people whose last request deletes, or merges into the shared customer."""

ENGAGED = datetime(2026, 1, 1, tzinfo=UTC)
EXECUTED = datetime(2026, 2, 1, tzinfo=UTC)
MB = 1024 * 1024
WORKER = "pyspark.daemon"
"""In the command line of Spark's Python workers."""

Row = tuple[str, str]
"""Org, and the id that the row has."""


@dataclass
class Peaks:
    """Highest resident memory that was seen, in MB."""

    spark: int = 0
    worker: int = 0

    def look(self) -> None:
        for process in psutil.Process().children(recursive=True):
            try:
                command = " ".join(process.cmdline())
                used = process.memory_info().rss // MB
            except psutil.Error:
                continue
            if WORKER in command:
                self.worker = max(self.worker, used)
            elif service_of(command) == SPARK:
                self.spark = max(self.spark, used)


@dataclass(frozen=True)
class TimedCommit:
    """A commit of the stream that notes how many seconds it takes."""

    commit: BatchCommit
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.commit.name

    @property
    def table(self) -> str:
        return self.commit.table

    def write(self, batch: Batch, done: Mapping[str, int | None], app_id: str) -> None:
        began = time.perf_counter()
        self.commit.write(batch, done, app_id)
        self.seconds[self.name] = time.perf_counter() - began


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--orgs", type=int, default=1)
    parser.add_argument("--heap", default="1500m", help="heap of Spark")
    arguments = parser.parse_args()
    people = arguments.requests // REQUESTS_OF_A_PERSON
    with (
        tempfile.TemporaryDirectory(prefix="lake-bench-") as folder,
        lake_services(Settings(home=Path(folder), spark_java_options="", spark_memory=arguments.heap)) as home,
    ):
        spark = open_spark(home)
        tables = open_tables(home, replace(EMAIL_EVENT, max_records=10**9))
        _fill(tables, spark, people, arguments.orgs)
        _send(str(home.kafka), tables, people, arguments.orgs)
        print(f"{people * REQUESTS_OF_A_PERSON:,} requests, {arguments.orgs:,} orgs, {people:,} rows", flush=True)
        _run(open_stream("mutation", tables, spark, str(home.kafka)))
        _compare(tables, people, arguments.orgs)
        spark.stop()


def _fill(tables: LakeTables, spark: SparkSession, people: int, orgs: int) -> None:
    """Write a row of each person."""
    tables.create(spark)
    tables.register_orgs({f"org{number}": None for number in range(orgs)})
    person = F.col("id")
    lead = F.concat(F.lit("lead "), person)
    columns = {
        "org_id": F.concat(F.lit("org"), person % orgs),
        "engagement_date": F.lit(ENGAGED.date()),
        "engagement_id": F.concat(F.lit("e"), person),
        "who_id": lead,
        SENT_WHO_ID: lead,
        "kind": F.lit("sent"),
        "engaged_at": F.lit(ENGAGED),
    }
    rows = spark.range(people, numPartitions=2).withColumns(columns).drop("id")
    rows.repartition(2, "org_id").write.format("delta").mode("append").save(tables.location(ENGAGEMENT))


def _requests(people: int, orgs: int) -> Iterator[tuple[str, str, str | None]]:
    """Yield org, old id and new id (None: delete) of each request, in order of time."""
    for person in range(people):
        yield f"org{person % orgs}", f"lead {person}", f"contact {person}"
    for person in range(people):
        yield f"org{person % orgs}", f"contact {person}", f"account {person}"
    for person in range(people):
        yield f"org{person % orgs}", f"account {person}", _last_id(person)


def _last_id(person: int) -> str | None:
    if person // 10 % 10 == DELETED:
        return None
    if person // 10 % 10 == MERGED:
        return "customer of many"
    return f"customer {person}"


def _send(servers: str, tables: LakeTables, people: int, orgs: int) -> None:
    topic = KafkaTopic(servers, tables.lake.topic("mutation"))
    topic.create(1)
    send(topic, _messages(people, orgs))


def _messages(people: int, orgs: int) -> Iterator[Mapping[str, str | None]]:
    for number, (org, old_id, new_id) in enumerate(_requests(people, orgs)):
        yield {
            "org_id": org,
            "request_id": f"r{number}",
            "op": "delete" if new_id is None else "convert",
            "old_id": old_id,
            "new_id": new_id,
            "executed_at": (EXECUTED + timedelta(milliseconds=number)).isoformat(),
        }


def _run(stream: Stream) -> None:
    timed = tuple(TimedCommit(commit) for commit in stream.commits)
    with _peaks() as peaks:
        began = time.perf_counter()
        report = run_batch(replace(stream, commits=timed), NoGuard())
        seconds = time.perf_counter() - began
    assert report is not None
    commits = ", ".join(f"{commit.name} {commit.seconds[commit.name]:.1f}" for commit in timed)
    print(f"  {seconds:.1f} s ({commits})")
    print(f"  memory: Spark {peaks.spark:,} MB, largest Python worker {peaks.worker:,} MB", flush=True)


@contextmanager
def _peaks() -> Iterator[Peaks]:
    """Give the peaks of memory, which are looked for until the block ends."""
    peaks, ended = Peaks(), threading.Event()

    def look() -> None:
        while not ended.wait(0.5):
            peaks.look()

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield peaks
    finally:
        ended.set()
        thread.join()


def _compare(tables: LakeTables, people: int, orgs: int) -> None:
    """Compare the table with a replay."""
    table = open_table(tables.location(ENGAGEMENT))
    found: Counter[Row] = Counter()
    expected = _replayed(people, orgs)
    result = QueryBuilder().register("rows", table).execute("SELECT org_id, who_id FROM rows")
    for batch in result:
        columns = [column.to_pylist() for column in (batch["org_id"], batch["who_id"])]
        found.update(zip(*columns, strict=True))
    rows = sum(found.values())
    print(f"  {rows:,} rows, {'equal to' if found == expected else 'DIFFERENT FROM'} the replay", flush=True)


def _replayed(people: int, orgs: int) -> Counter[Row]:
    """Return how many rows each id has after all requests, applied one by one."""
    rows: defaultdict[Row, int] = defaultdict(int)
    for person in range(people):
        rows[f"org{person % orgs}", f"lead {person}"] += 1
    for org, old_id, new_id in _requests(people, orgs):
        moved = rows.pop((org, old_id), 0)
        if new_id is not None and moved:
            rows[org, new_id] += moved
    return Counter(rows)


if __name__ == "__main__":
    main()
