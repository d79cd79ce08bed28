"""Rows of a Spark session that are computed once, and kept until they are released."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.connect.dataframe import DataFrame as ConnectDataFrame
from pyspark.sql.connect.plan import CachedRemoteRelation, RemoveRemoteCachedRelation

AGGREGATES = "lake_aggregates"
"""Name under which Spark reports the aggregates of rows that it has computed."""

_kept: WeakKeyDictionary[SparkSession, list[CachedRemoteRelation]] = WeakKeyDictionary()


def checkpoint_rows(rows: DataFrame) -> DataFrame:
    """Compute rows now, and keep them until `release_checkpoints` or the end of the Spark session.

    They are computed now, because jobs that one query starts in parallel would wait for each other to compute them, and
    each of them would occupy a core.

    `persist` is not used: Spark's cache is shared by all sessions of a server, outlives a run that died, and is
    computed again whenever a source table is written to. Once that table's snapshot has expired, the write would fail.
    """
    # Of many rows, the garbage collector would follow each one if they were kept as objects, which is the default.
    kept: Any = rows.localCheckpoint(storageLevel=StorageLevel.MEMORY_AND_DISK)
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


def checkpoint_and_aggregate(rows: DataFrame, aggregates: Sequence[Column]) -> tuple[DataFrame, Mapping[str, Any]]:
    """Compute rows now, as `checkpoint_rows` does, and aggregates of them: in the same job if possible.

    Args:
        rows: The rows.
        aggregates: Aggregates without groups, each with an alias.

    Returns:
        The rows that are kept, and alias → value.
    """
    observed: Any = rows
    if isinstance(rows, ConnectDataFrame):
        observed = rows.observe(AGGREGATES, *aggregates)
    kept = checkpoint_rows(observed)
    values = _reported(observed)
    # Spark reports nothing inside this process, and may report too late on a busy machine.
    return kept, values or aggregate(kept, aggregates)


def aggregate(rows: DataFrame, aggregates: Sequence[Column]) -> Mapping[str, Any]:
    """Return alias → value of aggregates without groups."""
    row = rows.agg(*aggregates).first()
    assert row is not None  # an aggregate without groups always has one row
    found: Mapping[str, Any] = row.asDict()
    return found


def _reported(observed: Any) -> Mapping[str, Any] | None:
    info = observed.executionInfo if isinstance(observed, ConnectDataFrame) else None
    if info is None:
        return None
    for name, values in info.flows:
        if name == AGGREGATES and values:
            found: Mapping[str, Any] = values
            return found
    return None


def release_checkpoints(spark: SparkSession) -> None:
    """Release what `checkpoint_rows` has kept on a session."""
    connected: Any = spark
    for relation in _kept.pop(spark, []):
        client = connected.client
        client.execute_command(RemoveRemoteCachedRelation(relation).command(client))
