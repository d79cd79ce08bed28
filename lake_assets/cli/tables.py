"""Commands of tables: create, declare, fill, migrate, look into and maintain them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lake_assets.base.described import kept_failure
from lake_assets.cli.common import AsJson, create_tables, open_engine, past_hour, show_failures
from lake_assets.cli.render import (
    Column,
    Part,
    TableView,
    counted,
    faint,
    progress,
    progress_bar,
    render,
    warning,
)
from lake_assets.errors import ErrorText, LakeError, ServiceError, TableDamaged, TableMissing, UsageError, suggestion
from lake_assets.settings import settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

    from lake_assets.incremental.declaration import Pipeline, Target
    from lake_assets.incremental.engine.columns import Declared, Difference, Migration
    from lake_assets.incremental.engine.engine import Engine
    from lake_assets.incremental.operations.maintain import MaintenanceReport
    from lake_assets.incremental.sql.analysis import CheckedTable
    from lake_assets.incremental.sql.folder import SqlFolder


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
    found: list[Migration] = []
    failures: list[ErrorText] = []
    wanted = _named(engine.pipeline, names or (), drop or ())
    for declared in wanted:
        with kept_failure(failures, declared.table, alone=len(wanted) == 1):
            done = columns.migrate(engine.catalog, declared, drop or (), apply=apply)
            found += [] if done is None else [done]
    view = partial(_view, others=bool(failures))
    render(found, view, as_json=as_json, document=[_document(each) for each in found])
    show_failures(failures)
    if failures or (apply and any(each.refused for each in found)):
        raise typer.Exit(1)


def show_differences(catalog: Catalog, pipeline: Pipeline, *, err: bool = False) -> list[TableDamaged]:
    """Print what differs between declared and real columns, each in one line; nothing if all are alike.

    Descriptions are counted alone: no session reads them.

    Args:
        err: Print on standard error.

    Returns:
        Why tables cannot be read.
    """
    from lake_assets.incremental.engine.columns import declared_columns, migrate

    described = 0
    damaged: list[TableDamaged] = []
    for declared in declared_columns(pipeline).values():
        try:
            found = migrate(catalog, declared, apply=False)
        except TableDamaged as error:
            damaged.append(error)
            continue
        for each in found.differences if found else ():
            if each.kind != "description":
                typer.echo(f"{each.text} → {_remedy(each)}", err=err)
        described += any(each.kind == "description" for each in found.differences) if found else 0
    if described:
        tables = counted(described, "table")
        typer.echo(f"Columns of {tables} are described otherwise than declared. → lake migrate --apply", err=err)
    return damaged


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
                f"There is no table {name!r} whose columns are declared.", remedy=suggestion(name, [*known])
            )
        found.append(table)
    return found or list(known.values())


def _remedy(found: Difference) -> str:
    command = f"lake migrate {found.table} --apply" if found.step else ""
    return f"{found.remedy} Otherwise: {command}" if command and found.remedy else command or found.remedy


def _view(found: Sequence[Migration], *, others: bool) -> Iterator[Part]:
    """Show each difference, what is done about it, and what remains to be done. others: some could not be read."""
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
        yield "The columns of the other tables are as declared." if others else "All columns are as declared."
    if steps:
        yield faint(f"Nothing was changed. --apply does {'the step' if steps == 1 else f'the {steps} steps'}.")


def _document(found: Migration) -> dict[str, object]:
    return {
        "table": found.table,
        "applied": found.applied and bool(found.steps),
        "rebuild": found.rebuild,
        "differences": [each.document() for each in found.differences],
    }


_CHECKED: TableView[CheckedTable] = TableView(
    (
        "table",
        Column("columns", lambda checked: ", ".join(f"{name} {kind}" for name, kind in checked.columns.items())),
        Column("types", lambda checked: "written" if checked.written else "as stored"),
        Column("note", lambda checked: "; ".join(checked.warnings)),
    )
)


def check(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FOLDER", help="Folders or files of YAML. Default: all that LAKE_PIPELINES names."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check the declarations, and store the column types of SQL tables beside them. Reads no row, writes no table.

    Spark analyses each query without rows. Run it after a query, or the columns of a source, has changed. Where the
    columns of a table differ from its declaration, a line says so, with the command. The exit code is 1 if a
    declaration cannot be used; all of them are named.
    """
    from lake_assets.incremental.sql.analysis import mistakes_in_own_sql

    found, pipeline = check_declared(folders or ())
    errors: list[LakeError] = [broken.error for broken in pipeline.broken]
    if not folders:
        with _spark() as spark:
            errors += mistakes_in_own_sql(pipeline, spark)
    render(found, _CHECKED, as_json=as_json)
    if not folders:
        errors += _compare_columns(pipeline, err=as_json)
    for error in errors:
        typer.echo(f"Error: {error}", err=True)
    if errors:
        raise typer.Exit(1)


