"""Views of erasures and certificates. They never show an id."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TextColumn
from rich.progress import Progress as ProgressBar

from lake_assets.pages.terminal import serving
from lake_assets.pages.terminal.render import Part, failed, faint, show, succeeded, warning

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lake_assets.incremental.erasure.certificate import Certificate, Finding, ProgressCallback
    from lake_assets.incremental.erasure.erase import ErasureReport
    from lake_assets.landing.erasure import LandedErasure
    from lake_assets.serving.upkeep import OutdatedSegments

_OF_TEXTS = (
    "An erasure deletes rows by their columns of ids. Change or delete this text where it comes from, or add the "
    "column to the subject; then erase again."
)

_REFERENCES = {
    "quarantine": "in quarantine",
    "not known": "no ZooKeeper runs, so it is not known whether readers see it",
}


@dataclass(frozen=True)
class ErasureOutcome:
    """What an erasure or a sweep did.

    Args:
        tables: What it did to tables.
        landed: What it did to landed files.
        served: The segments of served tables that are older than the erasure.
    """

    tables: ErasureReport
    landed: Sequence[LandedErasure]
    served: Sequence[OutdatedSegments]

    def document(self) -> Mapping[str, object]:
        """Return the JSON document: `found`, the fields of the report, `landed` and `served`."""
        return {
            "found": self.tables.found,
            **asdict(self.tables),
            "landed": self.landed,
            "served": self.served,
        }


def certificate_document(found: Certificate) -> Mapping[str, object]:
    """Return the JSON document of a certificate: `nowhere`, then its fields."""
    return {"nowhere": found.nowhere, **asdict(found)}


def print_step(what: str) -> None:
    """Print the step that an erasure starts."""
    show([faint(f"· {what}")])


def print_no_step(_: str) -> None:
    """Print nothing, for commands that print JSON."""


def erased(done: ErasureOutcome) -> Iterator[Part]:
    """Show what an erasure or a sweep did."""
    yield from _of_tables(done.tables)
    for landed in done.landed:
        if landed.scrubbed or landed.removed:
            yield f"  {landed.scrubbed:,} landed files scrubbed, {landed.removed:,} replaced files removed"
    yield from serving.from_before(done.served)


def certificate(found: Certificate) -> Iterator[Part]:
    """Show the files that still hold an id."""
    for finding in found.findings:
        yield failed(_finding(finding))
        yield f"  {finding.path}"
        if finding.text:
            yield f"  a text that names it: {finding.text}"
            yield f"  → {_OF_TEXTS}"
    if found.undecoded:
        yield warning(f"! {len(found.undecoded)} files could not be decoded and were searched as bytes")
    searched = f"{found.files:,} files searched, {found.bytes:,} bytes"
    if found.nowhere:
        yield succeeded(f"nowhere: {searched}")
    else:
        yield failed(f"in {len(found.findings)} files: {searched}")


@contextmanager
def progress_bar(*, shown: bool) -> Iterator[ProgressCallback]:
    """Show a progress bar on standard error if that is a terminal.

    Args:
        shown: Whether to show the bar at all.

    Yields:
        A function of the bytes done and of all bytes, which moves the bar.
    """
    columns = (TextColumn("searching"), BarColumn(), DownloadColumn())
    visible = shown and sys.stderr.isatty()
    with ProgressBar(*columns, console=Console(stderr=True), transient=True, disable=not visible) as bar:
        task = bar.add_task("searching", total=None)
        yield lambda done, of: bar.update(task, completed=done, total=of)


def _of_tables(done: ErasureReport) -> Iterator[Part]:
    who = f"the {done.subject}" if done.subject else "subjects that were erased before"
    if done.ids > 1:
        who = f"{done.ids:,} ids of the subject {done.subject}"
    counts = [f"{count:,} rows of {table}" for table, count in sorted(done.rows.items())]
    if done.quarantined:
        counts.append(f"{done.quarantined:,} rows of quarantine")
    if done.samples:
        counts.append(f"{done.samples:,} records with samples of audits")
    if counts:
        yield succeeded(f"erased of {who}: {', '.join(counts)}")
    else:
        yield succeeded(f"no table has rows of {who}")
    yield f"  {done.snapshots:,} snapshots expired, {done.files:,} files removed"
    if done.unfinished:
        yield warning(f"  ! {done.unfinished} requested erasures are not finished: erase these ids again")


def _finding(found: Finding) -> str:
    reference = _REFERENCES.get(found.referenced, f"referenced by {found.referenced}")
    column = f" in {found.column}" if found.column else ""
    return f"{found.table or 'no table'}: {found.kind}, {found.occurrences:,} times{column}, {reference}"
