"""Serving in Dagster: pushes as assets with checks, the sensor that requests them, and a job that reverts a push.

The tables of a push group are pushed by one step, in one switch. Each group has a pool of its own, so two pushes of a
table never run at once. Each push ends with a cycle of clean-up.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import dagster as dg
from dagster import DagsterRunStatus
from pydantic import Field

from lake_assets.connections.addresses import required, zookeeper_address
from lake_assets.errors import LakeError, SegmentDamaged
from lake_assets.incremental.dagster.asset_specs import asset_key
from lake_assets.incremental.dagster.assets import failure
from lake_assets.incremental.dagster.lake_resource import ConfiguredBySettings, LakeResource
from lake_assets.incremental.dagster.sensors import Clock
from lake_assets.incremental.dagster.session_runs import ended_attempts, rest_seconds
from lake_assets.incremental.engine.engine import utc_now
from lake_assets.incremental.engine.erasures import last_erasure
from lake_assets.serving.push import PushReport
from lake_assets.serving.query import query
from lake_assets.serving.served_tables import Serving, serving_at
from lake_assets.serving.sources import PushGroup, Reading, Source, push_groups
from lake_assets.serving.store import (
    EntryStatus,
    checksum,
    in_sight,
    lineage_status,
    way_back,
)


class ServingResource(ConfiguredBySettings, dg.ConfigurableResource[Any]):
    """The served tables, according to the settings of this process."""

    def tables(self) -> AbstractContextManager[Serving]:
        """Return a context manager that opens the served tables.

        Raises:
            ServiceError: No ZooKeeper is named, and none runs for this data directory.
        """
        found = self.settings()
        return serving_at(required(zookeeper_address(found), "ZooKeeper"), found, clock=utc_now)


ROW_COUNT = "row_count"
SERVED_CHECKSUM = "served_checksum"


def check_push(
    serving: Serving, key: dg.AssetKey, source: Source, report: PushReport, reading: Reading
) -> Iterator[dg.AssetCheckResult]:
    """Yield the results of both checks of a pushed asset. reading: the rows that were pushed.

    The row count of a query is compared with the metadata of the source, and the files that the broker routes to with
    the pushed ones, byte by byte.
    """
    description = f"The number of served rows equals that of {source.table}, {reading.of}."
    try:
        result = query(serving.broker, f'select count(*) from "{source.name}"', serving.limits)
        served = result.rows[0][0]
    except SegmentDamaged as error:
        served = None
        description = error.problem
    yield dg.AssetCheckResult(
        asset_key=key,
        check_name=ROW_COUNT,
        passed=served == reading.expected,
        metadata={"rows": reading.expected, "rows served": served},
        description=description,
    )
    with serving.broker.pin(report.table, seconds=serving.limits.seconds) as pinned:
        found = checksum(serving.files.sha256(report.table, path.stem) for path in pinned.files[report.table])
    yield dg.AssetCheckResult(
        asset_key=key,
        check_name=SERVED_CHECKSUM,
        passed=found == report.checksum,
        metadata={"pushed": report.checksum, "served": found},
        description="The served files are those that were pushed.",
    )


TICK_SECONDS = 60
"""Between two evaluations. A push replaces the whole table, so it is not requested more often."""

PUSH_TAG = "lake/push"
"""Of a run: its group, and the state of the sources that it was requested for."""

FAILED = [DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED]


def serving_sensor(assets: Mapping[PushGroup, dg.AssetsDefinition], clock: Clock) -> dg.SensorDefinition:
    """Return the sensor that requests a push when the sources of a group have a state that was not pushed yet.

    Each state is pushed once, and not before the frequency of the group's tables allows it; after a revert, nothing is
    pushed until a source changes. Failed pushes are requested again after the same delays, and as often, as failed
    sessions (`incremental.sensors.RETRY_AFTER_SECONDS`). An error of one group does not affect the others.

    Args:
        assets: Group → the asset that pushes it.
        clock: UTC.
    """

    def evaluate(
        context: dg.SensorEvaluationContext, lake_assets: LakeResource
    ) -> Iterator[dg.RunRequest | dg.SkipReason]:
        reasons = []
        for group, asset in assets.items():
            decision = _decide(context, lake_assets, group, asset, clock)
            if isinstance(decision, dg.RunRequest):
                yield decision
            else:
                reasons.append(f"{group.name}: {decision}")
        if len(reasons) == len(assets):
            yield dg.SkipReason(" ".join(reasons))

    return dg.SensorDefinition(
        name="serving_sensor",
        evaluation_fn=evaluate,
        asset_selection=list(assets.values()),
        minimum_interval_seconds=TICK_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Requests a push of served tables after their sources have changed.",
    )


def _decide(
    context: dg.SensorEvaluationContext,
    lake: LakeResource,
    group: PushGroup,
    asset: dg.AssetsDefinition,
    clock: Clock,
) -> dg.RunRequest | str:
    """Return the next push of a group, or the reason why there is none.

    The tags of earlier runs say for which state of the sources they were.
    """
    try:
        head = group.head(lake.catalog())
    except Exception as error:  # any error of a catalog or a table's reader affects only this group
        context.log.exception(f"The sources of {group.name} cannot be read.")
        return f"its sources cannot be read: {error}"
    if head is None:
        return "a source has no rows to push yet."
    state = f"{group.name}:{head}"
    succeeded = ended_attempts(context.instance, state, tag=PUSH_TAG, statuses=[DagsterRunStatus.SUCCESS])
    if succeeded:
        return "the current state of its sources was pushed."
    failed = ended_attempts(context.instance, state, tag=PUSH_TAG, statuses=FAILED)
    rest = rest_seconds(failed, "", clock().timestamp())
    pushes = filter(None, map(context.instance.get_latest_materialization_event, asset.keys))
    since = clock().timestamp() - max((push.timestamp for push in pushes), default=0)
    if not failed and since < group.seconds:
        return f"it is pushed every {group.seconds} s at most; the next push is in {group.seconds - since:.0f} s."
    failures = f"{len(failed)} pushes of {head} failed"
    if rest is None:
        context.log.error(f"{group.name}: {failures}.")
        return f"{failures}, so it is not requested again. Read the last run, then re-execute it."
    if rest > 0:
        return f"{failures}; next attempt in {rest:.0f} s."
    return dg.RunRequest(
        run_key=f"{state}:{len(failed) + 1}",
        asset_selection=sorted(asset.keys, key=str),
        tags={PUSH_TAG: state},
    )


GROUP = "serving"
SHOWN_ENTRIES = 10
"""The newest entries of the lineage, in the metadata of a push."""


def serving_key(source: Source) -> dg.AssetKey:
    """Return the key of a served table's asset: serving/account_state."""
    return dg.AssetKey([GROUP, source.name])


