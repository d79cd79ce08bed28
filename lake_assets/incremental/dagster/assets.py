"""The tables of a pipeline as Dagster's software-defined assets, with the step that runs one session of a target."""

from collections.abc import Collection, Iterator
from datetime import datetime

import dagster as dg

from lake_assets.base.hours import HOUR, Grain
from lake_assets.errors import AuditFailed, LakeError
from lake_assets.incremental.dagster.asset_specs import (
    IO_MANAGER,
    asset_key,
    partitions_of,
    raw_spec,
    target_spec,
)
from lake_assets.incremental.dagster.checks import check_specs
from lake_assets.incremental.dagster.lake_resource import LakeResource, io_manager_of
from lake_assets.incremental.dagster.sensors import (
    Clock,
    SensedTarget,
    SensorTiming,
    raw_tables_sensor,
    sessions_sensor,
)
from lake_assets.incremental.dagster.session_runs import pool_of
from lake_assets.incremental.dagster.session_step import AuditConfig, SessionStep, StepEvent
from lake_assets.incremental.declaration import Pipeline, Target
from lake_assets.incremental.engine.engine import Engine
from lake_assets.incremental.from_settings import Declared, declared_pipeline
from lake_assets.settings import settings


def incremental_definitions(
    pipeline: Declared,
    *,
    clock: Clock,
    end: str | None = None,
    timing: SensorTiming | None = None,
    tables: Collection[str] | None = None,
) -> dg.Definitions:
    """Return the assets, checks and sensors of a pipeline.

    The code location must also define the resource `lake_assets`: that of `lake_resources`.

    Args:
        pipeline: Declares raw tables and targets: a `Pipeline`, or what LAKE_PIPELINES may name, such as a folder of
            YAML files; or several of these, as a list.
        clock: The present moment.
        end: Key of the hour after the last one that Dagster shows. None: the current hour is the last one.
        timing: Of the sensors; None for the defaults.
        tables: Return the assets of these tables alone, without the sensors of the pipeline. None: all.
    """
    timing = timing or SensorTiming()
    pipeline = declared_pipeline(pipeline, start=settings().start)
    partitions = _partitions(pipeline, end, clock())
    wanted = _all_tables(pipeline) if tables is None else set(tables)
    raw_tables = [raw_spec(raw, partitions[HOUR]) for raw in pipeline.raw if raw.table in wanted]
    targets = [
        target_asset(pipeline, target, partitions[target.grain], clock) for target in _targets_of(pipeline, wanted)
    ]
    own = dg.Definitions(assets=[*raw_tables, *targets])
    if tables is not None:
        return own
    return dg.Definitions.merge(own, sensor_definitions(pipeline, clock=clock, end=end, timing=timing))


def _partitions(pipeline: Pipeline, end: str | None, now: datetime) -> dict[Grain, dg.TimeWindowPartitionsDefinition]:
    """Return the partitions of raw tables and of all targets, by grain."""
    grains = {HOUR, *(target.grain for target in pipeline.targets)}
    return {grain: partitions_of(grain, pipeline.start, end, now) for grain in grains}


def _targets_of(pipeline: Pipeline, tables: Collection[str]) -> list[Target]:
    return [target for target in pipeline.targets if target.table in tables]


def _all_tables(pipeline: Pipeline) -> set[str]:
    names = {raw.table for raw in pipeline.raw}
    return names.union(target.table for target in pipeline.targets)


def sensor_definitions(
    pipeline: Pipeline, *, clock: Clock, timing: SensorTiming, end: str | None = None
) -> dg.Definitions:
    """Return what a pipeline has once: its I/O manager, and its sensors.

    One sensor reports what landed in raw tables, one requests the sessions of targets. A sensor needs an asset, so
    there is none for raw tables or for targets if the pipeline has none.
    """
    partitions = _partitions(pipeline, end, clock())
    sensors: list[dg.SensorDefinition] = []
    if pipeline.raw:
        keys = {raw.table: asset_key(raw.table) for raw in pipeline.raw}
        sensors.append(raw_tables_sensor(pipeline, keys, timing, clock))
    if pipeline.targets:
        sensed = [SensedTarget(target, partitions[target.grain]) for target in pipeline.targets]
        sensors.append(sessions_sensor(pipeline, sensed, timing, clock))
    return dg.Definitions(sensors=sensors, resources={IO_MANAGER: io_manager_of(pipeline)})


def target_asset(
    pipeline: Pipeline,
    target: Target,
    partitions: dg.TimeWindowPartitionsDefinition,
    clock: Clock,
) -> dg.AssetsDefinition:
    """Return a target as an asset. Its step marks the partitions that a session built, and no others."""
    spec = target_spec(pipeline, target, partitions)

    @dg.multi_asset(
        name=spec.key.to_python_identifier(),
        specs=[spec],
        check_specs=check_specs(spec.key, target),
        can_subset=True,  # otherwise each check would be due in every run, also when nothing was staged
        pool=pool_of(target),
        backfill_policy=dg.BackfillPolicy.single_run(),
    )
    def step(context: dg.AssetExecutionContext, config: AuditConfig, lake_assets: LakeResource) -> Iterator[StepEvent]:
        engine = Engine(
            lake_assets.catalog(),
            pipeline,
            clock=clock,
            spark=lambda: lake_assets.spark_session,
        )
        try:
            yield from SessionStep(context, engine, target, hours=config.hours).events()
        except LakeError as error:
            raise failure(error) from (None if isinstance(error, AuditFailed) else error)

    return step


def failure(error: LakeError) -> dg.Failure:
    """Return an error as a failure that is not retried, because the sensor requests the session again when it can."""
    metadata = {"problem": error.problem, "remedy": error.remedy}
    return dg.Failure(str(error), metadata=metadata, allow_retries=False)
