"""The Spark session of a run: dagster-pyspark's, which gives up soon if its server cannot be reached."""

from __future__ import annotations

from dagster_pyspark import LazyPySparkResource

from lake_assets.connections.spark import limit_retries, require_listener


class BoundedSparkResource(LazyPySparkResource):
    """Opens the session on first use.

    By default a client of Spark Connect waits for 15 minutes, without a word, for a server that is gone.
    """

    def _init_session(self) -> None:
        remote = self.spark_config.get("spark.remote")
        if self._spark_session is not None or remote is None:
            super()._init_session()
            return
        require_listener(remote)
        super()._init_session()
        limit_retries(self.spark_session)
