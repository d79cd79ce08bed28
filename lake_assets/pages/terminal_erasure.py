"""What the commands of erasure print, for people (rich) and for programs (JSON). They never print an id."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from lake_assets.incremental.erasure.certificate import Certificate, ProgressCallback
from lake_assets.incremental.erasure.erase import ErasureReport
from lake_assets.pages.terminal import console

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


_REFERENCES = {
    "quarantine": "in quarantine",
    "not known": "not known whether readers see it, because no ZooKeeper runs",
}


def as_json(found: ErasureReport | Certificate, **beside: Sequence[DataclassInstance]) -> str:
    """Return a report as JSON: `nowhere` (certificate) or `found` (erasure), all fields, and `beside` by name."""
    verdict = {"nowhere": found.nowhere} if isinstance(found, Certificate) else {"found": found.found}
    more = {name: [asdict(each) for each in values] for name, values in beside.items()}
    return json.dumps({**verdict, **asdict(found), **more}, indent=1)


def step(name: str) -> None:
    """Print the step that an erasure starts."""
    console.print(f"[dim]· {escape(name)}[/]")


def report(done: ErasureReport) -> None:
    """Print what an erasure or a sweep did."""
    subject = f"the {done.subject}" if done.subject else "subjects erased before"
    deleted = [f"{rows:,} rows of {table}" for table, rows in sorted(done.rows.items())]
    if done.quarantined:
        deleted.append(f"{done.quarantined:,} rows of quarantine")
    if done.samples:
        deleted.append(f"{done.samples:,} records with samples of audits")
    if deleted:
        console.print(f"[green]✓[/] erased of {subject}: {', '.join(deleted)}")
    else:
        console.print(f"[green]✓[/] no table has rows of {subject}")
    console.print(f"  {done.snapshots:,} snapshots expired, {done.files:,} files removed")
    if done.unfinished:
        console.print(f"  [yellow]! {done.unfinished} requested erasures are not finished: erase these ids again[/]")


def certificate(found: Certificate) -> None:
    """Print where an id still is."""
    for finding in found.findings:
        reference = _REFERENCES.get(finding.referenced, f"referenced by {finding.referenced}")
        table = finding.table or "no table"
        console.print(f"[red]✗[/] {table}: {finding.kind}, {finding.occurrences:,} times, {reference}")
        console.print(f"  {escape(finding.path)}")
    if found.undecoded:
        console.print(f"[yellow]! {len(found.undecoded)} files could not be decoded and were searched as bytes[/]")
    result = "[green]✓[/] nowhere" if found.nowhere else f"[red]✗[/] in {len(found.findings)} files"
    console.print(f"{result}: {found.files:,} files searched, {found.bytes:,} bytes")


@contextmanager
def bar(*, shown: bool) -> Iterator[ProgressCallback]:
    """Show a progress bar on standard error, if that is a terminal, and yield the callback that moves it."""
    with Progress(
        TextColumn("searching"),
        BarColumn(),
        DownloadColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not (shown and sys.stderr.isatty()),
    ) as progress:
        task = progress.add_task("searching", total=None)
        yield lambda done, size: progress.update(task, completed=done, total=size)
