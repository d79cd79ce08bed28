"""What an erasure changes beside the rows: it registers the person's hashes, and redacts requests and dead letters.

No id becomes a literal of a statement, because Delta's log stores the conditions of a MERGE.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from lake_assets.engagement.erasure.mentions import matchers_by_org, mentions
from lake_assets.engagement.erasure.registry import ErasureRegistry
from lake_assets.engagement.model.checkpoint import Batch
from lake_assets.engagement.model.idempotent import batch_statement
from lake_assets.engagement.model.messages import RECORD, mutation_format, record_format
from lake_assets.engagement.model.table_schemas import DEAD_LETTER, ERASURE, MUTATION_REQUEST
from lake_assets.engagement.streams.message_validation import with_typed_record
from lake_assets.engagement.streams.retention_limits import RetentionLimits

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_LETTER_KEY = ("topic", "partition", "offset", "batch_id")
_ERASURE = pa.schema(
    [
        ("org_id", pa.string()),
        ("id_hash", pa.string()),
        ("person_hash", pa.string()),
        ("key_id", pa.string()),
        ("erased_until", pa.timestamp("us", "UTC")),
        ("batch_id", pa.int64()),
    ]
)


@dataclass(frozen=True)
class ErasureCommit:
    """Registers the erased persons under all their ids. It is the first commit: from then on they stay away."""

    limits: RetentionLimits
    name: str = "erasure"
    table: str = ERASURE

    def write(self, batch: Batch, done: Mapping[str, int | None], app_id: str) -> None:
        tables, spark = self.limits.messages.tables, self.limits.messages.spark
        erased = self.limits.erased_people(batch)
        if not erased:
            return
        registry = ErasureRegistry(tables, spark)
        rows = []
        for person in erased:
            row = {
                "org_id": person["org_id"],
                "id_hash": registry.hash(person["org_id"], person["who_id"]),
                "person_hash": registry.hash(person["org_id"], person["person"]),
                "key_id": tables.keyed.key_id,
                "erased_until": person["until"],
                "batch_id": batch.batch_id,
            }
            rows.append(row)
        erasures = spark.createDataFrame(pa.Table.from_pylist(rows, schema=_ERASURE))
        tables.append(ERASURE, erasures, app_id=app_id, batch_id=batch.batch_id)


@dataclass(frozen=True)
class RequestRedaction:
    """Deletes mutation requests that name an erased person, or carry a record of one, up to the time of the erasure.

    If a request put the record of another person in place, the engagement_id of the record stays, without which
    ingestion would bring that engagement again.
    """

    limits: RetentionLimits
    name: str = "request"
    table: str = MUTATION_REQUEST

    def write(self, batch: Batch, done: Mapping[str, int | None], app_id: str) -> None:
        from pyspark.sql import functions as F

        from lake_assets.connections.row_checkpoint import checkpoint_rows

        if not self.limits.erased_people(batch):
            return
        tables = self.limits.messages.tables
        redactions = checkpoint_rows(self._redactions(batch))
        if redactions.isEmpty():
            return
        same_request = F.expr("org_id = of_org AND request_id = of_request")
        is_in_place = F.expr("status = 'applied' AND kept_record IS NOT NULL")
        redacted = {
            "old_id": F.lit(None),
            "new_id": F.lit(None),
            "insert_record": F.col("kept_record"),
        }
        merge = redactions.mergeInto(tables.identifier(MUTATION_REQUEST), same_request)
        merge = merge.whenMatched(is_in_place).update(redacted)
        merge = merge.whenMatched().delete()
        with batch_statement(self.limits.messages.spark, app_id, batch.batch_id):
            merge.merge()

    def _redactions(self, batch: Batch) -> DataFrame:
        """Return the requests to redact.

        Returns:
            of_org string, of_request string, kept_record string: what stays of the record of another person, as JSON;
            null if nothing stays.
        """
        from pyspark.sql import functions as F

        tables, spark = self.limits.messages.tables, self.limits.messages.spark
        log = tables.read_for(spark, batch, MUTATION_REQUEST)
        typed = with_typed_record(log, "insert_record", record_format(tables.lake))
        erased = F.broadcast(self.limits.erased_by_org(batch))
        joined = typed.join(erased, F.expr("org_id = of_org"))
        names_erased = F.lit(False)
        for who_column, time_column in mutation_format(tables.lake).people.items():
            names_erased |= _is_erased(who_column, time_column)
        record_is_erased = _is_erased(f"{RECORD}.who_id", f"{RECORD}.engaged_at")
        has_other_record = F.col("insert_record").isNotNull() & ~record_is_erased
        kept_record = F.when(has_other_record, F.to_json(F.struct(f"{RECORD}.engagement_id")))
        return (
            joined.where(names_erased)
            .select("of_org", F.col("request_id").alias("of_request"), kept_record.alias("kept_record"))
            .distinct()
        )


@dataclass(frozen=True)
class DeadLetterRedaction:
    """Removes the message of each dead letter that contains an erased id as a word; place and reason stay.

    The message decides its org. If it names none, it may be of any org. The batch's own dead letters are written later,
    already redacted (`redact_letters`).
    """

    limits: RetentionLimits
    name: str = "redaction"
    table: str = DEAD_LETTER

    def write(self, batch: Batch, done: Mapping[str, int | None], app_id: str) -> None:
        from pyspark.sql import functions as F

        from lake_assets.connections.row_checkpoint import checkpoint_rows

        if not self.limits.erased_people(batch):
            return
        tables, spark = self.limits.messages.tables, self.limits.messages.spark
        letters = tables.read_for(spark, batch, DEAD_LETTER)
        to_redact = letters.where(_mentions_erased("message", self.limits, batch))
        key = F.struct(*_LETTER_KEY)
        keys = checkpoint_rows(to_redact.select(key.alias("letter")).distinct())
        merge = keys.mergeInto(tables.identifier(DEAD_LETTER), key == F.col("letter"))
        merge = merge.whenMatched().update({"message": F.lit(None)})
        with batch_statement(spark, app_id, batch.batch_id):
            merge.merge()


def redact_letters(letters: DataFrame, batch: Batch, limits: RetentionLimits) -> DataFrame:
    """Return dead letters with a null message where it mentions a person whom the batch erases."""
    from pyspark.sql import functions as F

    if not limits.erased_people(batch):
        return letters
    mentions_erased = _mentions_erased("message", limits, batch)
    return letters.withColumn("message", F.when(~mentions_erased, F.col("message")))


def _is_erased(who_column: str, time_column: str) -> Column:
    """Return whether a column names an erased person, and a time is not after the erasure; false for null."""
    from pyspark.sql import functions as F

    until = F.try_element_at("erased", F.col(who_column))
    return F.coalesce(F.col(time_column) <= until, F.lit(False))


def _mentions_erased(column: str, limits: RetentionLimits, batch: Batch) -> Column:
    """Return whether a message mentions a person whom the batch erases, by the rule of the certificate."""
    from pyspark.sql import functions as F

    people = limits.erased_people(batch)
    wanted = matchers_by_org((person["org_id"], person["who_id"]) for person in people)

    def mentions_erased(message: str | None) -> bool:
        return mentions(message, wanted)

    return F.udf(mentions_erased, "boolean", useArrow=False)(F.col(column))
