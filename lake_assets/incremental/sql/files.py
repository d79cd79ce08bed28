"""What lies in a folder of declarations: YAML files, the SQL that they name, and the columns that Spark found in it.

The classes say which attributes a declaration has, as its author writes them; an unknown one is an error. A mistake is
reported with its file and line. The columns of a query are kept beside its declaration, in `payment_fact.columns.json`,
so definitions load, and `lake plan` runs, without Spark. That file belongs into version control.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    WrapValidator,
    field_validator,
)

from lake_assets.base.hours import parse_hour
from lake_assets.base.sql_text import without_semicolon
from lake_assets.errors import ConfigurationError, InvalidHourKey, first_line, suggestion
from lake_assets.incremental.declaration import Broken, Defer, Served, Topic
from lake_assets.incremental.declaration.model import require_key
from lake_assets.settings import YAML

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

INCREMENTAL_TABLE = "lake_assets.IncrementalTable"
SOURCE_TABLE = "lake_assets.SourceTable"
"""The `type:` of a table that is built, and of a raw table that another program writes."""


VARIABLE = re.compile(r"\{\{\s*env\.(\w+)\s*\}\}")
"""What a variable of the environment stands for in a text, as in the attributes of other components of Dagster."""


def _resolved(value: Any) -> Any:
    if isinstance(value, str) and "{{" in value:
        missing = [name for name in VARIABLE.findall(value) if name not in os.environ]
        if missing:
            raise ValueError(f"the environment has no variable {missing[0]}")
        return VARIABLE.sub(lambda found: os.environ[found[1]], value)
    if isinstance(value, list):
        return [_resolved(each) for each in value]
    return {name: _resolved(each) for name, each in value.items()} if isinstance(value, dict) else value


class Attributes(BaseModel):
    """Attributes of YAML. An unknown one is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*", mode="before")
    @classmethod
    def _has_variables_resolved(cls, value: Any) -> Any:
        return _resolved(value)


Minutes = Annotated[int, Field(ge=0, le=100_000_000)]
"""A delay: at most 190 years."""


class Mistake(ValueError):
    """What is wrong with a value by the rules of its class, for pydantic, which adds where it is."""

    def __init__(self, error: ConfigurationError) -> None:
        super().__init__(str(error))
        self.error = error


def _read(value: Any, read: Callable[[Any], Any]) -> Any:
    try:
        return read(value)
    except ConfigurationError as error:
        raise Mistake(error) from None


AsInPython = WrapValidator(_read)
"""Of a value that is an object of the class that Python declares it with."""

Feed = Annotated[Literal[False] | Topic | None, AsInPython]


def _hour_key(text: str) -> str:
    try:
        parse_hour(text)
    except InvalidHourKey as error:
        raise ValueError("it is no hour, such as 2026-01-01-00:00") from error
    return text


Start = Annotated[str, AfterValidator(_hour_key)]


class RawAttributes(Attributes):
    """What `RawTable` has, by the names that it has there."""

    table: str = Field(description="The table, namespace.name.")
    time_column: str = Field(description="The column of the row's own time; a timestamptz.")
    landed_column: str | None = Field(
        None, description="The column of the time when a row landed, of a table that another program has made."
    )
    columns: dict[str, str] = Field(
        {}, description="Column → Iceberg type, without the four landing columns; none for a table that exists."
    )
    renamed_from: dict[str, str] = Field({}, description="Column → its former name, which lake migrate renames.")
    description: str = Field("", description="Of the raw table; shown in Dagster.")
    descriptions: dict[str, str] = Field({}, description="Column of the raw table → what is in it.")
    complete_after: str | None = Field(
        None, description="How much later than the end of a complete hour an event is: 30 minutes; or valid-through."
    )
    feed: Feed = Field(None, description="The topic that the raw table is landed from; false: none.")


