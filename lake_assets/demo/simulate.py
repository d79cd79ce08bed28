"""Send simulated membership to Kafka: the rows of a landing as messages, and the heartbeats that belong to them."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from lake_assets.demo.engagement_simulator import send
from lake_assets.demo.membership_simulator import heartbeats, messages
from lake_assets.landing.kafka import beat

if TYPE_CHECKING:
    from lake_assets.demo.membership_simulator import Landing
    from lake_assets.settings import Settings


def send_landing(servers: str, landing: Landing, settings: Settings) -> int:
    """Send the rows of a landing, then its heartbeats.

    Args:
        servers: Kafka's bootstrap servers: `host:port`, comma-separated.
        landing: The landing.
        settings: The settings with the prefix of the topics.

    Returns:
        The number of messages, without heartbeats.

    Raises:
        ServiceError: Kafka did not accept a message.
    """
    sent = send(servers, messages(landing, prefix=settings.landing_prefix))
    beat(servers, heartbeats(landing, prefix=settings.landing_prefix))
    return sent.total()


def close_files(servers: str, landing: Landing, settings: Settings) -> None:
    """Send later heartbeats, which close the files that hold the landing's own heartbeats.

    Args:
        servers: Kafka's bootstrap servers: `host:port`, comma-separated.
        landing: The landing.
        settings: The settings with the prefix of the topics and the age at which a file is closed.

    Raises:
        ServiceError: Kafka did not accept a heartbeat.
    """
    age = timedelta(seconds=settings.landing_age_seconds)
    own = heartbeats(landing, prefix=settings.landing_prefix)
    beat(servers, {topic: at + age for topic, at in own.items()})
