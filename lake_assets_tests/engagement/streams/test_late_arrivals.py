"""Rows that come before the first request is applied: none is late, and mutation needs no feed of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lake_assets.engagement.batch import run_batch
from lake_assets.engagement.maintenance import maintain
from lake_assets.engagement.tables import ENGAGEMENT
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
    assert maintain(mail.tables, mail.spark, Alone(), retain_hours=0).removed[ENGAGEMENT]
    mail.ask("acme", "convert", "lead 0", "contact 0")
    mail.run("mutation")
    assert mail.whose() == mail.truth()
