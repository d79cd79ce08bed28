"""Entries of manifests come out as pyiceberg's own reading of them does, for tables of several schemas in turn."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.expressions import And, EqualTo
from pyiceberg.expressions.visitors import manifest_evaluator
from pyiceberg.manifest import ManifestFile, PartitionFieldSummary
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType

from lake_assets.base.hours import hour_start
from lake_assets.incremental.engine import iceberg
from lake_assets.incremental.engine.iceberg import entries
from lake_assets.membership import PIPELINE
from lake_assets_tests.incremental.scenario import START

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table


@pytest.mark.parametrize("discard_deleted", [False, True])
def test_entries_are_those_that_pyiceberg_reads(catalog: Catalog, discard_deleted: bool) -> None:
    written = [filled(catalog, name) for name in ("signup_fact", "cancel_fact", "account_state_daily")]
    for table in written * 2:  # the second time each schema is known
        found = 0
        for snapshot in table.metadata.snapshots:
            for manifest in snapshot.manifests(table.io):
                theirs = manifest.fetch_manifest_entry(table.io, discard_deleted=discard_deleted)
                assert entries(manifest, table.io, discard_deleted=discard_deleted) == theirs
                found += len(theirs)
        assert found


def test_a_small_manifest_is_read_once_unless_its_file_is_another_one(catalog: Catalog) -> None:
    table = filled(catalog, "signup_fact")
    snapshot = table.current_snapshot()
    assert snapshot is not None
    manifest = snapshot.manifests(table.io)[0]
    first = entries(manifest, table.io, discard_deleted=False)
    second = entries(manifest, table.io, discard_deleted=False)
    assert first
    assert all(one is other for one, other in zip(first, second, strict=True))
    file = Path(manifest.manifest_path.removeprefix("file://"))
    file.write_bytes(b"not Avro")
    with pytest.raises((ValueError, AssertionError, EOFError)):
        entries(manifest, table.io, discard_deleted=False)
    file.unlink()
    with pytest.raises(FileNotFoundError):
        entries(manifest, table.io, discard_deleted=False)


def filled(catalog: Catalog, name: str) -> Table:
    """A table with files of several hours and a delete; and of two schemas."""
    target = PIPELINE.target(name)
    iceberg.create_target(catalog, target)
    table = iceberg.load(catalog, target.table)
    for hours in ([1, 2], [26]):
        rows = [{target.time_column: hour_start(START + hour)} for hour in hours]
        table.append(pa.Table.from_pylist(rows, schema=table.schema().as_arrow()))
        if hours == [1, 2]:
            with table.update_schema() as update:
                update.add_column("added", LongType())
    table.delete(f"{target.time_column} < '{hour_start(START + 2).isoformat()}'")
    return iceberg.load(catalog, target.table)


@pytest.fixture
def hurried() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("hurried")
def test_an_evaluator_of_manifests_may_be_asked_by_several_threads() -> None:
    schema = Schema(NestedField(1, "batch", StringType()), NestedField(2, "hour", IntegerType()))
    parts = [
        PartitionField(each, 999 + each, IdentityTransform[Any](), name) for each, name in ((1, "batch"), (2, "hour"))
    ]
    condition = And(EqualTo("batch", "late"), EqualTo("hour", 2))  # type: ignore[call-arg, arg-type]
    manifests = []
    for batch, hour in (("late", 2), ("a", 1), ("b", 3)):
        values = (batch.encode(), hour.to_bytes(4, "little"))
        bounds = [PartitionFieldSummary(False, None, value, value) for value in values]
        manifests.append(ManifestFile.from_args(partitions=bounds))
    wrong = 0
    with ThreadPoolExecutor(6) as threads:
        for _ in range(1500):
            evaluator = manifest_evaluator(PartitionSpec(*parts), schema, condition)
            wrong += [*threads.map(evaluator, manifests)] != [True, False, False]
    assert wrong == 0
