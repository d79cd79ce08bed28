"""The Spark session of a run: dagster-pyspark's, with no secrets in the UI and no long wait for a dead server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dagster as dg
from dagster_pyspark import LazyPySparkResource
from dagster_pyspark.resources import spark_session_from_config

from lake_assets.connections.spark import prepare_client, require_listener


def spark_resource(conf: Mapping[str, Any], *, shown: Mapping[str, Any]) -> dg.ConfigurableResource[Any]:
    """Return a resource that opens the session when a step first uses it.

    By default a client of Spark Connect waits for 15 minutes, without a word, for a server that is gone. This one
    raises `ServiceError` if no server listens, and gives up after 20 s later on.

    Args:
        conf: Configuration of the session.
        shown: The part of it that Dagster's UI may show.
    """
    remote = conf.get("spark.remote")

    class SparkResource(LazyPySparkResource):
        """Opens the session with all of the configuration when a step first uses it."""

        def _init_session(self) -> None:
            if self._spark_session is not None:
                return
            if remote is not None:
                require_listener(remote)
            self._spark_session = spark_session_from_config(dict(conf))  # type: ignore[no-untyped-call]
            if remote is not None:
                prepare_client(self._spark_session)

    return SparkResource(spark_config=dict(shown))
