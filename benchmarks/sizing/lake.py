"""A lake of one target on S3, as large as a measurement wants it, and the server of S3 that counts its requests."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import boto3
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate, TableUpdate

from benchmarks.cluster.stack import BUCKET, KEY, KEY_ID
from benchmarks.history import END, HOURS_OF_MONTH, LakeWithPast, described, raw_row
from lake_assets.base.hours import hour_key, hour_start
from lake_assets.connections.addresses import LOOPBACK
from lake_assets.connections.catalog import open_catalog
from lake_assets.connections.spark import open_spark
from lake_assets.incremental.engine import iceberg
from lake_assets.incremental.engine.engine import Engine
from lake_assets.membership import PIPELINE

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

    from lake_assets.services.service import Service

RAW, FACT = "raw.signups", "core.signup_fact"
LATE_HOURS = 24
ROWS_OF_COMMIT = 1_000_000
"""How many rows land in one commit, at most."""

REQUEST = re.compile(r'"(GET|PUT|POST|HEAD|DELETE) /(\S*)')
LISTING = re.compile(rf"{BUCKET}/?(\?.*)?")
"""The address of a request that lists the bucket, if it is a `GET`."""
MB = 1e6


@dataclass(frozen=True)
class Store:
    """The server of S3."""

    service: Service

    @property
    def address(self) -> str:
        """Its address."""
        return f"http://{LOOPBACK}:{self.service.port}"

    def requests(self) -> Counter[str]:
        """Return how many requests it has had, by method; `LIST` for those that list a bucket."""
        found: Counter[str] = Counter()
        for method, address in REQUEST.findall(self.service.log.read_text()):
            found["LIST" if method == "GET" and LISTING.fullmatch(address) else method] += 1
        return found

    def megabytes(self) -> float:
        """Return the size of all objects."""
        return float(sum(found.size for found in self.bucket.objects.all()) / MB)

    @property
    def bucket(self) -> Any:
        """The bucket."""
        keys = {"aws_access_key_id": KEY_ID, "aws_secret_access_key": KEY}
        return boto3.resource("s3", endpoint_url=self.address, region_name="us-east-1", **keys).Bucket(BUCKET)


@dataclass
class SizedLake(LakeWithPast):
    """A lake of one target on S3. `hours` is the number of partitions of the target.

    Of the older rows only the newest hours have files, because sessions open no others. The older snapshots of the
    source and of the target are entries of the metadata alone: each has the manifests of the one before it.

    Attributes:
        snapshots: Those of the source and of the target, at least.
    """

    snapshots: int = 1

    def __post_init__(self) -> None:
        """Make the tables, and record that the target is built."""
        self.first = END - self.hours
        target = PIPELINE.target("signup_fact")
        self.pipeline = replace(PIPELINE, raw=PIPELINE.raw[:1], targets=(target,), start=hour_key(self.first))
        self.spark = open_spark(self.home)
        catalog = open_catalog(self.home)
        self.engine = Engine(catalog, self.pipeline, clock=lambda: hour_start(END), spark=lambda: self.spark)
        self.engine.create_tables()
        for name in (RAW, FACT):
            self._append(name)
            self._add_snapshots(iceberg.load(self.engine.catalog, name))
            self._complete(name, END - 1)
        self._commit(target)

    def _append(self, name: str) -> None:
        """Append a file for each hour, a month in one commit."""
        table = iceberg.load(self.engine.catalog, name)
        found = [self._data_file(table, name, hour) for hour in range(self.first, END)]
        with table.transaction() as change:
            for start in range(0, len(found), HOURS_OF_MONTH):
                with change.update_snapshot().fast_append() as append:
                    for file in found[start : start + HOURS_OF_MONTH]:
                        append.append_data_file(file)

    def _data_file(self, table: Table, name: str, hour: int) -> DataFile:
        path = f"{table.location()}/data/past-{hour}.parquet"
        rows = self.past.rows(name, hour)
        size = 2_000
        if hour >= END - LATE_HOURS:
            arrow = pa.Table.from_pylist(rows, schema=schema_to_pyarrow(table.schema(), include_field_ids=True))
            with table.io.new_output(path).create(overwrite=True) as output:
                pq.write_table(arrow, output, compression="zstd")
            size = len(table.io.new_input(path))
        return described(table, path, rows, size, hour)

    def _add_snapshots(self, table: Table) -> None:
        updates: list[TableUpdate] = []
        head = table.current_snapshot()
        assert head is not None
        for number in range(self.snapshots - len(table.snapshots())):
            head = head.model_copy(
                update={
                    "snapshot_id": number + 1,
                    "parent_snapshot_id": head.snapshot_id,
                    "sequence_number": (head.sequence_number or 0) + 1,
                }
            )
            updates.append(AddSnapshotUpdate(snapshot=head))
        main = SetSnapshotRefUpdate.model_validate(
            {"ref-name": "main", "type": "branch", "snapshot-id": head.snapshot_id}
        )
        table.catalog.commit_table(table, (), (*updates, main))

    def land_rows(self, count: int) -> None:
        """Land late rows, spread over the newest hours, at most a million in one commit."""
        table = iceberg.load(self.engine.catalog, RAW)
        landed = hour_start(END) + timedelta(minutes=1)
        first = raw_row("signups", "late-0", "account", landed, landed)
        schema = schema_to_pyarrow(table.schema(), include_field_ids=False)
        for start in range(0, count, ROWS_OF_COMMIT):
            size = min(ROWS_OF_COMMIT, count - start)
            columns: dict[str, Any] = {name: pa.repeat(pa.scalar(value), size) for name, value in first.items()}
            seconds = pc.floor(pc.multiply(pa.array(range(size)), (LATE_HOURS * 3600 - 1) / size))
            later = pc.cast(pc.cast(seconds, pa.int64()), pa.duration("s"))
            columns["event_ts"] = pc.add(pa.scalar(hour_start(END - LATE_HOURS), pa.timestamp("us", "UTC")), later)
            numbers = pc.cast(pa.array(range(start, start + size)), pa.string())
            columns["signup_id"] = pc.binary_join_element_wise("late", numbers, "-")
            columns["account_id"] = pc.binary_join_element_wise("account", numbers, "-")
            table.append(pa.table(columns).select(schema.names).cast(schema))
