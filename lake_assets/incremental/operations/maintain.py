"""Maintenance of tables: compaction, expiry of snapshots, removal of files that nothing refers to. Changes no row.

Each step is a commit of its own and leaves a correct table, so maintenance may die anywhere and be repeated. Spark
compacts, by Iceberg's procedures; the rest is `engine.retention`. A session that meets a compaction is planned and
staged again. After the compaction of a target, a session without rows carries the state on: else the tag of the last
session would keep the files of before.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from lake_assets.base.columns import table_in_sql
from lake_assets.connections.catalog import HIGH_WATERMARK_TABLE, SESSION_TABLE
from lake_assets.errors import UsageError, suggestion, text_of
from lake_assets.incremental.declaration import Pipeline
from lake_assets.incremental.declaration.model import is_name_of
from lake_assets.incremental.engine import iceberg, publish
from lake_assets.incremental.engine.erasures import ERASURE
from lake_assets.incremental.engine.iceberg import (
    HIGH_WATERMARK,
    QUARANTINE,
    SESSION,
    live_entries,
)
from lake_assets.incremental.engine.retention import (
    Figures,
    expire,
    head_manifests,
    inventory,
    read_references,
    remove_file,
    snapshots_to_expire,
    unneeded_files,
)

if TYPE_CHECKING:
    from lake_assets.incremental.engine.engine import Engine


SMALL_FILE_BYTES, COMPACTED_FILE_BYTES = 96 * 1024 * 1024, 128 * 1024 * 1024
"""Data files below this size are compacted, to files of about this size."""

SMALL_MANIFEST_BYTES = 4 * 1024 * 1024
"""Half of the size to which Iceberg fills a manifest by default."""

CONFLICTS = ("CommitFailedException", "ValidationException")

ATTEMPTS = 5
"""How often Spark tries a step if other writers commit meanwhile: the log tables switch Iceberg's retries off."""


@dataclass(frozen=True)
class Policy:
    """How much maintenance keeps, and when it rewrites.

    Attributes:
        retain: Snapshots younger than this are kept.
        newest: How many of main's newest snapshots are kept, however old they are.
        orphan_age: Files that nothing refers to are removed when they are older; no writer takes longer than this to
            commit its files.
        compact_files: Number of small data files from which on a partition is compacted; at least two.
        many_manifests: A head with more small manifests than this gets its manifests rewritten.
    """

    retain: timedelta = timedelta(days=3)
    newest: int = 10
    orphan_age: timedelta = timedelta(days=3)
    compact_files: int = 5
    many_manifests: int = 20


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


def engine_tables(properties: Mapping[str, str]) -> tuple[str, ...]:
    """Return the engine's own tables in a catalog with these properties."""
    log = properties.get(SESSION_TABLE, SESSION), properties.get(HIGH_WATERMARK_TABLE, HIGH_WATERMARK)
    return (*log, QUARANTINE, ERASURE)


def tables_of(pipeline: Pipeline, properties: Mapping[str, str]) -> tuple[str, ...]:
    """Return all tables to maintain: raw tables, targets, and the engine's own in a catalog with these properties.

    A table that another program has created is left to that program, whose readers and settings nobody here knows.
    """
    raw_tables = [raw.table for raw in pipeline.raw if not raw.exists_already]
    targets = [target.table for target in pipeline.targets]
    return (*raw_tables, *targets, *engine_tables(properties))


