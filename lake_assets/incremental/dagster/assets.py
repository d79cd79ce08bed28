"""A pipeline as Dagster's software-defined assets: what each table is, and the step that runs one session of it.

The engine builds and publishes; here its report becomes what a person sees. A run that a sensor requested carries its
session in a tag; any other was launched by a person, and rebuilds the partitions that were chosen.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from datetime import datetime
from math import inf
from typing import Any

import dagster as dg

from lake_assets.base.grain import DAY, HOUR, Grain
from lake_assets.base.hours import format_hours, hour_of, hour_start, parse_hour
from lake_assets.errors import AuditFailed, HoursHeld, LakeError, UsageError
from lake_assets.incremental.dagster.checks import (
    check_results,
    check_specs,
    may_skip,
    partition_evaluations,
    skipped_result,
)
from lake_assets.incremental.dagster.sensors import SESSION_TAG, SNAPSHOTS_TAG, Clock, SensorTiming, all_sensors
from lake_assets.incremental.declaration import Pipeline, RawTable, Sequential, Target
from lake_assets.incremental.execution.engine import Engine
from lake_assets.incremental.planning.session import NoSession, SessionPlan, SessionReport
from lake_assets.incremental.planning.verdicts import in_words

Metadata = dict[str, Any]

DEFINITIONS: Mapping[Grain, type[dg.HourlyPartitionsDefinition | dg.DailyPartitionsDefinition]] = {
    HOUR: dg.HourlyPartitionsDefinition,
    DAY: dg.DailyPartitionsDefinition,
}


def incremental_definitions(
    pipeline: Pipeline, *, clock: Clock, end: str | None = None, rhythm: SensorTiming | None = None
) -> dg.Definitions:
    """Assets, checks and sensors of a pipeline. Its code location must also have the resources `iceberg` and `spark`.

    end: key of the hour after the last one that Dagster shows; None: the current hour is the last.
    """
    partitions = {grain: partitions_of(grain, pipeline.start, end, clock()) for grain in DEFINITIONS}
    raw = {table.table: raw_spec(table, partitions[HOUR]) for table in pipeline.raw}
    assets = {t.table: target_asset(pipeline, t, partitions[t.grain], clock) for t in pipeline.targets}
    raw_keys = {table: spec.key for table, spec in raw.items()}
    sensors = all_sensors(pipeline, assets, raw_keys, rhythm or SensorTiming(), clock, materializations)
    return dg.Definitions(assets=[*raw.values(), *assets.values()], sensors=sensors)


def partitions_of(grain: Grain, start: str, end: str | None, now: datetime) -> dg.TimeWindowPartitionsDefinition:
    """The hours or days of UTC from `start` on, an hour key, up to `end`, exclusive, or to the current one.

    The current one is among them: rows of it are published before it is over.
    """
    after = grain.last(parse_hour(end, where="LAKE_END") - 1 if end else hour_of(now)) + 1
    return DEFINITIONS[grain](
        start_date=hour_start(grain.first(parse_hour(start, where="The pipeline's start"))),
        end_date=hour_start(after) if end else None,
        timezone="UTC",
        end_offset=max(0, after - grain.first(hour_of(now))) // grain.hours,
    )


def asset_key(table: str) -> dg.AssetKey:
    """`core.signup_fact` → core/signup_fact."""
    return dg.AssetKey(table.split("."))


def raw_spec(raw: RawTable, partitions: dg.TimeWindowPartitionsDefinition) -> dg.AssetSpec:
    """A raw table, by landing hour: an external asset, for somebody else lands its rows."""
    return dg.AssetSpec(
        key=asset_key(raw.table),
        description=raw.description or None,
        group_name=raw.table.split(".")[0],
        kinds={"iceberg"},
        partitions_def=partitions,
        metadata=_table_metadata(raw.table, raw.all_columns),
    )


def target_asset(
    pipeline: Pipeline, target: Target, partitions: dg.TimeWindowPartitionsDefinition, clock: Clock
) -> dg.AssetsDefinition:
    """A target, by event hour or day. Its step marks what it built and nothing else: a session yields no output."""
    key = asset_key(target.table)
    spec = dg.AssetSpec(
        key=key,
        deps=_deps(pipeline, target),
        skippable=True,
        description=target.description or None,
        group_name=target.table.split(".")[0],
        kinds={"iceberg", "spark"},
        owners=list(target.owners),
        code_version=target.code_version,
        partitions_def=partitions,
        metadata={
            **_table_metadata(target.table, target.columns),
            "dagster/column_lineage": column_lineage(pipeline, target),
        },
    )

    @dg.multi_asset(
        name=key.to_python_identifier(),
        specs=[spec],
        check_specs=check_specs(key, target),
        required_resource_keys={"iceberg", "spark"},
        can_subset=True,  # or each check would be due in every run, also where nothing was staged
        pool=target.table,
        backfill_policy=dg.BackfillPolicy.single_run(),
    )
    def step(
        context: dg.AssetExecutionContext,
    ) -> Iterator[dg.AssetMaterialization | dg.AssetCheckResult | dg.MaterializeResult[None]]:
        engine = Engine(
            context.resources.iceberg.catalog(),
            pipeline,
            clock=clock,
            spark=lambda: context.resources.spark.spark_session,
        )
        try:
            if SESSION_TAG in context.run.tags:
                yield from _session_events(context, engine, target, _run_session(context, engine, target))
            else:
                yield from _interrupted_events(context, engine, target)
                yield from _rebuild_events(context, engine, target, _rebuild(context, engine, target))
        except AuditFailed as error:
            yield from check_results(key, error.report.audits if isinstance(error.report, SessionReport) else ())
            raise failure(error) from None
        except LakeError as error:
            raise failure(error) from error

    return step


def column_lineage(pipeline: Pipeline, target: Target) -> dg.TableColumnLineage:
    """Where each column comes from: as declared, else the columns of equal name in the sources."""
    columns = {**{r.table: r.all_columns for r in pipeline.raw}, **{t.table: t.columns for t in pipeline.targets}}
    found = {
        column: list(target.lineage.get(column, ()))
        or [f"{source.table}.{column}" for source in target.sources if column in columns.get(source.table, {})]
        for column in target.columns
    }
    return dg.TableColumnLineage(
        {column: [_column_dep(name) for name in names] for column, names in found.items() if names}
    )


def _column_dep(name: str) -> dg.TableColumnDep:
    table, _, column = name.rpartition(".")
    return dg.TableColumnDep(asset_key=asset_key(table), column_name=column)


def _deps(pipeline: Pipeline, target: Target) -> list[dg.AssetDep]:
    """Any hour of a source may matter to any hour here: raw tables are counted by landing hour, targets by event hour.

    A sequential target takes each hour of another target for the same hour, or its day, and its own one before.
    """
    of_targets = {t.table for t in pipeline.targets}
    deps = []
    for source in target.sources:
        same_hour = isinstance(target.mode, Sequential) and source.table in of_targets
        mapping = dg.TimeWindowPartitionMapping() if same_hour else dg.AllPartitionMapping()
        deps.append(dg.AssetDep(asset_key(source.table), partition_mapping=mapping))
    if isinstance(target.mode, Sequential):
        deps.append(
            dg.AssetDep(
                asset_key(target.table), partition_mapping=dg.TimeWindowPartitionMapping(start_offset=-1, end_offset=-1)
            )
        )
    return deps


def _table_metadata(table: str, columns: Mapping[str, str]) -> Metadata:
    schema = dg.TableSchema([dg.TableColumn(name, iceberg_type) for name, iceberg_type in columns.items()])
    return {"dagster/table_name": f"lake.{table}", "dagster/storage_kind": "iceberg", "dagster/column_schema": schema}


def _run_session(context: dg.AssetExecutionContext, engine: Engine, target: Target) -> SessionReport | NoSession:
    """The session that the sensor saw, even if newer snapshots have landed since: those are the next one's.

    A run that was overtaken, or is executed again after its session, does nothing.
    """
    tags = context.run.tags
    snapshots = json.loads(tags.get(SNAPSHOTS_TAG, "{}"))
    up_to = {source: (found["to"], found["complete_through"]) for source, found in snapshots.items()}
    return engine.run(target, up_to=up_to or None, only=tags[SESSION_TAG], run_id=context.run_id)


def _rebuild(context: dg.AssetExecutionContext, engine: Engine, target: Target) -> SessionReport | NoSession:
    return engine.rebuild(target, _chosen_hours(context, target), run_id=context.run_id)


def _chosen_hours(context: dg.AssetExecutionContext, target: Target) -> list[int]:
    if asset_key(target.table) not in context.selected_asset_keys or not (
        context.has_partition_key or context.has_partition_key_range
    ):
        raise UsageError(
            f"This run names no partition of {target.table}.",
            remedy="Materialize partitions: audits judge what a session is about to publish.",
        )
    window = context.partition_time_window
    return list(range(hour_of(window.start), hour_of(window.end)))


def _session_events(
    context: dg.AssetExecutionContext, engine: Engine, target: Target, outcome: SessionReport | NoSession
) -> Iterator[dg.AssetMaterialization | dg.AssetCheckResult]:
    """The hours that were published, then the verdicts: a check shows the materialization before it as its own.

    Raises `HoursHeld` at the end: whoever watches for failed runs hears of hours that audits hold back.
    """
    if isinstance(outcome, NoSession):
        context.log.info("Nothing was built: %s", outcome.reason)
        return
    _log(context, outcome)
    yield from materializations(target, outcome, outcome.hours_built)
    yield from _verdicts(context, engine, target, outcome)


def _verdicts(
    context: dg.AssetExecutionContext, engine: Engine, target: Target, report: SessionReport
) -> Iterator[dg.AssetCheckResult]:
    """The verdicts on hours that are held back, or were, then those on the session. Raises `HoursHeld`, at last."""
    key = asset_key(target.table)
    for evaluation in partition_evaluations(key, target.grain, report):
        context.log_event(evaluation)
    yield from check_results(key, report.audits)  # last: the newest evaluation is what the asset shows
    if may_skip(target):
        yield skipped_result(key, engine.store.state(target.table).committed.skipped)
    if report.held:
        raise HoursHeld(target.table, in_words(report.held))


def _interrupted_events(
    context: dg.AssetExecutionContext, engine: Engine, target: Target
) -> Iterator[dg.AssetMaterialization]:
    """A rebuild finishes an interrupted session first; the hours of that one are marked here. Its checks are not shown:
    a step shows each check once."""
    if engine.store.state(target.table).open_session:
        finished = engine.run(target, run_id=context.run_id)
        if isinstance(finished, SessionReport):
            _log(context, finished)
            yield from materializations(target, finished, finished.hours_built)


def _rebuild_events(
    context: dg.AssetExecutionContext, engine: Engine, target: Target, outcome: SessionReport | NoSession
) -> Iterator[dg.AssetMaterialization | dg.AssetCheckResult | dg.MaterializeResult[None]]:
    """The hours that were rebuilt, empty ones too. What must wait was asked for in vain: the run fails and says so.

    So it does, with `HoursHeld`, for hours that audits hold back.
    """
    if isinstance(outcome, NoSession):
        raise dg.Failure(f"Nothing was rebuilt: {outcome.reason}", allow_retries=False)
    _log(context, outcome)
    chosen, rebuilt = set(_chosen_hours(context, target)), _rebuilt(target, outcome)
    if left_out := chosen - rebuilt:
        context.log.warning(
            "Not marked, because they are held back or a source is not complete: %s", format_hours(left_out)
        )
    else:
        # Without an output, Dagster would skip what follows in the same run.
        version = dg.DataVersion(outcome.data_version) if outcome.data_version else None
        yield dg.MaterializeResult(metadata=report_metadata(outcome), data_version=version)
    yield from materializations(target, outcome, rebuilt if left_out else rebuilt - chosen)
    yield from _verdicts(context, engine, target, outcome)


def _rebuilt(target: Target, report: SessionReport) -> set[int]:
    """The hours that a rebuild has brought to what they should be. One that a source is not complete for is not marked:
    a stateless target takes what rows there are, and more will come."""
    through = [s.complete_through for s in report.plan.sources if s.complete_through is not None]
    last = target.grain.complete(min(through)) if through else inf
    built = {*report.plan.hour_numbers, *report.hours_built} - {h.hour for h in report.held}
    return {h for h in built if h <= last}


def materializations(
    target: Target, report: SessionReport, hours: Collection[int]
) -> Iterator[dg.AssetMaterialization]:
    """One per partition that any of the hours lies in, with what its session did and why it was built."""
    shared, versions = report_metadata(report), _versions(target, report)
    reasons = {planned.hour: planned.reason for planned in report.plan.hours}
    for hour in target.grain.firsts(hours):
        why = reasons.get(hour, "within the range that was rebuilt")
        yield dg.AssetMaterialization(
            asset_key=asset_key(target.table),
            partition=target.grain.key(hour),
            metadata={"why": why, **shared},
            tags=versions,
        )


def report_metadata(report: SessionReport) -> Metadata:
    """A session for people. Snapshot ids are text: they exceed what a browser counts exactly."""
    plan = report.plan
    rows = {"read": report.rows_read, "written": report.rows_written, "repeated": report.rows_duplicate}
    rows |= {"quarantined": report.rows_quarantined, "late": report.rows_late}
    shown: Metadata = {
        "session": plan.session_id,
        "load": plan.load,
        "hours": format_hours(report.hours_built) or "none",
        "hours left as they were": format_hours(report.hours_unchanged),
        "hours rebuilt": len(report.hours_built),
        **{f"rows {fate}": count for fate, count in rows.items()},
        "lateness p50 (minutes)": report.lateness_p50_minutes,
        "lateness p95 (minutes)": report.lateness_p95_minutes,
        "lateness max (minutes)": report.lateness_max_minutes,
        "sources": _source_table(plan),
        "published snapshot": _id(report.published_snapshot_id),
        "staged snapshot": _id(report.staged_snapshot_id),
        "seconds": dict(report.seconds),
        "seconds in all": round(sum(report.seconds.values()), 3),
        "pending hours": format_hours(plan.pending),
        "⚠ held hours": in_words(report.held),
        "⚠ skipped hours": f"{format_hours(plan.skipped)}: beyond the catch-up threshold; a backfill builds them"
        if plan.skipped
        else None,
        "notes": "\n".join(plan.notes),
    }
    return {name: value for name, value in shown.items() if value not in (None, "")}


def _source_table(plan: SessionPlan) -> dg.TableMetadataValue:
    """The snapshots of each source that the session covers: after `from`, up to `to`."""
    return dg.MetadataValue.table(
        [
            dg.TableRecord(
                {
                    "source": s.source,
                    "from": _id(s.from_snapshot_id) or "the beginning",
                    "to": _id(s.to_snapshot_id) or "none",
                }
            )
            for s in plan.sources
        ],
        schema=dg.TableSchema([dg.TableColumn(name) for name in ("source", "from", "to")]),
    )


def _id(snapshot_id: int | None) -> str | None:
    return None if snapshot_id is None else str(snapshot_id)


def _versions(target: Target, report: SessionReport) -> dict[str, str]:
    versions = {"dagster/code_version": target.code_version}
    return versions if report.data_version is None else {**versions, "dagster/data_version": report.data_version}


def _log(context: dg.AssetExecutionContext, report: SessionReport) -> None:
    """What the session did, in the run's log: there also for a session without hours, which marks none."""
    context.log.info(
        "Session %s (%s) is %s: hours %s%s.",
        report.plan.session_id,
        report.plan,
        report.status,
        format_hours(report.hours_built) or "none",
        f"; left as they were, for they came out equal: {format_hours(report.hours_unchanged)}"
        if report.hours_unchanged
        else "",
    )
    for note in report.plan.notes:
        context.log.info(note)
    if report.held:
        context.log.warning("Held back by audits: %s.", in_words(report.held))
    if report.plan.skipped:
        context.log.warning(
            "Skipped, beyond the catch-up threshold: %s. A backfill builds them.", format_hours(report.plan.skipped)
        )


def failure(error: LakeError) -> dg.Failure:
    """The error's own words, and nothing to retry: the sensor asks again when it makes sense."""
    return dg.Failure(str(error), metadata={"problem": error.problem, "remedy": error.remedy}, allow_retries=False)
