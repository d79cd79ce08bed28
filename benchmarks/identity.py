"""Time to collapse the requests of one org, and of a thousand, into one map from old to new ids.

    python -m benchmarks.identity [--requests 100000] [--orgs 1000]

For the thousand orgs a Spark Connect server is started in a temporary data directory.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from lake_assets.connections.spark import open_spark
from lake_assets.engagement.grouped import aliases_by_org
from lake_assets.engagement.requests import MutationRequest, aliases
from lake_assets.services.servers import spark as spark_service
from lake_assets.services.service import free_port, running
from lake_assets.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

START = datetime(2026, 1, 1, tzinfo=UTC)
Edge = Callable[[int], tuple[str, str]]
SHAPES: dict[str, Edge] = {
    "chain": lambda n: (str(n), str(n + 1)),
    "star": lambda n: (str(n), "centre"),
}


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=100_000, help="of one org; ten times as many over all orgs")
    parser.add_argument("--orgs", type=int, default=1_000)
    arguments = parser.parse_args()
    for shape, edge in SHAPES.items():
        requests = _requests(arguments.requests, edge)
        began = time.perf_counter()
        changed = len(aliases(requests))
        seconds = time.perf_counter() - began
        print(f"{shape}: {arguments.requests:,} requests of one org, {changed:,} ids: {seconds:.2f} s")
    with tempfile.TemporaryDirectory(prefix="lake-bench-") as folder:
        home = Settings(home=Path(folder))
        with running(spark_service(home, free_port())) as service:
            spark = open_spark(home.model_copy(update={"spark_remote": f"sc://127.0.0.1:{service.port}"}))
            _through_spark(spark, 10 * arguments.requests, arguments.orgs)
            spark.stop()


def _requests(count: int, edge: Edge) -> list[MutationRequest]:
    """Return requests in random order: to sort them is part of the work."""
    made = []
    for number in range(count):
        executed_at = START + timedelta(milliseconds=number)
        old, new = edge(number)
        made.append(MutationRequest(f"r{number}", "convert", old, new, executed_at, partition=0, offset=number))
    random.Random(1).shuffle(made)
    return made


def _through_spark(spark: SparkSession, requests: int, orgs: int) -> None:
    """Measure chains that are spread over the orgs. The first of two runs is the warm-up of Spark."""
    for run in ("first", "again"):
        began = time.perf_counter()
        changed = aliases_by_org(_chains(spark, requests, orgs)).count()
        seconds = time.perf_counter() - began
        print(f"Spark, {run}: {requests:,} requests of {orgs:,} orgs, {changed:,} ids: {seconds:.1f} s")


def _chains(spark: SparkSession, requests: int, orgs: int) -> DataFrame:
    return spark.range(requests).selectExpr(
        f"concat('org', id % {orgs}) org_id",
        "concat('r', id) request_id",
        "'convert' op",
        f"cast(id div {orgs} as string) old_id",
        f"cast(id div {orgs} + 1 as string) new_id",
        "timestamp_millis(id) executed_at",
        "0 `partition`",
        "id `offset`",
        "cast(null as date) engagement_date",
        "'who_id' `column`",
        "0 part",
    )


if __name__ == "__main__":
    main()