@dataclass(frozen=True)
class Maintainer:
    """Maintains the tables of an engine's pipeline and the engine's own.

    Attributes:
        engine: Opens Spark when there is something to compact, not before.
        policy: What is kept.
    """

    engine: Engine
    policy: Policy = Policy()

    def table(self, name: str) -> str:
        """Return the full name of a table.

        Args:
            name: The table's full name, or its name without namespace.

        Raises:
            UsageError: No table, or more than one, has this name.
        """
        known = tables_of(self.engine.pipeline, self.engine.catalog.properties)
        found = [table for table in known if is_name_of(name, table)]
        foreign = [raw.table for raw in self.engine.pipeline.raw if raw.exists_already and is_name_of(name, raw.table)]
        if foreign and not found:
            raise UsageError(
                f"{foreign[0]} belongs to the program that has created it, and is not maintained here.",
                remedy="Maintain it with that program. The declaration names no columns of it.",
            )
        if len(found) != 1:
            self.engine.pipeline.refuse_broken(name)
            raise UsageError(f"There is no table {name!r}.", remedy=suggestion(name, known))
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
        name = self.table(name)
        catalog, policy, now = self.engine.catalog, self.policy, self.engine.clock()
        began = time.perf_counter()
        table = iceberg.load(catalog, name)
        before = inventory(table.io, table.metadata)

        small_files: Counter[tuple[int, str]] = Counter()
        for entry in live_entries(table, table.current_snapshot()):
            if entry.data_file.file_size_in_bytes < SMALL_FILE_BYTES:
                small_files[entry.data_file.spec_id, str(entry.data_file.partition)] += 1
        partitions = sum(count >= max(2, policy.compact_files) for count in small_files.values())
        if partitions and not dry_run:
            sizes = f"'min-file-size-bytes', '{SMALL_FILE_BYTES}', 'target-file-size-bytes', '{COMPACTED_FILE_BYTES}'"
            options = f"'min-input-files', '{policy.compact_files}', {sizes}"
            self._call("rewrite_data_files", name, f", options => map({options})")
            table = iceberg.load(catalog, name)
        # A large table keeps many full manifests after any rewrite; a compaction adds small ones of its own.
        small = [each for each in head_manifests(table) if each.manifest_length < SMALL_MANIFEST_BYTES]
        has_many_manifests = len(small) > policy.many_manifests
        if has_many_manifests and not dry_run:
            self._call("rewrite_manifests", name)
        if not dry_run and publish.lags_behind(iceberg.load(catalog, name)):
            # The tag of the last session lets go of files that a compaction has replaced, by whomever.
            for target in self.engine.pipeline.targets:
                if target.table == name and self.engine.problem(target) is None:
                    self.engine.carry(target, why="maintenance", run_id="maintenance")
        rewritten = time.perf_counter()

        young_ms = int((now - policy.retain).timestamp() * 1000)

        def old_snapshots(table: Table) -> list[int]:
            pinned = read_references(catalog).pinned(table, name)
            snapshots, main = table.metadata.snapshots, publish.main_id(table)
            return snapshots_to_expire(snapshots, main, pinned, young_ms=young_ms, newest=policy.newest)

        if dry_run:
            former, expired = table.metadata, len(old_snapshots(table))
        else:
            self._drop_outdated_refs(name, now)
            former, expired = expire(catalog, name, old_snapshots)
        is_expired = time.perf_counter()

        unneeded = unneeded_files(catalog, name, former, orphaned_before=now - policy.orphan_age)
        if not dry_run:
            for file in (*unneeded.released, *unneeded.orphans):
                remove_file(table.io, file.location)
        notes = []
        if unneeded.former_tables:
            metadata_files = ", ".join(sorted(unneeded.former_tables.values()))
            notes.append(
                f"Orphans were not removed, because {table.location()} also holds another table's metadata: "
                f"{metadata_files}. If that table is not needed, delete these files; otherwise move its files away, "
                "or register it."
            )
        ended = time.perf_counter()
        return MaintenanceReport(
            table=name,
            dry_run=dry_run,
            before=before.figures,
            after=before.figures if dry_run else unneeded.figures,
            partitions_compacted=partitions,
            manifests_rewritten=has_many_manifests,
            snapshots_expired=expired,
            orphans_removed=len(unneeded.orphans),
            seconds={"rewrite": rewritten - began, "expire": is_expired - rewritten, "orphans": ended - is_expired},
            notes=tuple(notes),
        )

    def _call(self, procedure: str, name: str, arguments: str = "") -> None:
        """Call one of Iceberg's procedures. The SQL text contains only declared names and numbers."""
        sql = f"CALL lake.system.{procedure}(table => '{table_in_sql(name)}'{arguments})"
        for attempt in Retrying(
            # Another writer's commit came first: Spark passes Iceberg's error on as text.
            retry=retry_if_exception(lambda error: any(name in text_of(error) for name in CONFLICTS)),
            wait=wait_random_exponential(multiplier=0.2, max=5),
            stop=stop_after_attempt(ATTEMPTS),
            reraise=True,
        ):
            with attempt:
                self.engine.open_spark().sql(sql).collect()

    def _drop_outdated_refs(self, name: str, now: datetime) -> None:
        """Drop the tags and branches that are older than they are to be retained by their own limit."""
        for attempt in iceberg.retrying():
            with attempt:
                table = iceberg.load(self.engine.catalog, name)
                for ref, found in table.metadata.refs.items():
                    snapshot = table.snapshot_by_id(found.snapshot_id)
                    if ref == "main" or found.max_ref_age_ms is None or snapshot is None:
                        continue
                    if now.timestamp() * 1000 - snapshot.timestamp_ms > found.max_ref_age_ms:
                        is_tag = found.snapshot_ref_type is SnapshotRefType.TAG
                        changed = table.manage_snapshots()
                        (changed.remove_tag(ref) if is_tag else changed.remove_branch(ref)).commit()
