"""Columns of tables: those of a snapshot as the table has them now, those that are declared, and those of sources.

A reader of a snapshot gets the columns of that time: without those that were added since, and by their former names and
types. Iceberg's ids say which column is which, so the rows are given the present columns: an added one is null, as it
is in the present head of the table. Spark and pyiceberg both read a snapshot with its own columns.

Ids also let a table become as it is declared without that a row is rewritten: a step adds, widens, renames, moves,
describes or drops a column in the metadata, or lets it be null. All steps of a table are one commit. What differs is
found anew each time, so that a migration that was interrupted is repeated.

A source is loaded only if it can be read as declared. A raw table that declares no columns exists: another program has
created it, and it is read as it is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Literal

from pyiceberg.exceptions import NoSuchNamespaceError
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import (
    IcebergType,
    ListType,
    MapType,
    NestedField,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
)

from lake_assets.base.columns import ELEMENT, PREFIX, is_own, quoted, table_in_sql
from lake_assets.base.described import kept_failure
from lake_assets.base.hours import hour_key
from lake_assets.base.sql_text import names_in_sql
from lake_assets.errors import (
    ErrorText,
    TargetError,
    UsageError,
    column_mismatch,
    column_name_taken,
    column_unreadable,
    source_table_missing,
    suggestion,
    time_column_unusable,
)
from lake_assets.incremental.declaration import RawTable, Target
from lake_assets.incremental.declaration.model import LANDING_COLUMNS
from lake_assets.incremental.declaration.pipeline import check_id_column
from lake_assets.incremental.engine import iceberg
from lake_assets.incremental.engine.iceberg import holds, rows_by_hour, type_text
from lake_assets.incremental.engine.readable import check_files
from lake_assets.incremental.engine.user_code import reads

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import DataFrame

    from lake_assets.incremental.declaration import Pipeline, Source, Subject, Target


def with_present_columns(rows: DataFrame, table: Table, snapshot_id: int) -> DataFrame:
    """Return the rows of a snapshot, as Spark reads it, with the present columns of its table."""
    found = selected(schema_at(table, snapshot_id), table.schema())
    return rows if found is None else rows.selectExpr(*found)


def at_present(table: Table, snapshot_id: int | None) -> Table:
    """Return a table whose scans of a snapshot have its present columns."""
    snapshot = table.snapshot_by_id(snapshot_id or 0)
    if snapshot is None or schema_at(table, snapshot.snapshot_id) == table.schema():
        return table
    present = snapshot.model_copy(update={"schema_id": table.metadata.current_schema_id})
    metadata = table.metadata.model_copy(update={"snapshots": [present]})
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
    if then.schema_id == now.schema_id:
        return None
    values = _values(then.fields, now.fields)
    if values == [quoted(each.name) for each in then.fields]:
        return None
    return [f"{value} AS {quoted(each.name)}" for value, each in zip(values, now.fields, strict=True)]


def _values(then: Sequence[NestedField], now: Sequence[NestedField], prefix: str = "", depth: int = 0) -> list[str]:
    """Return the expression of each field of a struct. prefix: the struct with a dot; empty for the columns."""
    by_id = {each.field_id: each for each in then}
    found = []
    for each in now:
        former = by_id.get(each.field_id)
        if former is None:
            default = "NULL" if each.initial_default is None else _literal(str(each.initial_default))
            found.append(f"CAST({default} AS {type_text(each.field_type, sql=True)})")
            continue
        value = prefix + quoted(former.name)
        if former.name != each.name:
            # So Spark leaves no filter on it to Iceberg, which (1.12) plans the scan of a snapshot with that time's
            # name of a column among the columns of now: it does not find it ("Cannot find field 'metres' in struct"),
            # or it takes another column that has the name now.
            value = f"element_at(array({value}), 1)"
        found.append(_value(value, former.field_type, each.field_type, depth))
    return found


def _value(value: str, then: IcebergType, now: IcebergType, depth: int) -> str:
    """Return a value of a former type as one of the present type: itself, if names, ids and types are the same."""
    element = f"{ELEMENT}{depth}"
    if isinstance(then, StructType) and isinstance(now, StructType):
        values = _values(then.fields, now.fields, f"{value}.", depth)
        if values == [f"{value}.{quoted(each.name)}" for each in then.fields]:
            return value
        parts = [f"{_literal(each.name)}, {part}" for each, part in zip(now.fields, values, strict=True)]
        return f"if({value} IS NULL, NULL, named_struct({', '.join(parts)}))"
    if isinstance(then, ListType) and isinstance(now, ListType):
        inner = _value(element, then.element_type, now.element_type, depth + 1)
        return value if inner == element else f"transform({value}, {element} -> {inner})"
    if isinstance(then, MapType) and isinstance(now, MapType):
        former = f"{element}.key, {element}.value"
        key = _value(f"{element}.key", then.key_type, now.key_type, depth + 1)
        pair = f"{key}, {_value(f'{element}.value', then.value_type, now.value_type, depth + 1)}"
        entries = f"transform(map_entries({value}), {element} -> struct({pair}))"
        return value if pair == former else f"map_from_entries({entries})"
    return value if then == now else f"CAST({value} AS {type_text(now, sql=True)})"


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
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
    """One difference between a table and its declaration. Parts of a nested column are in its type.

    Attributes:
        table: The table.
        kind: How they differ.
        column: The column, by its declared name; empty for the order.
        declared: Its type, or what else differs, as declared.
        found: The same as the table has it.
        refused: Why Iceberg cannot do it by metadata; empty if it can.
        remedy: What to do, if it is not done by a migration.
        dropped: Whether the person who migrates has named the column to be dropped.
    """

    table: str
    kind: Kind
    column: str
    declared: str = ""
    found: str = ""
    refused: str = ""
    remedy: str = ""
    dropped: bool = False

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
                return f"{self.table} has the column {self.column} as {self.found}, its former name."
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
        names = ("column", "kind", "declared", "found", "step", "text", "refused", "remedy")
        return {name: getattr(self, name) for name in names}


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
            return bool(self.target) and all(each.name != found.column for each in self.fields)
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
    fields = _fields(*((name, type_, raw.descriptions.get(name)) for name, type_ in raw.all_columns.items()))
    return Declared(raw.table, fields, raw.renamed_from, always)


def of_target(target: Target, kept: Mapping[str, str] | None = None) -> Declared:
    """Return the declared columns of a target."""
    key = dict.fromkeys(target.key, "it is the key")
    always = {**(kept or {}), **key, target.time_column: "it is the time of a row"}
    fields = _fields(*((name, type_, target.descriptions.get(name)) for name, type_ in target.columns.items()))
    return Declared(target.table, fields, target.renamed_from, always, target.name, target.time_column)


def _entity(target: Target) -> tuple[str, ...]:
    entity: str | None = getattr(target.mode, "entity", None)
    return (entity,) if entity else ()


@lru_cache(maxsize=4096)
def _fields(*columns: tuple[str, str, str | None]) -> tuple[NestedField, ...]:
    """Every plan compares the columns of a target and of its sources, and to parse types takes most of the time."""
    return iceberg.fields_of(columns)


def differences(declared: Declared, schema: Schema) -> tuple[Difference, ...]:
    """Return how the columns of a table differ from their declaration: those of the rows first, then the others."""
    table = declared.table
    found = _matches(declared.fields, schema.fields, declared.former)
    names = {match.field_id: name for name, match in found.items()}
    undeclared = [each for each in schema.fields if each.field_id not in names]
    result: list[Difference] = []

    def add_required(present: NestedField, name: str) -> None:
        refused = remedy = ""
        if present.field_id in schema.identifier_field_ids:
            refused = "it is an identifier field of the table"
            remedy = f"Take it out: ALTER TABLE {table_in_sql(table)} DROP IDENTIFIER FIELDS {present.name}."
        result.append(Difference(table, "required", name, "optional", "required", refused, remedy))

    for wanted in declared.fields:
        name, present, as_declared = wanted.name, found.get(wanted.name), type_text(wanted.field_type)
        if present is None:
            remedy = ""
            alike = [other.name for other in undeclared if other.field_type == wanted.field_type]
            if len(alike) == 1:
                remedy = f"If it is the former {alike[0]}, declare renamed_from: {{{name}: {alike[0]}}}"
                if not declared.target:
                    remedy += f"; if the table calls it {alike[0]} now, declare that name"
                remedy += "."
            result.append(Difference(table, "missing", name, as_declared, remedy=remedy))
            continue
        if present.name != name:
            result.append(Difference(table, "renamed", name, name, present.name))
        if present.required:
            add_required(present, name)
        if wanted.doc is not None and wanted.doc != (present.doc or ""):
            result.append(Difference(table, "description", name, wanted.doc, present.doc or ""))
        as_found = type_text(present.field_type)
        is_held = holds(wanted.field_type, present.field_type)
        fits = holds(present.field_type, wanted.field_type)
        if is_held and not fits:
            result.append(Difference(table, "narrow", name, as_declared, as_found))
        elif not is_held:
            in_query = ", or cast it in the query; then run `lake check`" if declared.target else ""
            remedy = f"Declare {name} as {as_found}{in_query}."
            kind: Kind = "wide" if fits else "type"
            refused = "Iceberg narrows no type"
            if kind == "type":
                refused = f"Iceberg does not turn {as_found} into {as_declared}"
                if name not in declared.kept:
                    drop = f"lake migrate {table} --drop {name} --apply"
                    remedy += f" Or drop it with its values, and add it again: `{drop}`."
            result.append(Difference(table, kind, name, as_declared, as_found, refused, remedy))
    for each in undeclared:
        if each.required:
            add_required(each, each.name)
        remedy = f"To use it, declare it. To remove it, run `lake migrate {table} --drop {each.name} --apply`."
        result.append(Difference(table, "undeclared", each.name, found=type_text(each.field_type), remedy=remedy))
    in_order = [each.name for each in declared.fields if each.name in found]
    as_found_in_order = [names[each.field_id] for each in schema.fields if each.field_id in names]
    if as_found_in_order != in_order:
        result.append(Difference(table, "order", "", ", ".join(in_order), ", ".join(as_found_in_order)))
    return tuple(sorted(result, key=lambda each: each.kind in ("undeclared", "order", "description")))


def _matches(
    wanted: Sequence[NestedField], present: Sequence[NestedField], former: Mapping[str, str]
) -> dict[str, NestedField]:
    """Return declared name → the field that a table has.

    A field is found by its name; else in another case, because Spark does not tell cases apart; else by its former
    name, if that is not declared as another column.
    """
    left = {each.name: each for each in present}
    found = {each.name: left.pop(each.name) for each in wanted if each.name in left}
    for each in wanted:
        for name in (each.name, former.get(each.name, each.name)):
            same = [other for other in left if other.casefold() == name.casefold()]
            if each.name not in found and len(same) == 1:
                found[each.name] = left.pop(same[0])
    return found


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


def _with_drops(
    found: Sequence[Difference], table: Table, declared: Declared, names: Collection[str]
) -> tuple[Difference, ...]:
    """Return the differences, with those columns dropped that are named and not declared, or not with their type.

    Raises:
        UsageError: The table has no such column, it is declared as it is, or something needs it.
    """

    def is_dropped(each: Difference) -> bool:
        return each.column in names and each.kind in ("undeclared", "type", "wide", "narrow")

    schema = table.schema()
    partitioned = {each.source_id for spec in table.metadata.partition_specs for each in spec.fields}
    for name in names:
        try:
            present = schema.find_field(name).field_id
        except ValueError:
            known = ", ".join(schema.column_names)
            raise UsageError(f"{declared.table} has no column {name}.", remedy=f"It has: {known}.") from None
        reason = declared.kept.get(name)
        if present in partitioned:
            reason = "the table is partitioned by it"
        if present in schema.identifier_field_ids:
            reason = "it is an identifier field of the table"
        if reason is not None:
            problem = f"{name} of {declared.table} is not dropped: {reason}."
            raise UsageError(problem, remedy=f"Leave out `--drop {name}`.")
        if not any(is_dropped(each) and each.column == name for each in found):
            raise UsageError(
                f"{declared.table} declares the column {name}.",
                remedy="Remove it from the declaration first, and from the queries that read it.",
            )
    result = []
    for each in found:
        if is_dropped(each):
            result.append(replace(each, refused="", remedy="", dropped=True))
        elif each.kind not in ("required", "description") or each.column not in names:
            result.append(each)  # a column that is dropped needs no other step
    return tuple(result)


@iceberg.retrying().wraps
def migrate(
    catalog: Catalog, declared: Declared, drop: Collection[str] = (), *, apply: bool = True
) -> Migration | None:
    """Make the columns of a table as they are declared, as far as metadata can, in one commit.

    Args:
        drop: Columns to drop: those that are not declared, or that are declared with another type.
        apply: Do the steps; else they are returned, and nothing is changed.

    Returns:
        What differed; None if the catalog does not have the table.

    Raises:
        UsageError: A column to drop cannot be dropped.
    """
    table = iceberg.find(catalog, declared.table)
    if table is None:
        return None
    found = _with_drops(differences(declared, table.schema()), table, declared, drop)
    steps = [each for each in found if each.step]
    rebuild = ""
    is_there = declared.time_column in table.schema().column_names
    if declared.target and is_there and any("add" in each.step for each in steps):
        hours = [*rows_by_hour(table, declared.time_column)]
        rebuild = f"lake rebuild {declared.target} {hour_key(hours[0])} {hour_key(hours[-1])}" if hours else ""
    if apply and steps:
        with table.transaction() as transaction:
            # First names alone change: what follows then finds each column by its declared name.
            with transaction.update_schema() as update:
                for each in steps:
                    if each.dropped:
                        update.delete_column((each.column,))
                    elif each.kind == "renamed":
                        update.rename_column((each.found,), each.column)
            with transaction.update_schema() as update:
                names = [each.name for each in transaction.table_metadata.schema().fields]
                wanted = {each.name: each for each in declared.fields}
                added = set()
                for each in steps:
                    column = (each.column,)
                    if "add" in each.step:
                        field = wanted[each.column]
                        update.add_column(column, field.field_type, doc=field.doc or None)
                        added.add(each.column)
                    elif each.kind == "narrow":
                        field = wanted[each.column]
                        update.union_by_name(Schema(NestedField(field.field_id, field.name, field.field_type)))
                    elif each.kind == "required":
                        update.make_column_optional(column)
                    elif each.kind == "description":
                        update.update_column(column, doc=each.declared)
                before: str | None = None
                for name in wanted if added or any(each.kind == "order" for each in steps) else ():
                    if before is None and name in added:
                        update.move_first((name,))
                        names.insert(0, name)
                    elif before is not None and (name in added or names.index(name) < names.index(before)):
                        update.move_after((name,), (before,))
                        names = [each for each in names if each != name]
                        names.insert(names.index(before) + 1, name)
                    before = name
    return Migration(declared.table, found, apply, rebuild)


def check_target(table: Table, target: Target) -> None:
    """Check that a target can be written as it is declared.

    Raises:
        TargetError: A column is missing, has another type, or must not be null.
    """
    declared = of_target(target)
    for each in differences(declared, table.schema()):
        if declared.stops(each):
            raise TargetError(each.text, remedy=remedy_of(each))


def remedy_of(found: Difference) -> str:
    """Return what to do about a difference, as a sentence."""
    if not found.step:
        return found.remedy
    command = f"Run `lake migrate {found.table}` to see the steps, and `lake migrate {found.table} --apply` to do them."
    return f"{found.remedy} Otherwise: {command[0].lower()}{command[1:]}" if found.remedy else command


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
    of_targets = [of_target(target) for target in pipeline.targets if target.table == source.table]
    if raw is None and not of_targets:
        raw = RawTable(source.table, time_column=source.time_column)
    if raw is not None and raw.exists_already:
        landed_column = source.landed_column or raw.landed_column
        table = load_raw(catalog, replace(raw, time_column=source.time_column, landed_column=landed_column))
        iceberg.check_columns(table, source.table, dict.fromkeys(source.named_columns))
        return table
    table = iceberg.load(catalog, source.table)
    _check_columns(source.table, table)
    declared = of_targets[0] if raw is None else of_raw_table(raw)
    for each in differences(declared, table.schema()):
        if each.kind in _STOPS_READER and _is_read(each.column, source, reader):
            found, expected = each.found or None, each.declared
            if each.kind == "renamed":
                renamed = next(one for one in declared.fields if one.name == expected)
                found, expected = None, type_text(renamed.field_type)
            raise column_mismatch(source.table, each.column, expected=expected, found=found, remedy=remedy_of(each))
    return table


def _is_read(column: str, source: Source, reader: Target) -> bool:
    """Whether a target may read a column of a source: the engine for it, a condition of it, or its function."""
    if column in (source.time_column, *source.named_columns, *LANDING_COLUMNS, *_entity(reader)):
        return True
    for condition in (*(rule.where for rule in source.rules), source.deleted):
        names = names_in_sql(condition) if condition else frozenset()
        if names is None or column.casefold() in names:
            return True
    return reads(reader, column)


def existing_problems(catalog: Catalog, pipeline: Pipeline) -> list[ErrorText]:
    """Return what is wrong with the sources that other programs have created.

    One is missing, a column that is declared cannot be used, or Spark does not read its files rightly.
    """
    found: list[ErrorText] = []
    existing: dict[str, list[Callable[[], Table]]] = {
        raw.table: [partial(load_raw, catalog, raw)] for raw in pipeline.raw if raw.exists_already
    }
    declared = [raw.table for raw in pipeline.raw] + [target.table for target in pipeline.targets]
    for target in pipeline.targets:
        for source in target.sources:
            if source.table in declared and source.table not in existing:
                continue
            if source.table not in declared and not catalog.table_exists(source.table):
                problem = f"{target.table} reads {source.table}, which is neither declared nor in the catalog."
                remedy = f"{suggestion(source.table, declared)} A new raw table is declared in raw= of the pipeline."
                found.append(ErrorText(problem, remedy))
                continue
            loads = existing.setdefault(source.table, [])
            loads.append(partial(load_source, catalog, pipeline, source, reader=target))
    for name, loads in existing.items():
        with kept_failure(found, name):
            for load in loads:
                table = load()
            check_files(table, name, table.metadata.current_snapshot_id)
    return found


def load_raw(catalog: Catalog, raw: RawTable) -> Table:
    """Return a raw table; if another program has created it, only if it can be read as declared.

    Raises:
        SourceError: It does not exist, and another program creates it.
        TableMissing: It does not exist.
        SourceError: Its time column does not exist, or is no timestamp.
        TableDamaged: Its metadata file cannot be read.
    """
    if not raw.exists_already:
        return iceberg.load(catalog, raw.table)
    table = iceberg.find(catalog, raw.table)
    if table is None:
        try:
            beside = catalog.list_tables(raw.table.rpartition(".")[0])
        except NoSuchNamespaceError:
            beside = []
        raise source_table_missing(raw.table, known=sorted(".".join(identifier) for identifier in beside))
    check_time_columns(table, raw)
    return table


def check_time_columns(table: Table, raw: RawTable) -> None:
    """Check that the columns of the time and of the landing of a table are timestamps, and that Spark can name all.

    Raises:
        SourceError: A column does not exist, is no timestamp, or has a name that cannot be read.
    """
    _check_columns(raw.table, table)
    types = {each.name: each.field_type for each in table.schema().fields}
    timestamps = [name for name, found in types.items() if isinstance(found, TIMESTAMPS)]
    for names, column in (("time_column", raw.time_column), ("landed_column", raw.landed_column)):
        if column is not None and column not in timestamps:
            found = str(types[column]) if column in types else None
            raise time_column_unusable(raw.table, column, found=found, timestamps=timestamps, names=names)


def subject_columns(catalog: Catalog, raw: RawTable, subject: Subject) -> tuple[str, ...]:
    """Return the columns of a raw table that contain an id of a subject: the declared ones, or those that exist.

    Raises:
        ConfigurationError: Such a column of a table that exists has a type that no id has.
        SourceError: A table that should exist does not, or cannot be read as declared.
    """
    if not raw.exists_already:
        return subject.columns_of(raw.columns)
    types = {each.name: str(each.field_type) for each in load_raw(catalog, raw).schema().fields}
    columns = subject.columns_of(types)
    for column in columns:
        check_id_column(subject, raw.table, column, types[column])
    return columns


def _check_columns(name: str, table: Table) -> None:
    """Refuse columns because of which Spark could not read a table, or not tell them from others."""
    known: dict[str, str] = {}
    in_sql = table_in_sql(name)
    for each in table.schema().fields:
        other = known.setdefault(each.name.casefold(), each.name)
        if isinstance(each.field_type, TimeType):
            raise column_unreadable(name, each.name, why="Spark cannot read a table with a column of type time")
        if each.name in RESERVED_BY_ICEBERG:
            raise column_name_taken(name, each.name, in_sql=in_sql, why="Iceberg has a column of this name itself")
        if is_own(each.name):
            raise column_name_taken(
                name, each.name, in_sql=in_sql, why=f"names that begin with {PREFIX} belong to lake-assets"
            )
        if other != each.name:
            raise column_name_taken(name, each.name, in_sql=in_sql, why=f"Spark does not tell it from {other!r}")
