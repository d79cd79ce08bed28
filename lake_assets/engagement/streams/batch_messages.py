"""The validated messages of a batch, and the commit that writes the invalid ones as dead letters. For all streams."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lake_assets.engagement.erasure.registry import ErasureRegistry
from lake_assets.engagement.model.checkpoint import DATES_BIND, VALUES_ARE_THE_HOUSES, Batch
from lake_assets.engagement.model.delta_log import open_table
from lake_assets.engagement.model.kafka_topic import KafkaTopic
from lake_assets.engagement.model.messages import COLUMN, Format
from lake_assets.engagement.model.table_schemas import DEAD_LETTER, DEAD_LETTER_COLUMNS, ERASURE, ORG
from lake_assets.engagement.model.tables import LakeTables
from lake_assets.engagement.streams.message_validation import reject_messages, validate_messages

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

FAILED = "failed"
"""Reason, before the name of an error, of a dead letter that made its batch fail."""


@dataclass(frozen=True)
class _Checkpointed:
    """The messages of a batch, which were computed once.

    Attributes:
        messages: As `BatchMessages.accepted` returns them.
        all_valid: Whether it is known that every message is valid.
    """

    batch: Batch
    messages: DataFrame
    all_valid: bool


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
    _checkpointed: list[_Checkpointed] = field(default_factory=list, init=False, repr=False, compare=False)

    def validated(self, batch: Batch) -> DataFrame:
        """Return the messages as `validate_messages` does, with the orgs registered when the batch began.

        The messages of a rejected batch are not parsed. Their text is kept only if nobody was erased before, because it
        may name an erased person.
        """
        from pyspark.sql import functions as F

        orgs = self.spark.createDataFrame(self.tables.rows_for(batch, ORG))
        messages = self.topic.read(self.spark, batch.messages)
        message_format = self.format if batch.rules >= VALUES_ARE_THE_HOUSES else self.format.of_old_batch()
        if batch.rules < DATES_BIND and COLUMN in self.format.fields:
            validated = validate_messages(messages, message_format.without_column(), orgs)
            validated = validated.withColumn(COLUMN, F.lit(None).cast("string"))
        else:
            validated = validate_messages(messages, message_format, orgs)
        if batch.rejected is None:
            return validated
        erasures = open_table(self.tables.location(ERASURE), batch.reads[ERASURE])
        keeps_text = not erasures.file_uris()
        return reject_messages(messages, validated.schema, f"{FAILED}: {batch.rejected}", keeps_text=keeps_text)

    def checkpointed(self, batch: Batch) -> DataFrame:
        """Return the messages of `accepted`, computed once and kept until `release`. The text of valid ones is null."""
        return self._kept(batch).messages

    def all_valid(self, batch: Batch) -> bool:
        """Return whether it is known, without a query, that `checkpointed` has valid messages only."""
        return self._kept(batch).all_valid

    def _kept(self, batch: Batch) -> _Checkpointed:
        from pyspark.sql import functions as F

        from lake_assets.connections.row_checkpoint import checkpoint_and_aggregate

        for kept in self._checkpointed:
            if kept.batch == batch:
                return kept
        text_of_invalid = F.when(F.col("reason").isNotNull(), F.col("message"))
        validated = self.validated(batch).withColumn("message", text_of_invalid)
        messages, counted = checkpoint_and_aggregate(validated, [F.count("reason").alias("invalid")])
        accepted = self.accepted(messages, batch)
        # If the tables of the lake forbid nothing, the messages are returned as they are.
        all_valid = counted["invalid"] == 0 and accepted is messages
        kept = _Checkpointed(batch, accepted, all_valid)
        self._checkpointed.append(kept)
        return kept

    def accepted(self, messages: DataFrame, batch: Batch) -> DataFrame:
        """Return validated messages, of which those that the tables of the lake forbid are invalid, too.

        A message about a person who was erased when the batch began is invalid, unless it asks for the erasure.
        """
        registry = ErasureRegistry(self.tables, self.spark)
        return registry.reject_erased(messages, self.format.people, batch, include_valid=not self.format.erases)

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
        tables = self.messages.tables
        if self.messages.all_valid(batch):
            tables.append_nothing(DEAD_LETTER, app_id=app_id, batch_id=batch.batch_id)
        else:
            tables.append(DEAD_LETTER, self._letters(batch), app_id=app_id, batch_id=batch.batch_id)
        self.messages.release()

    def _letters(self, batch: Batch) -> DataFrame:
        invalid = self.messages.checkpointed(batch).where("reason is not null")
        numbered = invalid.withColumn("batch_id", batch_id_column(batch))
        return self.redact(numbered.select(*DEAD_LETTER_COLUMNS), batch)


def batch_id_column(batch: Batch) -> Column:
    """Return the batch id as a column of type long."""
    from pyspark.sql import functions as F

    return F.lit(batch.batch_id).cast("bigint")
