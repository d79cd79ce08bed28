"""`lake erase` and `lake erasure certify`: erasure in tables, landed files, served tables and engagement lakes."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lake_assets.cli import engagement, landing, serving
from lake_assets.cli.common import AsJson, open_engine
from lake_assets.errors import UsageError
from lake_assets.pages.terminal import erasure as views
from lake_assets.pages.terminal.render import render

if TYPE_CHECKING:
    from lake_assets.landing.erasure import LandedErasure

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
    from lake_assets.incremental.erasure.erase import erase, sweep

    named = (value is not None) + (listed is not None) + late
    if named != 1 or late != (subject is None):
        raise UsageError(
            "The command needs an id to erase, a file of ids, or --sweep.",
            remedy="Run `lake erase account ID`, `lake erase account --from FILE` or `lake erase --sweep`.",
        )
    ids = [str(value)] if listed is None else _listed_ids(str(subject), listed)
    engine = open_engine()
    now = datetime.now(UTC)
    engine.create_tables()
    landed: list[LandedErasure] = []
    elsewhere = landing.erase_landed_files(landed)
    if late:
        done = sweep(engine, now=now, elsewhere=elsewhere)
    else:
        landing.request_erasure(engine, str(subject), str(value), now)
        report = views.print_no_step if as_json else views.print_step
        done = erase(engine, str(subject), *ids, now=now, report=report, elsewhere=elsewhere)
    outcome = views.ErasureOutcome(done, landed, serving.delete_replaced())
    render(outcome, views.erased, as_json=as_json, document=outcome.document())


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
        nowhere = engagement.certify(value, who_id, as_json=as_json)
    if not nowhere:
        sys.exit(1)


def _certify_tables(subject: str, value: str, *, as_json: bool) -> bool:
    from lake_assets.incremental.engine.erasures import spellings
    from lake_assets.incremental.erasure.certificate import certify

    engine = open_engine()
    declared = engine.pipeline.subject(subject)
    values = spellings(engine.catalog, engine.pipeline, declared, [value])
    with views.progress_bar(shown=not as_json) as progress:
        beside = [*landing.searched_folders(), *serving.searched_folders()]
        found = certify(engine.catalog, subject, *values, columns=declared.columns, beside=beside, progress=progress)
    render(found, views.certificate, as_json=as_json, document=views.certificate_document(found))
    return found.nowhere
