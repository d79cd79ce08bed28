"""Names, columns, partitions and properties of a lake's Delta tables. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lake_assets.engagement.model.configuration.metric_groups import EMAILS_AND_CALLS, digest, metrics_columns
from lake_assets.engagement.model.lake import EngagementLake
from lake_assets.errors import ConfigurationError

if TYPE_CHECKING:
    from deltalake.schema import Field

ENGAGEMENT = "engagement"
MUTATION_REQUEST = "mutation_request"
SETTLED_REQUEST = "settled_request"
NOTIFICATION = "notification"
DEAD_LETTER = "dead_letter"
ERASURE = "erasure"
ORG = "org"
ENGAGEMENT_METRICS = "engagement_metrics"
CHECKPOINT = "checkpoint"

REPEATED = "repeated"
"""Reason of a dead letter whose engagement is stored already, or comes before in the same batch."""

ERASED = "erased"
"""Reason of a dead letter that would have brought an erased person back. Its message is not kept."""

REPLACED = "replaced"
"""Reason of a dead letter whose engagement a mutation request has already put in place."""

NO_MISTAKES = (REPEATED, ERASED, REPLACED)
"""Reasons of messages that are dead letters because all is well."""

ENGAGEMENT_COLUMNS: Mapping[str, str] = {
    "org_id": "string",
    "engagement_date": "date",
    "engagement_id": "string",
    "who_id": "string",
    "kind": "string",
    "template_id": "string",
    "cadence_id": "string",
    "rep_id": "string",
    "outcome": "string",
    "engaged_at": "timestamp",
}
"""Columns of every lake. The struct `engagement` with the fields of the lake follows them, then further id columns that
the lake declares, and then the ids as they were sent."""

SENT_WHO_ID = "sent_who_id"


def sent(column: str) -> str:
    """Return the column with the id that a row was sent with in an id column, whatever it was moved to; string.

    Null if requests act on the row by its present id: in rows of lakes of earlier versions, in those from before the
    column was declared as one of ids, and in records that requests have put in place.
    """
    return f"sent_{column}"


def row_columns(lake: EngagementLake) -> dict[str, str]:
    """Return column → type of what a message says about a row of `engagement`, without the ids as they were sent."""
    struct = ", ".join(f"{name}: {kind}" for name, kind in lake.fields.items())
    return {**ENGAGEMENT_COLUMNS, ENGAGEMENT: f"struct<{struct}>", **dict.fromkeys(lake.further_ids, "string")}


def engagement_columns(lake: EngagementLake) -> dict[str, str]:
    """Return column → type of the table `engagement`."""
    return {**row_columns(lake), **{sent(column): "string" for column in lake.ids}}


NOTIFICATION_COLUMNS: Mapping[str, str] = {
    "org_id": "string",
    "ingestion_hour": "timestamp",
    "table_name": "string",
    "last_modified": "timestamp",
    "inserted": "bigint",
    "updated": "bigint",
    "deleted": "bigint",
    "app_name": "string",
    "version": "bigint",
}
DEAD_LETTER_COLUMNS: Mapping[str, str] = {
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "reason": "string",
    "message": "string",
    "batch_id": "bigint",
}
MUTATION_REQUEST_COLUMNS: Mapping[str, str] = {
    "org_id": "string",
    "request_id": "string",
    "op": "string",
    "old_id": "string",
    "new_id": "string",
    "engagement_date": "date",
    "insert_record": "string",
    "executed_at": "timestamp",
    "partition": "int",
    "offset": "bigint",
    "attempts": "int",
    "status": "string",
    "first_date": "date",
    "last_date": "date",
    "batch_id": "bigint",
    "column": "string",
}
"""A log: each batch appends a row for each request that it tries. The row with the greatest batch_id is current.

- engagement_date: The request acts on rows of this day alone; null: on all.
- insert_record: The JSON object as the message had it.
- column: The id column that the request names; null in rows of earlier versions: `who_id`.
- first_date, last_date: Dates of the org's rows that requests of the batch may act on, both inclusive; null if there
  were none.

If a request names an erased person but put the record of another person in place, the row stays with null in old_id
and new_id, and with only the engagement_id of the record.
"""

SETTLED_REQUEST_COLUMNS: Mapping[str, str] = {
    "org_id": "string",
    "request_id": "string",
    "op": "string",
    "old_id": "string",
    "new_id": "string",
    "executed_at": "timestamp",
    "partition": "int",
    "offset": "bigint",
    "status": "string",
    "record_engagement_id": "string",
    "record_who_id": "string",
    "record_engaged_at": "timestamp",
    "records": "int",
    "batch_id": "bigint",
    "engagement_date": "date",
    "column": "string",
}
"""One row for each request that is applied or dead.

- engagement_date, column: As in the log of requests; rows of earlier versions have null, and act on all rows.
- record_*: Of the record that the request carries; null if it carries none.
- records: 1 if it carries a record, else 0. The log has its maximum for each file, so readers of records skip others.

