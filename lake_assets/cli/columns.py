"""`lake migrate`, and what `lake init` and `lake check` say of columns that differ from their declaration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from lake_assets.cli.common import AsJson, open_engine
from lake_assets.errors import UsageError
from lake_assets.pages.terminal.render import Part, counted, faint, render, warning

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from lake_assets.incremental.declaration import Pipeline
    from lake_assets.incremental.engine.columns import Declared, Difference, Migration


def migrate(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="TABLE", help="Targets or raw tables. Default: all.")
    ] = None,
    apply: Annotated[
        bool, typer.Option("--apply", help="Do the steps. Default: show them, and change nothing.")
    ] = False,
    drop: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN",
            help="A column of TABLE that is dropped with its values: it is not declared, or with another type. "
            "Repeatable.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show how the columns of tables differ from their declaration, and with --apply make them as declared.

    Adds, widens, renames, moves and describes columns, and lets them be null: changes of metadata, which rewrite no
    row, in one commit for each table. Safe to repeat. The exit code is 1 if --apply leaves a difference that Iceberg
    cannot settle by metadata.
    """
    from lake_assets.incremental.engine import columns

    engine = open_engine()
    found = []
    for declared in _named(engine.pipeline, names or (), drop or ()):
        done = columns.migrate(engine.catalog, declared, drop or (), apply=apply)
        if done is not None:
            found.append(done)
    render(found, _view, as_json=as_json, document=[_document(each) for each in found])
    if apply and any(each.refused for each in found):
        raise typer.Exit(1)


def show_differences(catalog: Catalog, pipeline: Pipeline, *, err: bool = False) -> None:
    """Print what differs between declared and real columns, each in one line; nothing if all are alike.

    Descriptions are counted alone: no session reads them.

    Args:
        err: Print on standard error.
    """
    from lake_assets.incremental.engine.columns import declared_columns, migrate

    described = 0
    for declared in declared_columns(pipeline).values():
        found = migrate(catalog, declared, apply=False)
        for each in found.differences if found else ():
            if each.kind != "description":
                typer.echo(f"{each.text} → {_remedy(each)}", err=err)
        described += any(each.kind == "description" for each in found.differences) if found else 0
    if described:
        tables = counted(described, "table")
        typer.echo(f"Columns of {tables} are described otherwise than declared. → lake migrate --apply", err=err)


def _named(pipeline: Pipeline, names: Sequence[str], drop: Sequence[str]) -> list[Declared]:
    """Return the declared columns of the named tables."""

    from lake_assets.incremental.engine.columns import declared_columns

    known = declared_columns(pipeline)
    if drop and len(names) != 1:
        raise UsageError(
            f"--drop names a column of one table, and {len(names) or 'no'} tables are named.",
            remedy=f"Name the table: lake migrate TABLE --drop {drop[0]}.",
        )
    found = []
    for name in names:
        table = next((each for each in known.values() if name.replace("/", ".") in (each.table, each.target)), None)
        if table is None:
            pipeline.refuse_broken(name)
            raise UsageError(
                f"There is no table {name!r} whose columns are declared.", remedy=f"Name one of: {', '.join(known)}."
            )
        found.append(table)
    return found or list(known.values())


def _remedy(found: Difference) -> str:
    command = f"lake migrate {found.table} --apply" if found.step else ""
    return f"{found.remedy} Otherwise: {command}" if command and found.remedy else command or found.remedy


def _view(found: Sequence[Migration]) -> Iterator[Part]:
    """Show each difference, what is done about it, and what remains to be done."""
    steps = 0
    for table in found:
        for each in table.differences:
            if each.step:
                done = f"{each.step}: done" if table.applied else each.step
                yield f"{each.text} → {done}" + (f" ({each.remedy[:-1]})" if each.remedy and not table.applied else "")
            elif each.refused:
                yield warning(f"{each.text} {each.refused}. → {each.remedy}")
            else:
                yield f"{each.text} → {each.remedy}"
        if table.rebuild:
            filled = ", ".join(each.column for each in table.steps if "add" in each.step)
            yield f"Rows that were built before are null in {filled}. To fill them: {table.rebuild}"
        steps += 0 if table.applied else len(table.steps)
    if not any(table.differences for table in found):
        yield "All columns are as declared."
    if steps:
        yield faint(f"Nothing was changed. --apply does {'the step' if steps == 1 else f'the {steps} steps'}.")


def _document(found: Migration) -> dict[str, object]:
    return {
        "table": found.table,
        "applied": found.applied and bool(found.steps),
        "rebuild": found.rebuild,
        "differences": [each.document() for each in found.differences],
    }
