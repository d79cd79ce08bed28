"""What lies in a folder of declarations: YAML files, the SQL that they name, and the columns that Spark found in it.

The classes say which attributes a declaration has, as its author writes them; an unknown one is an error. A mistake is
reported with its file and line. The columns of a query are kept beside its declaration, in `payment_fact.columns.json`,
so definitions load, and `lake plan` runs, without Spark. That file belongs into version control.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lake_assets.base.sql_text import without_semicolon
from lake_assets.errors import ConfigurationError
from lake_assets.errors.texts import first_line
from lake_assets.incremental.declaration.names import suggestion

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

INCREMENTAL_TABLE = "lake_assets.IncrementalTable"
SOURCE_TABLE = "lake_assets.SourceTable"
"""The `type:` of a table that is built, and of a raw table that another program writes."""


class Attributes(BaseModel):
    """Attributes of YAML. An unknown one is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class SourceAttributes(Attributes):
    """A table that the SQL reads."""

    table: str = Field(description="The table, namespace.name.")
    time_column: str = Field(description="The column of the row's own time; a timestamptz.")
    key: str | None = Field(None, description="The column that, with the time, identifies a row of a raw table.")
    landed_column: str | None = Field(
        None, description="The column of the time when a row landed, of a table that another program has made."
    )
    rules: dict[str, str] = Field({}, description="Reason → SQL condition. Rows for which it is true are quarantined.")
    name: str | None = Field(None, description="Its name in the SQL; default: the table without its namespace.")
    keep: Literal["first", "last", "all"] = Field("first", description="Which rows of one key count.")
    order_by: str | list[str] | None = Field(None, description="The columns that order the versions of a key.")
    deleted: str | None = Field(None, description="SQL condition. A version for which it is true deletes the key.")
    columns: dict[str, str] = Field(
        {}, description="Column → Iceberg type. Declares the raw table here, without its four landing columns."
    )
    renamed_from: dict[str, str] = Field({}, description="Column → its former name, which lake migrate renames.")
    description: str = Field("", description="Of the raw table, if columns declare it here.")

    @property
    def sql_name(self) -> str:
        """The name of its rows in the SQL."""
        return self.name or self.table.rpartition(".")[2]


class LateAttributes(Attributes):
    """Which hours of a table wait if late rows change them, and how long."""

    older_than: str = Field(description="An hour may wait if it ended so long before the last complete one: 6 hours.")
    at_most: str = Field(description="The longest time that late rows wait: 4 hours.")
    or_rows: int | None = Field(None, description="The number of waiting rows at which they are built earlier.")


class TableAttributes(Attributes):
    """A table that is built by SQL: the attributes of `lake_assets.IncrementalTable`."""

    table: str = Field(description="The table, namespace.name.")
    mode: str | dict[str, dict[str, Any] | None] = Field(
        description="stateless, stateful or sequential; with options: {stateful: {chunk_hours: 24}}."
    )
    sources: list[SourceAttributes] = Field(description="The tables that the SQL reads, the driving one first.")
    key: str | list[str] = Field(description="The columns that, with the time, identify a row.")
    time_column: str = Field(description="The column of the event time; a timestamptz.")
    sql: str = Field(description="The file of the query, ending in .sql, relative to this file; or the query itself.")
    audits: list[str | dict[str, Any]] = Field([], description="Checks of what is built, before it is published.")
    columns: dict[str, str] = Field(
        {}, description="Column → Iceberg type; only a table whose SQL reads `previous` needs it."
    )
    description: str = Field("", description="Shown in Dagster.")
    descriptions: dict[str, str] = Field({}, description="Column → what is in it.")
    owners: list[str] = Field([], description="Shown in Dagster: email addresses, or team:name.")
    grain: Literal["hour", "day"] = Field("hour", description="What one partition contains.")
    timezone: str = Field("UTC", description="The IANA time zone of the days, if the grain is day.")
    quarantine_limit: int = Field(100, description="A check fails if a session quarantines more rows.")
    max_delay_minutes: int | None = Field(None, description="Minutes after which an incomplete hour or day is late.")
    late: LateAttributes | None = Field(None, description="Hours that wait if late rows change them; default: none.")
    renamed_from: dict[str, str] = Field({}, description="Column → its former name, which lake migrate renames.")
    subjects: dict[str, list[str]] = Field({}, description="Subject of erasure → the columns that contain its id.")

    @property
    def name(self) -> str:
        """The table without its namespace."""
        return self.table.rpartition(".")[2]

    @property
    def mode_name(self) -> str:
        """The mode without its options."""
        return self.mode if isinstance(self.mode, str) else next(iter(self.mode), "")


