"""What the commands of erasure print: figures and certificate, for people (rich) and programs (JSON). Never an id."""

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

from lake_assets.incremental.erasure.certificate import Certificate
from lake_assets.incremental.erasure.certificate import Progress as Told
from lake_assets.incremental.erasure.erase import ErasureReport
from lake_assets.pages.terminal import console

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


_REFERENCES = {"quarantine": "in quarantine", "not known": "not known if readers see it: no ZooKeeper"}


def as_json(found: ErasureReport | Certificate, **beside: Sequence[DataclassInstance]) -> str:
    """All that was found, as JSON; of a certificate also `nowhere`, of an erasure `found`. beside: more, by name."""
    verdict = {"nowhere": found.nowhere} if isinstance(found, Certificate) else {"found": found.found}
    more = {name: [asdict(each) for each in several] for name, several in beside.items()}
    return json.dumps({**verdict, **asdict(found), **more}, indent=1)


def step(what: str) -> None:
    """What an erasure is at."""
    console.print(f"[dim]· {escape(what)}[/]")


def report(done: ErasureReport) -> None:
    """What an erasure or a sweep did."""
    who = f"the {done.subject}" if done.subject else "anybody erased before"
    rows = ", ".join(f"{n:,} rows of {table}" for table, n in sorted(done.rows.items()))
    extra = [
        f"{n:,} {what}"
        for n, what in ((done.quarantined, "rows of quarantine"), (done.samples, "records with samples of audits"))
        if n
    ]
    there = ", ".join(part for part in (rows, *extra) if part)
    console.print(f"[green]✓[/] erased of {who}: {there}" if there else f"[green]✓[/] no table has rows of {who}")
    console.print(f"  {done.snapshots:,} snapshots expired, {done.files:,} files removed")
    if done.unfinished:
        console.print(
            f"  [yellow]! {done.unfinished} erasures were asked for and not finished: erase these ids again[/]"
        )


def certificate(found: Certificate) -> None:
    """Where an id still is."""
    for f in found.findings:
        by = _REFERENCES.get(f.referenced, f"referenced by {f.referenced}")
        console.print(f"[red]✗[/] {f.table or 'no table'}: {f.kind}, {f.occurrences:,} times, {by}\n  {escape(f.path)}")
    if found.undecoded:
        console.print(f"[yellow]! {len(found.undecoded)} files could not be decoded and were searched as bytes[/]")
    verdict = "[green]✓[/] nowhere" if found.nowhere else f"[red]✗[/] in {len(found.findings)} files"
    console.print(f"{verdict}: {found.files:,} files searched, {found.bytes:,} bytes")


@contextmanager
def bar(*, shown: bool) -> Iterator[Told]:
    """A bar on standard error, in a terminal; what it yields is told the bytes done, of how many."""
    columns = (TextColumn("searching"), BarColumn(), DownloadColumn())
    with Progress(
        *columns, console=Console(stderr=True), transient=True, disable=not (shown and sys.stderr.isatty())
    ) as progress:
        task = progress.add_task("searching", total=None)
        yield lambda done, of: progress.update(task, completed=done, total=of)
