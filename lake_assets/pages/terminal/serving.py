"""Views of served tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lake_assets.pages.terminal.render import (
    Column,
    Part,
    TableView,
    counted,
    failed,
    megabytes,
    succeeded,
    warning,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from lake_assets.serving.pinot import PinotPush
    from lake_assets.serving.push import PushReport
    from lake_assets.serving.query import Result
    from lake_assets.serving.store import EntryStatus, TableStatus
    from lake_assets.serving.upkeep import OutdatedSegments, VerifiedTable


SERVED: TableView[TableStatus] = TableView(
    (
        "table",
        "segments",
        "rows",
        Column("MB", lambda table: megabytes(table.size_bytes), right=True),
        Column("MB stored", lambda table: megabytes(table.stored_bytes), right=True),
        "as of",
    )
)

LINEAGE: TableView[EntryStatus] = TableView(
    (
        Column("entry", lambda entry: entry.id, whole=True),
        "state",
        "since=timestamp",
        Column("replaced", lambda entry: len(entry.segments_from)),
        Column("brought", lambda entry: len(entry.segments_to)),
        "can be reverted=goes_back",
    )
)


def result(found: Result) -> Iterator[Part]:
    """Show the rows of a query under their columns."""
    columns = [_result_column(number, name) for number, name in enumerate(found.columns)]
    yield from TableView(columns)(found.rows)
    if found.truncated:
        yield f"Only the first {len(found.rows):,} rows are shown: LAKE_QUERY_ROWS."


def from_before(found: Iterable[OutdatedSegments]) -> Iterator[Part]:
    """Show which segments of served tables are older than an erasure, and the commands that remove them."""
    for table in found:
        if table.deleted:
            yield f"  {table.table}: {counted(table.deleted, 'segment')} from before deleted"
        if table.shown is None:
            segments = counted(table.left, "segment")
            yield _to_push(table, f"{segments} from before stored, and no ZooKeeper runs: `lake up`, then")
        elif table.shown:
            yield _to_push(table, f"readers see {counted(table.shown, 'segment')} from before:")
        elif table.left:
            yield _to_push(table, f"{counted(table.left, 'segment')} of a push that did not finish:", option=" --force")


def pushed(reports: Sequence[PushReport]) -> Iterator[Part]:
    """Show what was pushed, and the command that reverts it."""
    from lake_assets.serving.store import way_back

    for report in reports:
        segments = counted(len(report.segments), "segment")
        yield f"{report.table}: {report.rows:,} rows in {segments}, {megabytes(report.size_bytes)} MB."
    first, *others = reports
    together = {other.table: other.entry_id for other in others}
    yield f"To go back: {way_back(first.table, first.entry_id, together)}"


def verified(tables: Sequence[VerifiedTable]) -> Iterator[Part]:
    """Show which segments are damaged, which were restored, and what to do about the others."""
    if not tables:
        yield "No table is served."
    for table in tables:
        segments = counted(table.segments, "segment")
        if table.damaged:
            yield failed(f"{table.table}: {len(table.damaged)} of {segments} damaged")
        else:
            yield succeeded(f"{table.table}: {segments} as pushed")
        for name in table.restored:
            yield f"  restored {name}"
        for segment in table.damaged:
            role = "read by queries" if segment.is_seen else "kept for a revert"
            yield failed(f"  {segment.info.name} ({role}): {segment.problem}")
        if table.damaged:
            yield f"  → {_to_restore(table)}"


def _to_restore(table: VerifiedTable) -> str:
    if any(segment.is_seen for segment in table.damaged):
        return (
            f"`lake serving verify {table.table} --repair` restores what its source still has. "
            f"Otherwise run `lake serving push {table.table}`."
        )
    return "Do not revert to these segments. The next pushes replace them."


def pinot_pushed(done: PinotPush) -> Iterator[Part]:
    """Show what was pushed to a Pinot cluster, and the command that reverts it."""
    yield f"{done.table}: {counted(len(done.segments), 'segment')} instead of {len(done.replaced)}."
    yield f"To go back: lake serving pinot revert {done.table} {done.entry_id}"


def pinot_segments(names: Sequence[str]) -> Iterator[Part]:
    """Show the segments of a table of a Pinot cluster, one on each line."""
    if not names:
        yield "No segments."
    yield from names


def _result_column(number: int, name: str) -> Column[Sequence[object]]:
    return Column(name, lambda row: None if row[number] is None else str(row[number]))


def _to_push(table: OutdatedSegments, what: str, option: str = "") -> Part:
    push = f"`lake serving push {table.table}{option}`"
    clean_up = f"`lake serving clean-up {table.table}`"
    return warning(f"  ! {table.table}: {what} {push}, then {clean_up}")