class SourceTableAttributes(Attributes):
    """A raw table that another program writes: the attributes of `lake_assets.SourceTable`."""

    table: str = Field(description="The table, namespace.name.")
    columns: dict[str, str] = Field(description="Column → Iceberg type, without the four landing columns.")
    renamed_from: dict[str, str] = Field({}, description="Column → its former name, which lake migrate renames.")
    time_column: str = Field(description="The column of the row's own time; a timestamptz.")
    description: str = Field("", description="Shown in Dagster.")
    descriptions: dict[str, str] = Field({}, description="Column → what is in it.")
    subjects: dict[str, list[str]] = Field({}, description="Subject of erasure → the columns that contain its id.")


ATTRIBUTES: dict[str, type[TableAttributes] | type[SourceTableAttributes]] = {
    INCREMENTAL_TABLE: TableAttributes,
    SOURCE_TABLE: SourceTableAttributes,
}
"""Type of a declaration → its attributes."""


SUFFIXES = (".yaml", ".yml")
OF_THIS_PROJECT = "lake_assets."
"""Prefix of the types of declarations that are read. Files may also declare other components of Dagster."""

Location = Sequence[int | str]


@dataclass(frozen=True)
class Declaration:
    """One YAML document.

    Attributes:
        file: The file that it is in.
        attributes: What it declares.
        lines: Path of a value in `attributes` → its line in the file, from 1 on.
    """

    file: Path
    attributes: TableAttributes | SourceTableAttributes
    lines: Mapping[tuple[int | str, ...], int]

    def place(self, *location: int | str) -> str:
        """Return `file, line N` of a value, or of the closest value around it."""
        return f"{shown(self.file)}, line {closest_line(self.lines, location)}"


@dataclass(frozen=True)
class SqlText:
    """A query.

    Attributes:
        text: The query, without a semicolon at its end.
        file: The file that it is in: a `.sql` file, or the YAML file.
        first_line: The line of the file that its first line is in.
    """

    text: str
    file: Path
    first_line: int

    def place(self, line: int = 1) -> str:
        """Return `file:N` of a line of the query, from 1 on."""
        return f"{shown(self.file)}:{self.first_line + line - 1}"


def read_folder(folder: Path) -> list[Declaration]:
    """Return the tables that the YAML files of a folder and its subfolders declare, by file.

    Raises:
        ConfigurationError: A file cannot be read, an attribute is wrong, or nothing is declared.
    """
    if not folder.is_dir():
        raise ConfigurationError(
            f"There is no folder {folder}.", remedy="Name the folder of the YAML files that declare tables."
        )
    found: list[Declaration] = []
    for file in sorted(folder.rglob("*")):
        if file.suffix in SUFFIXES and file.is_file():
            found += _read_file(file, _text_of(file))
    if not found:
        raise ConfigurationError(
            f"No YAML file in {folder} declares a table.",
            remedy=f"Write a file with `type: {next(iter(ATTRIBUTES))}`; docs/sql-tables.md has an example.",
        )
    return found


def read_sql(declaration: Declaration) -> SqlText:
    """Return the query of a table: from its file, or from the YAML file.

    Raises:
        ConfigurationError: The file does not exist, or the query is empty.
    """
    attributes = declaration.attributes
    assert isinstance(attributes, TableAttributes)
    written = attributes.sql.strip()
    if written.endswith(".sql") and len(written.split()) == 1:
        file = declaration.file.parent / written
        if not file.is_file():
            raise ConfigurationError(
                f"{declaration.place('sql')}: {attributes.table} names the file {written!r}, which does not exist.",
                remedy=f"Write the query into {shown(file)}, or correct the name.",
            )
        text, first_line_of_file = _text_of(file), 1
    elif written and len(written.split()) == 1:
        raise ConfigurationError(
            f"{declaration.place('sql')}: the attribute 'sql' of {attributes.table} is {written!r}, which is neither a"
            " file that ends in .sql nor a query.",
            remedy="Name the file, or write the query itself.",
        )
    else:
        file, text = declaration.file, attributes.sql
        first_line_of_file = closest_line(declaration.lines, ("sql",))
    query = without_semicolon(text)
    if not query:
        raise ConfigurationError(f"{shown(file)}: the query of {attributes.table} is empty.", remedy="Write a SELECT.")
    return SqlText(query, file, first_line_of_file)


def shown(file: Path) -> str:
    """Return a path as messages show it: relative to the current folder, if it is in there."""
    here = Path.cwd()
    return str(file.relative_to(here) if file.is_relative_to(here) else file)


def closest_line(lines: Mapping[tuple[int | str, ...], int], location: Location) -> int:
    """Return the line of a value, or of the closest value around it."""
    path = tuple(location)
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path, 1)


