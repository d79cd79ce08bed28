"""What the requests of a batch of retention remove, worked out once for all processes of the batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lake_assets.engagement.checkpoint import Batch
from lake_assets.engagement.collapsing import limited
from lake_assets.engagement.judging import Messages
from lake_assets.engagement.memory import erased_by_org
from lake_assets.engagement.tables import MUTATION_REQUEST, applied

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Limits:
    """The limits of batches. messages: of the retention topic.

    They follow from the messages and from the requests of mutation that were applied when the batch began: those tell
    under which ids a person is known.
    """

    messages: Messages
    _made: dict[int, DataFrame] = field(default_factory=dict, repr=False)
    _people: dict[int, list[dict[str, Any]]] = field(default_factory=dict, repr=False)

    def of(self, batch: Batch) -> DataFrame:
        """As `collapsing.limited` gives them: org_id string, who_id string, until timestamp; worked out at once."""
        from lake_assets.incremental.stage import once

        if batch.batch_id not in self._made:
            tables, spark = self.messages.tables, self.messages.spark
            requests = self.messages.once(batch).where("reason is null")
            log = tables.read(spark, MUTATION_REQUEST, version=batch.reads[MUTATION_REQUEST])
            self._made[batch.batch_id] = once(limited(requests, applied(log)))
        return self._made[batch.batch_id]

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