def serving_spec(source: Source) -> dg.AssetSpec:
    """Return the asset of a served table."""
    return dg.AssetSpec(
        serving_key(source),
        deps=[asset_key(source.table)],
        group_name=GROUP,
        kinds={"parquet", "duckdb"},
        description=f"The snapshot of {source.table} that readers of {source.name} see.",
    )


class PushConfig(dg.Config):
    """The configuration of a push. new_schema: whether its columns may differ from those that readers see."""

    new_schema: bool = False


def serving_asset(group: PushGroup, clock: Clock) -> dg.AssetsDefinition:
    """Return the step that pushes a group: a new snapshot of each source, with its lineage as metadata."""
    specs = [serving_spec(source) for source in group.sources]

    @dg.multi_asset(
        name=f"{GROUP}__{group.step}",
        specs=specs,
        check_specs=[
            dg.AssetCheckSpec(name, asset=spec.key) for spec in specs for name in (ROW_COUNT, SERVED_CHECKSUM)
        ],
        pool=f"{GROUP}.{group.name}",
    )
    def step(
        config: PushConfig, lake_assets: LakeResource, lake_assets_serving: ServingResource
    ) -> Iterator[dg.MaterializeResult[None]]:
        as_of = clock()
        catalog = lake_assets.catalog()
        try:
            with lake_assets_serving.tables() as serving:
                # The pool allows one push at a time, so the push of any entry in progress has died.
                pushed = group.push(
                    serving.writer,
                    catalog,
                    as_of=as_of,
                    force=True,
                    new_schema=config.new_schema,
                    spark=lambda: lake_assets.spark_session,
                )
                reports = [report for _, _, report in pushed]
                erased_at = last_erasure(catalog)
                for source, reading, report in pushed:
                    serving.writer.clean_up(source.name, retention=serving.retention, erased_at=erased_at)
                    key = serving_key(source)
                    yield dg.MaterializeResult(
                        asset_key=key,
                        metadata=push_metadata(serving, reports, report, reading.of),
                        check_results=list(check_push(serving, key, source, report, reading)),
                    )
        except LakeError as error:
            raise failure(error) from error

    return step


