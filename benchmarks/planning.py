"""Cost of a planning decision, which reads metadata only, and of a process's state.

The raw tables have real metadata: 1,000 snapshots and manifests, and 10,000 partitions with one file each. They have no
data files, so none can be read. One table has a thousand times the rows of the other. To plan a source, the engine
loads its table and reads 1, 10 or 100 new snapshots. CPU times are printed, too: other programs prolong the wall times.

    python -m benchmarks.planning [--snapshots 1000] [--partitions 10000] [--sessions 200]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate, TableUpdate
from pyiceberg.typedef import Record

from lake_assets.base.hours import hour_of
from lake_assets.connections.catalog import open_catalog
from lake_assets.incremental.engine import iceberg
from lake_assets.incremental.engine.engine import Engine
from lake_assets.incremental.engine.model import Committed, PlanningInput, SessionPlan, SourceRange
from lake_assets.incremental.engine.planning import plan
from lake_assets.incremental.engine.session_log import record_of
from lake_assets.incremental.engine.source_changes import Head, Watermark, changes
from lake_assets.incremental.engine.state import after_session, commit_state
from lake_assets.membership import PIPELINE
from lake_assets.membership.signup_fact import signup_fact
from lake_assets.settings import Settings

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

FIRST = datetime(2026, 1, 1, tzinfo=UTC)
SOURCE = PIPELINE.target(signup_fact.table).sources[0]
REPEATS = 15
NEW = (1, 10, 100)
"""Numbers of new snapshots for which a source is planned."""

T = TypeVar("T")


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--snapshots", type=int, default=1_000)
    parser.add_argument("--partitions", type=int, default=10_000, help="spread evenly over the snapshots")
    parser.add_argument("--sessions", type=int, default=200)
    arguments, _ = parser.parse_known_args()
    with tempfile.TemporaryDirectory(prefix="lake-bench-") as folder:
        files = arguments.partitions // arguments.snapshots
        for rows in (1_000, 1_000_000):
            catalog = open_catalog(Settings(home=Path(folder) / str(rows)))
            planning(catalog, arguments.snapshots, files, rows)
        state(open_catalog(Settings(home=Path(folder) / "state")), arguments.sessions)


def planning(catalog: Catalog, snapshots: int, files: int, rows: int) -> None:
    """Measure planning for a raw table.

    Args:
        catalog: An empty catalog.
        snapshots: Number of snapshots that the table retains.
        files: Number of files of each snapshot.
        rows: Number of rows of each file.
    """
    Engine(catalog, PIPELINE, clock=lambda: FIRST).create_tables()
    land(catalog, iceberg.load(catalog, SOURCE.table), snapshots, files, rows)
    table = iceberg.load(catalog, SOURCE.table)
    print(f"{snapshots:,} snapshots, {snapshots * files:,} partitions, {snapshots * files * rows:,} rows", flush=True)
    for new in NEW:
        before = Head(table.metadata.snapshots[-1 - new].snapshot_id, None)
        since = changes(table, SOURCE, None, start=0, up_to=before).head
        measured(f"  {new} new, per source", lambda since=since: planned(catalog, since))
    measured("  of it, loading the table", lambda: iceberg.load(catalog, SOURCE.table))
    measured("  all from the beginning", lambda: changes(table, SOURCE, None, start=0), repeats=1)


def planned(catalog: Catalog, since: Watermark) -> SessionPlan:
    """Return the session that is due after a source was read up to a watermark."""
    new = changes(iceberg.load(catalog, SOURCE.table), SOURCE, since, start=hour_of(FIRST))
    decision = plan(PlanningInput(signup_fact.table, signup_fact.mode, (new,), Committed()))
    assert isinstance(decision, SessionPlan)
    assert decision.hours
    return decision


def state(catalog: Catalog, sessions: int) -> None:
    """Measure the state of a process: commits of its sessions, and reads after all of them."""
    engine = Engine(catalog, PIPELINE, clock=lambda: FIRST)
    engine.create_tables()
    print(f"the log of {sessions:,} sessions")
    began = time.process_time()
    for number in range(sessions):
        run_session(engine, number)
    print(f"  a session without rows, on average: {1000 * (time.process_time() - began) / sessions:.0f} ms of CPU")
    measured("  looking up the state", lambda: engine.state(signup_fact))
    measured("  all of the history", lambda: engine.history(signup_fact), repeats=1)


def run_session(engine: Engine, number: int) -> None:
    """Commit a session without rows, and log it."""
    before = engine.state(signup_fact)
    assert before.table is not None
    source = SourceRange(SOURCE.table, "uuid", number, number + 1, number, number, None)
    planned = SessionPlan(signup_fact.table, f"signup_fact-{number}", "session", "none", (source,), ())
    after = after_session(before, planned, before.committed, pattern_id=1, run_id="", started_at=FIRST)
    stored = commit_state(engine.catalog, before.table, after, None)
    engine.log.add(record_of(stored), stored)


def measured(what: str, do: Callable[[], T], repeats: int = REPEATS) -> T:
    """Call a function several times. Print median and maximum of its wall times, and the median of its CPU times."""
    walls = []
    cpus = []
    for _ in range(repeats):
        wall = time.perf_counter()
        cpu = time.process_time()
        result = do()
        walls.append(1000 * (time.perf_counter() - wall))
        cpus.append(1000 * (time.process_time() - cpu))
    times = f"{statistics.median(walls):.0f} ms (at worst {max(walls):.0f}; CPU {statistics.median(cpus):.0f})"
    print(f"{what}: {times}", flush=True)
    return result


def land(catalog: Catalog, table: Table, snapshots: int, files: int, rows: int) -> None:
    """Append a snapshot with some files for every quarter of an hour: metadata only, in one commit."""
    Path(table.location().removeprefix("file://"), "metadata").mkdir(parents=True, exist_ok=True)
    manifests: list[ManifestFile] = []
    updates: list[TableUpdate] = []
    for number in range(1, snapshots + 1):
        moment = FIRST + timedelta(minutes=15 * number)
        new = [data_file(table, f"{number}-{part}", moment, rows) for part in range(files)]
        manifests.append(manifest_of(table, number, new))
        path = f"{table.location()}/metadata/snap-{number}.avro"
        is_read = number >= snapshots - max(NEW)
        if is_read:
            parent = number - 1 or None
            with write_manifest_list(2, table.io.new_output(path), number, parent, number, "deflate") as written:
                written.add_manifests(manifests)
        manifests[-1].sequence_number = manifests[-1].min_sequence_number = number
        updates += [AddSnapshotUpdate(snapshot=snapshot_of(number, moment, files, rows, path)), main_at(number)]
    catalog.commit_table(table, (), tuple(updates))


def data_file(table: Table, batch: str, moment: datetime, rows: int) -> DataFile:
    """Return the one file of a batch, which is a partition."""
    microseconds = int(moment.timestamp() * 1_000_000)
    fields = [table.schema().find_field(name) for name in (SOURCE.time_column, "landed_at")]
    bounds = {f.field_id: to_bytes(f.field_type, microseconds) for f in fields}  # type: ignore[arg-type]
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"{table.location()}/data/{batch}.parquet",
        file_format=FileFormat.PARQUET,
        partition=Record((moment.date() - date(1970, 1, 1)).days, moment.hour, batch),
        record_count=rows,
        file_size_in_bytes=50 * rows,
        column_sizes={},
        value_counts={},
        null_value_counts={f.field_id: 0 for f in fields},
        nan_value_counts={},
        lower_bounds=bounds,
        upper_bounds=bounds,
    )
    file.spec_id = table.spec().spec_id
    return file


def manifest_of(table: Table, number: int, files: list[DataFile]) -> ManifestFile:
    path = table.io.new_output(f"{table.location()}/metadata/{number}-m0.avro")
    with write_manifest(2, table.spec(), table.schema(), path, number, "deflate") as writer:
        for file in files:
            writer.add_entry(
                ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, snapshot_id=number, data_file=file)
            )
    return writer.to_manifest_file()


def snapshot_of(number: int, moment: datetime, files: int, rows: int, manifest_list: str) -> Snapshot:
    """Return a snapshot with a summary as Spark writes it."""
    summary = {
        "added-data-files": str(files),
        "added-records": str(files * rows),
        "added-files-size": str(50 * files * rows),
        "changed-partition-count": str(files),
        "total-data-files": str(number * files),
        "total-records": str(number * files * rows),
        "total-files-size": str(50 * number * files * rows),
        "total-delete-files": "0",
        "total-position-deletes": "0",
        "total-equality-deletes": "0",
        "spark.app.id": "local-1767225600000",
        "engine-name": "spark",
        "engine-version": "4.1.3",
        "iceberg-version": "Apache Iceberg 1.12.0 (commit 0123456789abcdef0123456789abcdef01234567)",
    }
    return Snapshot.model_validate(
        {
            "snapshot-id": number,
            "parent-snapshot-id": number - 1 or None,
            "sequence-number": number,
            "timestamp-ms": int(moment.timestamp() * 1000),
            "manifest-list": manifest_list,
            "summary": Summary(Operation.APPEND, **summary),
            "schema-id": 0,
        }
    )


def main_at(number: int) -> SetSnapshotRefUpdate:
    return SetSnapshotRefUpdate.model_validate({"ref-name": "main", "type": "branch", "snapshot-id": number})


if __name__ == "__main__":
    main()
