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
from lake_assets.engagement.model.table_schemas import DEAD_LETTER, ERASURE, MUTATION_REQUEST, SETTLED_REQUEST
from lake_assets.engagement.requests.grouped import RECORD_IDS
from lake_assets.engagement.requests.identity import PERSON
from lake_assets.engagement.streams.records import RECORD_TIME, with_record_ids
from lake_assets.engagement.streams.retention_limits import RetentionLimits
from lake_assets.engagement.streams.settled.settled_requests import orgs_of, scoped, settled_requests

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
        redactions = checkpoint_rows(self._redactions(batch))
        if redactions.isEmpty():
            return
        identifier = self.limits.messages.tables.identifier(self.table)
        same_request = F.expr("org_id = of_org AND request_id = of_request")
        of_orgs = F.col("org_id").isin(orgs_of(redactions.select(F.col("of_org").alias("org_id"))))
        is_in_place = F.expr("status = 'applied' AND kept_record IS NOT NULL")
        redacted = dict.fromkeys(("old_id", "new_id"), F.lit(None)) | self.redacted_record()
        merge = redactions.mergeInto(identifier, of_orgs & same_request)
        merge = merge.whenMatched(is_in_place).update(redacted)
        merge = merge.whenMatched().delete()
        with batch_statement(self.limits.messages.spark, app_id, batch.batch_id):
            merge.merge()

    def requests(self, batch: Batch) -> DataFrame:
        """Return the requests as the batch found them, with the ids and the time of their records."""
        tables = self.limits.messages.tables
        log = scoped(tables.read_for(self.limits.messages.spark, batch, MUTATION_REQUEST))
        return with_record_ids(log, tables.lake)

    def redacted_record(self) -> dict[str, Column]:
        """Return what stays of a record that another person has: column → value, given `kept_record`."""
        from pyspark.sql import functions as F

        key = self.limits.messages.tables.lake.message_key("engagement_id")
        return {"insert_record": F.to_json(F.struct(F.col("kept_record").alias(key)))}

    def _redactions(self, batch: Batch) -> DataFrame:
        """Return the requests to redact.

        Returns:
            of_org string, of_request string, kept_record string: the engagement_id of another person's record; null if
            nothing stays.
        """
        from pyspark.sql import functions as F

        erased = F.broadcast(self.limits.erased_by_org(batch))
        joined = self.requests(batch).join(erased, F.expr("org_id = of_org"))
        record_engagement_id, record_who_id = RECORD_IDS
        record_is_erased = _is_erased(record_who_id, RECORD_TIME)
        is_of_person = F.col("column") == PERSON
        ids_are_erased = _is_erased("old_id", "executed_at") | _is_erased("new_id", "executed_at")
        names_erased = (is_of_person & ids_are_erased) | record_is_erased
        kept_record = F.when(~record_is_erased, F.col(record_engagement_id))
        columns = ("of_org", F.col("request_id").alias("of_request"), kept_record.alias("kept_record"))
        return joined.where(names_erased).select(*columns).distinct()


@dataclass(frozen=True)
class SettledRedaction(RequestRedaction):
    """Does the same with settled requests."""

    name: str = "settled"
    table: str = SETTLED_REQUEST

    def requests(self, batch: Batch) -> DataFrame:
        messages = self.limits.messages
        return settled_requests(messages.tables, messages.spark, batch, orgs_of(self.limits.erased_ids(batch)))

    def redacted_record(self) -> dict[str, Column]:
        from pyspark.sql import functions as F

        return dict.fromkeys((RECORD_IDS[1], RECORD_TIME), F.lit(None))


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
