"""Spark, however it is had: a session on a Connect server, or one inside this process when there is no server.

Both get the same configuration, `spark_conf`. What starts and stops a server is `services.py`.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from lake_assets.connections.addresses import spark_remote
from lake_assets.connections.catalog import open_catalog, spark_catalog_conf
from lake_assets.errors import ServiceError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake_assets.settings import Settings

CONNECT_PORT = 15002
"""Where a Spark Connect server listens when an address names no port."""

CONNECT_VARIABLES = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED")
"""With these pyspark refuses a Spark in the process; the second it sets itself, for all child processes too."""

STATIC_CONF = {
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions,"
    "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.ui.enabled": "false",
    "spark.log.level": "WARN",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Local sizes: two cores need two partitions, and finding that out anew for each query costs more than it saves.
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    # A session's queries compile to more pieces than the 100 that are kept by default, and the next one needs the same.
    "spark.sql.codegen.cache.maxEntries": "2000",
}
"""What only the start of a JVM can set: a Connect session that names it gets a warning, and nothing else."""


def spark_conf(settings: Settings) -> dict[str, str]:
    """What each session sets for itself: the catalog `lake`. So several homes can share one server."""
    return {
        **spark_catalog_conf(settings),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
    }


def jvm_conf(settings: Settings) -> dict[str, str]:
    """What a JVM of this machine takes at its start: `STATIC_CONF`, its master, memory and jars."""
    return {
        **STATIC_CONF,
        "spark.driver.extraJavaOptions": f"-Duser.timezone=UTC -XX:+UseSerialGC {settings.spark_java_options}",
        "spark.master": "local[2]",
        "spark.jars": ",".join(str(jar) for jar in jars(settings)),
        "spark.driver.memory": settings.spark_memory,
        "spark.sql.warehouse.dir": str(settings.home / "spark-warehouse"),
    }


def session_conf(settings: Settings) -> dict[str, str]:
    """All that a session builder needs: `spark_conf`, and where Spark is: `spark.remote`, or a Spark in this process.

    For the latter it also sets this process's environment, from which alone pyspark takes its own paths.
    """
    if remote := spark_remote(settings):
        return {**spark_conf(settings), "spark.remote": remote}
    os.environ.update(spark_environment())
    for variable in CONNECT_VARIABLES:
        os.environ.pop(variable, None)
    return {**jvm_conf(settings), **spark_conf(settings)}


def open_spark(settings: Settings) -> SparkSession:
    """A new session on the server, to be stopped by the caller; without a server, the session of this process.

    `ServiceError` if nothing listens at the server's address.
    """
    from pyspark.sql import SparkSession

    # Of two Sparks that open a new catalog at once one fails, for Java makes its tables in two steps: make them here.
    open_catalog(settings)
    conf = session_conf(settings)
    builder: Any = SparkSession.builder.config(map=dict(conf))
    if "spark.remote" not in conf:
        classic: SparkSession = builder.appName("lake-assets").getOrCreate()
        return classic
    _require_listener(conf["spark.remote"])
    session: SparkSession = builder.create()
    limit_retries(session)
    return session


def limit_retries(session: SparkSession) -> None:
    """Gives up on a server that is gone after 20 s. By default a client, its exit included, tries for 13 minutes."""
    from pyspark.sql.connect.client.retries import DefaultPolicy

    connected: Any = session
    connected.client.set_retry_policies([DefaultPolicy(max_retries=5)])


def _require_listener(remote: str) -> None:
    address = urlsplit(remote)
    try:
        socket.create_connection((address.hostname or "", address.port or CONNECT_PORT), timeout=10).close()
    except OSError as error:
        raise ServiceError(
            f"No Spark Connect server answers at {remote}: {error}.",
            remedy="Start one with `lake up`, or correct LAKE_SPARK_REMOTE; without it, Spark runs in the process.",
        ) from None


def jars(settings: Settings) -> list[Path]:
    """The jars beside pyspark's own; `ServiceError` when there are none."""
    found = sorted(settings.jars.glob("*.jar"))
    if not found:
        raise ServiceError(f"There are no jars in {settings.jars}.", remedy="Run `make setup`, or set LAKE_JARS.")
    return found


def spark_home() -> Path:
    """pyspark's folder, found without importing it: that takes half a second."""
    from importlib.util import find_spec

    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ServiceError("pyspark is not installed.", remedy="Run `make setup`.")
    return Path(spec.origin).parent


def spark_environment() -> dict[str, str]:
    """Without these, Spark takes another Spark or another Python that it finds on the PATH."""
    return {"SPARK_HOME": str(spark_home()), "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