def _compare_columns(pipeline: Pipeline, *, err: bool) -> list[TableDamaged]:
    """Print where the columns of tables differ from their declaration, if there are tables; see `show_differences`."""
    from lake_assets.connections.catalog import is_blank, open_catalog

    if is_blank(settings()):
        return []
    try:
        return show_differences(open_catalog(settings()), pipeline, err=err)
    except ServiceError as error:  # declarations are also checked where no catalog is
        typer.echo(f"The columns of tables were not compared: {error.problem}", err=True)
        return []


def check_declared(folders: Sequence[Path] = (), *, only_changed: bool = False) -> tuple[list[CheckedTable], Pipeline]:
    """Analyse the queries of SQL tables and store their columns.

    Args:
        folders: Folders or files of YAML; none for all declarations of LAKE_PIPELINES.
        only_changed: Leave out queries whose stored columns are current; if all are, no Spark is started.

    Raises:
        ConfigurationError: Nothing can be used.
    """
    from lake_assets.incremental.from_settings import read_declared, target_columns
    from lake_assets.incremental.sql.analysis import check_tables
    from lake_assets.incremental.sql.folder import whole_pipeline

    python, folder = read_declared(settings().pipelines)
    schemas = target_columns(python)
    if folders:  # the others only tell which columns they have
        schemas = {**schemas, **_columns_beside(folder, schemas)}
        python, folder = read_declared([path.absolute() for path in folders])
    with _spark() as spark:
        checked, targets, broken = check_tables(folder, spark, schemas=schemas, only_changed=only_changed)
    return checked, whole_pipeline(folder, targets, broken, start=settings().start, python=python)


def _columns_beside(folder: SqlFolder, schemas: Mapping[str, Mapping[str, str]]) -> dict[str, Mapping[str, str]]:
    """Return table → columns, of all that LAKE_PIPELINES declares, as far as it is known."""
    from lake_assets.incremental.sql.folder import targets_of

    targets, _ = targets_of(folder, schemas)
    return {**folder.raw_schemas(), **{target.table: target.columns for target in targets}}


def analyse_changed_queries() -> Pipeline:
    """Store the columns of the queries that have changed, print their names, and return all that is declared."""
    found, pipeline = check_declared(only_changed=True)
    for checked in found:
        typer.echo(f"analysed {checked.table}")
        for text in checked.warnings:
            typer.echo(f"  {text}")
    return pipeline


@contextmanager
def _spark() -> Iterator[Callable[[], SparkSession]]:
    """Yield a function that opens a session at its first call. The session ends with the block."""
    with ExitStack() as stack:

        @lru_cache(maxsize=1)
        def session() -> SparkSession:
            from lake_assets.connections.spark import open_spark

            opened = open_spark(settings())
            stack.callback(opened.stop)
            return opened

        yield session


def init() -> None:
    """Create missing namespaces and tables. Safe to repeat.

    A raw table without declared columns is not created, but checked: it exists, and its time column is a timestamp.
    If SQL tables are declared, Spark first analyses the queries that have changed. Where the columns of a table differ
    from its declaration, a line says so, with the command; `lake migrate` makes them as declared.

    A target that was dropped after sessions had built it is not created: the exit code is 1, and the error says how to
    rebuild it. So it is if a declaration cannot be used.
    """
    from lake_assets.incremental.engine.columns import existing_problems

    declared = analyse_changed_queries()
    created = create_tables()
    for name in created:
        typer.echo(f"created {name}")
    if created:
        typer.echo(f"{len(created)} tables created.")
    else:
        typer.echo("Nothing to create.")
    engine = open_engine()
    if created:
        typer.echo(f"The first event hour is {engine.pipeline.start}: rows of earlier hours are quarantined.")
    damaged = show_differences(engine.catalog, engine.pipeline)
    wrong: list[LakeError | ErrorText] = [broken.error for broken in declared.broken]
    wrong += [*damaged, *existing_problems(engine.catalog, engine.pipeline)]
    readable = [target for target in engine.pipeline.in_order() if target.table not in {each.table for each in damaged}]
    wrong += [problem for target in readable if (problem := engine.problem(target)) is not None]
    show_failures(wrong)
    if wrong:
        raise typer.Exit(1)


