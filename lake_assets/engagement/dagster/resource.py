"""The engagement lakes as a resource of steps and sensors: the parameter `lake_assets_engagement`."""

from __future__ import annotations

from typing import Any

import dagster as dg

from lake_assets.connections.addresses import kafka_address, required, zookeeper_address
from lake_assets.engagement.model.lake import EngagementLake
from lake_assets.engagement.model.tables import LakeTables, open_tables
from lake_assets.incremental.dagster.lake_resource import ConfiguredBySettings


class EngagementResource(ConfiguredBySettings, dg.ConfigurableResource[Any]):
    """The tables and services of the engagement lakes, according to the settings of this process."""

    def tables(self, lake: EngagementLake) -> LakeTables:
        """Return the tables of a lake."""
        return open_tables(self.settings(), lake)

    def kafka_servers(self) -> str:
        """Return the address of Kafka.

        Raises:
            ServiceError: No Kafka is named, and none runs for this data directory.
        """
        return required(kafka_address(self.settings()), "Kafka")

    def zookeeper_hosts(self) -> str:
        """Return the address of ZooKeeper.

        Raises:
            ServiceError: No ZooKeeper is named, and none runs for this data directory.
        """
        return required(zookeeper_address(self.settings()), "ZooKeeper")
