"""Reading the settled requests of some orgs, and the pending ones that the last batch of mutation left.

The table `settled_request` is partitioned by org. So a batch reads the requests of its own orgs, and nothing of the log
of attempts but what the last batch wrote there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from lake_assets.engagement.model.checkpoint import Batch
from lake_assets.engagement.model.delta_log import is_table
from lake_assets.engagement.model.table_schemas import MUTATION_REQUEST, SETTLED_REQUEST
from lake_assets.engagement.model.tables import IS_APPLIED, LakeTables
from lake_assets.engagement.requests.identity import PERSON

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FIRST_VERSION = 0
"""Version of the table that a batch reads whose intent is older than the table: it was built from the log."""


def scoped(requests: DataFrame) -> DataFrame:
    """Return requests, of any version of their table, with the column that each names, and with their dates."""
    from pyspark.sql import functions as F

    known = requests.columns
    column = F.coalesce("column", F.lit(PERSON)) if "column" in known else F.lit(PERSON)
    dated = "engagement_date" in known
    dates = {} if dated else {"engagement_date": F.lit(None).cast("date")}
    return requests.withColumns({"column": column, **dates})


def settled_requests(
    tables: LakeTables, spark: SparkSession, batch: Batch, orgs: Iterable[str] | None = None
) -> DataFrame:
    """Return settled requests as a batch found them: `SETTLED_REQUEST_COLUMNS`.

    Args:
        orgs: Orgs to read; None for all.
    """
    from pyspark.sql import functions as F

    rows = scoped(tables.read(spark, SETTLED_REQUEST, version=_version_of(batch)))
    return rows if orgs is None else rows.where(F.col("org_id").isin(sorted(orgs)))


def _version_of(batch: Batch) -> int:
    return batch.reads.get(SETTLED_REQUEST, FIRST_VERSION)


def pending_requests(tables: LakeTables, spark: SparkSession, batch: Batch) -> DataFrame | None:
    """Return the pending requests of the log as a batch found it; None if there are none."""
    from pyspark.sql import functions as F

    newest = pending_batch(tables, batch.reads[MUTATION_REQUEST])
    if newest is None:
        return None
    log = scoped(tables.read_for(spark, batch, MUTATION_REQUEST))
    return log.where((F.col("batch_id") == F.lit(newest)) & (F.col("status") == "parked"))


def pending_batch(tables: LakeTables, version: int | None = None) -> int | None:
    """Return the newest batch of the log if it left requests pending. Each batch tries all of them.

    Args:
        version: Version of the log; None for the newest.
    """
    newest = f"SELECT max(batch_id) FROM {MUTATION_REQUEST}"
    pending = f"SELECT batch_id FROM {MUTATION_REQUEST} WHERE status = 'parked' AND batch_id = ({newest}) LIMIT 1"
    rows = tables.query(MUTATION_REQUEST, pending, version)
    return int(rows[0]["batch_id"]) if rows else None


def was_applied(tables: LakeTables, version: int | None = None) -> bool:
    """Return whether a request was ever applied; true for a lake whose settled requests are not built yet.

    Args:
        version: Version of the table of settled requests; None for the newest.
    """
    if not is_table(tables.location(SETTLED_REQUEST)):
        return True
    applied = f"SELECT 1 FROM {SETTLED_REQUEST} WHERE {IS_APPLIED} LIMIT 1"
    return bool(tables.query(SETTLED_REQUEST, applied, version))


def was_applied_before(tables: LakeTables, batch: Batch) -> bool:
    """Return whether a request was applied before a batch."""
    return was_applied(tables, _version_of(batch))


def placed_records(tables: LakeTables, spark: SparkSession, batch: Batch) -> DataFrame | None:
    """Return the applied requests that carry a record, as a batch found them; None if there are none.

    Those that an erasure has redacted count, too.
    """
    placed = "records = 1 AND status = 'applied'"
    first = f"SELECT 1 FROM {SETTLED_REQUEST} WHERE {placed} LIMIT 1"
    if not tables.query(SETTLED_REQUEST, first, _version_of(batch)):
        return None
    return settled_requests(tables, spark, batch).where(placed)


def orgs_of(rows: DataFrame) -> list[str]:
    """Return the orgs of some rows, sorted."""
    found = rows.select("org_id").distinct().orderBy("org_id").collect()
    return [row["org_id"] for row in found]
