"""`dg scaffold defs lake_assets.IncrementalTable NAME`: the first files of a table, which work as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg

from lake_assets.errors import UsageError
from lake_assets.incremental.declaration import IDENTIFIER
from lake_assets.incremental.sql.files import StoredColumns, columns_file, fingerprint, write_columns
from lake_assets.incremental.sql.folder import open_folder
from lake_assets.incremental.sql.lineage import column_lineage

TABLE = """\
type: lake_assets.IncrementalTable
attributes:
  table: core.{name}
  mode: stateless
  sources:
    - table: raw.{stem}s
      time_column: event_ts
      key: {stem}_id
      rules: {{amount is negative: amount < 0}}
      columns: {{{stem}_id: string, account_id: string, amount: long, event_ts: timestamptz}}
  key: {stem}_id
  time_column: happened_at
  sql: {name}.sql
  audits: [source_target_counts, no_missing_events, unique_key, {{not_null: [account_id]}}]
"""
QUERY = """\
SELECT {stem}_id, account_id, amount, event_ts AS happened_at
FROM {stem}s
"""
SOURCE = """\
type: lake_assets.SourceTable
attributes:
  table: raw.{name}
  columns: {{event_id: string, account_id: string, event_ts: timestamptz}}
  time_column: event_ts
"""


class IncrementalTableScaffolder(dg.Scaffolder[Any]):
    """Writes the declaration of a stateless table, its query, and the columns of the query."""

    def scaffold(self, request: dg.ScaffoldRequest[Any]) -> None:
        """Write the files into the folder of the request."""
        write_table(Path(request.target_path))


class SourceTableScaffolder(dg.Scaffolder[Any]):
    """Writes the declaration of a raw table."""

    def scaffold(self, request: dg.ScaffoldRequest[Any]) -> None:
        """Write the file into the folder of the request."""
        folder = Path(request.target_path)
        _write(folder / "defs.yaml", SOURCE.format(name=_checked_name(folder)))


def write_table(folder: Path) -> None:
    """Write the files of a table into a folder that has its name.

    Raises:
        UsageError: The folder has a name that a table cannot have.
    """
    name = _checked_name(folder)
    stem = name.removesuffix("_fact").removesuffix("_dim")
    _write(folder / f"{name}.sql", QUERY.format(name=name, stem=stem))
    _write(folder / "defs.yaml", TABLE.format(name=name, stem=stem))
    declared = open_folder(folder)
    (table,) = declared.tables
    schemas = declared.raw_schemas()
    columns = {f"{stem}_id": "string", "account_id": "string", "amount": "long", "happened_at": "timestamptz"}
    source = f"{stem}s"
    raw = f"raw.{source}"
    lineage = column_lineage(table.sql.text, tuple(columns), {source: raw}, {source: schemas[raw]})
    stored = StoredColumns(
        fingerprint=fingerprint(table.sql, table.attributes, table.source_schemas(schemas)),
        columns=columns,
        lineage=lineage.sources,
    )
    write_columns(columns_file(table.declaration), stored)


def _checked_name(folder: Path) -> str:
    if not IDENTIFIER.fullmatch(folder.name):
        raise UsageError(
            f"The table would be called {folder.name!r}.",
            remedy="Use lower-case letters, digits and _, a letter first.",
        )
    return folder.name


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
