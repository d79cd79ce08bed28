"""Reading a snapshot with the columns that its table has now.

A reader of a snapshot gets the columns of that time: without those that were added since, and by their former names and
types. Iceberg's ids say which column is which, so the rows are given the present columns: an added one is null, as it
is in the present head of the table. Spark and pyiceberg both read a snapshot with its own columns.

The columns that tables are declared with, compared with those that they have, and the steps from these to those.

Iceberg knows a column by its id, so that a step rewrites no row: it adds, widens, renames, moves, describes or drops a
column in the metadata, or lets it be null. All steps of a table are one commit. What differs is found anew each time,
so that a migration that was interrupted is repeated.

Comparing is pure. `migrate` alone commits.

Loading the sources of targets, and checking that they can be read as declared. Metadata only.

A raw table that declares no columns exists: another program has created it, and it is read as it is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from pyiceberg.exceptions import NoSuchNamespaceError
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.types import (
    BinaryType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    PrimitiveType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from lake_assets.base.columns import ELEMENT, PREFIX, is_own, quoted
from lake_assets.base.hours import hour_key
from lake_assets.base.sql_text import names_in_sql
from lake_assets.errors import (
    ColumnMismatch,
    ColumnNameTaken,
    ColumnUnreadable,
    ConfigurationError,
    SourceTableMissing,
    TargetColumnsDiffer,
    TimeColumnUnusable,
    UsageError,
)
from lake_assets.incremental.declaration import RawTable, Target
from lake_assets.incremental.declaration.tables import LANDING_COLUMNS
from lake_assets.incremental.engine import iceberg
from lake_assets.incremental.engine.iceberg import rows_by_hour
from lake_assets.incremental.engine.readable import check_head
from lake_assets.incremental.engine.user_code import reads

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import DataFrame

    from lake_assets.incremental.declaration import Pipeline, Source, Subject, Target


_SPARK_NAMES: dict[type[IcebergType], str] = {
    LongType: "bigint",
    TimestamptzType: "timestamp",
    TimestampType: "timestamp_ntz",
    UUIDType: "string",
    FixedType: "binary",
    BinaryType: "binary",
}
"""Spark's names of types that Iceberg calls otherwise."""


def with_present_columns(rows: DataFrame, table: Table, snapshot_id: int) -> DataFrame:
    """Return the rows of a snapshot, as Spark reads it, with the present columns of its table."""
    found = selected(schema_at(table, snapshot_id), table.schema())
    return rows if found is None else rows.selectExpr(*found)


def at_present(table: Table, snapshot_id: int | None) -> Table:
    """Return a table whose scans of a snapshot have its present columns."""
    if snapshot_id is None or selected(schema_at(table, snapshot_id), table.schema()) is None:
        return table
    snapshots = []
    for each in table.metadata.snapshots:
        if each.snapshot_id == snapshot_id:
            each = each.model_copy(update={"schema_id": table.metadata.current_schema_id})
        snapshots.append(each)
    metadata = table.metadata.model_copy(update={"snapshots": snapshots})
    return Table(table.name(), metadata, table.metadata_location, table.io, table.catalog)


def schema_at(table: Table, snapshot_id: int) -> Schema:
    """Return the columns that a table had at a snapshot; the present ones if nothing tells."""
    snapshot = table.snapshot_by_id(snapshot_id)
    if snapshot is None or snapshot.schema_id is None:
        return table.schema()
    return table.schemas().get(snapshot.schema_id, table.schema())


def selected(then: Schema, now: Schema) -> list[str] | None:
    """Return the SQL expressions that make present columns of former ones; None if they are the same.

    Args:
        then: The columns of the rows.
        now: The columns to return, in this order.
    """
    if then.schema_id == now.schema_id or _is_same(then.as_struct(), now.as_struct()):
        return None
    values = _values(then.fields, now.fields, "", 0)
    return [f"{value} AS {quoted(each.name)}" for value, each in zip(values, now.fields, strict=True)]


def _values(then: tuple[NestedField, ...], now: tuple[NestedField, ...], prefix: str, depth: int) -> list[str]:
    """Return the expression of each field of a struct. prefix: the struct with a dot; empty for the columns."""
    by_id = {each.field_id: each for each in then}
    found = []
    for each in now:
        former = by_id.get(each.field_id)
        if former is None:
            default = "NULL" if each.initial_default is None else _text(str(each.initial_default))
            found.append(f"CAST({default} AS {spark_type(each.field_type)})")
        else:
            value = prefix + quoted(former.name)
            if former.name != each.name:
                value = _unfiltered(value)
            found.append(_value(value, former.field_type, each.field_type, depth))
    return found


