"""The coordination engine: jobs that write one resource take turns on a ZooKeeper lock.

May import `base`, `connections`, `errors` and `settings`.
"""

from lake_assets.connections.zookeeper import zookeeper_client
from lake_assets.coordination.coordinator import JobCoordinator
from lake_assets.coordination.rules import ANY, Stream, check_claim, check_turn_order, stream

__all__ = ["ANY", "JobCoordinator", "Stream", "check_claim", "check_turn_order", "stream", "zookeeper_client"]
