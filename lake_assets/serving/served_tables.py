"""The served tables of a data directory: their writer and readers, with the limits from the settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from kazoo.exceptions import KazooException

from lake_assets.connections.addresses import zookeeper_address
from lake_assets.connections.zookeeper import zookeeper_error
from lake_assets.coordination import zookeeper_client
from lake_assets.errors import ServiceError
from lake_assets.incremental.engine.engine import utc_now
from lake_assets.incremental.operations.health import Problem
from lake_assets.serving.endpoints.broker import Broker
from lake_assets.serving.endpoints.query import MB, QueryLimits
from lake_assets.serving.lineage.registry import Registry
from lake_assets.serving.lineage.retention import Retention
from lake_assets.serving.store.files import SegmentFiles
from lake_assets.serving.store.leases import Leases
from lake_assets.serving.store.push import Policy
from lake_assets.serving.store.writer import Writer

if TYPE_CHECKING:
    from kazoo.client import KazooClient

    from lake_assets.settings import Settings


@dataclass(frozen=True)
class Serving:
    """The parts that belong to one ZooKeeper and one folder of segments.

    Attributes:
        registry: The lineages.
        files: The segments.
        leases: Those of readers.
        writer: Changes the tables.
        broker: Reads the tables.
        limits: Of a query.
        retention: Of replaced and unfinished pushes.
    """

    registry: Registry
    files: SegmentFiles
    leases: Leases
    writer: Writer
    broker: Broker
    limits: QueryLimits
    retention: Retention


@contextmanager
def serving_at(hosts: str, settings: Settings, *, clock: Callable[[], datetime]) -> Iterator[Serving]:
    """Connect to the served tables for the block.

    Args:
        hosts: Of ZooKeeper.
        settings: Of the data directory.
        clock: UTC, for the timestamps of lineage entries.

    Raises:
        ServiceError: ZooKeeper does not answer, or refuses access.
    """
    try:
        with zookeeper_client(hosts) as zk:
            yield open_serving(zk, settings, clock=clock)
    except KazooException as error:
        raise zookeeper_error(error, hosts) from error


def push_problems(settings: Settings) -> list[Problem]:
    """Return the served tables whose last push failed, as alerts, `lake status` and `lake doctor` say it.

    Raises:
        ServiceError: No ZooKeeper answers, so nobody can tell.
    """
    hosts = zookeeper_address(settings)
    if hosts is None:
        raise ServiceError("No ZooKeeper runs, which knows the served tables.", remedy="Run `lake up`.")
    with serving_at(hosts, settings, clock=utc_now) as serving:
        failures = serving.registry.failures()
    return [
        Problem(table, "push_failed", f"The last push of {table} failed: {text.problem}", text.remedy)
        for table, text in failures.items()
    ]


def open_serving(zk: KazooClient, settings: Settings, *, clock: Callable[[], datetime]) -> Serving:
    """Return the served tables, on a started client."""
    registry = Registry(zk, settings.serving_cluster)
    files = SegmentFiles(settings.segments)
    leases = Leases(zk, settings.serving_cluster)
    kept = timedelta(hours=settings.serving_retain_hours)
    return Serving(
        registry=registry,
        files=files,
        leases=leases,
        writer=Writer(registry, files, leases, clock=clock, policy=_policy(settings)),
        broker=Broker(registry, files, leases),
        limits=QueryLimits(settings.query_seconds, settings.query_rows, settings.query_mb),
        retention=Retention(replaced=kept, lineage=kept),
    )


def _policy(settings: Settings) -> Policy:
    quota_mb = settings.serving_quota_mb
    return Policy(
        snapshots=settings.serving_snapshots,
        quota_bytes=None if quota_mb is None else quota_mb * MB,
    )
