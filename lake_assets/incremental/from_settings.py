"""The platform of a data directory, opened: its pipeline, engine and maintainer.

Commands, the demo and Dagster's definitions start here.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from lake_assets.errors import ConfigurationError, LakeError
from lake_assets.errors.texts import first_line, text_of
from lake_assets.incremental.declaration import Pipeline, merge
from lake_assets.incremental.engine.user_code import user_line
from lake_assets.settings import is_folder, pipeline_names

if TYPE_CHECKING:
    from lake_assets.incremental.engine.engine import Engine
    from lake_assets.incremental.operations.maintain import Maintainer, Policy
    from lake_assets.settings import Settings


def open_pipeline(settings: Settings) -> Pipeline:
    """Return the pipelines that the settings name, merged into one.

    Raises:
        ConfigurationError: A pipeline cannot be loaded.
    """
    names = pipeline_names(settings.pipelines)
    pipeline = merge(_load_pipeline(name, settings.start) for name in names)
    return with_delay_of(settings, pipeline)


def open_folder_pipeline(settings: Settings, folder: Path) -> Pipeline:
    """Return the pipeline that a folder of YAML files declares.

    Raises:
        ConfigurationError: Something in the files cannot work, or the columns of a query are not known.
    """
    from lake_assets.incremental.sql.folder import folder_pipeline

    return with_delay_of(settings, folder_pipeline(folder, start=settings.start))


def with_delay_of(settings: Settings, pipeline: Pipeline) -> Pipeline:
    """Return a pipeline whose targets have the default max_delay of the settings, if there is one."""
    if settings.max_delay_minutes is None:
        return pipeline
    max_delay = timedelta(minutes=settings.max_delay_minutes)
    targets = [
        target if target.max_delay is not None else replace(target, max_delay=max_delay) for target in pipeline.targets
    ]
    return replace(pipeline, targets=tuple(targets))


def _load_pipeline(name: str, start: str) -> Pipeline:
    if is_folder(name):
        from lake_assets.incremental.sql.folder import folder_pipeline

        return folder_pipeline(Path(name), start=start)
    try:
        found = resolve_name(name)
    except LakeError:
        raise
    except Exception as error:  # of the user's module
        place = user_line(error)
        if place is not None:
            raise ConfigurationError(
                f"LAKE_PIPELINES names {name!r}, which fails at {place}: {type(error).__name__}: "
                f"{first_line(text_of(error))}.",
                remedy="Correct the module, then run the command again.",
            ) from error
        raise ConfigurationError(
            f"LAKE_PIPELINES names {name!r}, which cannot be loaded: {error}.",
            remedy="Name each pipeline as module:attribute or as a folder of YAML files, separated by commas."
            " The folder of a module of your own belongs in PYTHONPATH.",
        ) from error
    if not isinstance(found, Pipeline):
        raise ConfigurationError(f"LAKE_PIPELINES names {name!r}, a {type(found).__name__}.", remedy="Name a Pipeline.")
    return found


def maintenance_policy(settings: Settings) -> Policy:
    """Return how long maintenance keeps snapshots and orphan files."""
    from lake_assets.incremental.operations.maintain import Policy

    return Policy(
        retain=timedelta(hours=settings.retain_hours),
        newest=settings.keep_snapshots,
        orphan_age=timedelta(hours=settings.orphan_hours),
    )


def open_maintainer(settings: Settings) -> Maintainer:
    """Return the maintainer of the tables."""
    from lake_assets.incremental.operations.maintain import Maintainer

    engine = open_engine(settings)
    assert engine.spark is not None
    return Maintainer(
        engine.catalog,
        engine.pipeline,
        clock=engine.clock,
        spark=engine.spark,
        policy=maintenance_policy(settings),
    )


def open_engine(settings: Settings) -> Engine:
    """Return the engine on the catalog. It connects to Spark when a session has rows to build, not before."""
    from lake_assets.connections.catalog import open_catalog
    from lake_assets.connections.spark import KeptSession, open_spark
    from lake_assets.incremental.engine.engine import Engine, utc_now

    kept = KeptSession(partial(open_spark, settings))
    return Engine(open_catalog(settings), open_pipeline(settings), clock=utc_now, spark=kept.session)