def _one_column(value: object, info: ValidationInfo) -> object:
    if isinstance(value, list):
        _read(value, partial(require_key, info.data.get("table", "")))
    return value


class SourceAttributes(RawAttributes):
    """A table that the SQL reads; with columns, also the declaration of that raw table."""

    key: Annotated[str | None, BeforeValidator(_one_column)] = Field(
        None, description="The column that, with the time, identifies a row of a raw table."
    )
    rules: dict[str, str] = Field({}, description="Reason → SQL condition. Rows for which it is true are quarantined.")
    name: str | None = Field(None, description="Its name in the SQL; default: the table without its namespaces.")
    keep: Literal["first", "last", "all"] = Field("first", description="Which rows of one key count.")
    order_by: str | list[str] | None = Field(None, description="The columns that order the versions of a key.")
    deleted: str | None = Field(None, description="SQL condition. A version for which it is true deletes the key.")

    @property
    def sql_name(self) -> str:
        """The name of its rows in the SQL, in lower case: Spark tells no cases apart."""
        return self.name or self.table.rpartition(".")[2].lower()


class PinotTable(BaseModel):
    """How readers see a table, as Apache Pinot's table configuration says it; it has further keys."""

    model_config = ConfigDict(extra="allow", frozen=True)

    tableName: str = Field(  # noqa: N815
        description="The served table."
    )


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
    quarantine_limit: int | float = Field(
        100,
        description="A check fails if a session quarantines more rows, or below 1 a larger share of them.",
    )
    max_delay_minutes: Minutes | None = Field(None, description="Minutes after which an incomplete hour is late.")
    max_delay: str | None = Field(None, description="The same as a text: 90 minutes.")
    late: Annotated[Defer | None, AsInPython] = Field(
        None, description="Hours that wait if late rows change them; default: none."
    )
    renamed_from: dict[str, str] = Field({}, description="Column → its former name, which lake migrate renames.")
    served: Annotated[bool | Served | PinotTable | str, AsInPython] = Field(
        False, description="Whether readers can query it, or how; or a table configuration of Pinot, or its file."
    )
    lineage: dict[str, list[str]] = Field({}, description="Column → source columns, in place of what the query says.")
    code_version: str | None = Field(None, description="What names the code; default: a hash of what builds the rows.")
    subjects: dict[str, list[str]] = Field({}, description="Subject of erasure → the columns that contain its id.")
    start: Start | None = Field(None, description="The first event hour of the pipeline; default: LAKE_START.")

    @property
    def name(self) -> str:
        """The table without its namespace."""
        return self.table.rpartition(".")[2]

    @property
    def mode_name(self) -> str:
        """The mode without its options."""
        return self.mode if isinstance(self.mode, str) else next(iter(self.mode), "")


class SourceTableAttributes(RawAttributes):
    """A raw table that another program writes: the attributes of `lake_assets.SourceTable`."""

    subjects: dict[str, list[str]] = Field({}, description="Subject of erasure → the columns that contain its id.")
    start: Start | None = Field(None, description="The first event hour of the pipeline; default: LAKE_START.")


ATTRIBUTES: dict[str, type[TableAttributes] | type[SourceTableAttributes]] = {
    INCREMENTAL_TABLE: TableAttributes,
    SOURCE_TABLE: SourceTableAttributes,
}
"""Type of a declaration → its attributes."""


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

    @property
    def declares(self) -> tuple[str, ...]:
        """The tables that it declares: its own, and raw tables among its sources."""
        own, found = self.attributes.table, self.attributes
        sources = found.sources if isinstance(found, TableAttributes) else []
        return (own, *(source.table for source in sources if source.columns))

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


