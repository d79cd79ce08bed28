"""An index finds exactly the rows that a scan of the whole table finds, whatever happened to the table."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.expressions import EqualTo, In
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.update.snapshot import ManageSnapshots
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from lake_assets.connections.catalog import open_catalog
from lake_assets.incremental.engine import key_index
from lake_assets.incremental.engine.key_index import KeyIndex
from lake_assets.settings import Settings

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

SCHEMA = Schema(
    NestedField(1, "who", StringType(), required=False),
    NestedField(2, "number", LongType(), required=False),
    NestedField(3, "part", LongType(), required=False),
)
BY_PART = PartitionSpec(PartitionField(3, 1000, IdentityTransform[Any](), "part"))
PEOPLE = [f"p{number}" for number in range(8)]
NAME = "core.people"


@contextmanager
def people(min_files: int = 1) -> Iterator[tuple[Catalog, Path]]:
    """A catalog with an empty table, in which tables of few files have an index, too."""
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_index, "MIN_FILES", min_files)
        home = Path(folder)
        catalog = open_catalog(Settings(home=home))
        catalog.create_namespace("core")
        catalog.create_table(NAME, SCHEMA, partition_spec=BY_PART)
        yield catalog, home


def append(table: Table, rows: list[tuple[str | None, int, int]]) -> None:
    columns = zip(*rows, strict=True)
    names = ("who", "number", "part")
    table.append(pa.table([pa.array(values) for values in columns], names=list(names)))


def scanned(table: Table, snapshot_id: int, values: set[str]) -> list[int]:
    rows = table.scan(In("who", values), snapshot_id=snapshot_id).to_arrow()  # type: ignore[call-arg, arg-type]
    return sorted(rows.column("number").to_pylist())


def found(catalog: Catalog, snapshot_id: int, values: set[str]) -> list[int] | None:
    rows = KeyIndex(catalog).rows(NAME, snapshot_id, "who", values)
    return None if rows is None else sorted(rows.column("number").to_pylist())


def change(table: Table, draw: random.Random, number: int) -> None:
    """Append rows, delete those of a person or of a part, or go back to an earlier snapshot."""
    kind = draw.choice(["append", "append", "append", "person", "part", "back"])
    if kind == "person":
        table.delete(EqualTo("who", draw.choice(PEOPLE)))  # type: ignore[call-arg, arg-type]
    elif kind == "part":
        table.delete(EqualTo("part", draw.randrange(3)))  # type: ignore[call-arg, arg-type]
    elif kind == "back":
        earlier = draw.choice(table.metadata.snapshots)
        with table.transaction() as transaction:
            ManageSnapshots(transaction).set_current_snapshot(snapshot_id=earlier.snapshot_id).commit()
    else:
        who = draw.choice([*PEOPLE, None])
        append(table, [(who, 10 * number, draw.randrange(3)), (draw.choice(PEOPLE), 10 * number + 1, 0)])


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 2**32))
def test_it_finds_what_a_scan_finds_in_every_history(seed: int) -> None:
    draw = random.Random(seed)
    with people() as (catalog, _):
        append(catalog.load_table(NAME), [("p0", 1, 0), ("p1", 2, 1)])
        answers = 0
        for number in range(1, 7):
            change(catalog.load_table(NAME), draw, number)
            table = catalog.load_table(NAME)
            head = table.current_snapshot()
            assert head is not None
            for snapshot in (head, draw.choice(table.metadata.snapshots)):
                values = set(draw.sample(PEOPLE, 3))
                answer = found(catalog, snapshot.snapshot_id, values)
                answers += answer is not None
                assert answer is None or answer == scanned(table, snapshot.snapshot_id, values)
        assert answers


def test_only_files_that_may_have_the_value_and_new_ones_are_read() -> None:
    with people() as (catalog, home):
        for number, who in enumerate(PEOPLE):
            append(catalog.load_table(NAME), [(who, number, number)])
        table = catalog.load_table(NAME)
        assert found(catalog, table.current_snapshot().snapshot_id, {"p1"}) == [1]  # type: ignore[union-attr]
        for file in home.glob("warehouse/core/people/data/*/*.parquet"):
            if "part=1" not in file.parent.name:
                file.unlink()
        append(table, [("p1", 11, 5)])
        newest = catalog.load_table(NAME).current_snapshot()
        assert newest is not None
        assert found(catalog, newest.snapshot_id, {"p1", "nobody"}) == [1, 11]


def test_files_of_several_writers_are_read_together() -> None:
    with people() as (catalog, home):
        table = catalog.load_table(NAME)
        append(table, [("p1", 1, 1)])
        foreign = home / "foreign.parquet"
        rows = pa.table({"who": pa.array(["p1"]), "number": pa.array([2]), "part": pa.array([2])})
        pq.write_table(rows, foreign, store_schema=False)
        table.add_files([f"file://{foreign}"])
        head = table.current_snapshot()
        assert head is not None
        assert found(catalog, head.snapshot_id, {"p1"}) == [1, 2]


def test_rows_that_left_every_retained_snapshot_leave_the_index() -> None:
    with people() as (catalog, home):
        append(catalog.load_table(NAME), [("p1", 1, 1)])
        table = catalog.load_table(NAME)
        append(table, [("p2", 2, 2)])
        assert found(catalog, table.current_snapshot().snapshot_id, {"p1"}) == [1]  # type: ignore[union-attr]
        (index,) = home.glob("key-index/*.db")
        known = index.read_bytes()
        table.delete(EqualTo("who", "p1"))  # type: ignore[call-arg, arg-type]
        gone = [each.snapshot_id for each in table.metadata.snapshots[:-1]]
        table.maintenance.expire_snapshots().by_ids(gone).commit()
        append(table, [("p2", 3, 2)])
        assert found(catalog, table.current_snapshot().snapshot_id, {"p1", "p2"}) == [2, 3]  # type: ignore[union-attr]
        assert b"part=1" in known
        assert b"part=1" not in index.read_bytes()


def test_a_damaged_index_is_built_again() -> None:
    with people() as (catalog, home):
        table = catalog.load_table(NAME)
        append(table, [("p1", 1, 1)])
        head = table.current_snapshot()
        assert head is not None
        assert found(catalog, head.snapshot_id, {"p1"}) == [1]
        (index,) = home.glob("key-index/*.db")
        index.write_bytes(b"no database" * 1000)
        assert found(catalog, head.snapshot_id, {"p1"}) is None
        assert found(catalog, head.snapshot_id, {"p1"}) == [1]


def test_a_small_table_and_a_catalog_without_a_folder_have_no_index() -> None:
    with people(min_files=2) as (catalog, home):
        table = catalog.load_table(NAME)
        append(table, [("p1", 1, 1)])
        small = table.current_snapshot()
        append(table, [("p1", 2, 1)])
        large = table.current_snapshot()
        assert small is not None
        assert large is not None
        assert found(catalog, small.snapshot_id, {"p1"}) is None
        assert found(catalog, large.snapshot_id, {"p1"}) == [1, 2]
        assert KeyIndex(catalog).rows(NAME, large.snapshot_id, "number", {"p1"}) is None  # text is no number
        catalog.properties.pop("lake.key-index")
        assert found(catalog, large.snapshot_id, {"p1"}) is None
        assert len(list(home.glob("key-index/*.db"))) == 1
