"""Views of what a table holds."""

from __future__ import annotations

from collections.abc import Iterator

from lake_assets.incremental.operations.contents import ColumnBounds, PartitionContents, TableContents
from lake_assets.pages.terminal.render import Column, Part, TableView, faint, warning


def contents(found: TableContents) -> Iterator[Part]:
    """Show the partitions of a table, and the bounds of some columns in them."""
    if not found.partitions:
        yield f"{found.table} has no rows."
    else:
        yield from _table(found)(found.partitions)
    if found.rows_are_before_deletes:
        yield warning("There are delete files: rows are counted before deletes, and bounds may be of deleted rows.")
    if any(bounds.may_be_truncated for partition in found.partitions for bounds in partition.columns):
        yield faint("… marks a bound that may be truncated: the true value may be longer.")
    for column, sources in found.lineage.items():
        yield faint(f"{column} is made of {', '.join(sources)}")


def _table(found: TableContents) -> TableView[PartitionContents]:
    columns: list[Column[PartitionContents]] = [
        Column("partition", _partition, whole=True),
        Column("rows", lambda partition: f"{partition.rows:,}", right=True),
        Column("files", lambda partition: partition.files, right=True),
        Column("bytes", lambda partition: f"{partition.bytes:,}", right=True),
    ]
    if found.rows_are_before_deletes:
        columns.append(Column("delete files", lambda partition: partition.delete_files, right=True))
    for position, bounds in enumerate(found.partitions[0].columns):
        columns += _columns(position, bounds.column)
    return TableView(columns)


def _columns(position: int, name: str) -> list[Column[PartitionContents]]:
    def bounds(partition: PartitionContents) -> ColumnBounds:
        return partition.columns[position]

    return [
        Column(f"{name}: min", lambda partition: _bound(bounds(partition), bounds(partition).lower)),
        Column("max", lambda partition: _bound(bounds(partition), bounds(partition).upper)),
        Column("nulls", lambda partition: _or_unknown(bounds(partition).nulls), right=True),
    ]


def _partition(partition: PartitionContents) -> str:
    values = [f"{name}={value}" for name, value in partition.partition.items()]
    return ", ".join(values) or "all"


def _bound(bounds: ColumnBounds, value: str | None) -> str:
    if value is None:
        return "–"
    return f"{value}…" if bounds.may_be_truncated else value


def _or_unknown(number: int | None) -> str:
    return "–" if number is None else f"{number:,}"
