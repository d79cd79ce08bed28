"""Which data files a delete file may refer to. Only other programs write delete files, so these are made up."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestWriterV2,
)
from pyiceberg.transforms import BucketTransform, HourTransform
from pyiceberg.typedef import Record

from lake_assets.base.hours import hour_start, parse_hour
from lake_assets.incremental.declaration import Source
from lake_assets.incremental.engine import iceberg
from lake_assets.incremental.engine.iceberg import FILE_PATH_FIELD, changed_entries
from lake_assets.incremental.engine.source_changes import SnapshotReader

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

START = parse_hour("2026-01-01-00:00")
FACT = Source("core.fact", time_column="at")
BY_HOUR, BY_BUCKET, UNPARTITIONED = 0, 1, 2


@pytest.fixture
def fact(catalog: Catalog) -> Table:
    """Hours 1 and 2 in files of the first partition spec, hour 3 in one of the second; the third has no field."""
    iceberg.create(catalog, "core.fact", {"at": "timestamptz"}, {"at": HourTransform()}, {})
    table = iceberg.load(catalog, "core.fact")
    append(table, 1, 2)
    with table.update_spec() as update:
        update.remove_field("at_hour").add_field("at", BucketTransform(1), "bucket")
    append(table, 3)
    with table.update_spec() as update:
        update.remove_field("bucket")
    return table


def append(table: Table, *hours: int) -> None:
    rows = [{"at": hour_start(START + hour) + timedelta(minutes=5)} for hour in hours]
    table.append(pa.Table.from_pylist(rows, schema=schema_to_pyarrow(table.schema(), include_field_ids=False)))


def delete(spec: int, *values: int, named: Iterable[str] = ()) -> DataFile:
    """A delete file of a partition. named: the least and the greatest path among its rows, if it has such bounds."""
    lower, upper = tuple(named) or (None, None)
    file = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path="deletes.parquet",
        file_format=FileFormat.PARQUET,
        partition=Record(*values),
        record_count=1,
        file_size_in_bytes=1,
        lower_bounds={FILE_PATH_FIELD: lower.encode()} if lower else None,
        upper_bounds={FILE_PATH_FIELD: upper.encode()} if upper else None,
    )
    file.spec_id = spec
    return file


def test_a_delete_file_touches_the_hours_of_the_files_that_it_may_refer_to(fact: Table) -> None:
    reader = SnapshotReader(fact, FACT, START)
    current = fact.current_snapshot()
    assert current is not None
    paths = {}
    for task in fact.scan().plan_files():
        partition = task.file.partition[0]
        paths[3 if partition == 0 else partition - START] = task.file.file_path

    def touched(file: DataFile) -> list[int]:
        return sorted(first - START for each in reader.referred(file, current) for first, _ in each.touched)

    assert touched(delete(BY_HOUR, START + 2, named=[paths[1], paths[1]])) == [1]
    # Of its own spec, it refers to files of its partition. Files of another one may have been there under its spec.
    assert touched(delete(BY_HOUR, START + 2)) == [2, 3]
    assert touched(delete(BY_HOUR, START + 2, named=[paths[1], paths[2] + "x"])) == [2, 3]
    assert touched(delete(BY_HOUR, START + 9)) == [3]
    assert touched(delete(BY_BUCKET, 0)) == [1, 2, 3]
    assert touched(delete(UNPARTITIONED)) == [1, 2, 3]


class DeleteManifestWriter(ManifestWriterV2):
    """What pyiceberg lacks: a manifest of delete files."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES


def test_an_append_with_a_delete_file_is_none(fact: Table, tmp_path: Path) -> None:
    """By the specification, an append adds data files alone. Nobody but the manifests holds another program to that."""
    current = fact.current_snapshot()
    assert current is not None
    output = fact.io.new_output(str(tmp_path / "deletes.avro"))
    with DeleteManifestWriter(fact.specs()[BY_HOUR], fact.schema(), output, current.snapshot_id, "null") as writer:
        added = ManifestEntryStatus.ADDED
        deletes = delete(BY_HOUR, START + 2)
        writer.add(ManifestEntry.from_args(status=added, snapshot_id=current.snapshot_id, data_file=deletes))
    written = writer.to_manifest_file()
    written.sequence_number = written.min_sequence_number = current.sequence_number or 0
    reader = SnapshotReader(fact, FACT, START)
    assert reader.change(current, changed_entries(current, fact.io)).effect == "append"
    found = reader.change(current, changed_entries(current, fact.io, [*current.manifests(fact.io), written]))
    assert (found.operation, found.effect, found.rows_gone) == ("append", "rewrite", 1)
    assert found.hours == ((START + 2, START + 3),)


def test_a_partition_beyond_the_years_1_to_9999_is_named_with_its_year(fact: Table) -> None:
    current = fact.current_snapshot()
    assert current is not None
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path="data.parquet",
        file_format=FileFormat.PARQUET,
        partition=Record((2**63 - 1) // 3_600_000_000),  # the hour of the last moment that Iceberg has
        record_count=1,
        file_size_in_bytes=1,
    )
    file.spec_id = BY_HOUR
    found = SnapshotReader(fact, FACT, START).file(file, current)
    assert dict(found.partition) == {"at_hour": "+294247-01-10-04:00"}
