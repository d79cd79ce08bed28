"""The outcome of a batch of mutation: what its first commit has decided and found, for the commits that follow from it.

The outcome is durable in the log of requests. A commit that is made in the same process as the one before it takes the
rows that this one has kept. Any other reads them again: they follow from the intent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lake_assets.engagement.model.checkpoint import DATES_BIND, Batch
from lake_assets.engagement.model.table_schemas import MUTATION_REQUEST
from lake_assets.engagement.model.tables import LakeTables
from lake_assets.engagement.streams.late_arrivals import Former
from lake_assets.engagement.streams.pruning import MergeScope
from lake_assets.engagement.streams.settled.settled_requests import scoped

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class Outcome:
    """The outcome of a batch of mutation.

    Attributes:
        tried: The rows that the batch has appended to `mutation_request`.
        found: What the batch found that concerns them, and perhaps what concerns only those of them that are not
            applied, where the applied ones change nothing; None if it was not kept.
        scope: The rows that its requests may act on; None if it was not kept.
    """

    tried: DataFrame
    found: Former | None = None
    scope: MergeScope | None = None


@dataclass(frozen=True)
class Outcomes:
    """Hands the outcome of a batch from one commit to the next."""

    tables: LakeTables
    spark: SparkSession
    _kept: list[tuple[Batch, Outcome]] = field(default_factory=list, init=False, repr=False, compare=False)

    def keep(self, batch: Batch, outcome: Outcome) -> None:
        """Keep the outcome for the next commit of the batch."""
        self._kept[:] = [(batch, outcome)]

    def take(self, batch: Batch, done: Mapping[str, int | None]) -> Outcome:
        """Return the outcome that the commit before has kept, once: a commit that is repeated reads it from the log.

        Args:
            done: As for `BatchCommit.write`.
        """
        from pyspark.sql import functions as F

        kept = [outcome for known, outcome in self._kept if known == batch]
        self._kept.clear()
        if kept:
            return kept[0]
        log = scoped(self.tables.read(self.spark, MUTATION_REQUEST, version=done["request"]))
        if batch.rules < DATES_BIND:
            log = log.withColumn("engagement_date", F.lit(None).cast("date"))
        return Outcome(log.where(F.col("batch_id") == batch.batch_id))
