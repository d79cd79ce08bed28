"""The servers whose data an unpacked home has, Kafka and ZooKeeper, at other addresses than before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from lake_assets.services.servers import kafka, zookeeper
from lake_assets.services.service import free_port, running
from lake_assets.settings import Settings


@contextmanager
def servers_of(home: Path) -> Iterator[dict[str, str]]:
    """The variables with the addresses of the servers, which run until the block ends."""
    addresses = {}
    with ExitStack() as stack:
        if (home / "kafka").exists():
            served = stack.enter_context(running(kafka(Settings(home=home), free_port(), free_port())))
            addresses["LAKE_KAFKA"] = f"127.0.0.1:{served.port}"
        if (home / "zookeeper").exists():
            served = stack.enter_context(running(zookeeper(home, free_port())))
            addresses["LAKE_ZOOKEEPER"] = f"127.0.0.1:{served.port}"
        yield addresses
