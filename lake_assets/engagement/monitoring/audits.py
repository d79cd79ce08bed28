"""What must hold of a lake after each turn, counted anew: from the tables and their logs. Changes nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lake_assets.engagement.model import idempotent
from lake_assets.engagement.model.checkpoint import Batch
from lake_assets.engagement.model.lake import STREAMS, StreamName
from lake_assets.engagement.model.tables import ENGAGEMENT, MUTATION_REQUEST, NOTIFICATION, Commit, LakeTables
from lake_assets.engagement.notifications.notify import Notification

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SAMPLE = 10
"""So many ids are named of those that are wrong."""

RECENT = 1_000
"""So many of a table's newest commits are looked at: each is a file of its log."""


@dataclass(frozen=True)
class Sample:
    """So many that are wrong, and some of them, sorted."""

    count: int
    ids: tuple[str, ...]


def commit_of(tables: LakeTables, stream: StreamName, table: str, process: str, batch: Batch) -> Commit | None:
    """What a process of a batch committed, now or in an earlier turn; None if it committed nothing."""
    app_id = tables.lake.app_id(stream, process)
    return tables.commit_of(table, app_id=app_id, batch_id=batch.batch_id, since=batch.reads[table])


def repeated_ids(spark: SparkSession, tables: LakeTables, version: int) -> Sample:
    """Engagements that a commit inserted and that are there more than once, by org and id."""
    from pyspark.sql import functions as F

    key = ["org_id", "engagement_id"]
    inserted = tables.changes(spark, ENGAGEMENT, version).where("_change_type = 'insert'").select(key).distinct()
    there = tables.read(spark, ENGAGEMENT, version).join(inserted, key, "left_semi").groupBy(key).count()
    return _sample(there.where("count > 1").select(F.concat_ws("/", *key)))


def dead_requests(spark: SparkSession, tables: LakeTables) -> Sample:
    """Requests of mutation that met no row, however often they were tried, by org and id."""
    from pyspark.sql import functions as F

    dead = tables.read(spark, MUTATION_REQUEST).where("status = 'dead'")
    return _sample(dead.select(F.concat_ws("/", "org_id", "request_id")).distinct())


def untold_batches(tables: LakeTables) -> list[str]:
    """The batches that changed rows and were not told of just once, as `mark` names them; of the `RECENT` ones."""
    written, told = _batches(tables, ENGAGEMENT), _batches(tables, NOTIFICATION)
    found = []
    for stream in STREAMS:
        writer, teller = (tables.lake.app_id(stream, name) for name in (Notification.of, Notification.name))
        last = tables.last_batch(NOTIFICATION, teller)
        found += [idempotent.mark(writer, b) for b in untold(written.get(writer, []), told.get(teller, []), last)]
    return found


def untold(written: Collection[int], told: Sequence[int], last: int) -> list[int]:
    """The batches written that were not told of just once, sorted. Pure.

    told: as far back as a log reaches; what is older is taken to be well. last: the newest that was ever told of.
    """
    first = min(told, default=last + 1)
    return sorted(b for b in set(written) if b > last or (b >= first and told.count(b) != 1))


def _batches(tables: LakeTables, table: str) -> Mapping[str, list[int]]:
    """Transaction id → the ids of its recent batches, as the log of a table tells of them."""
    found: dict[str, list[int]] = {}
    for commit in tables.history(table, since=max(0, tables.version(table) - RECENT)):
        app_id, batch_id = idempotent.marked(commit.mark)
        found.setdefault(app_id, []).append(batch_id)
    return found


def _sample(ids: DataFrame) -> Sample:
    """ids: one column string."""
    named = [row[0] for row in ids.orderBy(ids.columns[0]).limit(SAMPLE).collect()]
    return Sample(ids.count() if len(named) == SAMPLE else len(named), tuple(named))