def _value(value: str, then: IcebergType, now: IcebergType, depth: int) -> str:
    if _is_same(then, now):
        return value
    element = f"{ELEMENT}{depth}"
    if isinstance(then, StructType) and isinstance(now, StructType):
        values = _values(then.fields, now.fields, f"{value}.", depth)
        parts = [f"{_text(each.name)}, {part}" for each, part in zip(now.fields, values, strict=True)]
        return f"if({value} IS NULL, NULL, named_struct({', '.join(parts)}))"
    if isinstance(then, ListType) and isinstance(now, ListType):
        return f"transform({value}, {element} -> {_value(element, then.element_type, now.element_type, depth + 1)})"
    if isinstance(then, MapType) and isinstance(now, MapType):
        key = _value(f"{element}.key", then.key_type, now.key_type, depth + 1)
        of_value = _value(f"{element}.value", then.value_type, now.value_type, depth + 1)
        return f"map_from_entries(transform(map_entries({value}), {element} -> struct({key}, {of_value})))"
    return f"CAST({value} AS {spark_type(now)})"


def _unfiltered(value: str) -> str:
    """Return a column so that Spark leaves no filter on it to Iceberg.

    Iceberg 1.12 plans the scan of a snapshot with that time's name of a column among the columns of now: it does not
    find it ("Cannot find field 'metres' in struct"), or it takes another column that has the name now.
    """
    return f"element_at(array({value}), 1)"


def _is_same(then: IcebergType, now: IcebergType) -> bool:
    """Whether rows of both types are the same: names, ids and types of all fields, in their order."""
    if isinstance(then, StructType) and isinstance(now, StructType):
        return len(then.fields) == len(now.fields) and all(
            (one.field_id, one.name) == (other.field_id, other.name) and _is_same(one.field_type, other.field_type)
            for one, other in zip(then.fields, now.fields, strict=True)
        )
    if isinstance(then, ListType) and isinstance(now, ListType):
        return _is_same(then.element_type, now.element_type)
    if isinstance(then, MapType) and isinstance(now, MapType):
        return _is_same(then.key_type, now.key_type) and _is_same(then.value_type, now.value_type)
    return then == now


def spark_type(found: IcebergType) -> str:
    """Return an Iceberg type as Spark's SQL has it."""
    if isinstance(found, StructType):
        return f"struct<{', '.join(f'{quoted(each.name)}: {spark_type(each.field_type)}' for each in found.fields)}>"
    if isinstance(found, ListType):
        return f"array<{spark_type(found.element_type)}>"
    if isinstance(found, MapType):
        return f"map<{spark_type(found.key_type)}, {spark_type(found.value_type)}>"
    if isinstance(found, DecimalType):
        return f"decimal({found.precision}, {found.scale})"
    return _SPARK_NAMES.get(type(found), str(found))


def _text(value: str) -> str:
    """Return a text as a literal of Spark's SQL."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


Kind = Literal["missing", "renamed", "narrow", "required", "order", "description", "undeclared", "wide", "type"]
"""How a column differs from its declaration.