def files_in(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder and its subfolders, without hidden subfolders and virtual environments."""
    for place, folders, names in os.walk(folder):
        here = Path(place)
        folders[:] = [
            each for each in folders if not each.startswith(".") and not (here / each / "pyvenv.cfg").exists()
        ]
        yield from (here / name for name in names)


def read_declarations(path: Path) -> tuple[list[Declaration], list[Broken]]:
    """Return what a YAML file declares, or the YAML files of a folder and its subfolders, and what cannot be used."""
    if not path.exists():
        missing = ConfigurationError(
            f"There is no folder {path}.", remedy="Name the folder of the YAML files that declare tables."
        )
        return [], [Broken(missing, None)]
    files = (
        [path] if path.is_file() else sorted(file for file in files_in(path) if file.suffix in YAML and file.is_file())
    )
    found: list[Declaration] = []
    broken: list[Broken] = []
    for file in files:
        try:
            for each in _read_file(file, text_of(file)):
                if isinstance(each, Declaration):
                    found.append(each)
                else:
                    broken.append(broken_file(file, each))
        except ConfigurationError as error:
            broken.append(broken_file(file, error))
    if not found and not broken:
        nothing = ConfigurationError(
            f"No YAML file in {path} declares a table.",
            remedy=f"Write a file with `type: {next(iter(ATTRIBUTES))}`; docs/sql-tables.md has an example.",
        )
        broken.append(Broken(nothing, ""))
    return found, broken


def broken_file(file: Path, error: ConfigurationError) -> Broken:
    """Return what cannot be used of a file. Its text, and the names of file and folder, tell what it may declare."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    return Broken(error, f"{file.stem} {file.parent.name}\n{text}")


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
        text, first_line_of_file = text_of(file), 1
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


def text_of(file: Path) -> str:
    """Return the text of a file. Raises `ConfigurationError` if it cannot be read, or is not UTF-8."""
    try:
        content = file.read_bytes()
        return content.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        problem = f"{shown(file)}, line {line}: the byte {content[error.start]:#04x} is no UTF-8"
    except OSError as error:
        problem = f"{shown(file)} cannot be read: {first_line(str(error))}"
    raise ConfigurationError(f"{problem}.", remedy="Correct the file, or remove it.")


@lru_cache(maxsize=1024)
def _read_file(file: Path, text: str) -> tuple[Declaration | ConfigurationError, ...]:
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
        ) from None
    except (RecursionError, ValueError, TypeError) as error:  # of a date such as 2026-13-01, or brackets in thousands
        raise ConfigurationError(
            f"{shown(file)}, line 1: the file is no YAML: {first_line(str(error))}.", remedy="Correct the file."
        ) from None
    if not any(nodes):
        raise ConfigurationError(
            f"{shown(file)}, line 1: the file declares nothing.", remedy="Write the declaration, or remove the file."
        )
    found: list[Declaration | ConfigurationError] = []
    for node, value in zip(nodes, values, strict=True):
        if isinstance(value, dict):
            try:
                found += _declarations(file, value, node)
            except ConfigurationError as error:
                found.append(error)
    return tuple(found)


def _declarations(file: Path, value: dict[str, object], node: yaml.Node) -> Iterator[Declaration]:
    """Yield the declaration of a document; none of one that other programs read."""
    if str(value.get("type", "")).startswith(OF_THIS_PROJECT):
        _check_keys(file, node, {})
        yield _declaration(file, value, dict(_lines(node, set())))
    elif "type" not in value and "attributes" in value:
        raise ConfigurationError(
            f"{shown(file)}, line {node.start_mark.line + 1}: there are `attributes:`, and no `type:`.",
            remedy=f"Write `type: {INCREMENTAL_TABLE}`, or the other type: {SOURCE_TABLE}.",
        )


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


_NESTED: Mapping[str, type] = {"sources": SourceAttributes, "late": Defer, "served": Served, "feed": Topic}
"""Attribute → the class of its value, which has attributes itself."""
_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")


