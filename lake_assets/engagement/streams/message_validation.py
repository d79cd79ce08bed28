"""The messages of a batch, judged; and the process that sets aside those that are not sound. Of every stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lake_assets.engagement.erasure.registry import Memory
from lake_assets.engagement.model.checkpoint import Batch
from lake_assets.engagement.model.kafka_topic import KafkaTopic
from lake_assets.engagement.model.messages import Format, judged
from lake_assets.engagement.model.tables import DEAD_LETTER, DEAD_LETTER_COLUMNS, ORG, LakeTables

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


@dataclass(frozen=True)
class Messages:
    """The judged messages of a batch. shape: what a sound one is."""

    tables: LakeTables
    spark: SparkSession
    topic: KafkaTopic
    shape: Format
    _kept: list[tuple[Batch, DataFrame]] = field(default_factory=list, init=False, repr=False, compare=False)

    def of(self, batch: Batch) -> DataFrame:
        """As `messages.judged` gives them, with the orgs that were known when the batch began."""
        orgs = self.tables.read(self.spark, ORG, version=batch.reads[ORG])
        return judged(self.topic.read(self.spark, batch.messages), self.shape, orgs)

    def checkpointed(self, batch: Batch) -> DataFrame:
        """The same, read and judged once, and kept until `forget`. Of a sound message the text is null.

        Those that name somebody who was known to be erased when the batch began are not sound, unless they ask for it.
        """
        from pyspark.sql import functions as F

        from lake_assets.connections.row_checkpoint import checkpoint_rows

        for known, found in self._kept:
            if known == batch:
                return found
        text = F.when(F.col("reason").isNotNull(), F.col("message"))
        kept = checkpoint_rows(self.of(batch).withColumn("message", text))
        found = Memory(self.tables, self.spark).drop(kept, self.shape.people, batch, sound=not self.shape.erases)
        self._kept.append((batch, found))
        return found

    def forget(self) -> None:
        """What `checkpointed` has kept is not needed any more."""
        from lake_assets.connections.row_checkpoint import release_checkpoints

        self._kept.clear()
        release_checkpoints(self.spark)


def _as_they_are(letters: DataFrame, batch: Batch) -> DataFrame:
    return letters


@dataclass(frozen=True)
class DeadLetters:
    """The process that sets the other messages aside, each once. redact: what takes away of a batch's letters first."""

    messages: Messages
    redact: Callable[[DataFrame, Batch], DataFrame] = _as_they_are
    name: str = "dead_letter"
    table: str = DEAD_LETTER

    def write(self, batch: Batch, done: Mapping[str, int | None], app_id: str) -> None:
        dead = self.messages.checkpointed(batch).where("reason is not null").withColumn("batch_id", number(batch))
        rows = self.redact(dead.select(*DEAD_LETTER_COLUMNS), batch)
        self.messages.tables.append(DEAD_LETTER, rows, app_id=app_id, batch_id=batch.batch_id)
        self.messages.forget()


def number(batch: Batch) -> Column:
    """The batch's id, a long: of each row that it writes."""
    from pyspark.sql import functions as F

    return F.lit(batch.batch_id).cast("bigint")
