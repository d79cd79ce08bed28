"""The served tables of a data directory, with the limits from the settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING

from kazoo.exceptions import KazooException

from lake_assets.connections.addresses import zookeeper_address
from lake_assets.connections.storage import storage_at
from lake_assets.connections.zookeeper import zookeeper_error
from lake_assets.coordination import zookeeper_client
from lake_assets.errors import ServiceError
from lake_assets.serving.lineage import Retention
from lake_assets.serving.registry import Registry
from lake_assets.serving.store import Leases, Policy, QueryLimits, SegmentFiles, Store

if TYPE_CHECKING:
    from kazoo.client import KazooClient

    from lake_assets.incremental.operations.health import Problem
    from lake_assets.serving.push import Writer
    from lake_assets.serving.query import Broker
    from lake_assets.settings import Settings

MB = 1_000_000


@dataclass(frozen=True)
class Serving:
    """The served tables of one ZooKeeper and one folder of segments. Arrow and DuckDB are loaded by who needs them.

    Attributes:
        registry: The lineages.
        files: The segments.
        leases: Those of readers.
        clock: UTC, for the timestamps of lineage entries.
        policy: Limits of each table.
        limits: Of a query.
        retention: Of replaced and unfinished pushes.
    """

    registry: Registry
    files: SegmentFiles
    leases: Leases
    clock: Callable[[], datetime]
    policy: Policy
    limits: QueryLimits
    retention: Retention

    @cached_property
    def store(self) -> Store:
        """Changes the tables, but does not push."""
        return Store(self.registry, self.files, self.leases, clock=self.clock, policy=self.policy)

    @cached_property
    def writer(self) -> Writer:
        """Changes the tables, also by pushes."""
        from lake_assets.serving.push import Writer

        return Writer(self.registry, self.files, self.leases, clock=self.clock, policy=self.policy)

    @cached_property
    def broker(self) -> Broker:
        """Reads the tables."""
        from lake_assets.serving.query import Broker

        return Broker(self.registry, self.files, self.leases)


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


def open_serving(zk: KazooClient, settings: Settings, *, clock: Callable[[], datetime]) -> Serving:
    """Return the served tables, on a started client."""
    cluster, quota_mb = settings.serving_cluster, settings.serving_quota_mb
    kept = timedelta(hours=settings.serving_retain_hours)
    return Serving(
        registry=Registry(zk, cluster),
        files=segment_files(settings),
        leases=Leases(zk, cluster),
        clock=clock,
        policy=Policy(
            settings.serving_snapshots,
            None if quota_mb is None else quota_mb * MB,
            spark_rows=settings.serving_spark_rows,
        ),
        limits=QueryLimits(settings.query_seconds, settings.query_rows, settings.query_mb),
        retention=Retention(replaced=kept, lineage=kept),
    )


def segment_files(settings: Settings) -> SegmentFiles:
    """Return the files of segments that the settings name: in a folder or in an object store."""
    return SegmentFiles(storage_at(settings, settings.segments, scratch=settings.home / "serving"))


def push_problems(settings: Settings) -> list[Problem]:
    """Return the served tables whose last push failed, as alerts, `lake status` and `lake doctor` say it.

    Raises:
        ServiceError: No ZooKeeper answers, so nobody can tell.
    """
    from lake_assets.incremental.operations.health import Problem

    hosts = zookeeper_address(settings)
    if hosts is None:
        raise ServiceError("No ZooKeeper runs, which knows the served tables.", remedy="Run `lake up`.")
    with serving_at(hosts, settings, clock=lambda: datetime.now(UTC)) as serving:
        failures = serving.registry.failures()
    return [
        Problem(table, "push_failed", f"The last push of {table} failed: {text.problem}", text.remedy)
        for table, text in failures.items()
    ]
