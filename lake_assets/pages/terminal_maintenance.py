"""What `lake maintain` prints: how far it is, on the error stream, and one table of figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table

from lake_assets.incremental.maintenance.maintainer import MaintenanceReport
from lake_assets.pages.terminal import console

WIDTH = 120
"""Columns that the figures need, also where the output is no terminal."""


def progress(tables: Sequence[str]) -> Iterator[str]:
    """The tables one after the other, with a bar on the error stream if that is a terminal."""
    yield from track(tables, "maintaining", console=Console(stderr=True), transient=True)


def table(found: Sequence[MaintenanceReport]) -> None:
    """Figures of each table, before and after; of a dry run, what would be done."""
    shown = Table(box=None, pad_edge=False, header_style="dim")
    shown.add_column("table")
    for name in (
        "files",
        "stored files",
        "stored MB",
        "snapshots",
        "manifests",
        "compacted",
        "expired",
        "orphans",
        "s",
    ):
        shown.add_column(name, justify="right")
    for done in found:
        before, after = done.before, done.after
        shown.add_row(
            done.table,
            _change(before.files, after.files),
            _change(before.stored_files, after.stored_files),
            _mb(before.stored_bytes, after.stored_bytes),
            _change(before.snapshots, after.snapshots),
            _change(before.manifests, after.manifests),
            str(done.partitions_compacted),
            str(done.snapshots_expired),
            str(done.orphans_removed),
            f"{sum(done.seconds.values()):.1f}",
        )
    Console(highlight=False, width=max(console.width, WIDTH)).print(shown)
    for done in found:
        for note in done.notes:
            console.print(f"[yellow]{done.table}: {escape(note)}[/]")
    if any(done.dry_run for done in found):
        console.print("[dim]A dry run: nothing was changed.[/]")


def _change(before: int, after: int) -> str:
    return f"{after:,}" if before == after else f"{before:,} → {after:,}"


def _mb(before: int, after: int) -> str:
    old, new = (f"{size / 1_000_000:.1f}" for size in (before, after))
    return new if old == new else f"{old} → {new}"
