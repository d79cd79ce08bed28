"""The served tables of a data directory, with the limits from the settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from kazoo.exceptions import KazooException

from lake_assets.connections.addresses import zookeeper_address
from lake_assets.connections.zookeeper import zookeeper_error
from lake_assets.coordination import zookeeper_client
from lake_assets.errors import ServiceError
from lake_assets.serving.lineage import Retention
from lake_assets.serving.registry import Registry
from lake_assets.serving.store import Leases, Policy, SegmentFiles, Store

if TYPE_CHECKING:
    from kazoo.client import KazooClient

    from lake_assets.incremental.operations.health import Problem
    from lake_assets.serving.push import Writer
    from lake_assets.serving.query import Broker, QueryLimits
    from lake_assets.settings import Settings

MB = 1_000_000


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
def client_at(hosts: str) -> Iterator[KazooClient]:
    """Connect to ZooKeeper for the block. Raises `ServiceError` if it does not answer, or refuses access."""
    try:
        with zookeeper_client(hosts) as zk:
            yield zk
    except KazooException as error:
        raise zookeeper_error(error, hosts) from error


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
    with client_at(hosts) as zk:
        yield open_serving(zk, settings, clock=clock)


@contextmanager
def store_at(hosts: str, settings: Settings, *, clock: Callable[[], datetime]) -> Iterator[Store]:
    """The same for who neither pushes nor queries: it loads neither Arrow nor DuckDB."""
    with client_at(hosts) as zk:
        yield Store(*_parts(zk, settings), clock=clock)


def open_serving(zk: KazooClient, settings: Settings, *, clock: Callable[[], datetime]) -> Serving:
    """Return the served tables, on a started client."""
    from lake_assets.serving.push import Writer
    from lake_assets.serving.query import Broker, QueryLimits

    registry, files, leases = _parts(zk, settings)
    quota_mb = settings.serving_quota_mb
    policy = Policy(
        snapshots=settings.serving_snapshots,
        quota_bytes=None if quota_mb is None else quota_mb * MB,
    )
    return Serving(
        registry=registry,
        files=files,
        leases=leases,
        writer=Writer(registry, files, leases, clock=clock, policy=policy),
        broker=Broker(registry, files, leases),
        limits=QueryLimits(settings.query_seconds, settings.query_rows, settings.query_mb),
        retention=retention_of(settings),
    )


def retention_of(settings: Settings) -> Retention:
    """Return how long replaced and unfinished pushes are kept."""
    kept = timedelta(hours=settings.serving_retain_hours)
    return Retention(replaced=kept, lineage=kept)


def push_problems(settings: Settings) -> list[Problem]:
    """Return the served tables whose last push failed, as alerts, `lake status` and `lake doctor` say it.

    Raises:
        ServiceError: No ZooKeeper answers, so nobody can tell.
    """
    from lake_assets.incremental.operations.health import Problem

    hosts = zookeeper_address(settings)
    if hosts is None:
        raise ServiceError("No ZooKeeper runs, which knows the served tables.", remedy="Run `lake up`.")
    with store_at(hosts, settings, clock=lambda: datetime.now(UTC)) as store:
        failures = store.registry.failures()
    return [
        Problem(table, "push_failed", f"The last push of {table} failed: {text.problem}", text.remedy)
        for table, text in failures.items()
    ]


def _parts(zk: KazooClient, settings: Settings) -> tuple[Registry, SegmentFiles, Leases]:
    cluster = settings.serving_cluster
    return Registry(zk, cluster), SegmentFiles(settings.segments), Leases(zk, cluster)
