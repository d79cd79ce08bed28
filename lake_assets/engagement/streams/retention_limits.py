"""What the requests of a retention batch remove, computed once for all commits of the batch."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lake_assets.engagement.erasure.registry import ErasureRegistry, HashedId, erased_by_org
from lake_assets.engagement.model.checkpoint import Batch
from lake_assets.engagement.model.delta_log import open_table
from lake_assets.engagement.model.table_schemas import ENGAGEMENT, ERASURE, MUTATION_REQUEST
from lake_assets.engagement.model.tables import linking_requests
from lake_assets.engagement.requests.grouped import limits_by_org
from lake_assets.engagement.requests.identity import PERSON
from lake_assets.engagement.streams.batch_messages import BatchMessages
from lake_assets.engagement.streams.settled.settled_requests import orgs_of, scoped, settled_requests

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_LINKS = pa.schema(
    [
        ("org_id", pa.string()),
        ("request_id", pa.string()),
        ("op", pa.string()),
        ("old_id", pa.string()),
        ("new_id", pa.string()),
        ("executed_at", pa.timestamp("us", "UTC")),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("engagement_date", pa.date32()),
        ("column", pa.string()),
    ]
)
"""Columns of a mutation request that connect the ids of a person. The time of execution does not matter here."""


@dataclass(frozen=True)
class RetentionLimits:
    """The retention limits of batches.

    They follow from the messages, and from what connects the ids of a person: the mutation requests that the lake held
    when the batch began, whether they were applied or not, and earlier erasures.

    Attributes:
        messages: Messages of the retention topic.
    """

    messages: BatchMessages
    _limits: dict[int, DataFrame] = field(default_factory=dict, repr=False)
    _people: dict[int, list[dict[str, Any]]] = field(default_factory=dict, repr=False)

    def of(self, batch: Batch) -> DataFrame:
        """Return the limits of a batch, computed at once: `RETENTION_LIMITS`."""
        if batch.batch_id not in self._limits:
            self._limits[batch.batch_id] = self._compute(batch)
        return self._limits[batch.batch_id]

    def erased_ids(self, batch: Batch) -> DataFrame:
        """Return the limits that erase an id."""
        return self.of(batch).where("who_id is not null")

    def erased_people(self, batch: Batch) -> list[dict[str, Any]]:
        """Return the rows of `erased_ids` in this process, sorted by org and id."""
        if batch.batch_id not in self._people:
            rows = self.erased_ids(batch).orderBy("org_id", "who_id")
            self._people[batch.batch_id] = rows.toArrow().to_pylist()
        return self._people[batch.batch_id]

    def erased_by_org(self, batch: Batch) -> DataFrame:
        """Return the rows of `erased_ids` as `registry.erased_by_org` groups them."""
        return erased_by_org(self.erased_ids(batch))

    def _compute(self, batch: Batch) -> DataFrame:
        from lake_assets.connections.row_checkpoint import checkpoint_rows

        spark = self.messages.spark
        requests = self.messages.valid(batch)
        log = scoped(self.messages.tables.read_for(spark, batch, MUTATION_REQUEST))
        settled = settled_requests(self.messages.tables, spark, batch, orgs_of(requests))
        links = linking_requests(log).select(_LINKS.names).unionByName(linking_requests(settled).select(_LINKS.names))
        limits = checkpoint_rows(limits_by_org(requests, links))
        orgs = self._orgs_that_erase_again(batch, limits)
        earlier_links = self._links_of_earlier_erasures(batch, links, orgs) if orgs else []
        if not earlier_links:
            return limits
        known = spark.createDataFrame(pa.Table.from_pylist(earlier_links, schema=_LINKS))
        all_links = links.select(known.columns).unionByName(known)
        return checkpoint_rows(limits_by_org(requests, all_links))

    def _orgs_that_erase_again(self, batch: Batch, limits: DataFrame) -> list[str]:
        """Return the orgs that erase a person again. The requests that linked the person's ids were deleted before."""
        registry_table = open_table(self.messages.tables.location(ERASURE), batch.reads[ERASURE])
        if not registry_table.file_uris():
            return []
        named = limits.where("who_id is not null").select("org_id", "who_id").distinct()
        return sorted({org for org, _ in self._by_person(batch, named)})

    def _links_of_earlier_erasures(self, batch: Batch, links: DataFrame, orgs: Collection[str]) -> list[dict[str, str]]:
        """Return merges of the ids that were erased as one person's; empty if nobody has two ids.

        The registry knows hashes only. So all ids in rows, requests and messages of these orgs are hashed.
        """
        from pyspark.sql import functions as F

        rows = self.messages.tables.read_for(self.messages.spark, batch, ENGAGEMENT)
        ids = rows.select("org_id", "who_id")
        ids = ids.union(self.messages.checkpointed(batch).select("org_id", "who_id"))
        ids = ids.union(links.select("org_id", "old_id"))
        ids = ids.union(links.select("org_id", "new_id"))
        named = ids.where("who_id is not null").where(F.col("org_id").isin(list(orgs))).distinct()
        merges = []
        for (org, _), same_person in self._by_person(batch, named).items():
            for old_id, new_id in pairwise(same_person):
                merges.append(_merge_request(org, old_id, new_id))
        return merges

    def _by_person(self, batch: Batch, ids: DataFrame) -> Mapping[HashedId, list[str]]:
        """Group those of some ids that were erased before by person.

        Args:
            ids: org_id string, who_id string, each once.
        """
        registry = ErasureRegistry(self.messages.tables, self.messages.spark)
        rows = ids.orderBy("org_id", "who_id").toArrow().to_pylist()
        pairs = [(row["org_id"], row["who_id"]) for row in rows]
        return registry.by_person(batch.reads[ERASURE], pairs)


def _merge_request(org: str, old_id: str, new_id: str) -> dict[str, str]:
    return {
        "org_id": org,
        "request_id": "erased",
        "op": "merge",
        "old_id": old_id,
        "new_id": new_id,
        "column": PERSON,
    }
