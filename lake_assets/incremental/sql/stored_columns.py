"""The columns that Spark found in a query, kept in a file beside the declaration: `payment_fact.columns.json`.

So definitions load, and `lake plan` runs, without Spark. The file belongs into version control, beside the query.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lake_assets.incremental.sql.attributes import TableAttributes
from lake_assets.incremental.sql.files import Declaration, SqlText

FORMAT = 1
"""Of the file. A file of another format counts as missing."""

Schema = Mapping[str, str]
"""Column → Iceberg type."""


@dataclass(frozen=True)
class StoredColumns:
    """What is known of a query without Spark.

    Attributes:
        fingerprint: Of the query and the schemas of its sources, as they were when Spark analysed it.
        columns: Column → Iceberg type, in the order of the query.
        lineage: Column → the source columns that it comes from; none for a constant.
        unknown_lineage: The columns of which this cannot be told.
    """

    fingerprint: str
    columns: Schema
    lineage: Mapping[str, Sequence[str]]
    unknown_lineage: tuple[str, ...] = ()


def fingerprint(sql: SqlText, attributes: TableAttributes, schemas: Mapping[str, Schema | None]) -> str:
    """Return a hash of everything that the types of a query depend on.

    Args:
        sql: The query.
        attributes: Of the table.
        schemas: Source table → its columns; None for a table that only the catalog knows.
    """
    sources: list[object] = []
    for source in attributes.sources:
        columns = schemas[source.table]
        known = None if columns is None else sorted(columns.items())
        sources.append([source.sql_name, source.table, known])
    parts = [sql.text, sources, list(attributes.columns.items()), attributes.mode_name == "sequential"]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def columns_file(declaration: Declaration) -> Path:
    """Return the file of the columns of a table."""
    attributes = declaration.attributes
    assert isinstance(attributes, TableAttributes)
    return declaration.file.parent / f"{attributes.name}.columns.json"


def read_columns(file: Path) -> StoredColumns | None:
    """Return what a file has; None if there is none, or none that this version can read."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        if found["format"] != FORMAT:
            return None
        return StoredColumns(
            fingerprint=found["fingerprint"],
            columns=dict(found["columns"]),
            lineage={column: tuple(sources) for column, sources in found["lineage"].items()},
            unknown_lineage=tuple(found.get("unknown_lineage", ())),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def write_columns(file: Path, stored: StoredColumns) -> bool:
    """Write a file unless it has this content already. Return whether it was written."""
    document = {
        "format": FORMAT,
        "fingerprint": stored.fingerprint,
        "columns": dict(stored.columns),
        "lineage": {column: list(sources) for column, sources in stored.lineage.items()},
        "unknown_lineage": list(stored.unknown_lineage),
    }
    text = json.dumps(document, indent=2) + "\n"
    if file.is_file() and file.read_text(encoding="utf-8") == text:
        return False
    file.write_text(text, encoding="utf-8")
    return True
