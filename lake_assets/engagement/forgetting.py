"""What an erasure leaves of a person beside the rows: a hash to know them by, and nothing in requests and dead letters.

No id becomes a literal of a statement: Delta's log keeps the conditions of a MERGE.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

import pyarrow as pa

from lake_assets.engagement.checkpoint import Batch
from lake_assets.engagement.idempotent import statement
from lake_assets.engagement.limits import Limits
from lake_assets.engagement.memory import Memory
from lake_assets.engagement.messages import mutation_format, record_format, typed
from lake_assets.engagement.tables import DEAD_LETTER, ERASURE, MUTATION_REQUEST

if TYPE_CHECKING:
    from pyspark.sql import Column

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
        people = self.limits.people(batch)
        if not people:
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
            for person in people
        ]
        found = spark.createDataFrame(pa.Table.from_pylist(rows, schema=_ERASURE))
        tables.append(ERASURE, found, app_id=app_id, batch_id=batch.batch_id)


@dataclass(frozen=True)
class ForgottenRequests:
    """The process that deletes the requests of mutation that name somebody erased and were executed by then, and those
    with a record of somebody who was engaged by then.
    """

    limits: Limits
    name: str = "request"
    table: str = MUTATION_REQUEST

    def write(self, batch: Batch, done: Mapping[str, int | None], app_id: str) -> None:
        from pyspark.sql import functions as F

        from lake_assets.incremental.stage import once

        if not self.limits.people(batch):
            return
        tables, spark = self.limits.messages.tables, self.limits.messages.spark
        log = tables.read(spark, MUTATION_REQUEST, version=batch.reads[MUTATION_REQUEST])
        carried = typed(log, "insert_record", record_format(tables.lake))
        named = carried.join(F.broadcast(self.limits.erased(batch)), F.col("org_id") == F.col("of_org"))
        people = mutation_format(tables.lake).people
        gone = named.where(reduce(or_, (_by_then(who, at) for who, at in people.items())))
        found = once(gone.select("of_org", F.col("request_id").alias("of_request")).distinct())
        if found.isEmpty():
            return
        same = (F.col("org_id") == F.col("of_org")) & (F.col("request_id") == F.col("of_request"))
        merge = found.mergeInto(tables.identifier(MUTATION_REQUEST), same)
        with statement(spark, app_id, batch.batch_id):
            merge.whenMatched().delete().merge()


@dataclass(frozen=True)
class RedactedLetters:
    """The process that takes the message from each dead letter that has the id of somebody erased as a word in it.

    What can be read of a message decides its org; one that tells none may be anybody's. Place and reason stay.
    """

    limits: Limits
    name: str = "redaction"
    table: str = DEAD_LETTER

    def write(self, batch: Batch, done: Mapping[str, int | None], app_id: str) -> None:
        from pyspark.sql import functions as F

        if not self.limits.people(batch):
            return
        tables, spark = self.limits.messages.tables, self.limits.messages.spark
        every = self.limits.ids(batch).agg(F.collect_list(F.struct("org_id", "who_id")).alias("people"))
        told = F.exists("people", lambda person: _tells_of(F.col("message"), person))
        merge = every.mergeInto(tables.identifier(DEAD_LETTER), told)
        with statement(spark, app_id, batch.batch_id):
            merge.whenMatched().update({"message": F.lit(None)}).merge()


def _by_then(who: str, at: str) -> Column:
    """Whether a column names somebody erased, and the time in another one is not after that; false for nobody."""
    from pyspark.sql import functions as F

    return F.coalesce(F.col(at) <= F.try_element_at("erased", F.col(who)), F.lit(False))


def _tells_of(message: Column, person: Column) -> Column:
    from pyspark.sql import functions as F

    org = F.try_parse_json(message)
    own = F.coalesce(F.try_variant_get(org, "$.org_id", "string") == person["org_id"], F.lit(True))
    quoted = F.concat(F.lit("(?U)(?<![\\w-])\\Q"), F.replace(person["who_id"], F.lit("\\E"), F.lit("\\E\\\\E\\Q")))
    return own & F.rlike(message, F.concat(quoted, F.lit("\\E(?![\\w-])")))
