"""Creating, loading and checking Iceberg tables through pyiceberg. Metadata only.

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

from lake_assets.base.hours import hour_key, parse_hour
from lake_assets.errors import (
    ColumnMismatch,
    InvalidCompleteThrough,
    InvalidHourKey,
    TableDamaged,
    TableMissing,
    WriteAuditPublishDisabled,
)
from lake_assets.incremental.metadata.damaged_files import DAMAGED_METADATA, damaged_metadata
from lake_assets.incremental.metadata.partitions import TIMEZONE, TRANSFORMS, table_grain

if TYPE_CHECKING:
    from lake_assets.incremental.declaration import RawTable, Target

COMPLETE_THROUGH = "lake.complete-through"
"""Table property: the last hour, inclusive, for which the table has all data that arrive on time. An hour key."""

SESSION = "lake.session"
"""Table property: the session that was published last. A session without rows has no snapshot with its `wap.id`."""

WAP_ENABLED = "write.wap.enabled"

Partitions = Mapping[str, Transform[Any, Any]]
"""Column → the transform that the table is partitioned by."""

RAW_PARTITIONS = ("landing_date", "landing_hour", "batch_id")
"""The columns that a raw table is partitioned by."""

FIRST_PARTITION_FIELD_ID = 1000
"""Iceberg numbers partition fields from 1000 on (Iceberg specification, partition field ids)."""

_COMMON = {
    "format-version": "2",
    "write.parquet.compression-codec": "zstd",
    # Planning reads the untruncated bounds of every column.
    "write.metadata.metrics.default": "full",
    # Spark does this by default. Without it pyiceberg adds a manifest for every append, and planning reads them all.
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}


def retrying(*others: type[Exception], seconds: float = 60) -> Retrying:
    """Return attempts at a commit, repeated while other commits come first.

    Args:
        others: Further exceptions that mean that another commit came first.
        seconds: How long to try.
    """
    return Retrying(
        retry=retry_if_exception_type((CommitFailedException, *others)),
        wait=wait_random_exponential(multiplier=0.05, max=1),
        stop=stop_after_delay(seconds),
        reraise=True,
    )


def create_raw(catalog: Catalog, raw: RawTable) -> bool:
    """Create a raw table if it does not exist. Return whether it was created."""
    identity = IdentityTransform[Any]()
    partitions: Partitions = dict.fromkeys(RAW_PARTITIONS, identity)
    # A writer may stage rows and publish them together with complete-through.
    return create(
        catalog, raw.table, raw.all_columns, partitions, {WAP_ENABLED: "true"}, descriptions=raw.all_descriptions
    )


def create_target(catalog: Catalog, target: Target) -> bool:
    """Create a target's table if it does not exist. Return whether it was created."""
    grain = target.grain
    partitions: Partitions = {target.time_column: TRANSFORMS[table_grain(grain)]}
    properties = {WAP_ENABLED: "true"}
    if grain.is_local:
        properties[TIMEZONE] = grain.timezone
    return create(catalog, target.table, target.columns, partitions, properties, descriptions=target.descriptions)


def create(
    catalog: Catalog,
    name: str,
    columns: Mapping[str, str],
    partitions: Partitions,
    properties: Mapping[str, str],
    *,
    descriptions: Mapping[str, str] | None = None,
) -> bool:
    """Create a table if it does not exist. Return whether it was created.

    All columns are optional: an audit or the quarantine reports a row with a null, and Iceberg does not refuse it.

    Args:
        catalog: The catalog.
        name: The table, `namespace.name`; the namespace is created, too.
        columns: Column → Iceberg type.
        partitions: Column → transform.
        properties: Table properties besides those that every table has.
        descriptions: Column → what is in it; columns may be left out.
    """
    if catalog.table_exists(name):
        return False
    catalog.create_namespace_if_not_exists(name.split(".")[0])
    schema = _schema(columns, descriptions or {})
    try:
        catalog.create_table(
            name,
            schema,
            partition_spec=_partition_spec(schema, partitions),
            properties={**_COMMON, **properties},
        )
    except TableAlreadyExistsError:
        return False
    return True


def _schema(columns: Mapping[str, str], descriptions: Mapping[str, str]) -> Schema:
    fields: list[NestedField] = []
    for field_id, (column, iceberg_type) in enumerate(columns.items(), start=1):
        fields.append(NestedField(field_id, column, iceberg_type, required=False, doc=descriptions.get(column)))
    return Schema(*fields)


def _partition_spec(schema: Schema, partitions: Partitions) -> PartitionSpec:
    fields: list[PartitionField] = []
    for field_id, (column, transform) in enumerate(partitions.items(), start=FIRST_PARTITION_FIELD_ID):
        name = column if isinstance(transform, IdentityTransform) else f"{column}_{transform}"
        fields.append(PartitionField(schema.find_field(column).field_id, field_id, transform, name))
    return PartitionSpec(*fields)


def load(catalog: Catalog, name: str) -> Table:
    """Return the present state of a table.

    Raises:
        TableMissing: The table does not exist.
        TableDamaged: Its metadata file cannot be read.
    """
    found = find(catalog, name)
    if found is None:
        raise TableMissing(name)
    return found


def find(catalog: Catalog, name: str) -> Table | None:
    """Return the present state of a table; None if it does not exist.

    Raises:
        TableDamaged: Its metadata file cannot be read.
    """
    try:
        return catalog.load_table(name)
    except NoSuchTableError:
        return None
    except DAMAGED_METADATA as error:
        found = damaged_metadata(catalog, name, error)
        raise TableDamaged(name, found.path, found.cause) from error


def complete_through(table: Table, name: str) -> int | None:
    """Return a table's complete-through, from the same metadata as its head; None if it was never set.

    Raises:
        InvalidCompleteThrough: The property is no hour key.
    """
    value = table.metadata.properties.get(COMPLETE_THROUGH)
    if value is None:
        return None
    try:
        return parse_hour(value)
    except InvalidHourKey:
        raise InvalidCompleteThrough(name, COMPLETE_THROUGH, value) from None


def complete_through_property(hour: int | None) -> dict[str, str | None]:
    """Return the property that declares a table complete through an hour; it is removed for None."""
    return {COMPLETE_THROUGH: None if hour is None else hour_key(hour)}


def check_columns(table: Table, name: str, declared: Mapping[str, str | None]) -> None:
    """Check that a table has the declared columns; further ones are ignored.

    Args:
        table: The table.
        name: Its name, for messages.
        declared: Column → Iceberg type; None for any type.

    Raises:
        ColumnMismatch: A column is missing or has another type.
    """
    found = {field.name: str(field.field_type) for field in table.schema().fields}
    for column, expected in declared.items():
        actual = found.get(column)
        if actual is None or not _is_type(actual, expected):
            remedy = f"Run `lake migrate {name}` to see how the table becomes as declared, or correct the declaration."
            remedy = remedy if expected else ""
            raise ColumnMismatch(name, column, expected=expected or "any type", found=actual, remedy=remedy)


def check_write_audit_publish(table: Table, name: str) -> None:
    """Check that a table stages commits under a WAP id. Otherwise Iceberg ignores the id and writes to main.

    Raises:
        WriteAuditPublishDisabled: It does not.
    """
    if table.metadata.properties.get(WAP_ENABLED, "").lower() != "true":
        raise WriteAuditPublishDisabled(name)


def _is_type(actual: str, expected: str | None) -> bool:
    """Whether an Iceberg type is the expected one; None is any. Spaces do not count: `decimal(9, 2)`."""
    return expected is None or actual.replace(" ", "") == expected.replace(" ", "")
