"""The retention of a topic is what its feed declares."""

from __future__ import annotations

import pytest

from lake_assets.errors import ConfigurationError
from lake_assets.incremental.declaration import Pipeline, RawTable, Topic
from lake_assets.landing.messages import feeds

COLUMNS = {"order_id": "string", "customer_id": "string", "ordered_at": "timestamptz"}


def test_a_feed_has_the_retention_that_its_table_declares() -> None:
    feed = Topic("customer_id", retention_hours=168)
    raw = RawTable("raw.orders", COLUMNS, time_column="ordered_at", feed=feed)
    (found,) = feeds(Pipeline(raw=(raw,), targets=(), start="2026-01-01-00:00"))
    assert found.retention_hours == 168
    with pytest.raises(ConfigurationError, match="retention_hours of a topic is 0"):
        Topic("customer_id", retention_hours=0)