def push_metadata(
    serving: Serving, reports: Sequence[PushReport], report: PushReport, of: str
) -> dict[str, dg.MetadataValue]:
    """Return the figures of a table's push, and its lineage.

    Args:
        serving: The served tables.
        reports: Of all tables that were switched together.
        report: Of this table.
        of: Describes which rows were pushed.
    """
    entries = lineage_status(serving.registry, report.table)
    metadata: dict[str, dg.MetadataValue] = {
        "rows": dg.MetadataValue.int(report.rows),
        "bytes": dg.MetadataValue.int(report.size_bytes),
        "segments": dg.MetadataValue.int(len(report.segments)),
        "of": dg.MetadataValue.text(of),
        "lineage id": dg.MetadataValue.text(report.entry_id),
        "to go back": dg.MetadataValue.text(_to_go_back(report, reports)),
        "lineage": dg.MetadataValue.md(lineage_table(entries[:SHOWN_ENTRIES])),
    }
    others = [other.table for other in reports if other is not report]
    if others:
        metadata["switched with"] = dg.MetadataValue.text(", ".join(others))
    return metadata


def _to_go_back(report: PushReport, reports: Sequence[PushReport]) -> str:
    """The entry of a table's first push has replaced nothing, and the clean-up after the push has removed it."""
    entries = {other.table: other.entry_id for other in reports if other.replaced}
    entry_id = entries.pop(report.table, None)
    if entry_id is None:
        return "There is no earlier snapshot to go back to."
    return way_back(report.table, entry_id, entries)


def lineage_table(entries: Iterable[EntryStatus]) -> str:
    """Return entries as a Markdown table."""
    lines = ["| replaced → added | state | since | id | can be reverted |", "| --- | --- | --- | --- | --- |"]
    for entry in entries:
        cells = [
            f"{_snapshot(entry.segments_from)} → {_snapshot(entry.segments_to)}",
            entry.state,
            f"{entry.timestamp:%Y-%m-%d %H:%M:%S}",
            entry.id,
            entry.goes_back,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _snapshot(segments: tuple[str, ...]) -> str:
    """The first segment's name, and the number of segments."""
    return f"{min(segments)} ({len(segments)})" if segments else "nothing"


class Revert(dg.Config):
    """The configuration of `revert_push`.

    Attributes:
        table: A served table.
        entry_id: Of its lineage.
        others: Other table → its entry, reverted in the same switch.
        later: Whether to revert also later pushes.
        force: Whether to revert also entries in progress.
    """

    table: str
    entry_id: str
    others: dict[str, str] = Field({})
    later: bool = False
    force: bool = False


@dg.op
def revert_entry(
    context: dg.OpExecutionContext, config: Revert, lake_assets: LakeResource, lake_assets_serving: ServingResource
) -> None:
    """Return to the snapshot that a push has replaced. It is refused if a person was erased since."""
    entries = {config.table: config.entry_id, **config.others}
    try:
        erased_at = last_erasure(lake_assets.catalog())
        with lake_assets_serving.tables() as serving:
            changes = serving.writer.revert_all(entries, force=config.force, later=config.later, erased_at=erased_at)
            sight = {table: in_sight(serving.registry, table) for table in changes}
    except LakeError as error:
        raise failure(error) from error
    for table, change in changes.items():
        context.log.info(f"{table} is as it was before the push; {len(change.deletions)} segments were given up.")
        context.log.info(sight[table])


@dg.job(description="Reverts a push of a served table. The metadata of serving/<table> shows its lineage with the ids.")
def revert_push() -> None:
    """Revert a push of a served table."""
    revert_entry()


def serving_definitions(
    sources: Iterable[Source], *, clock: Clock, groups: Mapping[str, Sequence[str]] | None = None
) -> dg.Definitions:
    """Return the pushes of served tables, their sensor, and the job that reverts.

    Without sources there are no definitions, because a sensor needs an asset.

    Args:
        sources: The tables that are served.
        clock: UTC.
        groups: Name → the tables that are pushed in one switch.

    Raises:
        ConfigurationError: A group is not valid.
    """
    assets = {group: serving_asset(group, clock) for group in push_groups(sources, groups or {})}
    if not assets:
        return dg.Definitions()
    return dg.Definitions(assets=list(assets.values()), jobs=[revert_push], sensors=[serving_sensor(assets, clock)])