def _text_of(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"{shown(file)} cannot be read: {first_line(str(error))}.", remedy="Correct the file, or remove it."
        ) from error


@lru_cache(maxsize=1024)
def _read_file(file: Path, text: str) -> tuple[Declaration, ...]:
    """Return the declarations of a file. Every component of a folder asks for them, so they are kept by their text."""
    try:
        nodes = list(yaml.compose_all(text, Loader=yaml.SafeLoader))
        values = list(yaml.safe_load_all(text))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else 1
        problem = getattr(error, "problem", None) or first_line(str(error))
        raise ConfigurationError(
            f"{shown(file)}, line {line}: the file is no YAML: {problem}.", remedy="Correct the line."
        ) from error
    found = []
    for node, value in zip(nodes, values, strict=True):
        if isinstance(value, dict) and str(value.get("type", "")).startswith(OF_THIS_PROJECT):
            _check_keys(file, node)
            found.append(_declaration(file, value, dict(_lines(node))))
    return tuple(found)


def _declaration(file: Path, value: dict[str, object], lines: dict[tuple[int | str, ...], int]) -> Declaration:
    kind = str(value["type"])
    if kind not in ATTRIBUTES:
        raise ConfigurationError(
            f"{shown(file)}, line {closest_line(lines, ('type',))}: there is no type {kind!r}.",
            remedy=suggestion(kind, tuple(ATTRIBUTES)),
        )
    if "attributes" not in value:
        keys = ", ".join(map(str, value))
        raise ConfigurationError(
            f"{shown(file)}, line {closest_line(lines, ('type',))}: the {kind} has no `attributes:`.",
            remedy=f"It has {keys}. Write `attributes:`, and below it, indented, what the table is.",
        )
    of_attributes = {path[1:]: line for path, line in lines.items() if path[:1] == ("attributes",)}
    try:
        attributes = ATTRIBUTES[kind].model_validate(value.get("attributes") or {})
    except ValidationError as error:
        raise _invalid(file, kind, error, of_attributes) from None
    return Declaration(file, attributes, of_attributes)


def _invalid(
    file: Path, kind: str, error: ValidationError, lines: Mapping[tuple[int | str, ...], int]
) -> ConfigurationError:
    """Return a mistake in the attributes of a declaration: an unknown attribute, or else the first one."""
    unknown = [found for found in error.errors() if found["type"] == "extra_forbidden"]
    first = (unknown or error.errors())[0]
    location = first["loc"]
    place = f"{shown(file)}, line {closest_line(lines, location)}"
    if unknown:
        model = SourceAttributes if location[0] == "sources" else ATTRIBUTES[kind]
        remedy = suggestion(str(location[-1]), tuple(model.model_fields))
        return ConfigurationError(f"{place}: there is no attribute {_named(location)!r}.", remedy=remedy)
    if first["type"] == "missing":
        missing = _named(location)
        return ConfigurationError(f"{place}: the attribute {missing!r} is missing.", remedy=f"Add `{location[-1]}:`.")
    return _wrong_value(place, first, lines)


def _wrong_value(place: str, found: ErrorDetails, lines: Mapping[tuple[int | str, ...], int]) -> ConfigurationError:
    """Return the error of a value. pydantic also names the type that it tried, which is no part of the path."""
    location = found["loc"]
    known = [part for number, part in enumerate(location) if location[: number + 1] in lines]
    return ConfigurationError(
        f"{place}: the attribute {_named(known)!r} is {found['input']!r}: {found['msg']}.",
        remedy="Correct it; docs/sql-tables.md says what it may be.",
    )


def _named(location: Location) -> str:
    return ".".join(map(str, location))


def _check_keys(file: Path, node: yaml.Node | None) -> None:
    """Check that no mapping has a key twice, of which YAML would take the last."""
    if isinstance(node, yaml.SequenceNode):
        for value in node.value:
            _check_keys(file, value)
    if not isinstance(node, yaml.MappingNode):
        return
    known: set[str] = set()
    for key, value in node.value:
        name = str(key.value)
        if name in known:
            line = key.start_mark.line + 1
            raise ConfigurationError(f"{shown(file)}, line {line}: {name!r} is there twice.", remedy="Remove one.")
        known.add(name)
        _check_keys(file, value)


def _lines(node: yaml.Node | None, path: tuple[int | str, ...] = ()) -> Iterator[tuple[tuple[int | str, ...], int]]:
    """Yield the path and the line of each value of a document. The text of a block begins in the line after its `|`."""
    if node is None:
        return
    is_block = isinstance(node, yaml.ScalarNode) and node.style in ("|", ">")
    yield path, node.start_mark.line + (2 if is_block else 1)
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from _lines(value, (*path, str(key.value)))
    elif isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            yield from _lines(value, (*path, number))


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
