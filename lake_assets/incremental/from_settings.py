"""The platform of a home, opened: its pipeline and its engine. Commands, demo and Dagster's definitions start here."""

from __future__ import annotations

from datetime import timedelta
from functools import lru_cache
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from lake_assets.errors import ConfigurationError
from lake_assets.incremental.declaration import Pipeline, merge
from lake_assets.incremental.maintenance.policy import Policy
from lake_assets.incremental.monitoring.freshness import with_default_max_delay

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake_assets.incremental.execution.engine import Engine
    from lake_assets.incremental.maintenance.maintainer import Maintainer
    from lake_assets.settings import Settings


def open_pipeline(settings: Settings) -> Pipeline:
    """The pipelines that the settings name, as one. Raises `ConfigurationError` for one that cannot be loaded."""
    minutes = settings.max_delay_minutes
    pipeline = merge(_resolve(name.strip()) for name in settings.pipelines.split(","))
    return with_default_max_delay(pipeline, None if minutes is None else timedelta(minutes=minutes))


def _resolve(name: str) -> Pipeline:
    try:
        found = resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(
            f"LAKE_PIPELINES names {name!r}, which cannot be loaded: {error}.",
            remedy="Name each pipeline as module:attribute, separated by commas."
            " The folder of a module of your own belongs in PYTHONPATH.",
        ) from error
    if not isinstance(found, Pipeline):
        raise ConfigurationError(f"LAKE_PIPELINES names {name!r}, a {type(found).__name__}.", remedy="Name a Pipeline.")
    return found


def maintenance_policy(settings: Settings) -> Policy:
    """What maintenance keeps, as the settings say."""
    return Policy(
        retain=timedelta(hours=settings.retain_hours),
        newest=settings.keep_snapshots,
        orphan_age=timedelta(hours=settings.orphan_hours),
    )


def open_maintainer(settings: Settings) -> Maintainer:
    """The maintainer of the home's tables."""
    from lake_assets.incremental.maintenance.maintainer import Maintainer

    engine = open_engine(settings)
    assert engine.spark is not None
    policy = maintenance_policy(settings)
    return Maintainer(engine.catalog, engine.pipeline, clock=engine.clock, spark=engine.spark, policy=policy)


def open_engine(settings: Settings) -> Engine:
    """The engine on the home's catalog. Spark is reached when a session has rows to build, not before."""
    from lake_assets.connections.catalog import open_catalog
    from lake_assets.incremental.execution.engine import Engine, utc_now

    @lru_cache(maxsize=1)
    def spark() -> SparkSession:
        from lake_assets.connections.spark import open_spark

        return open_spark(settings)

    return Engine(open_catalog(settings), open_pipeline(settings), clock=utc_now, spark=spark)
