"""A Spark standalone cluster of this machine: a master and its workers, from pyspark's own jars.

Each process is small. The master writes what it knows into a folder and reads it at its next start, so applications and
workers outlive it.
"""

from __future__ import annotations

from pathlib import Path

from lake_assets.connections.spark import spark_environment, spark_home
from lake_assets.services.service import LOOPBACK, Service, accepts, free_port, java

MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"
DAEMON_MB = 192
"""Heap of the master and of each worker; executors have their own."""

DAEMON_ENVIRONMENT = {"SPARK_LOCAL_IP": LOOPBACK, "SPARK_SCALA_VERSION": "2.13"}
"""What Spark's own script would set. Without the second one a worker looks for the folders of a build of Spark."""

LOST_WORKER_SECONDS = 20
"""The master gives a silent worker up after this time (60 by default)."""

CORES, WORKER_MB = 1, 900
"""What each worker offers: one executor."""

EXECUTOR_CONF = {
    "spark.driver.host": LOOPBACK,
    "spark.driver.bindAddress": LOOPBACK,
    "spark.executor.cores": "1",
    "spark.executor.memory": "700m",
    "spark.executor.memoryOverhead": "128m",
    # As the driver of `lake up`, and as it suits few rows: these executors live for minutes.
    "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.sql.shuffle.partitions": "4",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.dynamicAllocation.maxExecutors": "2",
    "spark.dynamicAllocation.executorIdleTimeout": "120s",
}
"""Properties of a Connect server whose executors are as small as these workers."""


def master(home: Path, port: int) -> Service:
    """Return the master. Applications and workers find it at `spark://127.0.0.1:port`."""
    state = home / "spark-master"
    state.mkdir(parents=True, exist_ok=True)
    options = (
        "-Dspark.deploy.recoveryMode=FILESYSTEM",
        f"-Dspark.deploy.recoveryDirectory={state}",
        f"-Dspark.worker.timeout={LOST_WORKER_SECONDS}",
        "-Dspark.deploy.maxExecutorRetries=-1",  # by default it gives an application up after 10 failed executors
    )
    return _daemon(home, "master", options, (MASTER, "--port", str(port), *_web_port()), port)


def worker(home: Path, name: str, master_port: int, *, memory_mb: int = WORKER_MB) -> Service:
    """Return a worker, which registers with the master, also with one that was started again.

    Args:
        memory_mb: What it offers to executors.
    """
    port = free_port()
    size = ("--cores", str(CORES), "--memory", f"{memory_mb}m", "--work-dir", str(home / name))
    options = ("-Dspark.worker.cleanup.enabled=true", "-Dspark.worker.cleanup.interval=300")
    main = (WORKER, "--port", str(port), *_web_port(), *size, master_address(master_port))
    return _daemon(home, name, options, main, port)


def master_address(port: int) -> str:
    """Return the address of a master of this machine, as `spark.master`."""
    return f"spark://{LOOPBACK}:{port}"


def _web_port() -> tuple[str, ...]:
    return ("--webui-port", str(free_port()))


def _daemon(home: Path, name: str, options: tuple[str, ...], main: tuple[str, ...], port: int) -> Service:
    program = java(str(spark_home() / "jars" / "*"), heap_mb=DAEMON_MB)
    return Service(
        name=name,
        command=(*program, *options, *main, "--host", LOOPBACK),
        home=home,
        port=port,
        environment={**spark_environment(), **DAEMON_ENVIRONMENT},
        ready=accepts(port),
        remedy="Spark needs Java 17 or 21.",
    )
