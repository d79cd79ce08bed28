"""Deletes of rows by their values, as Flink commits them. No other program here writes them."""

from __future__ import annotations

import json
import uuid
from io import BytesIO
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
    write_manifest_list,
)
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadataV2
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import AddSnapshotUpdate, AssertRefSnapshotId, SetSnapshotRefUpdate
from pyiceberg.typedef import Record

CODEC: Any = "deflate"


class _DeletesWriter(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


def delete_by_values(table: Table, column: str, values: list[Any]) -> None:
    """Commit an equality delete to an unpartitioned table: rows of before with one of the values are gone."""
    head = table.current_snapshot()
    assert head is not None
    assert isinstance(table.metadata, TableMetadataV2)
    snapshot_id = uuid.uuid4().int >> 66
    field = table.schema().find_field(column)
    path = f"{table.location()}/data/{uuid.uuid4()}.parquet"
    with table.io.new_output(path).create() as output:
        rows = pa.table({column: values}, schema=schema_to_pyarrow(table.schema().select(column)))
        pq.write_table(rows, output)
    file = DataFile.from_args(
        content=DataFileContent.EQUALITY_DELETES,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=len(values),
        file_size_in_bytes=len(table.io.new_input(path)),
        equality_ids=[field.field_id],
    )
    file.spec_id = table.spec().spec_id
    list_path = f"{table.location()}/metadata/snap-{snapshot_id}-0-{uuid.uuid4()}.avro"
    sequence_number = table.metadata.last_sequence_number + 1
    with write_manifest_list(
        2, table.io.new_output(list_path), snapshot_id, head.snapshot_id, sequence_number, CODEC
    ) as manifests:
        manifests.add_manifests([_manifest(table, file, snapshot_id), *head.manifests(table.io)])
    counts = {"added-delete-files": "1", "added-equality-deletes": str(len(values))}
    fields: dict[str, Any] = {
        "snapshot_id": snapshot_id,
        "parent_snapshot_id": head.snapshot_id,
        "sequence_number": sequence_number,
        "timestamp_ms": head.timestamp_ms + 1,
        "manifest_list": list_path,
        "summary": Summary(Operation.DELETE, **counts),
        "schema_id": table.schema().schema_id,
    }
    added = AddSnapshotUpdate(snapshot=Snapshot(**fields))
    main = SetSnapshotRefUpdate(ref_name="main", type=SnapshotRefType.BRANCH, snapshot_id=snapshot_id)  # type: ignore[call-arg]
    is_unmoved = AssertRefSnapshotId(ref="main", snapshot_id=head.snapshot_id)  # type: ignore[call-arg]
    table.catalog.commit_table(table, (is_unmoved,), (added, main))


def _manifest(table: Table, file: DataFile, snapshot_id: int) -> ManifestFile:
    """Write a manifest of deletes. pyiceberg (0.12) writes ids of columns as long; Iceberg has int, and Spark fails."""
    path = f"{table.location()}/metadata/{uuid.uuid4()}-m0.avro"
    with _DeletesWriter(table.spec(), table.schema(), table.io.new_output(path), snapshot_id, CODEC) as writer:
        entry = ManifestEntry.from_args(
            status=ManifestEntryStatus.ADDED, snapshot_id=snapshot_id, data_file=file
        )  # the sequence numbers are those of the commit
        writer.add_entry(entry)
    manifest = writer.to_manifest_file()
    with table.io.new_input(path).open() as written:
        reader = fastavro.reader(BytesIO(written.read()))
        entries = list(reader)
    header = {name: text for name, text in reader.metadata.items() if not name.startswith("avro.")}
    schema = json.loads(reader.metadata["avro.schema"])
    (ids,) = _fields_of(schema, "equality_ids")
    ids["type"][1]["items"] = "int"
    rewritten = BytesIO()
    fastavro.writer(rewritten, schema, entries, codec=CODEC, metadata=header)
    with table.io.new_output(path).create(overwrite=True) as output:
        output.write(rewritten.getvalue())
    manifest[1] = len(rewritten.getvalue())
    return manifest


def _fields_of(schema: Any, name: str) -> list[dict[str, Any]]:
    """The fields of a name in a schema of Avro, at any depth."""
    if isinstance(schema, list):
        return [field for each in schema for field in _fields_of(each, name)]
    if not isinstance(schema, dict):
        return []
    found = [schema] if schema.get("name") == name else []
    return found + [field for each in schema.values() for field in _fields_of(each, name)]
