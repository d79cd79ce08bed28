"""The served tables as a resource of steps: the parameter `lake_assets_serving`."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import dagster as dg

from lake_assets.connections.addresses import required, zookeeper_address
from lake_assets.incremental.dagster.lake_resource import ConfiguredBySettings
from lake_assets.incremental.engine.engine import utc_now
from lake_assets.serving.served_tables import Serving, serving_at


class ServingResource(ConfiguredBySettings, dg.ConfigurableResource[Any]):
    """The served tables, according to the settings of this process."""

    def tables(self) -> AbstractContextManager[Serving]:
        """Return a context manager that opens the served tables.

        Raises:
            ServiceError: No ZooKeeper is named, and none runs for this data directory.
        """
        found = self.settings()
        return serving_at(required(zookeeper_address(found), "ZooKeeper"), found, clock=utc_now)
