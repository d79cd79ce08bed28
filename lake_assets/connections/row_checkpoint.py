"""Rows of a Spark session that are computed once and kept until they are released."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.connect.plan import CachedRemoteRelation, RemoveRemoteCachedRelation

_kept: WeakKeyDictionary[SparkSession, list[CachedRemoteRelation]] = WeakKeyDictionary()


def checkpoint_rows(rows: DataFrame) -> DataFrame:
    """The rows, computed now and kept until `release_checkpoints`, or the end of this Spark session.

    Now, because jobs that a query starts side by side would wait for each other, each with a core, to compute them.

    Not `persist`: Spark's cache is shared by all sessions of a server, outlives a run that died, and is computed again
    whenever somebody writes to a table it was read from; once its snapshot has expired, that write fails.
    """
    kept = rows.localCheckpoint()
    relation = getattr(kept, "_plan", None)
    if isinstance(relation, CachedRemoteRelation):
        # Left to itself it asks the server to forget it when it is collected, and waits for the answer: in the thread
        # that reads answers, if collection falls into that one, and so for ever.
        relation._spark_session = None  # type: ignore[assignment]
        _kept.setdefault(rows.sparkSession, []).append(relation)
    return kept


def release_checkpoints(spark: SparkSession) -> None:
    """Forget what `checkpoint_rows` has kept on a session."""
    connected: Any = spark
    for relation in _kept.pop(spark, []):
        client = connected.client
        client.execute_command(RemoveRemoteCachedRelation(relation).command(client))
