"""Rows of a Spark session that are computed once, and kept until they are released."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.connect.plan import CachedRemoteRelation, RemoveRemoteCachedRelation

_kept: WeakKeyDictionary[SparkSession, list[CachedRemoteRelation]] = WeakKeyDictionary()


def checkpoint_rows(rows: DataFrame) -> DataFrame:
    """Compute rows now, and keep them until `release_checkpoints` or the end of the Spark session.

    They are computed now, because jobs that one query starts in parallel would wait for each other to compute them, and
    each of them would occupy a core.

    `persist` is not used: Spark's cache is shared by all sessions of a server, outlives a run that died, and is
    computed again whenever a source table is written to. Once that table's snapshot has expired, the write would fail.
    """
    kept: Any = rows.localCheckpoint()
    relation = getattr(kept, "_plan", None)
    if isinstance(relation, CachedRemoteRelation):
        # By default its finalizer releases it on the server, and waits for the answer. If garbage collection runs in
        # the thread that reads answers, it would wait for ever.
        relation._spark_session = None  # type: ignore[assignment]
        # The client binds them to the process's newest session, although the server keeps them for this one.
        kept = type(kept)(relation, rows.sparkSession)
        _kept.setdefault(rows.sparkSession, []).append(relation)
    checkpointed: DataFrame = kept
    return checkpointed


def release_checkpoints(spark: SparkSession) -> None:
    """Release what `checkpoint_rows` has kept on a session."""
    connected: Any = spark
    for relation in _kept.pop(spark, []):
        client = connected.client
        client.execute_command(RemoveRemoteCachedRelation(relation).command(client))
