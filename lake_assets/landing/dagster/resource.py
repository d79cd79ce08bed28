"""Landing as a resource of steps, checks and sensors: the parameter `lake_assets_landing`."""

from __future__ import annotations

from typing import Any

import dagster as dg

from lake_assets.connections.addresses import kafka_address, required
from lake_assets.incremental.dagster.lake_resource import ConfiguredBySettings, catalog_of
from lake_assets.incremental.engine.engine import utc_now
from lake_assets.incremental.from_settings import open_pipeline
from lake_assets.landing.landing_service import LandingService


class LandingResource(ConfiguredBySettings, dg.ConfigurableResource[Any]):
    """Landing, according to the settings of this process."""

    def service(self) -> LandingService:
        """Return a new landing service, which reads the present state of Kafka and the manifest.

        Raises:
            ServiceError: No Kafka is named, and none runs for this data directory.
        """
        found = self.settings()
        kafka = required(kafka_address(found), "Kafka")
        return LandingService(found, kafka, catalog_of(found), open_pipeline(found), utc_now)
