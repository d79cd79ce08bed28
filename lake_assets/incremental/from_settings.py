"""The platform of a data directory, opened: its pipeline, engine and maintainer.

Commands, the demo and Dagster's definitions start here; notebooks and other schedulers with `Lake`, which is one
pipeline on one catalog.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING

from lake_assets.base.hours import parse_hour
from lake_assets.errors import ConfigurationError, ErrorText, LakeError, first_line, text_of
from lake_assets.incremental.declaration import Broken, Pipeline
from lake_assets.incremental.engine.user_code import user_line
from lake_assets.settings import is_path, pipeline_names
from lake_assets.settings import settings as settings_of_process

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

    from lake_assets.incremental.declaration import Target
    from lake_assets.incremental.engine.engine import Engine, Outcome
    from lake_assets.incremental.engine.model import Decision
    from lake_assets.incremental.engine.session_log import SessionRecord
    from lake_assets.incremental.operations.maintain import Maintainer, Policy
    from lake_assets.incremental.operations.verify import Comparison
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


@dataclass(frozen=True)
class HourBuild:
    """One build of an hour of a target.

    Attributes:
        session: The session that published it.
        reason: Which snapshot of which source made the session build the hour.
    """

    session: SessionRecord
    reason: str


class Lake:
    """The tables of a pipeline. Open it with `Lake.open`, and close it, or use it in a `with` block.

    Targets are named as the command line names them: `signup_fact` or `core.signup_fact`. Spark is opened by the first
    call that reads rows, and stays open until `close`.
    """

    def __init__(self, engine: Engine, close: Callable[[], None]) -> None:
        self._engine = engine
        self._close = close

    @classmethod
    def open(
        cls,
        pipeline: Declared,
        *,
        catalog: Catalog | None = None,
        spark: SparkSession | None = None,
        settings: Settings | None = None,
    ) -> Lake:
        """Open the tables of a pipeline. Creates no table and starts no Spark.

        Args:
            pipeline: Declares the raw tables and targets: a `Pipeline`, or what LAKE_PIPELINES may name, such as a
                folder of YAML files; or several of these, as a list. Of files and modules, a warning names what cannot
                be used; the other tables go on.
            catalog: Holds the tables. None for the catalog of the settings.
            spark: A session whose catalog `lake` is the same catalog; `close` leaves it open. None to open a session
                according to the settings, unless a catalog is given: then only the calls work that need no Spark.
            settings: None for the settings of this process: its environment, then `lake.env`.

        Raises:
            ConfigurationError: The session has no catalog `lake`, or no declaration can be used.
            ServiceError: The catalog cannot be opened.
        """
        from lake_assets.connections.catalog import NAME, log_tables, open_catalog
        from lake_assets.connections.spark import KeptSession, open_spark
        from lake_assets.incremental.engine.engine import Engine, utc_now
        from lake_assets.incremental.engine.erasures import erasure_key

        found = settings or settings_of_process()
        opened = declared_pipeline(pipeline, start=found.start)
        for broken in opened.broken:
            warnings.warn(str(broken.error), stacklevel=2)
        if spark is not None and spark.conf.get(f"spark.sql.catalog.{NAME}", None) is None:
            raise ConfigurationError(
                f"The Spark session has no catalog {NAME!r}.",
                remedy=f"Configure spark.sql.catalog.{NAME} in the session, or leave out `spark=`.",
            )
        kept = KeptSession(partial(open_spark, found))

        def session() -> SparkSession:
            """Return the given session, or one of the settings: these may have other tables than a given catalog."""
            if spark is None and catalog is not None:
                raise ConfigurationError(
                    "The lake was opened with a catalog of its own and without a Spark session.",
                    remedy="Pass `spark=`, a session whose catalog `lake` is that catalog, to Lake.open.",
                )
            return kept.session() if spark is None else spark

        if catalog is not None:
            catalog.properties.update(log_tables(found))
        engine = Engine(
            catalog or open_catalog(found),
            opened,
            clock=utc_now,
            spark=session,
            erasure_key=partial(erasure_key, found),
        )
        return cls(engine, kept.close)

    @property
    def catalog(self) -> Catalog:
        """The pyiceberg catalog of the tables."""
        return self._engine.catalog

    @property
    def pipeline(self) -> Pipeline:
        """The declaration of the tables."""
        return self._engine.pipeline

    def create_tables(self) -> list[str]:
        """Create the tables that do not exist. Safe to repeat.

        Returns:
            The names of the created tables.
        """
        return self._engine.create_tables()

    def plan(self, target: str) -> Decision:
        """Return what the next session of a target would do. Reads metadata only and changes nothing.

        Returns:
            A `SessionPlan` with the hours and their reasons, or a `NoSession` with the reason.

        Raises:
            UsageError: There is no such target.
            SourceError: A source cannot be read as declared.
        """
        return self._engine.decide(self.pipeline.target(target))

    def catch_up(self, target: str | None = None) -> list[Outcome]:
        """Run every due session, as Dagster's sensors would request them. Creates missing tables first.

        A failure of one target is not raised: it is the `failure` of an outcome. It does not stop the other targets,
        unless it is a fault of the machine or a service, which they would meet, too.

        Args:
            target: None for all targets, in topological order.

        Returns:
            One outcome for each session, and for each target one without a session: why none is due.
        """
        from lake_assets.incremental.engine.engine import catch_up

        wanted = self._targets(target)
        self.create_tables()
        return catch_up(self._engine, wanted, run_id="lake")

    def verify(self, target: str | None = None) -> list[Comparison]:
        """Compare targets with one full rebuild from their sources, as of the watermarks. Changes nothing.

        Hours that are pending, skipped or held back are left out. Of several targets, the failure of one is not raised:
        it is the `failure` of its comparison, unless it is a fault of the machine or a service.

        Args:
            target: None for all targets, in topological order.

        Returns:
            One comparison for each target.
        """
        from lake_assets.base.described import kept_failure
        from lake_assets.incremental.operations.verify import Comparison, compare

        self._engine.open_spark()  # without one, this fails before any table is read
        found = []
        for each in self._targets(target):
            failures: list[ErrorText] = []
            with kept_failure(failures, each.table, alone=target is not None):
                found.append(compare(self._engine, each))
            found += [Comparison(each.table, failure=str(text)) for text in failures]
        return found

    def sessions(self, target: str, *, newest: int | None = None) -> list[SessionRecord]:
        """Return the sessions of a target, the one that moved last at the end.

        Args:
            newest: How many of them: those that moved last. None for all, which takes longer from year to year.
        """
        return self._engine.history(self.pipeline.target(target), newest=newest)

    def why(self, target: str, hour: str) -> list[HourBuild]:
        """Return which sessions built an hour of a target, and why; the published rows are those of the last one.

        Args:
            hour: Key of the hour in UTC, such as `2026-01-01-05:00`.

        Raises:
            InvalidHourKey: It is not the key of an hour.
        """
        number = parse_hour(hour)
        built = self._engine.log.builds(self.pipeline.target(target).table, number)
        return [HourBuild(record, _reason(record, number)) for record in built]

    def close(self) -> None:
        """Stop the Spark session that this lake opened. A session that was given stays open."""
        self._close()

    def __enter__(self) -> Lake:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _targets(self, name: str | None) -> list[Target]:
        if name is None:
            return self.pipeline.in_order()
        return [self.pipeline.target(name)]


def _reason(record: SessionRecord, hour: int) -> str:
    for planned in record.plan.hours:
        if planned.hour == hour:
            return planned.reason
    return record.plan.reason
