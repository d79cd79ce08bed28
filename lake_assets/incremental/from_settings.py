"""The platform of a data directory, opened: its pipeline, engine and maintainer.

Commands, the demo and Dagster's definitions start here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType
from typing import TYPE_CHECKING

from lake_assets.errors import ConfigurationError, LakeError, first_line, text_of
from lake_assets.incremental.declaration import Broken, Pipeline
from lake_assets.incremental.engine.user_code import user_line
from lake_assets.settings import is_path, pipeline_names

if TYPE_CHECKING:
    from lake_assets.incremental.engine.engine import Engine
    from lake_assets.incremental.operations.maintain import Maintainer, Policy
    from lake_assets.incremental.sql.folder import SqlFolder
    from lake_assets.settings import Settings


Declared = Pipeline | str | Path | Sequence["Pipeline | str | Path"]
"""What declares tables: a `Pipeline`; its name, `module:attribute`, or that of its module or its file; a folder of YAML
files, or one of them; or several of these, as a list or as a text with commas."""


def open_pipeline(settings: Settings) -> Pipeline:
    """Return what the settings name as one pipeline. What cannot be used of it is left out, and listed in it.

    Raises:
        ConfigurationError: Nothing can be used, or parts fit together in no way.
    """
    return with_delay_of(settings, declared_pipeline(settings.pipelines, start=settings.start))


def declared_pipeline(declared: Declared, *, start: str) -> Pipeline:
    """Return several declarations as one pipeline, in whatever order they are named.

    Args:
        declared: What declares tables.
        start: The first event hour of YAML files that name none.

    Raises:
        ConfigurationError: Nothing can be used, or parts fit together in no way.
    """
    from lake_assets.incremental.sql.folder import targets_of, whole_pipeline

    if isinstance(declared, Pipeline):
        declared.check_subjects()
        return declared
    python, folder = read_declared(declared)
    targets, broken = targets_of(folder, target_columns(python))
    return whole_pipeline(folder, targets, broken, start=start, python=python)


def read_declared(declared: Declared) -> tuple[list[Pipeline], SqlFolder]:
    """Return the pipelines in Python, and what YAML files declare, with the raw tables of both."""
    from lake_assets.incremental.sql.folder import open_folder

    python: list[Pipeline] = []
    paths: list[Path] = []
    broken: list[Broken] = []
    for each in _each(declared):
        if isinstance(each, Pipeline):
            python.append(each)
        elif isinstance(each, Path) or is_path(each):
            paths.append(Path(each))
        else:
            try:
                python.append(_load_pipeline(each))
            except ConfigurationError as error:
                broken.append(Broken(error, _text_of_module(each)))
    raw = [each for pipeline in python for each in pipeline.raw]
    return python, open_folder(*paths, declared=raw, broken=broken)


def _each(declared: Declared) -> list[Pipeline | str | Path]:
    if isinstance(declared, str):
        return list(pipeline_names(declared))
    return [declared] if isinstance(declared, Pipeline | Path) else list(declared)


def target_columns(pipelines: Iterable[Pipeline]) -> dict[str, Mapping[str, str]]:
    """Return target → its columns, of pipelines in Python."""
    return {target.table: target.columns for pipeline in pipelines for target in pipeline.targets}


def with_delay_of(settings: Settings, pipeline: Pipeline) -> Pipeline:
    """Return a pipeline whose targets have the default max_delay of the settings, if there is one."""
    if settings.max_delay_minutes is None:
        return pipeline
    max_delay = timedelta(minutes=settings.max_delay_minutes)
    targets = [
        target if target.max_delay is not None else replace(target, max_delay=max_delay) for target in pipeline.targets
    ]
    return replace(pipeline, targets=tuple(targets))


ATTRIBUTE = "PIPELINE"
"""What a module calls its pipeline, if no attribute is named."""


def _load_pipeline(name: str) -> Pipeline:
    """Return a pipeline by its name: `module:attribute`, `module`, or the module's file."""
    module, _, attribute = name.partition(":")
    file = Path(module).expanduser()
    if file.suffix == ".py":
        folder = str(file.absolute().parent)
        if folder not in sys.path:
            sys.path.insert(0, folder)
        module = file.stem
    try:
        found = resolve_name(f"{module}:{attribute or ATTRIBUTE}" if attribute or file.suffix == ".py" else name)
        if isinstance(found, ModuleType):
            found = getattr(found, ATTRIBUTE)
    except LakeError:
        raise
    except (Exception, SystemExit) as error:  # of the user's module
        place = user_line(error)
        if place is not None:
            raise ConfigurationError(
                f"LAKE_PIPELINES names {name!r}, which fails at {place}: {type(error).__name__}: "
                f"{first_line(text_of(error))}.",
                remedy="Correct the module, then run the command again.",
            ) from error
        raise ConfigurationError(
            f"LAKE_PIPELINES names {name!r}, which cannot be loaded: {error}.",
            remedy="Name each pipeline as module:attribute, or as a folder or file of YAML, separated by commas."
            " The folder of a module of your own belongs in PYTHONPATH.",
        ) from error
    if not isinstance(found, Pipeline):
        raise ConfigurationError(f"LAKE_PIPELINES names {name!r}, a {type(found).__name__}.", remedy="Name a Pipeline.")
    return found


def _text_of_module(name: str) -> str | None:
    """Return the text of a module that cannot be loaded; None if it is not found, or is not UTF-8."""
    module = name.partition(":")[0]
    try:
        if module.endswith(".py"):
            file = Path(module).expanduser()
        else:
            spec = find_spec(module)
            file = Path(spec.origin or "") if spec is not None else Path()
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError, ImportError):
        return None


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

    return Maintainer(open_engine(settings), maintenance_policy(settings))


def open_engine(settings: Settings) -> Engine:
    """Return the engine on the catalog. It connects to Spark when a session has rows to build, not before."""
    from lake_assets.connections.catalog import open_catalog
    from lake_assets.connections.spark import KeptSession, open_spark
    from lake_assets.incremental.engine.engine import Engine, utc_now

    kept = KeptSession(partial(open_spark, settings))
    return Engine(open_catalog(settings), open_pipeline(settings), clock=utc_now, spark=kept.session)
