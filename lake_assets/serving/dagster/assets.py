"""Pushes as assets, one for each served table of the lake, with checks; and a job that reverts a push.

The tables of a push group are pushed by one step, in one switch. Each group has a pool of its own, so two pushes of a
table never run at once. Each push ends with a cycle of clean-up.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from uuid import uuid4

import dagster as dg
from pydantic import Field

from lake_assets.errors import LakeError
from lake_assets.incremental.dagster.asset_specs import asset_key
from lake_assets.incremental.dagster.assets import failure
from lake_assets.incremental.dagster.lake_resource import LakeResource
from lake_assets.incremental.dagster.sensors import Clock
from lake_assets.incremental.engine.erasures import last_erasure
from lake_assets.serving.dagster.checks import ROW_COUNT, SERVED_CHECKSUM, check_push
from lake_assets.serving.dagster.resource import ServingResource
from lake_assets.serving.dagster.sensors import serving_sensor
from lake_assets.serving.served_tables import Serving
from lake_assets.serving.store.groups import PushGroup, push_groups
from lake_assets.serving.store.push import PushReport
from lake_assets.serving.store.sources import Reading, Source
from lake_assets.serving.store.status import EntryStatus, in_sight, lineage_status, way_back

GROUP = "serving"
SHOWN_ENTRIES = 10
"""The newest entries of the lineage, in the metadata of a push."""

PUSH_ID_LENGTH = 12


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
        check_specs=_check_specs(specs),
        pool=f"{GROUP}.{group.name}",
    )
    def step(
        config: PushConfig, lake_assets: LakeResource, lake_assets_serving: ServingResource
    ) -> Iterator[dg.MaterializeResult[None]]:
        as_of = clock()
        catalog = lake_assets.catalog()
        try:
            readings = {source: source.read(catalog) for source in group.sources}
            with lake_assets_serving.tables() as serving:
                # The pool allows one push at a time, so the push of any entry in progress has died.
                reports = serving.writer.push(
                    {source.name: reading.rows for source, reading in readings.items()},
                    push_id=uuid4().hex[:PUSH_ID_LENGTH],
                    as_of=as_of,
                    force=True,
                    new_schema=config.new_schema,
                    heads={source.name: reading.head for source, reading in readings.items()},
                    quotas=group.quotas,
                )
                erased_at = last_erasure(catalog)
                for source, report in zip(group.sources, reports, strict=True):
                    serving.writer.clean_up(source.name, retention=serving.retention, erased_at=erased_at)
                    yield _materialized(serving, source, readings[source], report, reports)
        except Exception as error:
            with suppress(LakeError), lake_assets_serving.tables() as serving:
                serving.writer.note_failure(group.quotas, error)
            if not isinstance(error, LakeError):
                raise
            raise failure(error) from error

    return step


def _check_specs(specs: Iterable[dg.AssetSpec]) -> list[dg.AssetCheckSpec]:
    found = []
    for spec in specs:
        found.append(dg.AssetCheckSpec(ROW_COUNT, asset=spec.key))
        found.append(dg.AssetCheckSpec(SERVED_CHECKSUM, asset=spec.key))
    return found


def _materialized(
    serving: Serving, source: Source, reading: Reading, report: PushReport, reports: Sequence[PushReport]
) -> dg.MaterializeResult[None]:
    key = serving_key(source)
    return dg.MaterializeResult(
        asset_key=key,
        metadata=push_metadata(serving, reports, report, reading.of),
        check_results=check_push(serving, key, source, report, reading),
    )


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
    """Return the pushes of served tables, their sensor, and the job that reverts; and the job that reverts.

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
