"""`lake erase` and `lake erasure certify`: erasure in tables, landed files, served tables and engagement lakes."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lake_assets.cli import landing, serving
from lake_assets.cli.common import AsJson, kafka_servers, open_engine
from lake_assets.cli.render import Part, counted, failed, faint, progress_bar, render, show, succeeded, warning
from lake_assets.errors import UsageError
from lake_assets.settings import settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lake_assets.engagement.erasure import LakeCertificate
    from lake_assets.incremental.erasure.certificate import Certificate, Finding
    from lake_assets.incremental.erasure.erase import ErasureReport
    from lake_assets.landing.erasure import LandedErasure
    from lake_assets.serving.upkeep import OutdatedSegments

erasure = typer.Typer(help="Check that an erased id is in no file.", no_args_is_help=True)


def erase(
    subject: Annotated[str | None, typer.Argument(metavar="SUBJECT", help="The kind of id, such as account.")] = None,
    value: Annotated[str | None, typer.Argument(metavar="ID", help="The id to erase.")] = None,
    listed: Annotated[
        Path | None,
        typer.Option("--from", metavar="FILE", help="Instead of an id: a file with one id a line.", dir_okay=False),
    ] = None,
    late: Annotated[
        bool,
        typer.Option("--sweep", help="Instead of an id: erase rows that arrived after their subject was erased."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Erase an id, or those of a file, from raw tables, targets, quarantine, audit samples and landed files.

    All old snapshots of these tables are deleted, too, and those of served tables. The command names the tables that
    have to be pushed again.
    """
    from lake_assets.incremental.erasure.erase import check_id, erase, sweep

    named = (value is not None) + (listed is not None) + late
    if named != 1 or late != (subject is None):
        raise UsageError(
            "The command needs an id to erase, a file of ids, or --sweep.",
            remedy="Run `lake erase account ID`, `lake erase account --from FILE` or `lake erase --sweep`.",
        )
    ids = [] if listed is None else _listed_ids(str(subject), listed)
    if value is not None:
        check_id(str(subject), value)
        ids = [value]
    engine = open_engine()
    now = datetime.now(UTC)
    engine.create_tables()
    landed: list[LandedErasure] = []
    elsewhere = landing.erase_landed_files(landed)
    if late:
        done = sweep(engine, now=now, elsewhere=elsewhere)
    else:
        landing.request_erasure(engine, str(subject), ids, now)
        report = print_no_step if as_json else print_step
        done = erase(engine, str(subject), *ids, now=now, report=report, elsewhere=elsewhere)
    outcome = ErasureOutcome(done, landed, serving.delete_replaced())
    render(outcome, erased, as_json=as_json, document=outcome.document())


def _listed_ids(subject: str, file: Path) -> list[str]:
    """Return the ids of a file: one a line, each once, without empty lines, and without a mark of UTF-8 in front."""
    from lake_assets.incremental.erasure.erase import check_id

    lines = file.read_text(encoding="utf-8-sig").split("\n")
    found: dict[str, None] = {}
    for number, line in enumerate(lines, 1):
        value = line.removesuffix("\r")
        if not value.strip():
            continue
        try:
            check_id(subject, value)
        except UsageError as error:
            raise UsageError(f"{file}, line {number}: {error.problem}", remedy=error.remedy) from None
        found[value] = None
    if not found:
        raise UsageError(f"{file} has no id.", remedy="Write one id a line.")
    return list(found)


@erasure.command()
def certify(
    subject: Annotated[
        str,
        typer.Argument(
            metavar="SUBJECT",
            help="The kind of id, such as account. Use org for an id of an org in the engagement lakes.",
        ),
    ],
    value: Annotated[str, typer.Argument(metavar="ID", help="The id to look for. If SUBJECT is org: the org.")],
    who_id: Annotated[
        str | None, typer.Argument(metavar="ID_OF_ORG", help="If SUBJECT is org: the id to look for.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Decode every file of tables, landed files and segments, and list the files that still hold an id.

    The exit code is 1 if a file holds it.
    """
    if (subject == "org") != (who_id is not None):
        raise UsageError(
            "The arguments are neither a subject and its id, nor org, an org and an id.",
            remedy="Run `lake erasure certify account ID` or `lake erasure certify org ORG ID`.",
        )
    if who_id is None:
        nowhere = _certify_tables(subject, value, as_json=as_json)
    else:
        nowhere = certify_in_lakes(value, who_id, as_json=as_json)
    if not nowhere:
        sys.exit(1)


def _certify_tables(subject: str, value: str, *, as_json: bool) -> bool:
    from lake_assets.incremental.engine.erasures import spellings
    from lake_assets.incremental.erasure.certificate import certify

    engine = open_engine()
    declared = engine.pipeline.subject(subject)
    values = spellings(engine.catalog, engine.pipeline, declared, [value])
    with progress_bar("searching", shown=not as_json) as progress:
        beside = [*landing.searched_folders(), *serving.searched_folders()]
        found = certify(engine.catalog, subject, *values, columns=declared.columns, beside=beside, progress=progress)
    render(found, certificate, as_json=as_json, document=certificate_document(found))
    return found.nowhere


def certify_in_lakes(org: str, who_id: str, *, as_json: bool) -> bool:
    """Run `lake erasure certify org ORG ID`: print the files of the lakes that hold an id.

    Returns:
        Whether no file holds it.
    """
    from lake_assets.engagement.erasure import certify
    from lake_assets.engagement.lakes import searched_lakes
    from lake_assets.engagement.tables import folder

    with progress_bar("searching", shown=not as_json) as progress:
        found = certify(folder(settings()), searched_lakes(settings()), org, who_id, kafka_servers(), progress=progress)
    render(found, lake_certificate, as_json=as_json, document=certificate_document(found))
    return found.nowhere


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


def lake_certificate(found: LakeCertificate) -> Iterator[Part]:
    """Show the files of the lakes that still hold an id, and how long Kafka keeps messages of it."""
    yield from certificate(found)
    for kept in found.kafka:
        until = f"until {kept.until:%Y-%m-%d %H:%M} at the latest" if kept.until else "without a limit"
        yield f"  Kafka keeps {counted(kept.messages, 'message')} of {kept.topic} {until}"
