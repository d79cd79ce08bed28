"""The served tables of a home, opened: who writes them, who reads them, and the limits that the settings name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from kazoo.exceptions import KazooException

from lake_assets.coordination import zookeeper_client
from lake_assets.errors import ServiceError
from lake_assets.serving.endpoints.broker import Broker
from lake_assets.serving.endpoints.query import MB, Limits
from lake_assets.serving.lineage.lineage import Retention
from lake_assets.serving.lineage.registry import Registry
from lake_assets.serving.store.files import SegmentFiles
from lake_assets.serving.store.leases import Leases
from lake_assets.serving.store.writer import Policy, Writer

if TYPE_CHECKING:
    from kazoo.client import KazooClient

    from lake_assets.settings import Settings


@dataclass(frozen=True)
class Serving:
    """All that belongs to one ZooKeeper and one folder of segments."""

    registry: Registry
    files: SegmentFiles
    leases: Leases
    writer: Writer
    broker: Broker
    limits: Limits
    retention: Retention


@contextmanager
def serving_at(hosts: str, settings: Settings, *, clock: Callable[[], datetime]) -> Iterator[Serving]:
    """The served tables, while the block lasts. hosts: of ZooKeeper. `ServiceError` if it cannot be reached."""
    try:
        with zookeeper_client(hosts) as zk:
            yield open_serving(zk, settings, clock=clock)
    except KazooException as error:
        raise ServiceError(
            f"ZooKeeper at {hosts} did not answer: {error!r}.", remedy="See that it runs, then call again."
        ) from error


def open_serving(zk: KazooClient, settings: Settings, *, clock: Callable[[], datetime]) -> Serving:
    """The served tables on a started client."""
    registry, files, leases = Registry(zk), SegmentFiles(settings.segments), Leases(zk)
    quota = settings.serving_quota_mb
    policy = Policy(settings.serving_snapshots, None if quota is None else quota * MB)
    kept = timedelta(hours=settings.serving_retain_hours)
    return Serving(
        registry=registry,
        files=files,
        leases=leases,
        writer=Writer(registry, files, leases, clock=clock, policy=policy),
        broker=Broker(registry, files, leases),
        limits=Limits(settings.query_seconds, settings.query_rows, settings.query_mb),
        retention=Retention(replaced=kept, lineage=kept),
    )
