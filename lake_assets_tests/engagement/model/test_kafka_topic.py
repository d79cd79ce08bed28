"""The retention of a topic is what its feed declares, set once. On a real broker."""

from __future__ import annotations

from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from lake_assets.engagement.model.kafka_topic import KafkaTopic
from lake_assets.errors import ConfigurationError, ServiceError
from lake_assets.incremental.declaration import Pipeline, RawTable, Topic
from lake_assets.landing.consume.messages import feeds

COLUMNS = {"order_id": "string", "customer_id": "string", "ordered_at": "timestamptz"}


def test_retention_is_set_on_new_and_on_existing_topics(kafka: str) -> None:
    topic = KafkaTopic(kafka, f"orders-{uuid4().hex}")
    with pytest.raises(ServiceError, match="has no topic orders-"):
        topic.retain(5)
    topic.create(1)
    assert [topic.retain(hours) for hours in (168, 168, 24)] == [True, False, True]
    resource = ConfigResource(ResourceType.TOPIC, topic.topic)
    admin = AdminClient({"bootstrap.servers": kafka})
    configured = admin.describe_configs([resource])[resource].result(60)
    assert configured["retention.ms"].value == "86400000"


def test_a_feed_has_the_retention_that_its_table_declares() -> None:
    feed = Topic("customer_id", retention_hours=168)
    raw = RawTable("raw.orders", COLUMNS, time_column="ordered_at", feed=feed)
    (found,) = feeds(Pipeline(raw=(raw,), targets=(), start="2026-01-01-00:00"))
    assert found.retention_hours == 168
    with pytest.raises(ConfigurationError, match="retention_hours of a topic is 0"):
        Topic("customer_id", retention_hours=0)
