"""What the requests of a batch of retention remove, worked out once for all processes of the batch."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lake_assets.engagement.erasure.registry import Hashed, Memory, erased_by_org
from lake_assets.engagement.model.checkpoint import Batch, opened
from lake_assets.engagement.model.tables import ENGAGEMENT, ERASURE, MUTATION_REQUEST, applied
from lake_assets.engagement.requests.grouped import limited
from lake_assets.engagement.streams.message_validation import Messages

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_MERGE = pa.schema(
    [
        *((name, pa.string()) for name in ("org_id", "request_id", "op", "old_id", "new_id")),
        ("executed_at", pa.timestamp("us", "UTC")),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
    ]
)
"""Of a request of mutation, what tells whose ids it connects; when it was executed does not matter here."""


@dataclass(frozen=True)
class Limits:
    """The limits of batches. messages: of the retention topic.

    They follow from the messages, from the requests of mutation that were applied when the batch began, and from the
    erasures before: these tell under which ids a person is known.
    """

    messages: Messages
    _made: dict[int, DataFrame] = field(default_factory=dict, repr=False)
    _people: dict[int, list[dict[str, Any]]] = field(default_factory=dict, repr=False)

    def of(self, batch: Batch) -> DataFrame:
        """As `collapsing.limited` gives them: `LIMITED`; worked out at once."""
        from lake_assets.connections.row_checkpoint import checkpoint_rows

        if batch.batch_id not in self._made:
            tables, spark = self.messages.tables, self.messages.spark
            requests = self.messages.checkpointed(batch).where("reason is null")
            links = applied(tables.read(spark, MUTATION_REQUEST, version=batch.reads[MUTATION_REQUEST]))
            found = checkpoint_rows(limited(requests, links))
            again = self._erased_before(batch, found)
            if again and (merges := self._merges(batch, links, again)):
                known = spark.createDataFrame(pa.Table.from_pylist(merges, schema=_MERGE))
                found = checkpoint_rows(limited(requests, links.select(known.columns).unionByName(known)))
            self._made[batch.batch_id] = found
        return self._made[batch.batch_id]

    def _erased_before(self, batch: Batch, found: DataFrame) -> list[str]:
        """The orgs that erase somebody again: the requests that told the other ids were deleted then."""
        if not opened(self.messages.tables.location(ERASURE), batch.reads[ERASURE]).file_uris():
            return []
        named = found.where("who_id is not null").select("org_id", "who_id").distinct()
        return sorted({org for org, _ in self._by_person(batch, named)})

    def _merges(self, batch: Batch, links: DataFrame, orgs: Collection[str]) -> list[dict[str, str]]:
        """The ids of rows, requests and messages of some orgs that were erased as one person's: as merges of them.

        They are known by their hashes alone, so all ids of these orgs are hashed. Empty if nobody has two.
        """
        from pyspark.sql import functions as F

        rows = self.messages.tables.read(self.messages.spark, ENGAGEMENT, version=batch.reads[ENGAGEMENT])
        ids = rows.select("org_id", "who_id").union(self.messages.checkpointed(batch).select("org_id", "who_id"))
        for name in ("old_id", "new_id"):
            ids = ids.union(links.select("org_id", name))
        named = ids.where(F.col("org_id").isin(list(orgs)) & F.col("who_id").isNotNull()).distinct()
        return [
            {"org_id": org, "request_id": "erased", "op": "merge", "old_id": one, "new_id": other}
            for (org, _), same in self._by_person(batch, named).items()
            for one, other in pairwise(same)
        ]

    def _by_person(self, batch: Batch, ids: DataFrame) -> Mapping[Hashed, list[str]]:
        """Those of some ids that were erased before, person by person. ids: org_id string, who_id string, each once."""
        memory = Memory(self.messages.tables, self.messages.spark)
        named = ids.orderBy("org_id", "who_id").toArrow().to_pylist()
        return memory.by_person(batch.reads[ERASURE], ((row["org_id"], row["who_id"]) for row in named))

    def ids(self, batch: Batch) -> DataFrame:
        """Those of `of` that are ids: the people whom the batch erases."""
        return self.of(batch).where("who_id is not null")

    def people(self, batch: Batch) -> list[dict[str, Any]]:
        """The same, in order, in this process."""
        if batch.batch_id not in self._people:
            self._people[batch.batch_id] = self.ids(batch).orderBy("org_id", "who_id").toArrow().to_pylist()
        return self._people[batch.batch_id]

    def erased(self, batch: Batch) -> DataFrame:
        """The same, as `erased_by_org` gives them."""
        return erased_by_org(self.ids(batch))