- missing: The table lacks it.
- renamed: The table has it under its former name, or in another case.
- narrow: Its type in the table has fewer values, and Iceberg can widen it.
- required: It may not be null in the table.
- order, description: Nothing that a session reads.
- undeclared: The table has it, and the declaration does not.
- wide: Its type in the table has more values.
- type: It has another type.
"""

Path = tuple[str, ...]
"""A column; a nested field with the names of those around it."""

_STEPS: Mapping[Kind, str] = {
    "missing": "add",
    "renamed": "rename",
    "narrow": "widen",
    "required": "make optional",
    "order": "reorder",
    "description": "describe",
}
"""What is done about a difference by metadata, whenever a migration runs."""

_STOPS_TARGET: Collection[Kind] = ("missing", "renamed", "narrow", "type")
"""The differences with which Spark cannot write a target as it is declared."""

_STOPS_READER: Collection[Kind] = ("missing", "renamed", "narrow", "wide", "type")
"""The differences with which a query would read a column as something else than what is declared."""


@dataclass(frozen=True)
class Difference:
    """One difference between a table and its declaration.

    Attributes:
        table: The table.
        kind: How they differ.
        path: The column, by its declared name.
        declared: Its type, or what else differs, as declared.
        found: The same as the table has it.
        at: The column as the table has it.
        wanted: The declared type.
        refused: Why Iceberg cannot do it by metadata; empty if it can.
        remedy: What to do, if it is not done by a migration.
        dropped: Whether the person who migrates has named the column to be dropped.
    """

    table: str
    kind: Kind
    path: Path
    declared: str = ""
    found: str = ""
    at: Path = ()
    wanted: IcebergType | None = field(default=None, compare=False, repr=False)
    refused: str = ""
    remedy: str = ""
    dropped: bool = False

    @property
    def column(self) -> str:
        return ".".join(self.path)

    @property
    def step(self) -> str:
        """What a migration does about it; empty if nothing."""
        if self.refused:
            return ""
        if self.dropped:
            return "drop" if self.kind == "undeclared" else "drop and add"
        return _STEPS.get(self.kind, "")

    @property
    def text(self) -> str:
        """What differs, as a sentence."""
        match self.kind:
            case "missing":
                return f"{self.table} has no column {self.column} ({self.declared})."
            case "renamed":
                return f"{self.table} has the column {self.column} as {'.'.join(self.at)}, its former name."
            case "required":
                return f"{self.table} has {self.column} as required; the declared column may be null."
            case "order":
                return f"{self.table} has its columns in another order than declared: {self.found}."
            case "description":
                return f"{self.table} describes {self.column} otherwise than declared."
            case "undeclared":
                return f"{self.table} has the column {self.column} ({self.found}), which is not declared."
            case _:
                return f"{self.table} has {self.column} as {self.found}, declared as {self.declared}."

    def document(self) -> dict[str, str]:
        """Return the difference for JSON."""
        return {
            "column": self.column,
            "kind": self.kind,
            "declared": self.declared,
            "found": self.found,
            "step": self.step,
            "text": self.text,
            "refused": self.refused,
            "remedy": self.remedy,
        }


@dataclass(frozen=True)
class Declared:
    """The columns of a table as they are declared.

    Attributes:
        table: The table.
        fields: The columns in their order; their ids mean nothing. A description that is None may be any.
        former: Column → its former name.
        kept: Column → why it is never dropped.
        target: The target's short name; empty for a raw table.
        time_column: Of a target.
    """

    table: str
    fields: tuple[NestedField, ...]
    former: Mapping[str, str] = field(default_factory=dict)
    kept: Mapping[str, str] = field(default_factory=dict)
    target: str = ""
    time_column: str = ""

    def stops(self, found: Difference) -> bool:
        """Whether sessions stop because of a difference: those of the target, or of readers that use the column.

        Spark writes to a required column as long as no value is null, so one that is declared stops nothing.
        """
        if found.kind == "required":
            return bool(self.target) and all(each.name != found.path[0] for each in self.fields)
        return found.kind in (_STOPS_TARGET if self.target else _STOPS_READER)


def declared_columns(pipeline: Pipeline) -> dict[str, Declared]:
    """Return table → its declared columns; without the tables of other programs, which declare none."""
    kept: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for target in pipeline.targets:
        for source in target.sources:
            for column in (source.time_column, *source.named_columns, *_entity(target)):
                kept[source.table][column] = f"{target.table} reads the rows of the table by it"
        kept[target.table].update(dict.fromkeys(_entity(target), "it is the entity"))
    for subject in pipeline.subjects:
        why = f"the ids of the subject {subject.name} would stay in its data files, where no erasure finds them"
        for table in [*(raw.table for raw in pipeline.raw), *(target.table for target in pipeline.targets)]:
            kept[table].update(dict.fromkeys(subject.columns, why))
    found = {raw.table: of_raw_table(raw, kept[raw.table]) for raw in pipeline.raw if not raw.exists_already}
    return found | {target.table: of_target(target, kept[target.table]) for target in pipeline.targets}


def of_raw_table(raw: RawTable, kept: Mapping[str, str] | None = None) -> Declared:
    """Return the declared columns of a raw table, with those of landing."""
    landing = dict.fromkeys(LANDING_COLUMNS, "every raw table has it")
    always = {**(kept or {}), raw.time_column: "it is the time of a row", **landing}
    return Declared(raw.table, _fields(raw.all_columns, raw.descriptions), raw.renamed_from, always)


def of_target(target: Target, kept: Mapping[str, str] | None = None) -> Declared:
    """Return the declared columns of a target."""
    key = dict.fromkeys(target.key, "it is the key")
    always = {**(kept or {}), **key, target.time_column: "it is the time of a row"}
    fields = _fields(target.columns, target.descriptions)
    return Declared(target.table, fields, target.renamed_from, always, target.name, target.time_column)


def _entity(target: Target) -> tuple[str, ...]:
    entity: str | None = getattr(target.mode, "entity", None)
    return (entity,) if entity else ()


def _fields(columns: Mapping[str, str], descriptions: Mapping[str, str]) -> tuple[NestedField, ...]:
    return _fields_of(tuple(columns.items()), tuple(descriptions.items()))


@lru_cache(maxsize=4096)
def _fields_of(
    columns: tuple[tuple[str, str], ...], descriptions: tuple[tuple[str, str], ...]
) -> tuple[NestedField, ...]:
    """Every plan compares the columns of a target and of its sources, and to parse types takes most of the time."""
    found = []
    for number, (name, type_) in enumerate(columns, start=1):
        found.append(NestedField(number, name, type_, required=False, doc=dict(descriptions).get(name)))
    return tuple(found)


def differences(declared: Declared, schema: Schema) -> tuple[Difference, ...]:
    """Return how the columns of a table differ from their declaration: those of the rows first, then the others."""
    found = list(_differences(declared, schema, declared.fields, schema.fields, (), ()))
    return tuple(sorted(found, key=lambda each: each.kind in ("undeclared", "order", "description")))


def _differences(
    declared: Declared,
    schema: Schema,
    wanted: Sequence[NestedField],
    present: Sequence[NestedField],
    path: Path,
    at: Path,
) -> Iterator[Difference]:
    """Compare the columns of a table, or the fields of one of its structs.

    Args:
        path: Names around them, as declared.
        at: Names around them, as the table has them.
    """
    table = declared.table
    pairs = _pairs(wanted, present, {} if path else declared.former)
    of_present = {each.field_id: each.name for each, _ in pairs}
    undeclared = [each for each in present if each.field_id not in of_present]
    both = {each.name: match for match, each in pairs}
    for each in wanted:
        match = both.get(each.name)
        if match is None:
            remedy = _if_renamed(declared, each, undeclared) if not path else ""
            name = _shown(each.field_type)
            yield Difference(table, "missing", (*path, each.name), name, at=at, wanted=each.field_type, remedy=remedy)
            continue
        if match.name != each.name:
            yield Difference(table, "renamed", (*path, each.name), each.name, match.name, (*at, match.name))
        yield from _of_pair(declared, schema, each, match, (*path, each.name), (*at, match.name))
    for each in undeclared:
        here = (*path, each.name)
        if each.required:
            yield _required(table, schema, each, here, (*at, each.name))
        yield Difference(
            table,
            "undeclared",
            here,
            found=_shown(each.field_type),
            at=(*at, each.name),
            remedy=f"To use it, declare it. To remove it, run `lake migrate {table} --drop {'.'.join(here)} --apply`.",
        )
    in_order = [of_name.name for of_name in wanted if of_name.name in both]
    names = {match.field_id: name for name, match in both.items()}
    as_found = [names[each.field_id] for each in present if each.field_id in names]
    if as_found != in_order:
        order = ", ".join(in_order)
        yield Difference(table, "order", path, order, ", ".join(as_found), at)


def _pairs(
    wanted: Sequence[NestedField], present: Sequence[NestedField], former: Mapping[str, str]
) -> list[tuple[NestedField, NestedField]]:
    """Return the fields that a table has, each with that of its declaration.

    A field is found by its name; else in another case, because Spark does not tell cases apart; else by its former
    name, if that is not declared as another column.
    """
    left = {each.name: each for each in present}
    found = {each.name: left.pop(each.name) for each in wanted if each.name in left}
    for each in wanted:
        for name in (None, former.get(each.name)):
            if each.name in found:
                break
            sought = each.name if name is None else name
            same = [other for other in left if other.casefold() == sought.casefold()]
            if len(same) == 1:
                found[each.name] = left.pop(same[0])
    return [(found[each.name], each) for each in wanted if each.name in found]


def _of_pair(
    declared: Declared, schema: Schema, wanted: NestedField, present: NestedField, path: Path, at: Path
) -> Iterator[Difference]:
    table = declared.table
    if present.required and wanted.optional:
        yield _required(table, schema, present, path, at)
    if wanted.required and present.optional:
        text = "Iceberg makes no column required, because rows may be null"
        yield Difference(
            table, "type", path, "required", "optional", at, None, text, f"Declare {path[-1]} as optional."
        )
    if wanted.doc is not None and wanted.doc != (present.doc or ""):
        yield Difference(table, "description", path, wanted.doc, present.doc or "", at)
    yield from _of_types(declared, schema, wanted.field_type, present.field_type, path, at)


def _of_types(
    declared: Declared, schema: Schema, wanted: IcebergType, present: IcebergType, path: Path, at: Path
) -> Iterator[Difference]:
    if isinstance(wanted, StructType) and isinstance(present, StructType):
        yield from _differences(declared, schema, wanted.fields, present.fields, path, at)
    elif isinstance(wanted, ListType) and isinstance(present, ListType):
        element = (*path, "element"), (*at, "element")
        yield from _of_pair(declared, schema, wanted.element_field, present.element_field, *element)
    elif isinstance(wanted, MapType) and isinstance(present, MapType) and _same(wanted.key_type, present.key_type):
        value = (*path, "value"), (*at, "value")
        yield from _of_pair(declared, schema, wanted.value_field, present.value_field, *value)
    elif not _same(wanted, present):
        yield _other_type(declared, wanted, present, path, at)


def _other_type(declared: Declared, wanted: IcebergType, present: IcebergType, path: Path, at: Path) -> Difference:
    table, name = declared.table, ".".join(path)
    as_declared, as_found = _shown(wanted), _shown(present)
    if is_widened(present, wanted):
        return Difference(table, "narrow", path, as_declared, as_found, at, wanted)
    remedy = f"Declare {name} as {as_found}."
    if declared.target:
        remedy = f"Declare {name} as {as_found}, or cast it in the query; then run `lake check`."
    if is_widened(wanted, present):
        return Difference(table, "wide", path, as_declared, as_found, at, wanted, "Iceberg narrows no type", remedy)
    if len(path) == 1 and path[0] not in declared.kept:
        remedy += f" Or drop it with its values, and add it again: `lake migrate {table} --drop {name} --apply`."
    refused = f"Iceberg does not turn {as_found} into {as_declared}"
    return Difference(table, "type", path, as_declared, as_found, at, wanted, refused, remedy)


def _required(table: str, schema: Schema, present: NestedField, path: Path, at: Path) -> Difference:
    refused = "it is an identifier field of the table" if present.field_id in schema.identifier_field_ids else ""
    remedy = f"Take it out: ALTER TABLE lake.{table} DROP IDENTIFIER FIELDS {'.'.join(at)}." if refused else ""
    return Difference(table, "required", path, "optional", "required", at, None, refused, remedy)


def _if_renamed(declared: Declared, wanted: NestedField, undeclared: Iterable[NestedField]) -> str:
    """Return what to declare if a column that is missing has only another name in the table; empty if there is none."""
    alike = [each.name for each in undeclared if _same(each.field_type, wanted.field_type)]
    if len(alike) != 1:
        return ""
    text = f"If it is the former {alike[0]}, declare renamed_from: {{{wanted.name}: {alike[0]}}}"
    return f"{text}." if declared.target else f"{text}; if the table calls it {alike[0]} now, declare that name."


def is_widened(narrow: IcebergType, wide: IcebergType) -> bool:
    """Return whether Iceberg turns a type into another one by metadata, with all its values."""
    if isinstance(narrow, DecimalType) and isinstance(wide, DecimalType):
        return narrow.scale == wide.scale and narrow.precision < wide.precision
    pair = type(narrow), type(wide)
    return pair in ((IntegerType, LongType), (FloatType, DoubleType))


def _same(one: IcebergType, other: IcebergType) -> bool:
    """Whether two types are equal but for the ids of their fields."""
    if isinstance(one, PrimitiveType) or isinstance(other, PrimitiveType):
        return one == other
    return _shown(one) == _shown(other)


def _shown(found: IcebergType) -> str:
    if isinstance(found, StructType):
        fields = [f"{each.name}{'!' if each.required else ''}: {_shown(each.field_type)}" for each in found.fields]
        return f"struct<{', '.join(fields)}>"
    if isinstance(found, ListType):
        return f"list<{_shown(found.element_type)}>"
    if isinstance(found, MapType):
        return f"map<{_shown(found.key_type)}, {_shown(found.value_type)}>"
    return str(found)


def with_drops(
    found: Sequence[Difference], declared: Declared, schema: Schema, names: Collection[str], *, partitioned: set[int]
) -> tuple[Difference, ...]:
    """Return the differences, with those columns that are named to be dropped.

    Args:
        found: What differs.
        declared: What is declared.
        schema: The columns of the table.
        names: The columns to drop.
        partitioned: The ids of the columns that the table is, or was, partitioned by.

    Raises:
        UsageError: The table has no such column, it is declared as it is, or something needs it.
    """
    for name in names:
        try:
            present = schema.find_field(name).field_id
        except ValueError:
            raise UsageError(
                f"{declared.table} has no column {name}.", remedy=f"It has: {', '.join(schema.column_names)}."
            ) from None
        reason = declared.kept.get(name)
        if present in partitioned:
            reason = "the table is partitioned by it"
        if present in schema.identifier_field_ids:
            reason = "it is an identifier field of the table"
        if reason is not None:
            raise UsageError(
                f"{name} of {declared.table} is not dropped: {reason}.", remedy=f"Leave out `--drop {name}`."
            )
        if not any(_is_dropped(each, name) for each in found):
            raise UsageError(
                f"{declared.table} declares the column {name}.",
                remedy="Remove it from the declaration first, and from the queries that read it.",
            )
    result = []
    for each in found:
        if any(_is_dropped(each, name) for name in names):
            result.append(replace(each, refused="", remedy="", dropped=True))
        elif each.kind not in ("required", "description") or each.column not in names:
            result.append(each)  # a column that is dropped needs no other step
    return tuple(result)


def _is_dropped(found: Difference, name: str) -> bool:
    """Whether a column that is named to be dropped is not declared, or is declared with another type."""
    is_retyped = found.kind in ("type", "wide", "narrow") and found.path == (name,) and found.wanted is not None
    return is_retyped or (found.kind == "undeclared" and found.column == name)


@dataclass(frozen=True)
class Migration:
    """What differs in one table, and what was done about it.

    Attributes:
        table: The table.
        differences: What differed before.
        applied: Whether the steps were done.
        rebuild: The command that fills columns that were added; empty if no row lacks them.
    """

    table: str
    differences: tuple[Difference, ...]
    applied: bool = False
    rebuild: str = ""

    @property
    def steps(self) -> tuple[Difference, ...]:
        """The differences that metadata can settle."""
        return tuple(each for each in self.differences if each.step)

    @property
    def refused(self) -> tuple[Difference, ...]:
        """The differences that a migration cannot settle."""
        return tuple(each for each in self.differences if each.refused)


def look(catalog: Catalog, declared: Declared, drop: Collection[str] = ()) -> Migration | None:
    """Return what differs in a table; None if the catalog does not have it."""
    table = iceberg.find(catalog, declared.table)
    return None if table is None else _look(table, declared, drop)


def _look(table: Table, declared: Declared, drop: Collection[str]) -> Migration:
    found = differences(declared, table.schema())
    if drop:
        specs = table.metadata.partition_specs
        partitioned = {each.source_id for spec in specs for each in spec.fields}
        found = with_drops(found, declared, table.schema(), drop, partitioned=partitioned)
    return Migration(declared.table, found, rebuild=_rebuild(table, declared, found))


def _rebuild(table: Table, declared: Declared, found: Iterable[Difference]) -> str:
    if not declared.target or not any(each.step in ("add", "drop and add") for each in found):
        return ""
    try:
        hours = rows_by_hour(table, declared.time_column)
    except ValueError:  # the table has no such column
        return ""
    if not hours:
        return ""
    return f"lake rebuild {declared.target} {hour_key(min(hours))} {hour_key(max(hours))}"


def migrate(catalog: Catalog, declared: Declared, drop: Collection[str] = ()) -> Migration | None:
    """Make the columns of a table as they are declared, as far as metadata can, in one commit.

    Args:
        drop: Columns to drop: those that are not declared, or that are declared with another type.

    Returns:
        What differed; None if the catalog does not have the table.

    Raises:
        UsageError: A column to drop cannot be dropped.
    """
    for attempt in iceberg.retrying():
        with attempt:
            table = iceberg.find(catalog, declared.table)
            if table is None:
                return None
            found = _look(table, declared, drop)
            if found.steps:
                with table.transaction() as transaction:
                    with transaction.update_schema() as update:
                        _remove_and_rename(update, found.steps)
                    with transaction.update_schema() as update:
                        _add_and_change(update, transaction.table_metadata.schema(), declared, found.steps)
            return Migration(found.table, found.differences, applied=True, rebuild=found.rebuild)
    raise AssertionError("unreachable: the last attempt returns or raises")


def _remove_and_rename(update: UpdateSchema, steps: Iterable[Difference]) -> None:
    """First names alone change: what follows then finds each column by its declared name."""
    for each in steps:
        if each.dropped:
            update.delete_column(each.at)
        elif each.kind == "renamed":
            update.rename_column(each.at, each.path[-1])


def _add_and_change(update: UpdateSchema, schema: Schema, declared: Declared, steps: Sequence[Difference]) -> None:
    added: dict[Path, set[str]] = {}
    levels = [each.path for each in steps if each.kind == "order"]
    for each in steps:
        if each.step in ("add", "drop and add"):
            assert each.wanted is not None
            wanted = _declared_field(declared, each.path)
            update.add_column(each.path, each.wanted, doc=wanted.doc or None)
            added.setdefault(each.path[:-1], set()).add(each.path[-1])
        elif each.kind == "narrow":
            assert each.wanted is not None
            update.update_column(each.path, field_type=each.wanted)
        elif each.kind == "required":
            update.make_column_optional(each.path)
        elif each.kind == "description":
            update.update_column(each.path, doc=each.declared)
    for level in dict.fromkeys([*levels, *added]):
        _move(update, schema, declared, level, added.get(level, set()))


def _move(update: UpdateSchema, schema: Schema, declared: Declared, level: Path, added: Collection[str]) -> None:
    """Put the columns of a table, or the fields of a struct, in their declared order; others stay where they are."""
    names = [each.name for each in _struct(schema.as_struct(), level)]
    before: str | None = None
    for name in [each.name for each in _struct(StructType(*declared.fields), level)]:
        if name in added:
            if before is None:
                update.move_first((*level, name))
                names.insert(0, name)
            else:
                update.move_after((*level, name), (*level, before))
                names.insert(names.index(before) + 1, name)
        elif name not in names:
            continue
        elif before is not None and names.index(name) < names.index(before):
            update.move_after((*level, name), (*level, before))
            names.remove(name)
            names.insert(names.index(before) + 1, name)
        before = name


def _struct(found: IcebergType, level: Path) -> Sequence[NestedField]:
    """Return the fields of a struct that is nested in another one."""
    for name in level:
        if isinstance(found, StructType):
            found = next(each.field_type for each in found.fields if each.name == name)
        elif isinstance(found, ListType):
            found = found.element_type
        elif isinstance(found, MapType):
            found = found.value_type
    assert isinstance(found, StructType)
    return found.fields


def _declared_field(declared: Declared, path: Path) -> NestedField:
    return next(each for each in _struct(StructType(*declared.fields), path[:-1]) if each.name == path[-1])


def check_target(table: Table, target: Target) -> None:
    """Check that a target can be written as it is declared.

    Raises:
        TargetColumnsDiffer: A column is missing, has another type, or must not be null.
    """
    declared = of_target(target)
    for each in differences(declared, table.schema()):
        if declared.stops(each):
            raise TargetColumnsDiffer(each.text, remedy=remedy_of(each))


def remedy_of(found: Difference) -> str:
    """Return what to do about a difference, as a sentence."""
    if not found.step:
        return found.remedy
    command = f"Run `lake migrate {found.table}` to see the steps, and `lake migrate {found.table} --apply` to do them."
    return f"{found.remedy} Otherwise: {command[0].lower()}{command[1:]}" if found.remedy else command


def check_source(table: Table, declared: Declared, source: Source, reader: Target) -> None:
    """Check that a source has the columns that a target reads of it, as they are declared.

    Raises:
        ColumnMismatch: One of them is missing, or has another name or type.
    """
    for each in differences(declared, table.schema()):
        if each.kind in _STOPS_READER and _is_read(each.path[0], source, reader):
            found = each.found if each.kind != "renamed" else ""
            expected = each.declared if each.kind != "renamed" else str(_declared_field(declared, each.path).field_type)
            raise ColumnMismatch(
                declared.table, each.column, expected=expected, found=found or None, remedy=remedy_of(each)
            )


def _is_read(column: str, source: Source, reader: Target) -> bool:
    """Whether a target may read a column of a source: the engine for it, a condition of it, or its function."""
    if column in (source.time_column, *source.named_columns, *LANDING_COLUMNS, *_entity(reader)):
        return True
    conditions = [rule.where for rule in source.rules] + ([source.deleted] if source.deleted else [])
    for condition in conditions:
        names = names_in_sql(condition)
        if names is None or column.casefold() in names:
            return True
    return reads(reader, column)


RESERVED_BY_ICEBERG = {
    "_file",
    "_pos",
    "_deleted",
    "_spec_id",
    "_partition",
    "_row_id",
    "_last_updated_sequence_number",
}
"""The columns that each table has for Spark besides its own (Iceberg's `MetadataColumns`)."""

TIMESTAMPS = (TimestampType, TimestamptzType)
"""The types of a time column. A timestamp without a zone is taken as UTC."""


def load_source(catalog: Catalog, pipeline: Pipeline, source: Source, *, reader: Target) -> Table:
    """Return a source, if it has the declared columns that a target reads.

    Raises:
        SourceError: It does not exist, lacks such a column, or its time column is no timestamp.
    """
    raw = pipeline.raw_table(source.table)
    if raw is None and all(target.table != source.table for target in pipeline.targets):
        raw = RawTable(source.table, time_column=source.time_column)
    if raw is None or not raw.exists_already:
        table = iceberg.load(catalog, source.table)
        _check_columns(source.table, _types(table))
        check_source(table, _declared_columns(pipeline, raw, source.table), source, reader)
        return table
    landed_column = source.landed_column or raw.landed_column
    table = load_existing(catalog, replace(raw, time_column=source.time_column, landed_column=landed_column))
    named = dict.fromkeys(source.named_columns)
    iceberg.check_columns(table, source.table, named)
    return table


def check_existing(catalog: Catalog, pipeline: Pipeline) -> None:
    """Check that the raw tables that other programs have created can be read as declared.

    Raises:
        SourceError: One of them is missing, its time column cannot be used, or Spark does not read its files rightly.
    """
    for raw in pipeline.raw:
        if raw.exists_already:
            check_head(load_existing(catalog, raw), raw.table)


def load_raw(catalog: Catalog, raw: RawTable) -> Table:
    """Return a raw table, if it exists; if another program has created it, only if it can be read as declared."""
    return load_existing(catalog, raw) if raw.exists_already else iceberg.load(catalog, raw.table)


def load_existing(catalog: Catalog, raw: RawTable) -> Table:
    """Return a table that another program has created, if it can be read as declared.

    Raises:
        SourceTableMissing: It does not exist.
        TimeColumnUnusable: Its time column does not exist, or is no timestamp.
        TableDamaged: Its metadata file cannot be read.
    """
    table = iceberg.find(catalog, raw.table)
    if table is None:
        raise SourceTableMissing(raw.table, known=_names_beside(catalog, raw.table))
    check_time_columns(table, raw)
    return table


def check_time_columns(table: Table, raw: RawTable) -> None:
    """Check that the columns of the time and of the landing of a table are timestamps, and that Spark can name all.

    Raises:
        TimeColumnUnusable: A column does not exist, or is no timestamp.
        ColumnNameTaken: A column has a name of the engine's own, or that of another column but for its case.
    """
    types = _types(table)
    _check_columns(raw.table, types)
    timestamps = [name for name, found in types.items() if isinstance(found, TIMESTAMPS)]
    found = types.get(raw.time_column)
    if not isinstance(found, TIMESTAMPS):
        raise TimeColumnUnusable(raw.table, raw.time_column, found=_type_text(found), timestamps=timestamps)
    if raw.landed_column is not None and not isinstance(types.get(raw.landed_column), TIMESTAMPS):
        landed = _type_text(types.get(raw.landed_column))
        raise TimeColumnUnusable(
            raw.table, raw.landed_column, found=landed, timestamps=timestamps, names="landed_column"
        )


def subject_columns(catalog: Catalog, raw: RawTable, subject: Subject) -> tuple[str, ...]:
    """Return the columns of a raw table that contain an id of a subject: the declared ones, or those that exist.

    Raises:
        ConfigurationError: Such a column of a table that exists is no string.
        SourceError: A table that should exist does not, or cannot be read as declared.
    """
    if not raw.exists_already:
        return subject.columns_of(raw.columns)
    types = _types(load_existing(catalog, raw))
    columns = subject.columns_of(types)
    for column in columns:
        if str(types[column]) != "string":
            raise ConfigurationError(
                f"{raw.table}.{column}, an id of the subject {subject.name}, is {types[column]}.",
                remedy="Name string columns only as columns= of the subject.",
            )
    return columns


def _check_columns(table: str, types: Mapping[str, IcebergType]) -> None:
    """Refuse columns because of which Spark could not read the table, or not tell them from others."""
    known: dict[str, str] = {}
    for name, found in types.items():
        other = known.setdefault(name.casefold(), name)
        if isinstance(found, TimeType):
            raise ColumnUnreadable(table, name, why="Spark cannot read a table with a column of type time")
        if name in RESERVED_BY_ICEBERG:
            raise ColumnNameTaken(table, name, why="Iceberg has a column of this name itself")
        if is_own(name):
            raise ColumnNameTaken(table, name, why=f"names that begin with {PREFIX} belong to lake-assets")
        if other != name:
            raise ColumnNameTaken(table, name, why=f"Spark does not tell it from {other!r}")


def _declared_columns(pipeline: Pipeline, raw: RawTable | None, table: str) -> Declared:
    if raw is not None:
        return of_raw_table(raw)
    (target,) = (target for target in pipeline.targets if target.table == table)
    return of_target(target)


def _types(table: Table) -> Mapping[str, IcebergType]:
    return {field.name: field.field_type for field in table.schema().fields}


def _type_text(found: IcebergType | None) -> str | None:
    return None if found is None else str(found)


def _names_beside(catalog: Catalog, name: str) -> list[str]:
    """Return the tables of the namespace of a table."""
    namespace = name.split(".")[0]
    try:
        return sorted(".".join(identifier) for identifier in catalog.list_tables(namespace))
    except NoSuchNamespaceError:
        return []