If a request names an erased person but put the record of another person in place, the row stays with
record_engagement_id, and with null in the other columns of ids.
"""

ERASURE_COLUMNS: Mapping[str, str] = {
    "org_id": "string",
    "id_hash": "string",
    "person_hash": "string",
    "key_id": "string",
    "erased_until": "timestamp",
    "batch_id": "bigint",
}
"""Erased ids as keyed hashes, the time until which they are erased (inclusive), and the batch. No id is stored.

- person_hash: Hash of the least id of the person. Ids that were erased as one person's share it.
"""

_DELTA_NAMES = {"int": "integer", "bigint": "long"}
"""Types of fields that Delta calls otherwise than Spark's SQL."""

ORG_COLUMNS: Mapping[str, str] = {"org_id": "string", "ttl_days": "int"}
METRICS_DIGEST = "lake.metrics"
"""Property of the table of metrics: the digest of the metrics that it shows. Without it they are `EMAILS_AND_CALLS`."""

_ENGAGEMENT_PROPERTIES = {
    "delta.enableChangeDataFeed": "true",
    "delta.enableDeletionVectors": "true",
    # The log stores minimum and maximum values of these columns, so none of them may identify a person.
    "delta.dataSkippingStatsColumns": "engagement_date",
}
_MUTATION_REQUEST_PROPERTIES = {"delta.dataSkippingStatsColumns": "batch_id"}
SETTLED_REQUEST_PROPERTIES = {"delta.dataSkippingStatsColumns": "records"}
_NO_STATISTICS = {"delta.dataSkippingNumIndexedCols": "0"}


@dataclass(frozen=True)
class TableSchema:
    """The declaration of a Delta table.

    Attributes:
        columns: Column → Spark SQL type, in order.
        partitions: Columns that the table is partitioned by.
        properties: Delta table properties.
    """

    name: str
    columns: Mapping[str, str]
    partitions: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)


def spark_tables(lake: EngagementLake) -> tuple[TableSchema, ...]:
    """Return the tables of a lake that Spark creates: all but the checkpoint table."""
    return (
        TableSchema(ENGAGEMENT, engagement_columns(lake), ("org_id",), _ENGAGEMENT_PROPERTIES),
        TableSchema(MUTATION_REQUEST, MUTATION_REQUEST_COLUMNS, properties=_MUTATION_REQUEST_PROPERTIES),
        TableSchema(SETTLED_REQUEST, SETTLED_REQUEST_COLUMNS, ("org_id",), SETTLED_REQUEST_PROPERTIES),
        TableSchema(NOTIFICATION, NOTIFICATION_COLUMNS, ("org_id", "ingestion_hour")),
        TableSchema(DEAD_LETTER, DEAD_LETTER_COLUMNS, properties=_NO_STATISTICS),
        TableSchema(ERASURE, ERASURE_COLUMNS, properties=_NO_STATISTICS),
        TableSchema(ORG, ORG_COLUMNS),
        _metrics_table(lake),
    )


def check_fields(lake: EngagementLake, columns: Iterable[Field]) -> None:
    """Check that a table has the fields of a lake, which do not change once it has tables.

    Args:
        lake: The lake, as its file declares it.
        columns: The columns of its table `engagement`.

    Raises:
        ConfigurationError: A field is missing, or has another type.
    """
    from deltalake.schema import StructType

    (struct,) = (column.type for column in columns if column.name == ENGAGEMENT)
    assert isinstance(struct, StructType)
    found = {each.name: str(getattr(each.type, "type", each.type)) for each in struct.fields}
    for name, kind in lake.fields.items():
        if found.get(name) != _DELTA_NAMES.get(kind, kind):
            state = f"has it as {found[name]}" if name in found else "has no such field"
            raise ConfigurationError(
                f"The lake {lake.name} declares the field {name} ({kind}), but its table {state}.",
                remedy="Restore the fields in the file of the lake, or give it a new name: a lake that has tables keeps"
                f" its fields. They are: {', '.join(found)}.",
            )


def _metrics_table(lake: EngagementLake) -> TableSchema:
    properties = {} if lake.metrics == EMAILS_AND_CALLS else {METRICS_DIGEST: digest(lake.metrics)}
    return TableSchema(ENGAGEMENT_METRICS, metrics_columns(lake.metrics), ("org_id",), properties)


def create_statement(schema: TableSchema, identifier: str) -> str:
    """Return the SQL that creates a table unless it exists.

    Args:
        identifier: Name of the table in SQL.
    """
    columns = ", ".join(f"`{name}` {kind}" for name, kind in schema.columns.items())
    statement = f"CREATE TABLE IF NOT EXISTS {identifier} ({columns}) USING delta"
    if schema.partitions:
        statement += f" PARTITIONED BY ({', '.join(schema.partitions)})"
    if schema.properties:
        properties = ", ".join(f"'{name}' = '{value}'" for name, value in schema.properties.items())
        statement += f" TBLPROPERTIES ({properties})"
    return statement
