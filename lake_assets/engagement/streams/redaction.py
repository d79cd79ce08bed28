"""What an erasure leaves of a person beside the rows: a hash to know them by, and nothing in requests and dead letters.

No id becomes a literal of a statement: Delta's log keeps the conditions of a MERGE.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

import pyarrow as pa

from lake_assets.engagement.erasure.mentions import people, tells
from lake_assets.engagement.erasure.registry import Memory
from lake_assets.engagement.model.checkpoint import Batch
from lake_assets.engagement.model.idempotent import statement
from lake_assets.engagement.model.messages import RECORD, mutation_format, record_format, typed
from lake_assets.engagement.model.tables import DEAD_LETTER, ERASURE, MUTATION_REQUEST
from lake_assets.engagement.streams.retention_limits import Limits

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_LETTER_ID = ("topic", "partition", "offset", "batch_id")
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
class Erasures:
    """The process that remembers who is erased, under all ids. It comes first: from then on the person stays away."""

    limits: Limits
    name: str = "erasure"
    table: str = ERASURE

    def write(self, batch: Batch, done: Mapping[str, int | None], app_id: str) -> None:
        tables, spark = self.limits.messages.tables, self.limits.messages.spark
        erased = self.limits.people(batch)
        if not erased:
            return
        memory = Memory(tables, spark)
        rows = [
            {
                "org_id": person["org_id"],
                "id_hash": memory.hash(person["org_id"], person["who_id"]),
                "person_hash": memory.hash(person["org_id"], person["person"]),
                "key_id": tables.keyed.key_id,
                "erased_until": person["until"],
                "batch_id": batch.batch_id,
            }
            for person in erased
        ]
        found = spark.createDataFrame(pa.Table.from_pylist(rows, schema=_ERASURE))
        tables.append(ERASURE, found, app_id=app_id, batch_id=batch.batch_id)


@dataclass(frozen=True)
class ForgottenRequests:
    """The process that deletes the requests of mutation that name somebody erased and were executed by then, and those
    with a record of somebody who was engaged by then.

    Of one that has put a record of somebody else in place, the id of that engagement stays, or it would come twice.
    """

    limits: Limits
    name: str = "request"
    table: str = MUTATION_REQUEST

    def write(self, batch: Batch, done: Mapping[str, int | None], app_id: str) -> None:
        from pyspark.sql import functions as F

        from lake_assets.connections.row_checkpoint import checkpoint_rows

        if not self.limits.people(batch):
            return
        tables, spark = self.limits.messages.tables, self.limits.messages.spark
        log = tables.read(spark, MUTATION_REQUEST, version=batch.reads[MUTATION_REQUEST])
        carried = typed(log, "insert_record", record_format(tables.lake))
        named = carried.join(F.broadcast(self.limits.erased(batch)), F.col("org_id") == F.col("of_org"))
        told = {who: _by_then(who, at) for who, at in mutation_format(tables.lake).people.items()}
        others = F.col("insert_record").isNotNull() & ~told[f"{RECORD}.who_id"]
        kept = F.when(others, F.to_json(F.struct(f"{RECORD}.engagement_id"))).alias("kept")
        gone = named.where(reduce(or_, told.values()))
        found = checkpoint_rows(gone.select("of_org", F.col("request_id").alias("of_request"), kept).distinct())
        if found.isEmpty():
            return
        same = (F.col("org_id") == F.col("of_org")) & (F.col("request_id") == F.col("of_request"))
        merge = found.mergeInto(tables.identifier(MUTATION_REQUEST), same)
        in_place = (F.col("status") == "applied") & F.col("kept").isNotNull()
        left = {**dict.fromkeys(("old_id", "new_id"), F.lit(None)), "insert_record": F.col("kept")}
        with statement(spark, app_id, batch.batch_id):
            merge.whenMatched(in_place).update(left).whenMatched().delete().merge()


@dataclass(frozen=True)
class RedactedLetters:
    """The process that takes the message from each dead letter that has the id of somebody erased as a word in it.

    What can be read of a message decides its org; one that tells none may be anybody's. Place and reason stay. The
    letters of the batch itself come later, and are written without the message (`redacted`).
    """

    limits: Limits
    name: str = "redaction"
    table: str = DEAD_LETTER

    def write(self, batch: Batch, done: Mapping[str, int | None], app_id: str) -> None:
        from pyspark.sql import functions as F

        from lake_assets.connections.row_checkpoint import checkpoint_rows

        if not self.limits.people(batch):
            return
        tables, spark = self.limits.messages.tables, self.limits.messages.spark
        letters = tables.read(spark, DEAD_LETTER, version=batch.reads[DEAD_LETTER])
        named = letters.where(_tells(self.limits, batch)(F.col("message")))
        found = checkpoint_rows(named.select(F.struct(*_LETTER_ID).alias("letter")).distinct())
        merge = found.mergeInto(tables.identifier(DEAD_LETTER), F.struct(*_LETTER_ID) == F.col("letter"))
        with statement(spark, app_id, batch.batch_id):
            merge.whenMatched().update({"message": F.lit(None)}).merge()


def redacted(letters: DataFrame, batch: Batch, limits: Limits) -> DataFrame:
    """The same dead letters; message is null of those that tell of somebody whom the batch erases."""
    from pyspark.sql import functions as F

    if not limits.people(batch):
        return letters
    return letters.withColumn("message", F.when(~_tells(limits, batch)(F.col("message")), F.col("message")))


def _by_then(who: str, at: str) -> Column:
    """Whether a column names somebody erased, and the time in another one is not after that; false for nobody."""
    from pyspark.sql import functions as F

    return F.coalesce(F.col(at) <= F.try_element_at("erased", F.col(who)), F.lit(False))


def _tells(limits: Limits, batch: Batch) -> Callable[[Column], Column]:
    """Whether a message tells of somebody whom the batch erases; false for none. As the certificate has it."""
    from pyspark.sql import functions as F

    of = people((person["org_id"], person["who_id"]) for person in limits.people(batch))

    def told(message: str | None) -> bool:
        return tells(message, of)

    return F.udf(told, "boolean", useArrow=False)