def new(
    table: Annotated[
        str,
        typer.Argument(metavar="TABLE", help="The table, such as core.payment_fact. The default namespace is core."),
    ],
    mode: Annotated[str, typer.Option(help="The mode: stateless, stateful or sequential.")],
    source: Annotated[str, typer.Option(help="The raw table that it is built from, such as raw.payments.")],
    time_column: Annotated[str, typer.Option(help="The time column of the source.")],
    key: Annotated[str, typer.Option(help="The key column of the source.")],
    grain: Annotated[str, typer.Option(help="The period of one partition: hour or day.")] = "hour",
    out: Annotated[Path, typer.Option(help="The folder to write to.")] = Path(),
) -> None:
    """Write the first files of TABLE: a declaration and a test. Both run without a change."""
    from lake_assets.cli import new as files

    wanted = files.NewTable(
        table=table if "." in table else f"core.{table}",
        mode=mode,
        source=source,
        time_column=time_column,
        key=key,
        grain=grain,
    )
    for path in files.write(wanted, out):
        typer.echo(f"wrote {path}")
    typer.echo(files.next_steps(wanted, out))


def inspect(
    table: Annotated[
        str, typer.Argument(metavar="TABLE", help="Any table of the catalog, such as raw.cancels, or a target's name.")
    ],
    columns: Annotated[
        list[str] | None, typer.Argument(metavar="COLUMN", help="Columns to show least and greatest values of.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the partitions of TABLE, with rows, files and bytes, from its metadata alone. Starts no Spark."""
    from dataclasses import replace

    from lake_assets.cli import views
    from lake_assets.incremental.engine import iceberg
    from lake_assets.incremental.operations import contents

    engine = open_engine()
    lineage: dict[str, Sequence[str]] = {}
    declared = engine.pipeline.find_target(table)
    if declared is not None:
        table, lineage = declared.table, _lineage(declared)
    opened = iceberg.find(engine.catalog, table)
    if opened is None:
        raise no_such_table(engine, table)
    found = contents.contents(opened, table, columns or ())
    if columns:
        lineage = {column: sources for column, sources in lineage.items() if column in columns}
    render(replace(found, lineage=lineage), views.contents, as_json=as_json)


def no_such_table(engine: Engine, name: str) -> LakeError:
    """Return the error for a table that the catalog does not have: it is declared only, or its name is misspelt."""
    from lake_assets.connections.catalog import table_names

    declared = [each.table for each in engine.pipeline.raw]
    declared += [each.table for each in engine.pipeline.targets]
    if name in declared:
        return TableMissing(name)
    known = sorted({*table_names(engine.catalog), *declared})
    return UsageError(f"There is no table {name!r}.", remedy=suggestion(name, known))


def _lineage(target: Target) -> dict[str, Sequence[str]]:
    """Return column → what it is made of, for the columns whose lineage is declared or read from a query."""
    found = {column: sources for column, sources in target.lineage.items() if sources}
    unknown = dict.fromkeys(target.unknown_lineage, ("unknown columns",))
    return {**found, **unknown}


def maintain(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="TABLE", help="The tables to maintain. Default: all.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what maintenance would do, and change nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compact tables, expire snapshots that no target needs, and remove unreferenced files. Changes no row."""
    from lake_assets.cli import views
    from lake_assets.incremental.from_settings import open_maintainer
    from lake_assets.incremental.operations.maintain import tables_of

    maintainer = open_maintainer(settings())
    engine = maintainer.engine
    wanted = [maintainer.table(name) for name in names or tables_of(engine.pipeline, engine.catalog.properties)]
    done: list[MaintenanceReport] = []
    failures: list[ErrorText] = []
    for table in progress("maintaining")(wanted):
        with kept_failure(failures, table, alone=len(wanted) == 1):
            done.append(maintainer.maintain(table, dry_run=dry_run))
    render(done, views.maintained, as_json=as_json)
    if not names and not dry_run:
        _remove_old_runs(engine.catalog, engine.pipeline, quiet=as_json)
    show_failures(failures)
    if failures:
        raise typer.Exit(1)


def _remove_old_runs(catalog: Catalog, pipeline: Pipeline, *, quiet: bool) -> None:
    from lake_assets.connections.addresses import dagster_folder
    from lake_assets.incremental.dagster.maintenance import purge_folder
    from lake_assets.incremental.engine.engine import utc_now

    before = utc_now() - timedelta(days=settings().run_days)
    purged = purge_folder(dagster_folder(settings().home), catalog, pipeline, before=before)
    if purged.runs and not quiet:
        typer.echo(
            f"Removed {purged.runs:,} runs of Dagster that ended more than {settings().run_days} days ago, with "
            f"{purged.events:,} events and {purged.files:,} files ({purged.bytes >> 20:,} MB)."
        )


def complete(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="A raw table, such as raw.cancels.")],
    hour: Annotated[str, typer.Argument(metavar="HOUR", help="The last complete hour, such as 2026-01-01-05:00.")],
    force: Annotated[
        bool, typer.Option("--force", help="Also move complete-through back, or replace a malformed one.")
    ] = False,
) -> None:
    """Declare the raw table TABLE complete through HOUR, inclusive.

    For a source that went silent, or whose rows land by other means.
    """
    from lake_assets.base.hours import hour_key
    from lake_assets.incremental.engine.planner import declare_complete

    engine = open_engine()
    through = past_hour(hour, where="HOUR")
    declared = declare_complete(engine.catalog, engine.pipeline, table, through, force=force)
    before = "unknown" if declared.before is None else hour_key(declared.before)
    typer.echo(f"{declared.table} is complete through {hour_key(declared.after)} (before: {before}).")


def land(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="A raw table, such as raw.payments.")],
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE",
            help="CSV with a header (.csv, .tsv, .txt), JSON lines or an array (.json, .jsonl, .ndjson), or Parquet. "
            "CSV and JSON may end in .gz.",
        ),
    ],
    through: Annotated[
        str | None, typer.Option(help="The last complete hour, such as 2026-01-01-05:00. Default: as it is.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Also take an hour that is more than a day beyond the newest row.")
    ] = False,
    delimiter: Annotated[
        str | None,
        typer.Option(help="Between the cells of CSV. Default: the one of , ; | and tab that fits the header."),
    ] = None,
    quote: Annotated[str, typer.Option(help="Around cells of CSV; '' for none.")] = '"',
    escape: Annotated[
        str | None,
        typer.Option(
            help="Before a quote in a quoted cell. Default: the quote itself, or a backslash if only that fits."
        ),
    ] = None,
    null: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="A cell of CSV that is null, besides empty ones. Repeatable. Default: \\N."),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="A column of the files that is left out. Repeatable."),
    ] = None,
    zone: Annotated[
        str | None,
        typer.Option(
            help="The zone of times that name none, such as UTC. A date is its midnight. Default: they are refused."
        ),
    ] = None,
) -> None:
    """Append the rows of FILE to the raw table TABLE, in one commit with its complete-through.

    If a value does not fit, nothing lands, and the error names its row. Two calls with one file land its rows twice; a
    target counts them once.
    """
    from lake_assets.base.hours import parse_hour
    from lake_assets.cli.land import land_files
    from lake_assets.cli.read_files import dialect

    engine = open_engine()
    hour = None if through is None else parse_hour(through, where="--through")
    written = dialect(delimiter, quote, escape, nulls=null, ignored=ignore or (), zone=zone)
    now = engine.clock()
    with progress_bar(f"landing {table}") as count:
        rows = land_files(
            engine.catalog,
            engine.pipeline,
            table,
            files,
            now=now,
            through=hour,
            force=force,
            dialect=written,
            describe=typer.echo,
            count=count,
        )
    typer.echo(f"Rows landed in {table}: {rows:,}.")
