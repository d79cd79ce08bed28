"""The simulator's membership to Kafka: the rows of a landing as messages, and the heartbeats that go with them."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from lake_assets.demo.engagement_simulator import send
from lake_assets.demo.membership_simulator import heartbeats, messages
from lake_assets.landing.consume.heartbeats import beat

if TYPE_CHECKING:
    from lake_assets.demo.membership_simulator import Landing
    from lake_assets.settings import Settings


def send_landing(servers: str, landing: Landing, settings: Settings) -> int:
    """Send a landing's rows, and its heartbeats behind them; how many messages, heartbeats aside. `ServiceError`."""
    sent = send(servers, messages(landing, prefix=settings.landing_prefix))
    beat(servers, heartbeats(landing, prefix=settings.landing_prefix))
    return sent.total()


def close_files(servers: str, landing: Landing, settings: Settings) -> None:
    """Send heartbeats so much later than the landing's own that they close the files of those. `ServiceError`."""
    age = timedelta(seconds=settings.landing_age_seconds)
    beat(servers, {topic: at + age for topic, at in heartbeats(landing, prefix=settings.landing_prefix).items()})
