"""The validated messages of a batch, and the commit that writes the invalid ones as dead letters. For all streams."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lake_assets.engagement.erasure.registry import ErasureRegistry
from lake_assets.engagement.model.checkpoint import Batch
from lake_assets.engagement.model.kafka_topic import KafkaTopic
from lake_assets.engagement.model.messages import Format
from lake_assets.engagement.model.table_schemas import DEAD_LETTER, DEAD_LETTER_COLUMNS, ORG
from lake_assets.engagement.model.tables import LakeTables
from lake_assets.engagement.streams.message_validation import validate_messages

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


@dataclass(frozen=True)
class BatchMessages:
    """Reads and validates the messages of batches.

    Attributes:
        format: Format of the topic's messages.
    """

    tables: LakeTables
    spark: SparkSession
    topic: KafkaTopic
    format: Format
    _checkpointed: list[tuple[Batch, DataFrame]] = field(default_factory=list, init=False, repr=False, compare=False)

    def validated(self, batch: Batch) -> DataFrame:
        """Return the messages as `validate_messages` does, with the orgs registered when the batch began."""
        orgs = self.tables.read_for(self.spark, batch, ORG)
        messages = self.topic.read(self.spark, batch.messages)
        return validate_messages(messages, self.format, orgs)

    def checkpointed(self, batch: Batch) -> DataFrame:
        """Return the validated messages, computed once and kept until `release`. The text of valid ones is null.

        A message about a person who was erased when the batch began is invalid, unless it asks for the erasure.
        """
        from pyspark.sql import functions as F

        from lake_assets.connections.row_checkpoint import checkpoint_rows

        for known, rows in self._checkpointed:
            if known == batch:
                return rows
        text_of_invalid = F.when(F.col("reason").isNotNull(), F.col("message"))
        messages = checkpoint_rows(self.validated(batch).withColumn("message", text_of_invalid))
        registry = ErasureRegistry(self.tables, self.spark)
        found = registry.reject_erased(messages, self.format.people, batch, include_valid=not self.format.erases)
        self._checkpointed.append((batch, found))
        return found

    def valid(self, batch: Batch) -> DataFrame:
        """Return the valid messages of `checkpointed`."""
        return self.checkpointed(batch).where("reason is null")

    def release(self) -> None:
        """Forget the rows that `checkpointed` has kept."""
        from lake_assets.connections.row_checkpoint import release_checkpoints

        self._checkpointed.clear()
        release_checkpoints(self.spark)


def _unchanged(letters: DataFrame, batch: Batch) -> DataFrame:
    return letters


@dataclass(frozen=True)
class DeadLetterCommit:
    """Appends the invalid messages of a batch to the dead-letter table, each once.

    Attributes:
        redact: Function that removes texts from the dead letters of a batch before they are written.
    """

    messages: BatchMessages
    redact: Callable[[DataFrame, Batch], DataFrame] = _unchanged
    name: str = "dead_letter"
    table: str = DEAD_LETTER

    def write(self, batch: Batch, done: Mapping[str, int | None], app_id: str) -> None:
        invalid = self.messages.checkpointed(batch).where("reason is not null")
        numbered = invalid.withColumn("batch_id", batch_id_column(batch))
        letters = numbered.select(*DEAD_LETTER_COLUMNS)
        self.messages.tables.append(DEAD_LETTER, self.redact(letters, batch), app_id=app_id, batch_id=batch.batch_id)
        self.messages.release()


def batch_id_column(batch: Batch) -> Column:
    """Return the batch id as a column of type long."""
    from pyspark.sql import functions as F

    return F.lit(batch.batch_id).cast("bigint")
