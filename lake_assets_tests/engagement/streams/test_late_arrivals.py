"""What maintenance may take away: the feed of rows that no request precedes, and what was removed 30 days ago."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from lake_assets.engagement.batch import run_batch
from lake_assets.engagement.maintenance import maintain
from lake_assets.engagement.tables import ENGAGEMENT, REMOVED
from lake_assets_tests.engagement.scenario import Alone, Traffic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake_assets.settings import Settings


@pytest.mark.journey
def test_d3_the_first_request_is_applied_though_maintenance_has_removed_the_feed_since_the_last_batch(
    home: Settings, spark: SparkSession, kafka: str
) -> None:
    mail = Traffic(home, spark, kafka)
    mail.spoil("mutation", [b"{"])
    mail.run("mutation")
    mail.send(range(6))
    mail.run()
    assert run_batch(mail.stream("mutation"), Alone()) is None
    remember(mail, 29, 31)
    assert maintain(mail.tables, mail.spark, Alone(), retain_hours=0).removed[ENGAGEMENT]
    assert [row["engagement_id"] for row in mail.rows(REMOVED)] == ["29 days"]
    mail.ask("acme", "convert", "lead 0", "contact 0")
    mail.run("mutation")
    assert mail.whose() == mail.truth()


def remember(mail: Traffic, *days: int) -> None:
    """As if engagements of acme had been removed so many days ago."""
    at = pa.array([datetime.now(UTC) - timedelta(days=each) for each in days], pa.timestamp("us", "UTC"))
    columns = {"org_id": ["acme"] * len(days), "engagement_id": [f"{each} days" for each in days], "removed_at": at}
    write_deltalake(mail.tables.location(REMOVED), pa.table(columns), mode="append", schema_mode="merge")
