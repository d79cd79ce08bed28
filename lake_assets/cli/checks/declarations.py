"""`lake check`: do the declarations fit together, and which columns do the queries of SQL tables have?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lake_assets.cli.columns import show_differences
from lake_assets.cli.common import AsJson
from lake_assets.errors import ServiceError
from lake_assets.pages.terminal.render import Column, TableView, render
from lake_assets.settings import is_folder, pipeline_names, settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from lake_assets.incremental.declaration import Pipeline
    from lake_assets.incremental.sql.analysis import CheckedTable

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
        typer.Argument(metavar="FOLDER", help="Folders of YAML files. Default: those in LAKE_PIPELINES."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check the declarations, and store the column types of SQL tables beside them. Reads no row, writes no table.

    Spark analyses each query without rows. Run it after a query, or the columns of a source, has changed. Where the
    columns of a table differ from its declaration, a line says so, with the command.
    """
    from lake_assets.incremental.declaration.validation import check_own_sql
    from lake_assets.incremental.from_settings import open_pipeline
    from lake_assets.incremental.sql.analysis import check_own_sql_with_spark

    found = check_folders(folders or declared_folders())
    if not folders:
        pipeline = open_pipeline(settings())
        check_own_sql(pipeline.targets)
        with _spark() as spark:
            check_own_sql_with_spark(pipeline, spark)
    render(found, _CHECKED, as_json=as_json)
    if not folders:
        _compare_columns(pipeline, err=as_json)


def _compare_columns(pipeline: Pipeline, *, err: bool) -> None:
    """Print where the columns of tables differ from their declaration, if there are tables."""
    from lake_assets.connections.catalog import is_blank, open_catalog

    if is_blank(settings()):
        return
    try:
        show_differences(open_catalog(settings()), pipeline, err=err)
    except ServiceError as error:  # declarations are also checked where no catalog is
        typer.echo(f"The columns of tables were not compared: {error.problem}", err=True)


def declared_folders() -> list[Path]:
    """Return the folders of YAML files in LAKE_PIPELINES."""
    return [Path(name) for name in pipeline_names(settings().pipelines) if is_folder(name)]


def check_folders(folders: Sequence[Path], *, only_changed: bool = False) -> list[CheckedTable]:
    """Analyse the queries of folders and store their columns.

    Args:
        folders: Folders of YAML files.
        only_changed: Leave out queries whose stored columns are current; if all are, no Spark is started.
    """
    from lake_assets.incremental.sql.analysis import check_folder
    from lake_assets.incremental.sql.folder import open_folder

    found: list[CheckedTable] = []
    with _spark() as spark:
        for folder in folders:
            checked, _ = check_folder(
                open_folder(folder.absolute()), spark, start=settings().start, only_changed=only_changed
            )
            found += checked
    return found


def analyse_changed_queries() -> None:
    """Store the columns of the queries that have changed, in the folders of LAKE_PIPELINES, and print their names."""
    for checked in check_folders(declared_folders(), only_changed=True):
        typer.echo(f"analysed {checked.table}")
        for warning in checked.warnings:
            typer.echo(f"  {warning}")


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
