"""Rows per second and core that a mutation batch moves or deletes, compared with one MERGE for each request.

    python -m benchmarks.engagement_mutation [--rows 2000000] [--requests 2000 ...] [--singly 5] [--delta-rs]

Spark and Kafka are started in a temporary data directory. The rows belong to 40 orgs and 400 days; each id has 50 rows
within a fortnight. The requests concern ids of the last months, and older ones if those are too few; one in ten is a
deletion. The first batch warms up. The number of files that the batch's MERGE may read is printed, too.

With `--delta-rs`, delta-rs applies the requests of the last batch in one MERGE, to a copy of the rows before the batch.
It gets the ids as they are: it reads no Kafka, collapses nothing, and writes no other table. The copy has neither
deletion vectors nor a change data feed, which delta-rs does not write.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import functions as F

from benchmarks.kafka_messages import send
from lake_assets.connections.spark import open_spark
from lake_assets.engagement.batch import BatchReport, run_batch
from lake_assets.engagement.lakes import EMAIL_EVENT
from lake_assets.engagement.maintenance import rewrite_files
from lake_assets.engagement.pruning import merge_scope, spans_of_days
from lake_assets.engagement.tables import ENGAGEMENT, SENT_WHO_ID, LakeTables, open_tables
from lake_assets.engagement.topics import KafkaTopic
from lake_assets.engagement.turn import open_stream
from lake_assets.services.lifecycle import lake_services
from lake_assets.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ORGS = 40
DAYS = 400
ROWS_OF_AN_ID = 50
RECENT_DAYS = 60
FORTNIGHT = 14
DAY_STEP = 7919
"""A prime, so that consecutive ids have scattered days."""

FIRST = date(2025, 1, 1)
FILE_BYTES = 1024 * 1024
"""Small, so that an org of ten thousand rows has as many files as a large org with files of 128 MB."""


class NoGuard:
    """The guard of a lake without other writers."""

    def claim(self) -> int:
        return 0

    def confirm(self) -> None:
        return


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--requests", type=int, nargs="+", default=[2_000, 2_000], help="of each batch")
    parser.add_argument("--singly", type=int, default=5, help="requests that get a MERGE of their own")
    parser.add_argument("--delta-rs", action="store_true", help="compare with delta-rs, too")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="lake-bench-") as folder,
        lake_services(Settings(home=Path(folder), spark_java_options="")) as home,
    ):
        spark = open_spark(home)
        tables = open_tables(home, replace(EMAIL_EVENT, max_file_bytes=FILE_BYTES))
        _fill(tables, spark, arguments.rows)
        ids = _ids(arguments.rows // ROWS_OF_AN_ID)
        singly = list(islice(ids, arguments.singly))
        taken: list[int] = []
        before = 0
        for number, requests in enumerate(arguments.requests, start=1):
            taken = list(islice(ids, requests))
            before = tables.version(ENGAGEMENT)
            _batch(tables, spark, str(home.kafka), f"batch {number}", taken)
        if arguments.delta_rs:
            _by_delta_rs(tables, spark, before, taken, Path(folder) / "copy")
        _singly(tables, spark, singly)
        spark.stop()


def _fill(tables: LakeTables, spark: SparkSession, rows: int) -> None:
    tables.create(spark)
    tables.register_orgs({_org(number): None for number in range(ORGS)})
    number = F.col("id")
    who = F.floor(number / ROWS_OF_AN_ID)
    day = who * DAY_STEP % (DAYS - FORTNIGHT) + F.pmod(number * 31, F.lit(FORTNIGHT))
    columns = {
        "org_id": F.concat(F.lit("org"), who % ORGS),
        "engagement_date": F.date_add(F.lit(FIRST), day.cast("int")),
        "engagement_id": F.concat(F.lit("e"), number),
        "who_id": F.concat(F.lit("lead "), who),
        SENT_WHO_ID: F.concat(F.lit("lead "), who),
        "kind": F.lit("sent"),
        "template_id": F.concat(F.lit("template "), number % 40),
        "rep_id": F.concat(F.lit("rep "), number % 300),
    }
    made = spark.range(rows, numPartitions=4).withColumns(columns).drop("id")
    made = made.withColumn("engaged_at", F.col("engagement_date").cast("timestamp"))
    made.write.format("delta").mode("append").save(tables.location(ENGAGEMENT))
    rewrite_files(tables, spark, [_org(number) for number in range(ORGS)], confirm=lambda: None)


def _ids(count: int) -> Iterator[int]:
    """Yield all ids, those with rows of the last days first."""
    for is_recent in (True, False):
        for who in range(count):
            first_day = who * DAY_STEP % (DAYS - FORTNIGHT)
            if (first_day >= DAYS - RECENT_DAYS) == is_recent:
                yield who


def _org(number: int) -> str:
    return f"org{number}"


def _batch(tables: LakeTables, spark: SparkSession, servers: str, run: str, ids: list[int]) -> None:
    topic = KafkaTopic(servers, tables.lake.topic("mutation"))
    topic.create(4)
    send(topic, _messages(run, ids))
    before = tables.version(ENGAGEMENT)
    began = time.perf_counter()
    report = run_batch(open_stream("mutation", tables, spark, servers), NoGuard())
    seconds = time.perf_counter() - began
    assert report is not None
    rows = _changed(report)
    print(f"{run}: {len(ids):,} requests, {rows:,} rows, {seconds:.1f} s, {_rate(rows, seconds)}")
    commit = report.commits["data"]
    assert commit is not None
    changed = tables.changes(spark, ENGAGEMENT, commit.version)
    rows_before = tables.read(spark, ENGAGEMENT, version=before)
    may_read = rows_before.where(merge_scope(spans_of_days(changed)).condition).inputFiles()
    print(f"{run}: may read {len(may_read):,} of {len(rows_before.inputFiles()):,} files")


def _messages(run: str, ids: list[int]) -> Iterator[Mapping[str, str]]:
    for place, who in enumerate(ids):
        yield {
            "org_id": _org(who % ORGS),
            "request_id": f"{run}-{place}",
            "op": "convert" if _is_converted(place) else "delete",
            "old_id": f"lead {who}",
            "new_id": f"contact {who}",
            "executed_at": (datetime(2026, 3, 1, tzinfo=UTC) + timedelta(seconds=place)).isoformat(),
        }


def _is_converted(place: int) -> bool:
    return place % 10 > 0


def _changed(report: BatchReport) -> int:
    commit = report.commits["data"]
    assert commit is not None
    return sum(int(commit.metrics[name]) for name in ("numTargetRowsUpdated", "numTargetRowsDeleted"))


def _by_delta_rs(tables: LakeTables, spark: SparkSession, version: int, ids: list[int], copy: Path) -> None:
    """Apply the requests of a batch to a copy of the rows of a version."""
    rows = tables.read(spark, ENGAGEMENT, version=version)
    rows.write.format("delta").partitionBy("org_id").option("maxRecordsPerFile", 50_000).save(str(copy))
    requests = []
    for place, who in enumerate(ids):
        new_id = f"contact {who}" if _is_converted(place) else None
        requests.append({"org_id": _org(who % ORGS), "old_id": f"lead {who}", "new_id": new_id})
    schema = pa.schema([(name, pa.string()) for name in ("org_id", "old_id", "new_id")])
    table = DeltaTable(copy)
    began = time.perf_counter()
    merge = table.merge(
        pa.Table.from_pylist(requests, schema=schema),
        predicate="rows.org_id = asked.org_id AND rows.who_id = asked.old_id",
        source_alias="asked",
        target_alias="rows",
    )
    merge = merge.when_matched_delete("asked.new_id IS NULL").when_matched_update({"who_id": "asked.new_id"})
    metrics = merge.execute()
    seconds = time.perf_counter() - began
    changed = metrics["num_target_rows_updated"] + metrics["num_target_rows_deleted"]
    files = metrics["num_target_files_scanned"]
    print(f"delta-rs: {len(ids):,} requests, {changed:,} rows, {seconds:.1f} s, {_rate(changed, seconds)}")
    print(f"delta-rs: scanned {files:,} files, copied {metrics['num_target_rows_copied']:,} rows", flush=True)


def _singly(tables: LakeTables, spark: SparkSession, ids: list[int]) -> None:
    seconds = []
    for who in ids:
        began = time.perf_counter()
        source = spark.createDataFrame([(f"lead {who}", f"contact {who}")], "old_id string, new_id string")
        same = (F.col("org_id") == F.lit(_org(who % ORGS))) & (F.col("who_id") == F.col("old_id"))
        source.mergeInto(tables.identifier(ENGAGEMENT), same).whenMatched().update({"who_id": F.col("new_id")}).merge()
        seconds.append(time.perf_counter() - began)
    rate = _rate(len(ids) * ROWS_OF_AN_ID, sum(seconds))
    print(f"a MERGE for each of {len(ids)}: {sum(seconds) / len(ids):.2f} s each, {rate}")


def _rate(rows: int, seconds: float) -> str:
    cores = os.cpu_count() or 1
    return f"{rows / seconds / cores:,.0f} rows a second and core"


if __name__ == "__main__":
    main()