def _invalid(
    file: Path, kind: str, error: ValidationError, lines: Mapping[tuple[int | str, ...], int]
) -> ConfigurationError:
    """Return a mistake in the attributes of a declaration: an unknown attribute, or else the first one."""
    errors = error.errors()
    unknown = [found for found in errors if found["type"] in _UNKNOWN]
    of_first = [found for found in errors if found["loc"][:1] == errors[0]["loc"][:1]]
    first = (unknown or [max(of_first, key=lambda found: len(_path(found, lines)))])[0]
    location = _path(first, lines)
    place = f"{shown(file)}, line {closest_line(lines, location)}"
    name = ".".join(map(str, location))
    if unknown:
        models = [_NESTED[part] for part in location[:-1] if isinstance(part, str) and part in _NESTED]
        model = (models or [ATTRIBUTES[kind]])[-1]
        known = getattr(model, "model_fields", model.__annotations__)
        remedy = suggestion(str(location[-1]), tuple(known))
        return ConfigurationError(f"{place}: there is no attribute {name!r}.", remedy=remedy)
    mistake = first.get("ctx", {}).get("error")
    if isinstance(mistake, Mistake):
        return ConfigurationError(f"{place}: {mistake.error.problem}", remedy=mistake.error.remedy)
    if first["type"] == "missing":
        missing = first["loc"][-1]
        return ConfigurationError(
            f"{place}: the attribute {'.'.join(map(str, (*location, missing)))!r} is missing.",
            remedy=f"Add `{missing}:`.",
        )
    remedy = "Correct it; docs/sql-tables.md says what it may be."
    if first["type"] == "string_type" and isinstance(first["input"], bool | int | float | date | None):
        remedy = "Write it in quotes: YAML reads on and no as true and false, 2024 as a number, 2026-01-01 as a date."
    return ConfigurationError(
        f"{place}: {f'the attribute {name!r}' if location else '`attributes:`'} is {first['input']!r}: {first['msg']}.",
        remedy=remedy,
    )


def _path(found: ErrorDetails, lines: Mapping[tuple[int | str, ...], int]) -> Location:
    """Return where a mistake is. pydantic also names the type that it tried, which is no part of the path."""
    path: tuple[int | str, ...] = ()
    for part in found["loc"]:
        if (*path, part) in lines:
            path = (*path, part)
    return path


def _check_keys(file: Path, node: yaml.Node, is_open: dict[int, bool]) -> None:
    """Check that no mapping has a key twice, of which YAML would take the last, and that no value contains itself.

    Args:
        is_open: Node → whether it contains the one at hand; of the nodes that were looked at. Anchors repeat nodes.
    """
    if not isinstance(node, yaml.CollectionNode):
        return
    if is_open.get(id(node)):
        line = node.start_mark.line + 1
        raise ConfigurationError(f"{shown(file)}, line {line}: a value contains itself.", remedy="Write it out.")
    if id(node) in is_open:
        return
    is_open[id(node)] = True
    known: set[str] = set()
    for item in node.value:
        if isinstance(node, yaml.MappingNode):
            key, item = item
            if str(key.value) in known:
                line = key.start_mark.line + 1
                raise ConfigurationError(
                    f"{shown(file)}, line {line}: {key.value!r} is there twice.", remedy="Remove one."
                )
            known.add(str(key.value))
        _check_keys(file, item, is_open)
    is_open[id(node)] = False


def _lines(
    node: yaml.Node | None, seen: set[int], path: tuple[int | str, ...] = ()
) -> Iterator[tuple[tuple[int | str, ...], int]]:
    """Yield the path and the line of each value of a document. The text of a block begins in the line after its `|`.

    What an anchor repeats is followed once: anchors of anchors would take for ever.
    """
    if node is None:
        return
    is_block = isinstance(node, yaml.ScalarNode) and node.style in ("|", ">")
    yield path, node.start_mark.line + (2 if is_block else 1)
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from _lines(value, seen, (*path, str(key.value)))
    elif isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            yield from _lines(value, seen, (*path, number))


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
