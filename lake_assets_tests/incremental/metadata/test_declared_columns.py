"""What differs between declared and real columns, and its steps, against a plain replay on lists."""

from __future__ import annotations

from itertools import count
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
)

from lake_assets.errors import UsageError
from lake_assets.incremental.engine.columns import Declared, differences, migrate

NAMES = ("a", "b", "c", "d", "e")
TYPES = (
    IntegerType(),
    LongType(),
    FloatType(),
    DoubleType(),
    StringType(),
    DecimalType(9, 2),
    DecimalType(12, 2),
    DecimalType(12, 3),
)
WIDER = {(0, 1), (2, 3), (5, 6)}
"""Places of types that Iceberg widens, from the specification's table of promotions."""

numbers = count(1)
folder = TemporaryDirectory()
catalog = InMemoryCatalog("memory", warehouse=f"file://{folder.name}")
catalog.create_namespace("ns")


def _fields(*, required: bool = False) -> st.SearchStrategy[list[NestedField]]:
    names = st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True)
    return names.flatmap(lambda chosen: st.tuples(*[_field(name, required=required) for name in chosen]).map(list))


def _field(name: str, *, required: bool) -> st.SearchStrategy[NestedField]:
    docs = st.sampled_from((None, "about", ""))
    is_required = st.booleans() if required else st.just(False)
    parts = st.tuples(st.sampled_from(TYPES), docs, is_required)
    return parts.map(lambda part: NestedField(next(numbers), name, part[0], required=part[2], doc=part[1]))


def _table(fields: list[NestedField]) -> tuple[Catalog, Table]:
    name = f"ns.t{next(numbers)}"
    return catalog, catalog.create_table(name, Schema(*fields))


def _replayed(wanted: list[NestedField], found: tuple[NestedField, ...]) -> list[tuple[str, str, str]]:
    """Return what each column is to become: name, type, description. A column that is not declared stays."""
    now = {each.name: each for each in found}
    result = {each.name: (each.name, str(each.field_type), each.doc or "") for each in found}
    for each in wanted:
        other = now.get(each.name)
        doc = each.doc if each.doc is not None or other is None else other.doc
        becomes = each.field_type
        if other is not None and (TYPES.index(other.field_type), TYPES.index(becomes)) not in WIDER:
            becomes = other.field_type
        result[each.name] = (each.name, str(becomes), doc or "")
    return sorted(result.values())


def _in_order(wanted: list[NestedField], found: tuple[NestedField, ...]) -> bool:
    names = [each.name for each in found]
    places = [names.index(each.name) for each in wanted if each.name in names]
    return places == sorted(places)


@settings(max_examples=150, deadline=None)
@given(_fields(required=True), _fields())
def test_the_steps_make_a_table_as_declared(found: list[NestedField], wanted: list[NestedField]) -> None:
    memory, table = _table(found)
    before = {each.name: each.field_id for each in table.schema().fields}
    declared = Declared(".".join(table.name()), tuple(wanted))
    planned = migrate(memory, declared, apply=False)
    done = migrate(memory, declared)
    assert planned is not None
    assert done is not None
    assert done.differences == planned.differences, "what is shown is what is done"
    after = memory.load_table(table.name()).schema()
    columns = sorted((each.name, str(each.field_type), each.doc or "") for each in after.fields)
    assert columns == _replayed(wanted, table.schema().fields)
    assert _in_order(wanted, after.fields)
    ids = {each.name: each.field_id for each in after.fields}
    assert {name: ids[name] for name in before} == before, "no column lost its values"
    assert not any(each.required for each in after.fields)
    again = migrate(memory, declared)
    assert again is not None
    assert not again.steps, "a second migration has nothing to do"
    assert len(memory.load_table(table.name()).metadata.schemas) <= 3, "one commit"


@settings(max_examples=100, deadline=None)
@given(_fields(required=True), _fields())
def test_dropping_all_that_differs_leaves_the_declaration(found: list[NestedField], wanted: list[NestedField]) -> None:
    memory, table = _table(found)
    declared = Declared(".".join(table.name()), tuple(wanted))
    first = migrate(memory, declared, apply=False)
    assert first is not None
    drop = [each.column for each in first.differences if each.kind in ("type", "undeclared", "wide")]
    migrate(memory, declared, drop)
    after = memory.load_table(table.name()).schema()
    assert [each.name for each in after.fields] == [each.name for each in wanted]
    assert not differences(declared, after)


def test_a_rename_keeps_the_id_and_never_takes_another_column() -> None:
    fields = [NestedField(1, "metres", IntegerType(), doc="m"), NestedField(2, "Shop", StringType())]
    memory, table = _table(fields)
    wanted = (NestedField(1, "shop", StringType()), NestedField(2, "distance", LongType(), doc="how far"))
    declared = Declared(".".join(table.name()), wanted, former={"distance": "metres"})
    kinds = [(each.kind, each.column) for each in differences(declared, table.schema())]
    assert kinds == [
        ("renamed", "shop"),
        ("renamed", "distance"),
        ("narrow", "distance"),
        ("description", "distance"),
        ("order", ""),
    ]
    migrate(memory, declared)
    after = memory.load_table(table.name()).schema()
    assert [(each.field_id, each.name, str(each.field_type)) for each in after.fields] == [
        (2, "shop", "string"),
        (1, "distance", "long"),
    ]
    _, table = _table([NestedField(1, "metres", IntegerType()), NestedField(2, "distance", LongType())])
    declared = Declared(".".join(table.name()), wanted[1:], former={"distance": "metres"})
    assert [each.kind for each in differences(declared, table.schema())] == ["description", "undeclared"]


def test_what_must_stay_is_not_dropped() -> None:
    memory, table = _table([NestedField(1, "k", IntegerType()), NestedField(2, "x", IntegerType())])
    declared = Declared(".".join(table.name()), (NestedField(1, "k", StringType()),), kept={"k": "it is the key"})
    with pytest.raises(UsageError, match="not dropped: it is the key"):
        migrate(memory, declared, ["k"])
    with pytest.raises(UsageError, match="has no column y"):
        migrate(memory, declared, ["y"])
    declared = Declared(".".join(table.name()), (NestedField(1, "k", IntegerType()),))
    with pytest.raises(UsageError, match="declares the column k"):
        migrate(memory, declared, ["k"])
    migrate(memory, declared, ["x"])
    assert memory.load_table(table.name()).schema().column_names == ["k"]


def test_iceberg_widens_these_types_and_no_others() -> None:
    for place, found in enumerate(TYPES):
        for other, wanted in enumerate(TYPES):
            declared = Declared("ns.t", (NestedField(1, "a", wanted),))
            kinds = [each.kind for each in differences(declared, Schema(NestedField(1, "a", found)))]
            expected = ["narrow"] if (place, other) in WIDER else ["wide"] if (other, place) in WIDER else ["type"]
            assert kinds == ([] if place == other else expected), f"{found} as {wanted}"


def test_a_required_column_stops_a_target_only_if_its_rows_lack_it() -> None:
    schema = Schema(NestedField(1, "a", StringType(), required=True), NestedField(2, "b", StringType(), required=True))
    target = Declared("core.t", (NestedField(1, "a", StringType()),), target="t")
    assert [(each.column, target.stops(each)) for each in differences(target, schema)] == [
        ("a", False),
        ("b", True),
        ("b", False),
    ]
