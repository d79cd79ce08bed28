"""Upkeep of tables: compaction, expiry, removal of orphans; each a call of Iceberg's, on what `retention.py` chose.

Failure model: every step is a commit of its own and leaves a table that is right, so upkeep may die anywhere and be
repeated. A compaction that meets a session makes the session stage again; so a target with an open one is not
rewritten. Expiry names snapshots by id: what a process plans meanwhile starts at a watermark, and the way from there to
the head is kept. Files are removed only when nothing in the table's metadata refers to them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile, DataFileContent, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from lake_assets.errors import UsageError
from lake_assets.incremental.declaration import Pipeline
from lake_assets.incremental.maintenance.policy import Link, Policy, partitions_to_compact, snapshots_to_expire
from lake_assets.incremental.maintenance.snapshot_references import SnapshotReferences, read_references
from lake_assets.incremental.metadata import publish, tables
from lake_assets.incremental.metadata.erasure_registry import ERASURE
from lake_assets.incremental.metadata.state_tables import HIGH_WATERMARK, QUARANTINE, SESSION

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ETL = (SESSION, HIGH_WATERMARK, QUARANTINE, ERASURE)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

SMALL_MANIFEST = 4 * 1024 * 1024
"""Bytes: half of what Iceberg fills a manifest to by default."""

ATTEMPTS = 5
"""How often a step is tried when another writer commits in between: log tables leave no retry to Iceberg itself."""


@dataclass(frozen=True)
class Figures:
    """The size of a table, by its metadata.

    files, bytes: data and delete files of the head. stored_*: of all snapshots together, staged ones too: what the
    table takes on disk. manifests: of the head.
    """

    files: int
    bytes: int
    stored_files: int
    stored_bytes: int
    snapshots: int
    manifests: int


@dataclass(frozen=True)
class Upkeep:
    """What upkeep did to one table, or would do (dry_run; then `after` is as `before`).

    partitions_compacted: chosen for compaction. seconds: wall time for each step. notes: what a person should know.
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
    """Keeps the tables of a pipeline, and the engine's own, in shape.

    clock: tells how old snapshots and files are. spark: called when there is something to do, not before.
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
        self.catalog, self.pipeline, self.clock, self.spark = catalog, pipeline, clock, spark
        self.policy = policy or Policy()

    def table(self, name: str) -> str:
        """A table by its full or its bare name; `UsageError`, with the names there are, if there is none."""
        known = tables_of(self.pipeline)
        found = [t for t in known if name.replace("/", ".") in (t, t.split(".")[1])]
        if len(found) != 1:
            raise UsageError(f"There is no table {name!r}.", remedy=f"Name one of: {', '.join(known)}.")
        return found[0]

    def maintain(self, name: str, *, dry_run: bool = False) -> Upkeep:
        """Compact, expire and remove orphans; with `dry_run`, tell what would be done and change nothing.

        Raises `TableMissing`, `UsageError`.
        """
        return _Task(self, self.table(name), dry_run).run()


def tables_of(pipeline: Pipeline) -> tuple[str, ...]:
    """All tables that need upkeep: raw tables, targets, and the engine's own."""
    return (*(r.table for r in pipeline.raw), *(t.table for t in pipeline.targets), *ETL)


