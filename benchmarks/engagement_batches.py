"""What small batches of mutation cost with many requests behind them, the present code beside an earlier revision.

    python -m benchmarks.engagement_batches [--batches 1000] [--requests 10] [--behind 16000] [--before REVISION]

Each side has Spark and Kafka of its own, in a temporary data directory, one side after the other. The rows belong to a
few orgs. The first batches have `--requests` requests each; then comes one batch with `--behind` requests of one org,
and then the other batches. Printed are wall time and CPU seconds of all processes of the side, of the first batches,
of the hundredth and of the last, and the files and rows of the tables of requests that the last batch can have read.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pyarrow as pa
from deltalake import DeltaTable

from benchmarks.before import code_of
from benchmarks.engagement_mutation import NoGuard
from benchmarks.kafka_messages import send
from benchmarks.processes import cpu_seconds_by_service
from lake_assets.connections.spark import open_spark
from lake_assets.engagement.batch import run_batch
from lake_assets.engagement.lakes import EMAIL_EVENT
from lake_assets.engagement.tables import MUTATION_REQUEST, LakeTables, open_tables
from lake_assets.engagement.topics import KafkaTopic
from lake_assets.engagement.turn import open_stream
from lake_assets.services.lifecycle import lake_services
from lake_assets.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OWN_FILES = ("engagement_batches.py", "before.py", "kafka_messages.py", "processes.py")
"""What an earlier revision is measured with."""

ORGS = 4
FIRST_BATCHES = 3
"""Batches before the large one. The first one warms Spark up."""
START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Cost:
    """What a batch cost: seconds, and CPU seconds of all processes."""

    batch: int
    requests: int
    seconds: float
    cpu: float


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=1_000)
    parser.add_argument("--requests", type=int, default=10, help="of each small batch")
    parser.add_argument("--behind", type=int, default=16_000, help="requests of one org in the large batch")
    parser.add_argument("--minutes", type=float, default=12, help="of each side; then it ends")
    parser.add_argument("--before", help="revision of git that is measured first")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker or not arguments.before:
        _play(arguments)
        return
    for revision in (arguments.before, None):
        print(f"{revision or 'present code'}:", flush=True)
        with code_of(revision, own_files=OWN_FILES) as (folder, environment):
            command = [sys.executable, "-m", "benchmarks.engagement_batches", "--worker", *sys.argv[1:]]
            subprocess.run(command, cwd=folder, env=environment, check=True)


def _play(arguments: argparse.Namespace) -> None:
    """Play the batches of one side, and print what they cost."""
    with (
        tempfile.TemporaryDirectory(prefix="lake-bench-") as folder,
        lake_services(Settings(home=Path(folder), spark_java_options="")) as home,
    ):
        spark = open_spark(home)
        tables = open_tables(home, replace(EMAIL_EVENT, max_records=10**9))
        _prepare(tables, spark, str(home.kafka), arguments)
        ends_at = time.monotonic() + 60 * arguments.minutes
        costs = []
        for batch, size in enumerate(_sizes(arguments), start=1):
            if time.monotonic() > ends_at:
                break
            costs.append(_batch(tables, spark, str(home.kafka), batch, size))
        _report(costs, tables)
        spark.stop()


def _sizes(arguments: argparse.Namespace) -> Iterator[int]:
    """Yield the number of requests of each batch."""
    for batch in range(arguments.batches):
        yield arguments.behind if batch == FIRST_BATCHES else arguments.requests


def _prepare(tables: LakeTables, spark: SparkSession, servers: str, arguments: argparse.Namespace) -> None:
    """Create the lake, with a row for each request, and one batch of ingestion."""
    tables.create(spark)
    tables.register_orgs({_org(number): None for number in range(ORGS)})
    topic = KafkaTopic(servers, tables.lake.topic("ingestion"))
    topic.create(1)
    KafkaTopic(servers, tables.lake.topic("mutation")).create(1)
    emails = []
    for batch, size in enumerate(_sizes(arguments), start=1):
        for number in range(size):
            who = f"lead {batch}.{number}"
            email = {"org_id": _org_of(batch, size), "engagement_id": f"e{who}", "who_id": who, "kind": "sent"}
            emails.append({**email, "engaged_at": START.isoformat()})
    send(topic, emails)
    run_batch(open_stream("ingestion", tables, spark, servers), NoGuard())


def _org_of(batch: int, size: int) -> str:
    """Return the org of a batch: the large one and the first small ones belong to the same."""
    return _org(0 if batch <= FIRST_BATCHES + 1 else batch % ORGS)


def _org(number: int) -> str:
    return f"org{number}"


def _batch(tables: LakeTables, spark: SparkSession, servers: str, batch: int, size: int) -> Cost:
    requests = []
    for number in range(size):
        old_id = f"lead {batch}.{number}"
        request = {"org_id": _org_of(batch, size), "request_id": f"r{batch}.{number}", "op": "convert"}
        at = START + timedelta(days=batch, milliseconds=number)
        requests.append({**request, "old_id": old_id, "new_id": f"to {old_id}", "executed_at": at.isoformat()})
    send(KafkaTopic(servers, tables.lake.topic("mutation")), requests)
    began, cpu = time.perf_counter(), _cpu()
    report = run_batch(open_stream("mutation", tables, spark, servers), NoGuard())
    assert report is not None
    commit = report.commits["data"]
    assert commit is not None
    assert int(commit.metrics["numTargetRowsUpdated"]) == size
    cost = Cost(batch, size, time.perf_counter() - began, _cpu() - cpu)
    print(f"  batch {batch}: {size:,} requests, {cost.seconds:.1f} s, {cost.cpu:.1f} s of CPU", flush=True)
    return cost


def _cpu() -> float:
    """Return the CPU seconds of this process and of all below it, ended ones included."""
    this = psutil.Process()
    return sum(cpu_seconds_by_service([this, *this.children(recursive=True)]).values())


def _report(costs: list[Cost], tables: LakeTables) -> None:
    small = [cost for cost in costs if cost.batch not in (1, FIRST_BATCHES + 1)]
    shown = {"second": small[0], "last": small[-1]}
    if len(small) > 100:
        shown["hundredth"] = small[98]
    for name, cost in shown.items():
        print(f"  {name} (batch {cost.batch}): {cost.seconds:.1f} s, {cost.cpu:.1f} s of CPU")
    last = costs[-1]
    location = tables.location(MUTATION_REQUEST)
    print(f"  {MUTATION_REQUEST}: {_files(location, _org_of(last.batch, last.requests))}")


def _files(location: str, org: str) -> str:
    """Return the files and rows of a table of requests, and of the partition of an org if it has partitions."""
    actions = pa.table(DeltaTable(location).get_add_actions(flatten=True)).to_pylist()
    of_org = [action for action in actions if action.get("partition.org_id", org) == org]
    rows = sum(action["num_records"] for action in actions)
    rows_of_org = sum(action["num_records"] for action in of_org)
    return f"{len(actions):,} files, {rows:,} rows; of {org} {len(of_org):,} files, {rows_of_org:,} rows"


if __name__ == "__main__":
    main()
