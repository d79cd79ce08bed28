"""A lake with topics of its own on the shared broker."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

import pytest

from lake_assets.engagement.lake import STREAMS, EngagementLake
from lake_assets.engagement.lakes import VOICE_INSIGHT
from lake_assets.engagement.topics import KafkaTopic


@pytest.fixture
def lake(kafka: str) -> EngagementLake:
    """The topics are there, and empty. A request that meets no row is not tried again."""
    topics = {stream: f"{stream}-{uuid4().hex}" for stream in STREAMS}
    for topic in topics.values():
        KafkaTopic(kafka, topic).create(3)
    return replace(VOICE_INSIGHT, topics=topics)