class _Task:
    """The upkeep of one table, once."""

    def __init__(self, maintainer: Maintainer, name: str, dry_run: bool) -> None:
        self.catalog, self.policy, self.spark = maintainer.catalog, maintainer.policy, maintainer.spark
        self.name, self.dry_run, self.now = name, dry_run, maintainer.clock()
        self.seconds: dict[str, float] = {}
        self.notes: list[str] = []

    def run(self) -> Upkeep:
        before = figures(self.load())
        with self.timed("rewrite"):
            compacted, rewritten = self.rewrite()
        with self.timed("expire"):
            expired = self.expire()
        with self.timed("orphans"):
            orphans = self.remove_orphans()
        return Upkeep(
            table=self.name,
            dry_run=self.dry_run,
            before=before,
            after=before if self.dry_run else figures(self.load()),
            partitions_compacted=compacted,
            manifests_rewritten=rewritten,
            snapshots_expired=expired,
            orphans_removed=orphans,
            seconds=self.seconds,
            notes=tuple(self.notes),
        )

    def rewrite(self) -> tuple[int, bool]:
        """How many partitions were compacted, and whether manifests were rewritten: neither moves main for nothing."""
        chosen = len(self.small_partitions(self.load()))
        if not chosen and not self.has_many_manifests():
            return 0, False
        if session := read_references(self.catalog).open_session(self.name):
            self.notes.append(f"not compacted: session {session} is open, and would have to be staged again")
            return 0, False
        if chosen:
            self.call("rewrite_data_files", f"options => map({self.options()})")
        many = self.has_many_manifests()  # a compaction leaves some of its own
        if many:
            self.call("rewrite_manifests")
        return chosen, many

    def has_many_manifests(self) -> bool:
        """Small ones: of a big table many full ones stay, however often they are rewritten."""
        table = self.load()
        small = [m for m in _manifests(table, table.current_snapshot()) if m.manifest_length < SMALL_MANIFEST]
        return len(small) > self.policy.many_manifests

    def small_partitions(self, table: Table) -> Mapping[Hashable, int]:
        files = [f for f in _files(table, _manifests(table, table.current_snapshot())) if _is_data(f)]
        return partitions_to_compact(
            (((f.spec_id, str(f.partition)), f.file_size_in_bytes) for f in files),
            small_bytes=self.policy.small_bytes,
            min_files=self.policy.compact_files,
        )

    def options(self) -> str:
        options = {
            "min-input-files": self.policy.compact_files,
            "min-file-size-bytes": self.policy.small_bytes,
            "target-file-size-bytes": self.policy.target_bytes,
        }
        return ", ".join(f"'{name}', '{value}'" for name, value in options.items())

    def expire(self) -> int:
        """How many snapshots were expired. Iceberg's own limit of age is off: only what is named goes."""
        table = self.load()  # before what processes need: see `read_references`
        ids = self.old_snapshots(table, read_references(self.catalog))
        if ids:
            listed = ", ".join(f"{snapshot_id}L" for snapshot_id in ids)
            self.call("expire_snapshots", f"snapshot_ids => array({listed}), older_than => {_moment(_EPOCH)}")
        return len(ids)

    def old_snapshots(self, table: Table, needs: SnapshotReferences) -> tuple[int, ...]:
        return snapshots_to_expire(
            [Link(s.snapshot_id, s.parent_snapshot_id, s.timestamp_ms) for s in table.metadata.snapshots],
            publish.main_id(table),
            needs.held(table, self.name),
            young_ms=int((self.now - self.policy.retain).timestamp() * 1000),
            newest=self.policy.newest,
        )

    def remove_orphans(self) -> int:
        """How many files that nothing refers to were removed: of dead writers, and of expiry without Spark."""
        old = _moment(self.now - self.policy.orphan_age)
        arguments = f"older_than => {old}, dry_run => {str(self.dry_run).lower()}"
        return len(self.call("remove_orphan_files", arguments, also_dry=True))

    def call(self, procedure: str, arguments: str = "", *, also_dry: bool = False) -> list[Any]:
        """The rows that one of Iceberg's procedures returns. All that goes into its text is declared or a number."""
        if self.dry_run and not also_dry:
            return []
        more = f", {arguments}" if arguments else ""
        for attempt in Retrying(
            retry=retry_if_exception(_is_conflict),
            wait=wait_random_exponential(multiplier=0.2, max=5),
            stop=stop_after_attempt(ATTEMPTS),
            reraise=True,
        ):
            with attempt:
                return list(
                    self.spark().sql(f"CALL lake.system.{procedure}(table => 'lake.{self.name}'{more})").collect()
                )
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


def figures(table: Table) -> Figures:
    """The size of a table as it stands. Reads each manifest of its snapshots once."""
    head = _manifests(table, table.current_snapshot())
    stored = {m.manifest_path: m for s in table.metadata.snapshots for m in _manifests(table, s)}
    live = {f.file_path: f.file_size_in_bytes for f in _files(table, head)}
    all_files = {f.file_path: f.file_size_in_bytes for f in _files(table, stored.values())}
    return Figures(
        files=len(live),
        bytes=sum(live.values()),
        stored_files=len(all_files),
        stored_bytes=sum(all_files.values()),
        snapshots=len(table.metadata.snapshots),
        manifests=len(head),
    )


def _manifests(table: Table, snapshot: Snapshot | None) -> list[ManifestFile]:
    return snapshot.manifests(table.io) if snapshot else []


def _files(table: Table, manifests: Iterable[ManifestFile]) -> Iterator[DataFile]:
    for manifest in manifests:
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            yield entry.data_file


def _is_data(file: DataFile) -> bool:
    return file.content is DataFileContent.DATA


def _is_conflict(error: BaseException) -> bool:
    """Whether another writer's commit came first: Spark hands on Iceberg's error as text."""
    return "CommitFailedException" in str(error) or "ValidationException" in str(error)


def _moment(moment: datetime) -> str:
    """A moment as Spark reads it whatever the session's time zone."""
    return f"TIMESTAMP '{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S}+00:00'"
