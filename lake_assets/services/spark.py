"""Spark as a local service: a Spark Connect server on pyspark's own jars.

Its executors are in the same process, or on the cluster whose master LAKE_SPARK_PROPERTIES names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lake_assets.connections.addresses import spark_token
from lake_assets.connections.spark import jvm_conf, spark_environment, spark_home
from lake_assets.services.service import Service, accepts

if TYPE_CHECKING:
    from pathlib import Path

    from lake_assets.settings import Settings

TOKEN_VARIABLE = "SPARK_CONNECT_AUTHENTICATE_TOKEN"
"""With it, a Spark Connect server refuses clients that do not send its value."""

MAIN = "org.apache.spark.sql.connect.service.SparkConnectServer"


def spark(settings: Settings, port: int) -> Service:
    """Return the Spark Connect server.

    It has no catalog of its own: every session configures one, so one server can be used with several homes. It
    requires the token of its home, if that has one: see `create_spark_token`.

    Args:
        settings: Memory, jars and Java options of the server, and its home.
        port: Port on loopback.
    """
    conf = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        **jvm_conf(settings),
        "spark.connect.grpc.binding.port": str(port),
    }
    submit = str(spark_home() / "bin" / "spark-submit")
    return Service(
        name="spark",
        command=(submit, "--class", MAIN, *conf_options(conf), "spark-internal"),
        home=settings.home,
        port=port,
        environment={**spark_environment(), **_token(settings.home)},
        ready=accepts(port),
        remedy="Install Java 17 or 21, and set LAKE_SPARK_MEMORY to what this machine has.",
    )


def _token(home: Path) -> dict[str, str]:
    """Return the variable with the token. Other users can read a command line, but not an environment."""
    token = spark_token(home)
    return {TOKEN_VARIABLE: token} if token else {}


def conf_options(conf: dict[str, str]) -> list[str]:
    """Return Spark properties as command-line options: `--conf name=value` for each."""
    options = []
    for name, value in conf.items():
        options += ["--conf", f"{name}={value}"]
    return options
