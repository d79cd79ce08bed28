"""The Iceberg tables of this platform: how they are created, opened and checked. Metadata only, through pyiceberg.

Raw tables are partitioned by landing_date, landing_hour and batch_id; targets by the hour or day of their time column.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform, Transform
from pyiceberg.types import NestedField
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_random_exponential

from lake_assets.base.hours import parse_hour
from lake_assets.errors import ColumnMismatch, TableMissing, WriteAuditPublishDisabled
from lake_assets.incremental.metadata.partitions import TRANSFORMS

if TYPE_CHECKING:
    from lake_assets.incremental.declaration import RawTable, Target

COMPLETE_THROUGH = "lake.complete-through"
"""Table property: the last hour, inclusive, for which a table has all data it will get on time. An hour key."""

SESSION = "lake.session"
"""Table property: the session that was published last; with the snapshots' `wap.id` it tells what is published."""

WAP_ENABLED = "write.wap.enabled"

Partitions = Mapping[str, Transform[Any, Any]]
"""Column → how it is partitioned by."""

_COMMON = {
    "format-version": "2",
    "write.parquet.compression-codec": "zstd",
    # Bounds of every column, untruncated: planning reads them.
    "write.metadata.metrics.default": "full",
    # As Spark does by itself: planning reads the list of manifests, which else has one for every append of pyiceberg.
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}


def retrying(*others: type[Exception], seconds: float = 60) -> Retrying:
    """Attempts at a commit while somebody else's comes first. others: exceptions that tell so, too."""
    return Retrying(
        retry=retry_if_exception_type((CommitFailedException, *others)),
        wait=wait_random_exponential(multiplier=0.05, max=1),
        stop=stop_after_delay(seconds),
        reraise=True,
    )


def create_raw(catalog: Catalog, raw: RawTable) -> bool:
    """Create a raw table unless it is there; whether it was created."""
    partitions: Partitions = {c: IdentityTransform() for c in ("landing_date", "landing_hour", "batch_id")}
    # Who lands rows may stage them, and publish them together with complete-through.
    return create(catalog, raw.table, raw.all_columns, partitions, {WAP_ENABLED: "true"})


def create_target(catalog: Catalog, target: Target) -> bool:
    """Create a target unless it is there; whether it was created."""
    partitions: Partitions = {target.time_column: TRANSFORMS[target.grain]}
    return create(catalog, target.table, target.columns, partitions, {WAP_ENABLED: "true"})


def create(
    catalog: Catalog,
    name: str,
    columns: Mapping[str, str],
    partitions: Partitions,
    properties: Mapping[str, str],
) -> bool:
    """Create a table unless it is there. All columns are optional, so that a bad row is told rather than refused."""
    catalog.create_namespace_if_not_exists(name.split(".")[0])
    if catalog.table_exists(name):
        return False
    schema = Schema(*[NestedField(i, c, t, required=False) for i, (c, t) in enumerate(columns.items(), 1)])
    fields = [
        PartitionField(
            schema.find_field(column).field_id,
            1000 + i,
            transform,
            column if isinstance(transform, IdentityTransform) else f"{column}_{transform}",
        )
        for i, (column, transform) in enumerate(partitions.items())
    ]
    try:
        catalog.create_table(name, schema, partition_spec=PartitionSpec(*fields), properties={**_COMMON, **properties})
    except TableAlreadyExistsError:
        return False
    return True


def load(catalog: Catalog, name: str) -> Table:
    """The table as it stands now; `TableMissing` if it is not there."""
    if (found := find(catalog, name)) is None:
        raise TableMissing(name)
    return found


def find(catalog: Catalog, name: str) -> Table | None:
    """The table as it stands now; None if it is not there."""
    try:
        return catalog.load_table(name)
    except NoSuchTableError:
        return None


def complete_through(table: Table, name: str) -> int | None:
    """The table's complete-through, from the same metadata as its head; None while nobody set it."""
    value = table.metadata.properties.get(COMPLETE_THROUGH)
    return None if value is None else parse_hour(value, where=f"Property {COMPLETE_THROUGH} of {name}")


def check_columns(table: Table, name: str, declared: Mapping[str, str | None]) -> None:
    """Each declared column is there with its type (None: any); others do not matter. Raises `ColumnMismatch`."""
    found = {f.name: str(f.field_type) for f in table.schema().fields}
    for column, expected in declared.items():
        if column not in found or (expected is not None and _plain(found[column]) != _plain(expected)):
            raise ColumnMismatch(name, column, expected=expected or "any type", found=found.get(column))


def check_write_audit_publish(table: Table, name: str) -> None:
    """Without this property Iceberg ignores the WAP id and writes to main. Raises `WriteAuditPublishDisabled`."""
    if table.metadata.properties.get(WAP_ENABLED, "").lower() != "true":
        raise WriteAuditPublishDisabled(name)


def _plain(iceberg_type: str) -> str:
    return iceberg_type.replace(" ", "")
