"""What the steps and sensors are handed: an Iceberg catalog, a Spark session, the time. Domain objects, no Dagster contexts."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import dagster as dg
from dagster_pyspark import LazyPySparkResource

from lake_assets.local.catalog import open_catalog
from lake_assets.local.spark import session_conf
from lake_assets.settings import Settings, settings

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog


class IcebergResource(dg.ConfigurableResource[Any]):
    """Hands out the pyiceberg catalog `lake`, as the settings of this process name it."""

    def catalog(self) -> Catalog:
        """One catalog per process: opening one costs a connection and a look at its schema, and a sensor ticks often."""
        return _catalog()


@lru_cache(maxsize=1)
def _catalog() -> Catalog:
    return open_catalog(settings())


def lake_resources(settings: Settings) -> dict[str, dg.ConfigurableResource[Any]]:
    """`iceberg` and `spark`. Spark is Lazy: a session without rows needs none, and without a server it takes seconds to start."""
    return {"iceberg": IcebergResource(), "spark": LazyPySparkResource(spark_config=session_conf(settings))}


def utc_now() -> datetime:
    """The clock of production; everything else takes one."""
    return datetime.now(UTC)
