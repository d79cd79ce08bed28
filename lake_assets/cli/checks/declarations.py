"""`lake check`: do the declarations fit together, and which columns do the queries of SQL tables have?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lake_assets.cli.columns import show_differences
from lake_assets.cli.common import AsJson
from lake_assets.errors import ServiceError
from lake_assets.pages.terminal.render import Column, TableView, render
from lake_assets.settings import settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from lake_assets.incremental.declaration import Pipeline
    from lake_assets.incremental.sql.analysis import CheckedTable
    from lake_assets.incremental.sql.folder import SqlFolder

_CHECKED: TableView[CheckedTable] = TableView(
    (
        Column("table", lambda checked: checked.table),
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
    errors = [broken.error for broken in pipeline.broken]
    if not folders:
        with _spark() as spark:
            errors += mistakes_in_own_sql(pipeline, spark)
    render(found, _CHECKED, as_json=as_json)
    if not folders:
        _compare_columns(pipeline, err=as_json)
    for error in errors:
        typer.echo(f"Error: {error}", err=True)
    if errors:
        raise typer.Exit(1)


def _compare_columns(pipeline: Pipeline, *, err: bool) -> None:
    """Print where the columns of tables differ from their declaration, if there are tables."""
    from lake_assets.connections.catalog import is_blank, open_catalog

    if is_blank(settings()):
        return
    try:
        show_differences(open_catalog(settings()), pipeline, err=err)
    except ServiceError as error:  # declarations are also checked where no catalog is
        typer.echo(f"The columns of tables were not compared: {error.problem}", err=True)


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
        for warning in checked.warnings:
            typer.echo(f"  {warning}")
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
