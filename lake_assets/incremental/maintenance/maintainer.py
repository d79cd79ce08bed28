"""Maintenance of tables: compaction, expiry of snapshots, removal of orphans, by Iceberg's procedures.

`policy.py` decides what to do. Every step is a commit of its own and leaves a correct table, so maintenance may die
anywhere and be repeated. A session that meets a compaction is planned and staged again. After a compaction of a target,
a session without rows carries the state on: else the tag of the last session would keep the files of before. Expiry
names snapshots by id: what a process plans meanwhile starts at a watermark, and the snapshots from there to the head
are kept. Files are removed only if nothing in the table's metadata refers to them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFileContent
from pyiceberg.table import Table
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from lake_assets.errors import UsageError
from lake_assets.errors.texts import text_of
from lake_assets.incremental.declaration import Pipeline
from lake_assets.incremental.maintenance.cleaning import former_tables
from lake_assets.incremental.maintenance.figures import Figures, files_of, head_manifests, table_figures
from lake_assets.incremental.maintenance.policy import Link, Policy, partitions_to_compact, snapshots_to_expire
from lake_assets.incremental.maintenance.snapshot_references import SnapshotReferences, read_references
from lake_assets.incremental.maintenance.stored_files import is_local
from lake_assets.incremental.metadata import publish, tables
from lake_assets.incremental.metadata.erasure_registry import ERASURE
from lake_assets.incremental.metadata.state_tables import HIGH_WATERMARK, QUARANTINE, SESSION

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ENGINE_TABLES = (SESSION, HIGH_WATERMARK, QUARANTINE, ERASURE)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

SMALL_MANIFEST_BYTES = 4 * 1024 * 1024
"""Half of the size to which Iceberg fills a manifest by default."""

ATTEMPTS = 5
"""How often a step is tried if other writers commit meanwhile: the engine's log tables switch Iceberg's retries off."""


@dataclass(frozen=True)
class MaintenanceReport:
    """What maintenance did to one table, or would do.

    Attributes:
        table: Its full name.
        dry_run: Whether nothing was changed; then `after` equals `before`.
        before: Figures before maintenance.
        after: Figures after maintenance.
        partitions_compacted: Number of partitions that were chosen for compaction.
        manifests_rewritten: Whether the manifests of the head were rewritten.
        snapshots_expired: Number of expired snapshots.
        orphans_removed: Number of removed files that nothing referred to.
        seconds: Wall time of each step.
        notes: What a person should know, in sentences.
    """

    table: str
    dry_run: bool
    before: Figures
    after: Figures
    partitions_compacted: int = 0
    manifests_rewritten: bool = False
    snapshots_expired: int = 0
    orphans_removed: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class Maintainer:
    """Maintains the tables of a pipeline and the engine's own tables.

    Args:
        catalog: The catalog of the tables.
        pipeline: Declares raw tables and targets.
        clock: The present moment, for the age of snapshots and files.
        spark: Called when there is something to do, not before.
        policy: What is kept; None for the defaults.
    """

    def __init__(
        self,
        catalog: Catalog,
        pipeline: Pipeline,
        *,
        clock: Callable[[], datetime],
        spark: Callable[[], SparkSession],
        policy: Policy | None = None,
    ) -> None:
        self.catalog = catalog
        self.pipeline = pipeline
        self.clock = clock
        self.spark = spark
        self.policy = policy or Policy()

    def table(self, name: str) -> str:
        """Return the full name of a table.

        Args:
            name: The table's full name, or its name without namespace.

        Raises:
            UsageError: No table, or more than one, has this name.
        """
        known = tables_of(self.pipeline)
        wanted = name.replace("/", ".")
        raw = self.pipeline.raw_table(wanted)
        if raw is not None and raw.exists_already:
            raise UsageError(
                f"{wanted} belongs to the program that has created it, and is not maintained here.",
                remedy="Maintain it with that program. The declaration names no columns of it.",
            )
        found = [table for table in known if table == wanted or table.split(".")[1] == wanted]
        if len(found) != 1:
            raise UsageError(f"There is no table {name!r}.", remedy=f"Name one of: {', '.join(known)}.")
        return found[0]

    def maintain(self, name: str, *, dry_run: bool = False) -> MaintenanceReport:
        """Compact a table, expire its snapshots and remove its orphans.

        Args:
            name: As for `table`.
            dry_run: Report what would be done and change nothing.

        Raises:
            TableMissing: The catalog does not have the table.
            UsageError: No table has this name.
        """
        return _TableMaintenance(self, self.table(name), dry_run).run()

    def carry(self, name: str) -> None:
        """Carry the state of a target on; nothing if the table is no target."""
        from lake_assets.incremental.execution.engine import Engine

        engine = Engine(self.catalog, self.pipeline, clock=self.clock)
        for target in self.pipeline.targets:
            if target.table == name and engine.problem(target) is None:
                engine.carry(target, why="maintenance", run_id="maintenance")


def tables_of(pipeline: Pipeline) -> tuple[str, ...]:
    """Return all tables to maintain: raw tables, targets, and the engine's own.

    A table that another program has created is left to that program, whose readers and settings nobody here knows.
    """
    raw_tables = [raw.table for raw in pipeline.raw if not raw.exists_already]
    targets = [target.table for target in pipeline.targets]
    return (*raw_tables, *targets, *ENGINE_TABLES)


class _TableMaintenance:
    """One maintenance of one table."""

    def __init__(self, maintainer: Maintainer, name: str, dry_run: bool) -> None:
        self.catalog = maintainer.catalog
        self.policy = maintainer.policy
        self.spark = maintainer.spark
        self.name = name
        self.dry_run = dry_run
        self.carry_state = maintainer.carry
        self.now = maintainer.clock()
        self.seconds: dict[str, float] = {}
        self.notes: list[str] = []

    def run(self) -> MaintenanceReport:
        before = table_figures(self.load())
        with self.timed("rewrite"):
            partitions, rewritten = self.rewrite()
        with self.timed("expire"):
            expired = self.expire_snapshots()
        with self.timed("orphans"):
            orphans = self.remove_orphans()
        return MaintenanceReport(
            table=self.name,
            dry_run=self.dry_run,
            before=before,
            after=before if self.dry_run else table_figures(self.load()),
            partitions_compacted=partitions,
            manifests_rewritten=rewritten,
            snapshots_expired=expired,
            orphans_removed=orphans,
            seconds=self.seconds,
            notes=tuple(self.notes),
        )

    def rewrite(self) -> tuple[int, bool]:
        """Compact data files and rewrite manifests, if needed; a table that needs neither gets no commit.

        Returns:
            The number of compacted partitions, and whether manifests were rewritten.
        """
        partitions = len(self.partitions_to_compact())
        if not partitions and not self.has_many_manifests():
            self.carry()
            return 0, False
        if partitions:
            self.call("rewrite_data_files", f"options => map({self.compaction_options()})")
        has_many_manifests = self.has_many_manifests()  # a compaction adds some of its own
        if has_many_manifests:
            self.call("rewrite_manifests")
        self.carry()
        return partitions, has_many_manifests

    def carry(self) -> None:
        """Let the tag of a target's last session go of files that a compaction has replaced, by whomever."""
        if not self.dry_run and publish.lags_behind(self.load()):
            self.carry_state(self.name)

    def has_many_manifests(self) -> bool:
        """Return whether the head has many small manifests; a large table keeps many full ones after any rewrite."""
        manifests = head_manifests(self.load())
        small = [manifest for manifest in manifests if manifest.manifest_length < SMALL_MANIFEST_BYTES]
        return len(small) > self.policy.many_manifests

    def partitions_to_compact(self) -> Mapping[object, int]:
        table = self.load()
        files = []
        for file in files_of(table, head_manifests(table)):
            if file.content is DataFileContent.DATA:
                partition = (file.spec_id, str(file.partition))
                files.append((partition, file.file_size_in_bytes))
        return partitions_to_compact(
            files,
            small_bytes=self.policy.small_bytes,
            min_files=self.policy.compact_files,
        )

    def compaction_options(self) -> str:
        options = {
            "min-input-files": self.policy.compact_files,
            "min-file-size-bytes": self.policy.small_bytes,
            "target-file-size-bytes": self.policy.target_bytes,
        }
        return ", ".join(f"'{name}', '{value}'" for name, value in options.items())

    def expire_snapshots(self) -> int:
        """Expire old snapshots and return how many. The procedure's own age limit is off: only named ones expire."""
        table = self.load()  # before the references: see `read_references`
        ids = self.old_snapshots(table, read_references(self.catalog))
        if ids:
            listed = ", ".join(f"{snapshot_id}L" for snapshot_id in ids)
            older_than = _timestamp_literal(_EPOCH)
            self.call("expire_snapshots", f"snapshot_ids => array({listed}), older_than => {older_than}")
        return len(ids)

    def old_snapshots(self, table: Table, references: SnapshotReferences) -> tuple[int, ...]:
        links = [
            Link(snapshot.snapshot_id, snapshot.parent_snapshot_id, snapshot.timestamp_ms)
            for snapshot in table.metadata.snapshots
        ]
        young_since = self.now - self.policy.retain
        return snapshots_to_expire(
            links,
            publish.main_id(table),
            references.pinned(table, self.name),
            young_ms=int(young_since.timestamp() * 1000),
            newest=self.policy.newest,
        )

    def remove_orphans(self) -> int:
        """Remove the old files that nothing refers to, which dead writers and expiry without Spark leave behind.

        Returns:
            How many files were removed.
        """
        table = self.load()
        former = former_tables(table)
        if former:
            listed = ", ".join(sorted(former.values()))
            self.notes.append(
                f"Orphans were not removed, because {table.location()} also holds another table's metadata: {listed}. "
                "If that table is not needed, delete these files; otherwise move its files away, or register it."
            )
            return 0
        older_than = _timestamp_literal(self.now - self.policy.orphan_age)
        dry_run = str(self.dry_run).lower()
        # Of an object store, Iceberg's own client lists the files. By default Spark looks for one of Hadoop's.
        lists_itself = str(not is_local(table.location())).lower()
        arguments = f"older_than => {older_than}, dry_run => {dry_run}, prefix_listing => {lists_itself}"
        return len(self.call("remove_orphan_files", arguments, also_dry=True))

    def call(self, procedure: str, arguments: str = "", *, also_dry: bool = False) -> list[Any]:
        """Call one of Iceberg's procedures and return its rows; none in a dry run, unless `also_dry`.

        The SQL text contains only declared names and numbers.
        """
        if self.dry_run and not also_dry:
            return []
        more = f", {arguments}" if arguments else ""
        sql = f"CALL lake.system.{procedure}(table => 'lake.{self.name}'{more})"
        for attempt in Retrying(
            retry=retry_if_exception(_is_conflict),
            wait=wait_random_exponential(multiplier=0.2, max=5),
            stop=stop_after_attempt(ATTEMPTS),
            reraise=True,
        ):
            with attempt:
                return list(self.spark().sql(sql).collect())
        raise AssertionError("unreachable: the last attempt returns or raises")

    def load(self) -> Table:
        return tables.load(self.catalog, self.name)

    @contextmanager
    def timed(self, step: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[step] = time.perf_counter() - began


def _is_conflict(error: BaseException) -> bool:
    """Return whether another writer's commit came first. Spark passes Iceberg's error on as text."""
    return any(name in text_of(error) for name in ("CommitFailedException", "ValidationException"))


def _timestamp_literal(moment: datetime) -> str:
    """Return a SQL literal that does not depend on the time zone of the session."""
    return f"TIMESTAMP '{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S}+00:00'"
