"""`lake init`, `new`, `inspect`, `maintain` and `complete`: the tables themselves."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lake_assets.cli.checks.declarations import analyse_changed_queries
from lake_assets.cli.columns import show_differences
from lake_assets.cli.common import AsJson, create_tables, open_engine, past_hour
from lake_assets.errors import LakeError
from lake_assets.pages.terminal.failures import show_failures
from lake_assets.pages.terminal.render import progress, render
from lake_assets.settings import settings

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from lake_assets.incremental.declaration import Pipeline, Target


def init() -> None:
    """Create missing namespaces and tables. Safe to repeat.

    A raw table without declared columns is not created, but checked: it exists, and its time column is a timestamp.
    If SQL tables are declared, Spark first analyses the queries that have changed. Where the columns of a table differ
    from its declaration, a line says so, with the command; `lake migrate` makes them as declared.

    A target that was dropped after sessions had built it is not created: the exit code is 1, and the error says how to
    rebuild it. So it is if a declaration cannot be used.
    """
    from lake_assets.incremental.engine.columns import check_existing

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
    show_differences(engine.catalog, engine.pipeline)
    check_existing(engine.catalog, engine.pipeline)
    wrong: list[LakeError] = [broken.error for broken in declared.broken]
    wrong += [problem for target in engine.pipeline.in_order() if (problem := engine.problem(target)) is not None]
    show_failures(map(str, wrong))
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
    from lake_assets.cli.scaffold import files

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

    from lake_assets.incremental.engine import iceberg
    from lake_assets.incremental.operations import contents
    from lake_assets.pages.terminal import contents as views

    engine = open_engine()
    lineage: dict[str, Sequence[str]] = {}
    for target in engine.pipeline.targets:
        if table in (target.name, target.table):
            table, lineage = target.table, _lineage(target)
    found = contents.contents(iceberg.load(engine.catalog, table), table, columns or ())
    if columns:
        lineage = {column: sources for column, sources in lineage.items() if column in columns}
    render(replace(found, lineage=lineage), views.contents, as_json=as_json)


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
    from lake_assets.incremental.from_settings import open_maintainer
    from lake_assets.incremental.operations.maintain import tables_of
    from lake_assets.pages.terminal import maintenance

    maintainer = open_maintainer(settings())
    wanted = [maintainer.table(name) for name in names or tables_of(maintainer.pipeline, maintainer.catalog.properties)]
    done = [maintainer.maintain(table, dry_run=dry_run) for table in progress("maintaining")(wanted)]
    render(done, maintenance.maintained, as_json=as_json)
    if not names and not dry_run:
        _remove_old_runs(maintainer.catalog, maintainer.pipeline, quiet=as_json)


def _remove_old_runs(catalog: Catalog, pipeline: Pipeline, *, quiet: bool) -> None:
    from lake_assets.connections.addresses import dagster_folder
    from lake_assets.incremental.dagster.watch.run_retention import purge_folder
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
    from lake_assets.incremental.engine.complete import declare_complete

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
    from lake_assets.cli.scaffold.land import land_files
    from lake_assets.cli.scaffold.read_files import dialect
    from lake_assets.pages.terminal.render import counting

    engine = open_engine()
    hour = None if through is None else parse_hour(through, where="--through")
    written = dialect(delimiter, quote, escape, nulls=null, ignored=ignore or (), zone=zone)
    now = engine.clock()
    with counting(f"landing {table}") as count:
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
