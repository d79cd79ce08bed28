"""The memory of erasures: a record of somebody erased that was sent by then, and comes late, makes no row any more.

The table `erasure` has keyed hashes, no ids. Records are recognized in this process: no plan or log of Spark ever holds
the key. Which erasures count is told by the intent of the batch: judged again, a record gets the same verdict.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

import networkx as nx
import pyarrow as pa

from lake_assets.engagement.model.checkpoint import Batch, opened
from lake_assets.engagement.model.tables import DEAD_LETTER, ERASURE, LakeTables

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

ERASED = "erased"
"""The reason of a dead letter whose message is not kept: it would have brought somebody back."""

WHO = "who"
"""What the ids are ids of, to the keyed hash."""

_UNTIL = pa.schema([("org_id", pa.string()), ("who_id", pa.string()), ("until", pa.timestamp("us", "UTC"))])

Hashed = tuple[str, str]
"""(org, hash of an id)"""

Until = Mapping[tuple[str, str], datetime]
"""(org, id or its hash) → until when, inclusive, its records are erased."""


@dataclass(frozen=True)
class Memory:
    """Keeps the batches of a lake free of those who were erased."""

    tables: LakeTables
    spark: SparkSession

    def drop(self, judged: DataFrame, people: Mapping[str, str], batch: Batch, *, sound: bool = True) -> DataFrame:
        """The same messages; of those that name somebody erased, `ERASED` is the reason, and message null.

        judged: as `messages.judged` gives them. people: column that names a person → column of the record's time. One
        without a time of its own may have been sent by then. sound: whether those without a reason are looked at, too.
        As long as nobody was erased, nothing is computed.
        """
        from pyspark.sql import functions as F

        erased = self.erased(batch.reads[ERASURE]) if people else {}
        looked_at = F.lit(True) if sound else F.col("reason").isNotNull()
        found = self._named(judged.where(looked_at), people, erased) if erased else {}
        if not found:
            return judged
        rows = [{"org_id": org, "who_id": who, "until": until} for (org, who), until in found.items()]
        by_org = erased_by_org(self.spark.createDataFrame(pa.Table.from_pylist(rows, schema=_UNTIL)))
        named = reduce(or_, (F.coalesce(_sent_by_then(who, at), F.lit(False)) for who, at in people.items()))
        hit = looked_at & named
        marked = judged.join(F.broadcast(by_org), F.col("org_id") == F.col("of_org"), "left")
        told = {"reason": F.when(hit, ERASED).otherwise(F.col("reason")), "message": F.when(~hit, F.col("message"))}
        return marked.withColumns(told).select(*judged.columns)

    def erased(self, version: int) -> Until:
        """Everybody erased, by hash, at a version of the table. `ConfigurationError` if another key was used."""
        rows = opened(self.tables.location(ERASURE), version).to_pyarrow_table().to_pylist()
        self.tables.keyed.check(self.tables.location(ERASURE), (row["key_id"] for row in rows))
        until: dict[tuple[str, str], datetime] = {}
        for row in sorted(rows, key=lambda row: row["erased_until"]):
            until[row["org_id"], row["id_hash"]] = row["erased_until"]
        return until

    def by_person(self, version: int, ids: Iterable[tuple[str, str]]) -> dict[Hashed, list[str]]:
        """Those of some ids, each with its org, that were erased at a version of the table; by (org, hash of a person).

        In the order given. Ids are one person's if erasures, also one after the other, took them for that.
        """
        rows = opened(self.tables.location(ERASURE), version).to_pyarrow_table().to_pylist()
        same = nx.Graph(((row["org_id"], row["id_hash"]), (row["org_id"], row["person_hash"])) for row in rows)
        whose = {one: min(person) for person in nx.connected_components(same) for one in person}
        found: dict[Hashed, list[str]] = {}
        for org, who in ids:
            if (person := whose.get((org, self.hash(org, who)))) is not None:
                found.setdefault(person, []).append(who)
        return found

    def hash(self, org: str, who: str) -> str:
        """The keyed hash of an id of an org."""
        return self.tables.keyed.of(WHO, org, who)

    def _named(self, judged: DataFrame, people: Iterable[str], erased: Until) -> Until:
        """Those erased whom messages name, by id."""
        from pyspark.sql import functions as F

        orgs = sorted({org for org, _ in erased})
        ids = F.explode(F.array_compact(F.array(*people))).alias("who")
        named = judged.where(F.col("org_id").isin(orgs)).select("org_id", ids).distinct().toArrow().to_pylist()
        hashed = {(row["org_id"], row["who"]): self.hash(row["org_id"], row["who"]) for row in named}
        return {(org, who): erased[org, h] for (org, who), h in sorted(hashed.items()) if (org, h) in erased}


def erased_by_org(people: DataFrame) -> DataFrame:
    """One row for each org: of_org string, and erased, a map of an id to until when, inclusive, it is erased.

    people: org_id string, who_id string, until timestamp.
    """
    from pyspark.sql import functions as F

    erased = F.map_from_entries(F.collect_list(F.struct("who_id", "until"))).alias("erased")
    return people.groupBy(F.col("org_id").alias("of_org")).agg(erased)


def dropped(tables: LakeTables, batch: Batch) -> int:
    """How many messages of a finished batch were dropped: their dead letters tell."""
    of_batch = [("batch_id", "=", batch.batch_id), ("topic", "=", batch.messages.topic), ("reason", "=", ERASED)]
    return int(opened(tables.location(DEAD_LETTER)).to_pyarrow_table(columns=["reason"], filters=of_batch).num_rows)


def _sent_by_then(who: str, at: str) -> Column:
    """Whether a column names somebody erased, and the record's time is not after it; null for nobody."""
    from pyspark.sql import functions as F

    until = F.try_element_at("erased", F.col(who))
    return until.isNotNull() & (F.col(at).isNull() | (F.col(at) <= until))
