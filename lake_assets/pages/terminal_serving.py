"""What the commands of `lake serving` print."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lake_assets.serving.endpoints.query import Result
from lake_assets.serving.erasure.erase import OutdatedSegments
from lake_assets.serving.store.push import PushReport
from lake_assets.serving.store.status import EntryStatus, TableStatus, way_back

console = Console()
WIDTH = 120
"""Of a table at least: what is no terminal counts as one of 80 columns, and would break ids and times."""


def result(found: Result) -> None:
    """Rows under their columns."""
    _print(found.columns, ([_text(value) for value in row] for row in found.rows))
    if found.truncated:
        console.print(f"Only the first {len(found.rows):,} rows are shown: LAKE_QUERY_ROWS.")


def tables(found: Sequence[TableStatus]) -> None:
    """A row for each served table."""
    columns = ("table", "segments", "rows", "MB", "MB stored", "as of")
    _print(columns, ([t.table, f"{t.segments:,}", f"{t.rows:,}", *_sizes(t), _time(t.as_of)] for t in found))


def lineage(found: Sequence[EntryStatus]) -> None:
    """A row for each entry."""
    columns = ("entry", "state", "since", "replaced", "brought", "can be reverted")
    _print(columns, ([e.id, e.state, _time(e.timestamp), *_counts(e), e.goes_back] for e in found))


def from_before(found: Iterable[OutdatedSegments]) -> None:
    """What served tables have of before an erasure, and what takes it away."""
    for f in found:
        if f.deleted:
            console.print(f"  {f.table}: {counted(f.deleted, 'segment')} from before deleted")
        push, then = f"lake serving push {f.table}", f"`, then `lake serving clean-up {f.table}`"
        if f.shown is None:
            there = f"{counted(f.left, 'segment')} from before stored, and no ZooKeeper runs: `lake up`, then"
        elif f.shown:
            there = f"readers see {counted(f.shown, 'segment')} from before:"
        elif f.left:
            there, push = f"{counted(f.left, 'segment')} of a push that did not end:", f"{push} --force"
        else:
            continue
        console.print(f"  [yellow]! {f.table}: {there} `{push}{then}[/]")


def pushed(reports: Sequence[PushReport]) -> None:
    """What was pushed, a line for each table, and the command that takes it back."""
    for r in reports:
        size = f"{r.rows:,} rows in {counted(len(r.segments), 'segment')}, {r.size_bytes / 1e6:.1f} MB"
        typer.echo(f"{r.table}: {size}.")
    first, *others = reports
    back = way_back(first.table, first.entry_id, {other.table: other.entry_id for other in others})
    typer.echo(f"To go back: {back}")


def counted(number: int, noun: str) -> str:
    """1 → `1 segment`, 2 → `2 segments`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _counts(entry: EntryStatus) -> list[str]:
    return [f"{len(entry.segments_from):,}", f"{len(entry.segments_to):,}"]


def _sizes(table: TableStatus) -> list[str]:
    return [f"{size / 1e6:,.1f}" for size in (table.size_bytes, table.stored_bytes)]


def _print(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    shown = Table(box=None, pad_edge=False, header_style="dim")
    for column in columns:
        shown.add_column(escape(column), overflow="fold", no_wrap=column == "entry")
    for row in rows:
        shown.add_row(*map(escape, row))
    Console(width=max(console.width, WIDTH)).print(shown)


def _time(moment: datetime | None) -> str:
    return "" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S}"


def _text(value: object) -> str:
    return "" if value is None else str(value)
