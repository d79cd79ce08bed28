"""Pushes as assets: one for each table of the lake that is served, with checks; and a job that takes a push back.

The tables of a push group are pushed by one step, in one switch. Each group is held back by a pool of its own, so
pushes of a table never meet. Each ends with a cycle of clean-up.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from uuid import uuid4

import dagster as dg
from pydantic import Field

from lake_assets.errors import LakeError
from lake_assets.incremental.dagster.asset_specs import asset_key
from lake_assets.incremental.dagster.assets import failure
from lake_assets.incremental.dagster.sensors import Clock
from lake_assets.incremental.metadata.erasure_registry import last_erasure
from lake_assets.serving.dagster.checks import ROW_COUNT, SERVED_CHECKSUM, check_push
from lake_assets.serving.dagster.sensors import serving_sensor
from lake_assets.serving.served_tables import Serving
from lake_assets.serving.store.groups import PushGroup, push_groups
from lake_assets.serving.store.sources import Source
from lake_assets.serving.store.status import EntryStatus, lineage_status, way_back
from lake_assets.serving.store.writer import PushReport

GROUP = "serving"
SHOWN = 10
"""Entries of the lineage that are drawn, the newest."""


def serving_key(source: Source) -> dg.AssetKey:
    """account_state → serving/account_state."""
    return dg.AssetKey([GROUP, source.name])


def serving_spec(source: Source) -> dg.AssetSpec:
    """What one table's readers see."""
    return dg.AssetSpec(
        serving_key(source),
        deps=[asset_key(source.table)],
        group_name=GROUP,
        kinds={"parquet", "duckdb"},
        description=f"What readers of {source.name} see: {source.table}, whole.",
    )


def serving_asset(group: PushGroup, clock: Clock) -> dg.AssetsDefinition:
    """The push of a group: a new snapshot of each of its sources, as a whole, with its lineage as metadata."""
    specs = [serving_spec(source) for source in group.sources]

    @dg.multi_asset(
        name=f"{GROUP}__{group.name}",
        specs=specs,
        check_specs=[dg.AssetCheckSpec(n, asset=spec.key) for spec in specs for n in (ROW_COUNT, SERVED_CHECKSUM)],
        required_resource_keys={"iceberg", "serving"},
        pool=f"{GROUP}.{group.name}",
    )
    def step(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult[None]]:
        as_of, catalog = clock(), context.resources.iceberg.catalog()
        try:
            readings = {source: source.read(catalog) for source in group.sources}
            with context.resources.serving.tables() as serving:
                # The pool holds every other push back, so what is in progress has died.
                reports = serving.writer.push(
                    {source.name: reading.rows for source, reading in readings.items()},
                    push_id=uuid4().hex[:12],
                    as_of=as_of,
                    force=True,
                    heads={source.name: reading.head for source, reading in readings.items()},
                )
                erased_at = last_erasure(catalog)
                for source, report in zip(group.sources, reports, strict=True):
                    serving.writer.clean_up(source.name, retention=serving.retention, erased_at=erased_at)
                    yield dg.MaterializeResult(
                        asset_key=serving_key(source),
                        metadata=push_metadata(serving, reports, report, readings[source].of),
                        check_results=check_push(serving, serving_key(source), source, report, readings[source]),
                    )
        except LakeError as error:
            raise failure(error) from error

    return step


def push_metadata(
    serving: Serving, reports: Sequence[PushReport], report: PushReport, of: str
) -> dict[str, dg.MetadataValue]:
    """The figures of a table's push, and the lineage that it left. reports: of all tables that were switched."""
    numbers = {"rows": report.rows, "bytes": report.size_bytes, "segments": len(report.segments)}
    others = {other.table: other.entry_id for other in reports if other is not report}
    together = {"switched with": dg.MetadataValue.text(", ".join(others))} if others else {}
    return {
        **{name: dg.MetadataValue.int(number) for name, number in numbers.items()},
        "of": dg.MetadataValue.text(of),
        "lineage id": dg.MetadataValue.text(report.entry_id),
        **together,
        "to go back": dg.MetadataValue.text(_to_go_back(report, reports)),
        "lineage": dg.MetadataValue.md(drawn(lineage_status(serving.registry, report.table)[:SHOWN])),
    }


def _to_go_back(report: PushReport, reports: Sequence[PushReport]) -> str:
    """The entry of a table's first push has replaced nothing, so the clean-up that follows has dropped it."""
    entries = {other.table: other.entry_id for other in reports if other.replaced}
    if entry_id := entries.pop(report.table, None):
        return way_back(report.table, entry_id, entries)
    return "There is nothing to go back to: readers saw nothing before."


def drawn(entries: list[EntryStatus]) -> str:
    """A lineage in Markdown, an arrow for each entry."""
    rows = [
        f"| {_snapshot(e.segments_from)} → {_snapshot(e.segments_to)} | {e.state} | {e.timestamp:%Y-%m-%d %H:%M:%S} |"
        f" {e.id} | {e.goes_back} |"
        for e in entries
    ]
    return "\n".join(["| replaced → brought | state | since | id | can be reverted |", "|" + " --- |" * 5, *rows])


def _snapshot(segments: tuple[str, ...]) -> str:
    """The first segment's name, and how many there are."""
    return f"{min(segments)} ({len(segments)})" if segments else "nothing"


class Revert(dg.Config):
    """table: a served one. entry_id: of its lineage. others: table → entry, taken back in the same switch.

    later: the pushes that came on top of it too. force: as `lake`.
    """

    table: str
    entry_id: str
    others: dict[str, str] = Field({})
    later: bool = False
    force: bool = False


@dg.op(required_resource_keys={"iceberg", "serving"})
def revert_entry(context: dg.OpExecutionContext, config: Revert) -> None:
    """Goes back to what a push replaced; refused if somebody was erased since."""
    entries = {config.table: config.entry_id, **config.others}
    try:
        erased_at = last_erasure(context.resources.iceberg.catalog())
        with context.resources.serving.tables() as serving:
            changes = serving.writer.revert_all(entries, force=config.force, later=config.later, erased_at=erased_at)
    except LakeError as error:
        raise failure(error) from error
    for table, change in changes.items():
        context.log.info(f"{table} is as it was before; {len(change.deletions)} segments were given up.")


@dg.job(description="Takes a push of a served table back. Its lineage, with the ids, is metadata of serving/<table>.")
def revert_push() -> None:
    revert_entry()


def serving_definitions(
    sources: Iterable[Source], *, clock: Clock, groups: Mapping[str, Sequence[str]] | None = None
) -> dg.Definitions:
    """The pushes of what is served, their sensor, and the job that reverts. SnapshotReferences `iceberg` and `serving`.

    Without sources there are no definitions: a sensor needs an asset.
    groups: name → the tables that are pushed in one switch. Raises `ConfigurationError` for one that cannot be.
    """
    assets = {group: serving_asset(group, clock) for group in push_groups(sources, groups or {})}
    if not assets:
        return dg.Definitions()
    return dg.Definitions(assets=list(assets.values()), jobs=[revert_push], sensors=[serving_sensor(assets, clock)])
