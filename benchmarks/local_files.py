"""What an append costs with Hadoop's own files of this machine, and with those of `connections/spark.py` (ADR 063).

    python -m benchmarks.local_files [--appends 12]

Each side has a Spark server of its own, one after the other. Printed are, for one append, wall time, processor time of
Spark's JVM with the processes that it started, and their part of it.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from operator import sub
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.processes import spark_server
from lake_assets.connections.spark import CLASS_PATH, open_spark
from lake_assets.services.servers import spark as spark_service
from lake_assets.services.service import free_port, running
from lake_assets.settings import Settings, settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WARM_UP = 6
"""Appends that do not count."""

SIDES = {"Hadoop's own": {CLASS_PATH: "."}, "without processes": {}}
"""Side → properties of its Spark. A class path of somebody else's keeps Hadoop's own."""


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--appends", type=int, default=12)
    appends = parser.parse_args().appends
    for side, properties in SIDES.items():
        with tempfile.TemporaryDirectory(prefix="lake-bench-") as folder:
            _measure(side, Settings(home=Path(folder), jars=settings().jars, spark_properties=properties), appends)


def _measure(side: str, home: Settings, appends: int) -> None:
    with running(spark_service(home, free_port())) as service:
        spark = open_spark(home.model_copy(update={"spark_remote": f"sc://127.0.0.1:{service.port}"}))
        for name, append in _kinds(spark, home.home).items():
            _repeated(append, WARM_UP)
            before = _processor_seconds(home.home)
            began = time.monotonic()
            _repeated(append, appends)
            spent = [time.monotonic() - began, *map(sub, _processor_seconds(home.home), before)]
            wall, all_of_it, started = (f"{1000 * seconds / appends:5.0f} ms" for seconds in spent)
            print(f"{side:<18} {name:<23} {wall}, {all_of_it} of processor time, {started} of it in processes")
        spark.stop()


def _kinds(spark: SparkSession, folder: Path) -> dict[str, Callable[[], None]]:
    """Create the tables; return the name of an append → what does it once."""
    spark.sql("CREATE NAMESPACE lake.files")
    spark.sql("CREATE TABLE lake.files.written (hour INT, value INT) USING iceberg PARTITIONED BY (hour)")
    hours = spark.range(0, 300, 1, 1).selectExpr("CAST(id % 30 AS INT) AS hour", "CAST(id AS INT) AS value")
    rows = spark.range(0, 30, 1, 1).selectExpr("1 AS hour", "CAST(id AS INT) AS value")

    def iceberg(new: SparkSession) -> None:
        new.writeTo("lake.files.written").option("distribution-mode", "none").append()

    return {
        "Iceberg, 30 partitions": lambda: iceberg(hours.sortWithinPartitions("hour")),
        "Iceberg, one partition": lambda: iceberg(rows),
        "Delta, one file": lambda: rows.write.format("delta").mode("append").save(f"{folder}/delta"),
    }


def _repeated(append: Callable[[], None], times: int) -> None:
    for _ in range(times):
        append()


def _processor_seconds(home: Path) -> tuple[float, float]:
    """Return the processor time of a Spark server with the processes that it has started, and that of these alone."""
    times = spark_server(home).cpu_times()
    started = times.children_user + times.children_system
    return times.user + times.system + started, started


if __name__ == "__main__":
    main()
