"""The store of served tables: their files, the leases of readers, what changes them but a push, and their status.

    <folder>/<table>/<segment>.parquet        appears once it is complete, and stays as it is: a file or an object
    <folder>/.drafts/<table>/<segment>.parquet  of a push that has not started yet, and gets its place then
    <cluster>/serving/leases/<table>/<id>     in ZooKeeper, ephemeral; contains its duration in seconds

No file of a segment is removed while a query may read it: a reader acquires a lease before it reads the lineage. A
writer removes a file only after the lineage has given its segment up, and after the leases that existed then have
ended. A client reads at least what existed when it wrote, so a later lease never leads to that segment. A lease ends
with its query or with its session; a writer also stops waiting after the lease's duration, and the query has stopped
itself by then. Both sides measure the duration with their own clock, and compare no times.

A lease costs no round trip of its own: it is requested together with the lineage, before it. A server answers the
requests of a client in order, so a read that was requested after a write returns that write or a later one. If the
connection breaks meanwhile, both are requested again, until the query's limit has passed.

Assumption: a query stops within `GRACE_SECONDS` of its limit. If its process was paused for longer, it finds its lease
lost, and has no result.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, BinaryIO, TypeVar, cast

from kazoo.exceptions import KazooException, NoNodeError

from lake_assets.base.described import describe
from lake_assets.base.failpoints import reach
from lake_assets.connections.storage import COPY_BYTES, NO_SPACE, PARTIAL, Folder, Storage
from lake_assets.connections.zookeeper import answer, retry_for
from lake_assets.errors import ServiceError, ServingError, UsageError, named, not_served, query_stopped, upload_damaged
from lake_assets.serving.lineage import (
    MIN_SNAPSHOTS,
    Change,
    LineageEntry,
    Retention,
    State,
    clean_up,
    delete_segments,
    missing,
    revert_replace,
    roll_back,
    routed,
)
from lake_assets.serving.registry import (
    Registry,
    SegmentInfo,
    States,
    TableState,
    checked_segment,
    checked_table,
    is_segment,
    is_table,
)

if TYPE_CHECKING:
    from io import BufferedReader

    from kazoo.client import KazooClient
    from kazoo.interfaces import IAsyncResult

SEGMENT_ROWS = 250_000
"""Rows of a segment, at most. DuckDB reads segments in parallel, in row groups of 122,880."""

SUFFIX = ".parquet"
NO_VALUE = "Null"
"""The type of a column that has none."""

FOLDER = "lake-push-"
"""Prefix of folders in the system's temporary one: of a segment that is written, and of copies from an object store."""

_PUSH_ID = re.compile(r"[a-z0-9]{8,32}")
_NAME = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9_.-]*_(?P<at>\d{{8}}T\d{{9}}Z)_(?P<push>{_PUSH_ID.pattern})_\d{{4,}}")


def new_push_id() -> str:
    """Return the id of another push."""
    return uuid.uuid4().hex[:12]


def segment_name(table: str, push_id: str, as_of: datetime, number: int) -> str:
    """Return a unique name for a segment.

    Args:
        table: The served table.
        push_id: Of its push.
        as_of: The time of its rows; its milliseconds become a part of the name.
        number: Of the segment within the push.
    """
    if not _PUSH_ID.fullmatch(push_id):
        raise UsageError(f"{push_id!r} is not a valid push id.", remedy="Use 8 to 32 lower-case letters and digits.")
    stamp = f"{as_of:%Y%m%dT%H%M%S%f}"[:-3] + "Z"
    return f"{checked_table(table)}_{stamp}_{push_id}_{number:04d}"


def read_at(name: str) -> datetime | None:
    """Return the time of its rows from a segment's name, in whole milliseconds.

    Returns:
        None if the name was not made by `segment_name`.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    try:
        return datetime.strptime(found["at"], "%Y%m%dT%H%M%S%fZ").replace(tzinfo=UTC)
    except ValueError:
        return None


def push_of(segment: str) -> str | None:
    """Return the id of the push from a segment's name; None if the name was not made by `segment_name`."""
    found = _NAME.fullmatch(segment)
    return found["push"] if found else None


DRAFTS = ".drafts"
DRAFT_AGE = timedelta(days=1)
"""Of drafts whose push has died, at least: no push takes as long."""


def draft_file(table: str, segment: str) -> str:
    """Return the name of a segment's draft in a storage."""
    return f"{DRAFTS}/{checked_table(table)}/{checked_segment(segment)}{SUFFIX}"


class SegmentFiles:
    """The segment files of a folder, or of an object store. A query reads files of this machine.

    Of an object it reads a copy, which is kept for as long as the process runs. A copy is deleted when another one is
    made and its segment is stored no more: then no lease was left that led to it.
    """

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        if isinstance(storage, Folder):
            self.folder = storage.path
        else:
            self._copies = TemporaryDirectory(prefix=FOLDER)
            self.folder = Path(self._copies.name)

    def path(self, table: str, segment: str) -> Path:
        """Return the path at which this machine reads a segment, whether or not it exists.

        Raises:
            UsageError: A name is not valid.
        """
        return self.folder / self._name(table, segment)

    def fetch(self, table: str, segment: str) -> None:
        """Copy a segment to its path, unless it is there. Without an object there is no copy."""
        path = self.path(table, segment)
        if isinstance(self.storage, Folder) or path.exists():
            return
        path.parent.mkdir(exist_ok=True)
        with suppress(FileNotFoundError), self.open(table, segment) as found:
            partial = path.with_suffix(f".{uuid.uuid4().hex}")
            with partial.open("wb") as copy:
                shutil.copyfileobj(found, copy, COPY_BYTES)
            partial.rename(path)
            stored = self.stored(table)
            for other in path.parent.glob(f"*{SUFFIX}"):
                if other.stem not in stored:
                    other.unlink(missing_ok=True)

    def open(self, table: str, segment: str) -> BinaryIO:
        """Open the stored file of a segment. Raises `OSError` or `ServiceError`."""
        return self.storage.open(self._name(table, segment))

    def upload(self, table: str, segment: str, source: Path) -> None:
        """Copy a file. It gets its final name once it is complete, and flushed to the disk.

        Raises:
            ServingError: The folder, or the object store, cannot be written to.
        """
        with writing(table, self.storage.address, "LAKE_SERVING_FOLDER"):
            self.storage.put(self._name(table, segment), source)

    def place(self, table: str, segment: str) -> None:
        """Make a draft the file of its segment.

        Raises:
            ServingError: The folder, or the object store, cannot be written to.
        """
        with writing(table, self.storage.address, "LAKE_SERVING_FOLDER"):
            self.storage.move(draft_file(table, segment), self._name(table, segment))

    def drafts(self, table: str) -> list[str]:
        """Return the segments that have a draft."""
        return list(self._listed(f"{DRAFTS}/{checked_table(table)}"))

    def remove_drafts(self, table: str, *, of_push: str | None = None, until: datetime | None = None) -> None:
        """Remove drafts of a table: those of one push, or of rows that were read until a time, inclusive; else all."""
        gone = []
        for segment in self.drafts(table):
            at = read_at(segment)
            if of_push in (None, push_of(segment)) and (until is None or (at is not None and at <= until)):
                gone.append(segment)
        self._remove(f"{DRAFTS}/{checked_table(table)}", gone)

    def verify(self, table: str, info: SegmentInfo) -> None:
        """Read a segment back, and compare its checksum and its row count.

        Raises:
            SegmentDamaged: They differ, or the file cannot be read.
        """
        import pyarrow.parquet as pq
        from pyarrow import ArrowException

        try:
            with self.open(table, info.name) as file:
                found = hashlib.file_digest(cast("BufferedReader", file), "sha256").hexdigest()
                if found != info.sha256:
                    raise upload_damaged(table, info.name, f"its checksum is {found}, not {info.sha256}")
                rows = pq.read_metadata(file).num_rows
        except (OSError, ArrowException) as error:
            raise upload_damaged(table, info.name, f"it cannot be read: {error}") from error
        if rows != info.rows:
            raise upload_damaged(table, info.name, f"it has {rows} rows, not {info.rows}")

    def sha256(self, table: str, segment: str) -> str:
        """Return the SHA-256 checksum of a stored file, hexadecimal. Raises `OSError` or `ServiceError`."""
        with self.open(table, segment) as file:
            return hashlib.file_digest(cast("BufferedReader", file), "sha256").hexdigest()

    def tables(self) -> list[str]:
        """Return the tables that have a folder, of segments or of drafts, by name."""
        return sorted({name for name in (*self.storage.folders(), *self.storage.folders(DRAFTS)) if is_table(name)})

    def stored(self, table: str) -> dict[str, int]:
        """Return segment → bytes of its files, including files that are being written.

        Files whose names are not names of segments are ignored.
        """
        return self._listed(checked_table(table))

    def remove(self, table: str, segments: Iterable[str]) -> None:
        """Remove the files of segments, if they exist."""
        self._remove(checked_table(table), map(checked_segment, segments))

    def _listed(self, folder: str) -> dict[str, int]:
        found: Counter[str] = Counter()
        for stored in self.storage.files(folder):
            segment = _segment_of(stored.name)
            if segment is not None and is_segment(segment):
                found[segment] += stored.bytes
        return dict(found)

    def _remove(self, folder: str, segments: Iterable[str]) -> None:
        names = set(segments)
        for stored in sorted(self.storage.files(folder) if names else []):
            if _segment_of(stored.name) in names:
                self.storage.remove(f"{folder}/{stored.name}")

    def _name(self, table: str, segment: str) -> str:
        return f"{checked_table(table)}/{checked_segment(segment)}{SUFFIX}"


def _segment_of(file: str) -> str | None:
    """Return the segment of a stored file, or of one that is being written; None for other files. Pure."""
    if file.endswith(PARTIAL):
        return file.removesuffix(PARTIAL).rpartition(".")[0]
    return file.removesuffix(SUFFIX) if file.endswith(SUFFIX) else None


@contextmanager
def writing(table: str, folder: str, variable: str) -> Iterator[None]:
    """Raise `ServingError` if the block cannot write to a folder. variable: of the environment, which names it."""
    try:
        yield
    except (OSError, ServiceError) as error:
        is_full = isinstance(error, OSError) and error.errno in NO_SPACE
        reason = error.problem.rstrip(".") if isinstance(error, ServiceError) else str(error)
        remedy = "Free space" if is_full else "Give access"
        raise ServingError(
            f"{table} could not be written to {folder}: {'its disk is full' if is_full else reason}.",
            remedy=f"{remedy} there, or use another folder ({variable}), and push again.",
        ) from error


def columns_of(file: Path | BinaryIO) -> dict[str, str]:
    """Return the columns of a Parquet file, and what readers take them for. Raises `OSError` or `ArrowException`."""
    import pyarrow.parquet as pq

    schema = pq.read_metadata(file).schema
    found = {}
    for number in range(len(schema)):
        column = schema.column(number)
        logical = re.sub(r", (?:is_from|force_set)_[^,)]*", "", str(column.logical_type))
        found[column.path] = str(column.physical_type) if logical == "None" else logical
    return found


def checksum(of_files: Iterable[str]) -> str:
    """Return one checksum of many, independent of their order: SHA-256 of the sorted ones, hexadecimal."""
    text = "\n".join(sorted(of_files))
    return hashlib.sha256(text.encode()).hexdigest()


ROOT = "/serving/leases"
GRACE_SECONDS = 2.0
POLL_SECONDS = 0.05

T = TypeVar("T")


class Lease:
    """A lease on one or several tables."""

    def __init__(
        self, zk: KazooClient, paths: Sequence[str], *, seconds: float, ends: float, clock: Callable[[], float]
    ) -> None:
        """Request the lease.

        Args:
            zk: A started client.
            paths: Its nodes, one for each table.
            seconds: Its duration.
            ends: Its end, by the clock.
            clock: Monotonic seconds.
        """
        self._zk = zk
        self._paths = paths
        self._ends = ends
        self._clock = clock
        content = json.dumps(seconds).encode()
        self._requests: list[IAsyncResult] = [zk.create_async(path, content, ephemeral=True) for path in paths]

    @property
    def seconds_left(self) -> float:
        """Seconds until the query has to end; negative afterwards."""
        return self._ends - self._clock()

    def wait_until_acquired(self) -> None:
        """Block until the lease is acquired. It also covers what this client has requested since.

        Raises:
            NoNodeError: A table has no folder for leases yet.
        """
        for request in self._requests:
            answer(request)

    def confirm(self) -> None:
        """Check that the lease was held until now. Otherwise a file may have been missing.

        Raises:
            ServingError: It was not.
        """
        if self.seconds_left < 0 or not self._zk.retry(self._exists):
            raise query_stopped("The query's read lease ended before the query.", remedy="Run the query again.")

    def _exists(self) -> bool:
        requests = [self._zk.exists_async(path) for path in self._paths]
        statuses = [answer(request) for request in requests]
        return all(statuses)

    def release(self) -> None:
        """End the lease, without waiting for an answer. Without a connection, the end of the session ends it."""
        for path in self._paths:
            self._zk.delete_async(path)


class Leases:
    """Acquires leases, and waits for those of others.

    Args:
        zk: A started client.
        cluster: The folder of the served tables' nodes; None: the root.
        clock: Monotonic seconds.
    """

    def __init__(
        self, zk: KazooClient, cluster: str | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._zk = zk
        self._root = f"/{cluster}{ROOT}" if cluster else ROOT
        self._clock = clock

    def _folder(self, table: str) -> str:
        return f"{self._root}/{checked_table(table)}"

    def open(self, *tables: str) -> None:
        """Create the folders for leases on tables. It can be repeated."""
        for name in tables:
            self._zk.ensure_path(self._folder(name))

    @contextmanager
    def lease(self, tables: Sequence[str], *, seconds: float, read: Callable[[], T]) -> Iterator[tuple[Lease, T]]:
        """Acquire a lease on tables for the block, and read under it.

        Args:
            tables: To be read.
            seconds: Within which the block has to end.
            read: Called after the lease was requested, before it is waited for; again, if the connection broke.

        Yields:
            The lease, and what `read` returned.

        Raises:
            NoNodeError: A table has no folder for leases yet.
            RetryFailedError: ZooKeeper did not answer within the seconds.
        """
        again = retry_for(self._zk, seconds)
        lease, found = again(self._acquire, tables, seconds, self._clock() + seconds, read)
        try:
            yield lease, found
        finally:
            lease.release()

    def _acquire(self, tables: Sequence[str], seconds: float, ends: float, read: Callable[[], T]) -> tuple[Lease, T]:
        """A lease under new names: whether the one of a broken connection was created is not known."""
        paths = [f"{self._folder(name)}/{uuid.uuid4().hex}" for name in tables]
        lease = Lease(self._zk, paths, seconds=seconds, ends=ends, clock=self._clock)
        try:
            found = read()
            lease.wait_until_acquired()
        except BaseException:
            lease.release()
            raise
        return lease, found

    def active(self, table: str) -> list[str]:
        """Return the nodes of the leases on a table that exist now."""
        folder = self._folder(table)
        try:
            names = self._zk.get_children(folder)
        except NoNodeError:
            return []
        return [f"{folder}/{name}" for name in sorted(names)]

    def drain(self, table: str) -> None:
        """Block until all leases that exist now have ended; at most for the longest duration among them."""
        began = self._clock()
        for path in self.active(table):
            duration = self._duration(path)
            while self._clock() - began < duration and self._zk.exists(path):
                self._zk.handler.sleep_func(POLL_SECONDS)

    def _duration(self, path: str) -> float:
        """Seconds that a writer waits for a lease; 0 if it has ended."""
        try:
            content, _ = self._zk.get(path)
        except NoNodeError:
            return 0.0
        return float(json.loads(content)) + GRACE_SECONDS


@dataclass(frozen=True)
class Policy:
    """Limits of a served table.

    Attributes:
        snapshots: How many are kept, including the newest.
        quota_bytes: Of all its segments' files; None: no limit.
        segment_rows: Rows of a segment, at most.
        spark_rows: Of a push of tables of the lake, from which on Spark writes the segments; None: it never does.
    """

    snapshots: int = MIN_SNAPSHOTS
    quota_bytes: int | None = None
    segment_rows: int = SEGMENT_ROWS
    spark_rows: int | None = None


@dataclass(frozen=True)
class QueryLimits:
    """The limits of one query.

    Attributes:
        seconds: From the start to the end of the query.
        rows: Further rows are left out, and the result is marked as truncated.
        memory_mb: Of DuckDB's buffer manager, and the same again for other allocations of the process; the same for the
            result in the server, in Arrow and then in Python.
        threads: Of DuckDB.
    """

    seconds: float = 30.0
    rows: int = 10_000
    memory_mb: int = 512
    threads: int = 2


class Store:
    """The served tables of one ZooKeeper and one folder: revert, clean-up and delete.

    `serving.lineage` decides on each change. Files are removed after the lineage that gives them up was written, and
    after the leases of that time have ended.

    Args:
        registry: The lineages.
        files: The segments.
        leases: Those of readers.
        clock: UTC, for the timestamps of lineage entries.
        policy: Limits of each table.
    """

    def __init__(
        self,
        registry: Registry,
        files: SegmentFiles,
        leases: Leases,
        *,
        clock: Callable[[], datetime],
        policy: Policy | None = None,
    ) -> None:
        self.registry, self.files, self.leases, self.clock = registry, files, leases, clock
        self.policy = policy or Policy()

    def revert(
        self, table: str, entry_id: str, *, force: bool = False, later: bool = False, erased_at: datetime | None = None
    ) -> Change:
        """Return to the snapshot that an entry has replaced: `revert_all` for one table."""
        return self.revert_all({table: entry_id}, force=force, later=later, erased_at=erased_at)[table]

    def revert_all(
        self,
        entries: Mapping[str, str],
        *,
        force: bool = False,
        later: bool = False,
        erased_at: datetime | None = None,
    ) -> Mapping[str, Change]:
        """Revert entries of several tables in one switch, or none of them.

        Files that a query may still read are kept until the next push or clean-up.

        Args:
            entries: Table → the entry's id.
            force: Whether to revert also entries in progress.
            later: Whether to revert also the entries that replaced these since.
            erased_at: Time of the last erasure; None if there was none.

        Returns:
            Table → the change that was written.

        Raises:
            ServingError: Readers would see rows that were read before the erasure.
            ServingError: The lineage does not allow it.
        """
        operation = roll_back if later else revert_replace

        def decide(states: States) -> dict[str, Change]:
            changes = {}
            for table, entry_id in entries.items():
                state = states[table]
                present = state.segments.intersection(self.files.stored(table))
                change = operation(state.lineage, entry_id, present=present, now=self.clock(), force=force)
                routed_after = routed(change.lineage, state.segments - change.deletions)
                banned = self.read_before(table, routed_after - state.routed, erased_at)
                if erased_at is not None and banned:
                    raise ServingError(
                        f"{table} would return to rows that were read at {min(banned.values()):%Y-%m-%d %H:%M:%S} UTC, "
                        f"before a person was erased at {erased_at:%Y-%m-%d %H:%M:%S} UTC.",
                        remedy="Correct the table and push it again.",
                        status=409,
                    )
                changes[table] = change
            return changes

        changes = self.registry.update(decide, *entries)
        reach("revert-written")
        for table in entries:
            self.remove_unreferenced(table, wait=False, failpoint="revert-half-removed")
        reach("revert-done")
        return changes

    def clean_up(self, table: str, *, retention: Retention, erased_at: datetime | None = None) -> Change:
        """Run one cycle of retention, and remove the files that killed pushes and reverts have left.

        Args:
            table: To clean up.
            retention: How long segments are kept.
            erased_at: Time of the last erasure; replaced segments whose rows were read before are deleted at any age.
                None: there was none.

        Returns:
            The change that was written.
        """

        def decide(states: States) -> dict[str, Change]:
            state = states[table]
            banned = self.read_before(table, state.segments - state.routed, erased_at)
            change = clean_up(
                state.lineage, present=state.segments, now=self.clock(), retention=retention, banned=banned
            )
            return {table: change}

        change = self.registry.update(decide, table)[table]
        reach("clean-up-written")
        old = self.clock() - max(retention.lineage, DRAFT_AGE)
        self.files.remove_drafts(table, until=old if erased_at is None else max(old, erased_at))
        self.remove_unreferenced(table, wait=True, given_up=change.deletions, failpoint="clean-up-half-removed")
        reach("clean-up-done")
        return change

    def delete(self, table: str, segments: Sequence[str]) -> Change:
        """Delete segments that nothing needs.

        Raises:
            ServingError: Readers see a segment, or a live entry names it.
            ServingError: There is no such segment.
        """
        stored = self.files.stored(table)  # listed before the lineage is read: see `check_lineage_exists`
        self.registry.sync()

        def decide(states: States) -> dict[str, Change]:
            state = states[table]
            self.check_lineage_exists(table, state, stored)
            unknown = missing(segments, state.segments.union(stored))
            if unknown:
                raise ServingError(
                    f"{table} has no segment {min(unknown)!r}.",
                    remedy=f"See `lake serving lineage {table} --json`.",
                    status=404,
                )
            return {table: delete_segments(state.lineage, segments, routed=state.routed)}

        change = self.registry.update(decide, table)[table]
        self.remove_unreferenced(table, wait=True)
        return change

    def note_failure(self, tables: Iterable[str], error: Exception | None) -> None:
        """Note what a push failed on, for alerts; None: it went through. Nothing is raised."""
        with suppress(KazooException):
            for table in tables:
                self.registry.note_failure(table, None if error is None else describe(error))

    def check_lineage_exists(self, table: str, state: TableState, stored: Mapping[str, int]) -> None:
        """Check that a table that has files has a lineage.

        Args:
            table: The table.
            state: As it was read after `stored`, and after a `sync` of the registry.
            stored: The files of the table.

        Raises:
            ServingError: It has none, so it is not known which files readers see, and none is deleted.
        """
        if state.version is None and stored:
            folder = f"{self.files.storage.address}/{table}"
            raise ServingError(
                f"ZooKeeper has no lineage of {table}, but {folder} contains its files: {named(stored)}.",
                remedy="Name the ZooKeeper that has its lineage (LAKE_ZOOKEEPER), or the folder that belongs to this "
                "one (LAKE_SERVING_FOLDER). If the lineage is lost, restore ZooKeeper's data from a backup. To start "
                f"again without the files, move {folder} away, and push again.",
            )

    def refuse_similar(self, tables: Iterable[str]) -> None:
        """Refuse two tables whose names differ only in case: one table in SQL, and one folder on some systems."""
        spellings: dict[str, str] = {}
        for table in (*self.registry.tables(), *tables):
            other = spellings.setdefault(table.lower(), table)
            if other != table:
                raise ServingError(
                    f"{table} cannot be pushed: {other} is served already, and SQL does not distinguish the two names.",
                    remedy=f"Push it as {other}, or under another name.",
                )

    def check_columns(
        self, table: str, segments: Iterable[str], pushed: Mapping[str, str], *, together: bool = False
    ) -> None:
        """Compare columns with those of other segments; not with those of a damaged one.

        Args:
            table: The table.
            segments: Those that readers see, whose columns without a value are not compared.
            pushed: The columns, as `columns_of` returns them.
            together: The segments are of the same push. Readers take the columns of one for those of all.

        Raises:
            ServingError: They differ.
        """
        from pyarrow import ArrowException

        for segment in sorted(segments)[:1]:
            with suppress(OSError, ArrowException):
                with self.files.open(table, segment) as opened:
                    seen = columns_of(opened)
                for name in seen.keys() | pushed.keys():
                    kinds = {seen.get(name), pushed.get(name)}
                    if len(kinds) > 1 and (together or None in kinds or NO_VALUE not in kinds):
                        raise _columns_changed(table, seen, pushed, segment if together else None)

    def read_before(self, table: str, segments: Iterable[str], erased_at: datetime | None) -> dict[str, datetime]:
        """Return those segments whose rows were read before an erasure, with the time they were read.

        Args:
            table: The table.
            segments: To consider.
            erased_at: Time of the last erasure; None if there was none.
        """
        return {} if erased_at is None else self.registry.read_by(table, segments, erased_at)

    def remove_unreferenced(
        self,
        table: str,
        *,
        wait: bool,
        given_up: frozenset[str] = frozenset(),
        failpoint: str | None = None,
    ) -> tuple[str, ...]:
        """Remove the files that neither belong to a segment nor are being uploaded.

        Args:
            table: The table.
            wait: Whether to wait for the leases of this moment. Otherwise nothing is removed while there are leases.
            given_up: Segments to remove although an entry in progress names them.
            failpoint: Reached after the first file is removed.

        Returns:
            The segments whose files were removed, by name.

        Raises:
            ServingError: There are files, but no lineage.
        """
        stored = self.files.stored(table)  # listed before the lineage is read: an upload starts after its entry
        self.registry.sync()
        state = self.registry.read(table)[table]
        self.check_lineage_exists(table, state, stored)
        in_hand = {name for entry in state.lineage.in_state(State.IN_PROGRESS) for name in entry.segments_to}
        garbage = sorted(set(stored) - (state.segments.union(in_hand) - given_up))
        if not garbage:
            return ()
        if wait:
            self.leases.drain(table)
        elif self.leases.active(table):
            return ()
        self.files.remove(table, garbage[:1])
        if failpoint:
            reach(failpoint)
        self.files.remove(table, garbage[1:])
        return tuple(garbage)


def _columns_changed(
    table: str, seen: Mapping[str, str], pushed: Mapping[str, str], beside: str | None
) -> ServingError:
    """Return the error of rows with other columns than readers see, or (beside) a segment of the same push has.

    seen, pushed: column → type.
    """
    parts = [f"{name} is gone" for name in sorted(seen.keys() - pushed.keys())]
    parts += [f"{name} is new" for name in sorted(pushed.keys() - seen.keys())]
    for name in sorted(seen.keys() & pushed.keys()):
        if seen[name] != pushed[name]:
            parts.append(f"{name} is {pushed[name]} instead of {seen[name]}")
    return ServingError(
        f"The push of {table} has other columns than {beside or 'readers see'}: {', '.join(parts)}.",
        remedy="Give all segments of a push the same columns."
        if beside
        else "Correct the rows. If readers know of the new columns, push with --new-schema.",
        status=400,
    )


@dataclass(frozen=True)
class TableStatus:
    """The status of a served table.

    Attributes:
        table: The served table.
        segments: Number of segments that readers see.
        rows: Of these segments.
        size_bytes: Of these segments.
        as_of: The rows were read then; None if readers see no segment.
        stored_bytes: Of all segments, including those to go back to and those that are being pushed.
        head: Of the source when it was read; None if it is not known.
    """

    table: str
    segments: int
    rows: int
    size_bytes: int
    as_of: datetime | None
    stored_bytes: int
    head: str | None


@dataclass(frozen=True)
class EntryStatus(LineageEntry):
    """A lineage entry, and what may be done to it now.

    Attributes:
        can_revert: Whether it can be reverted without force.
        can_roll_back: Whether it can be reverted without force, together with later entries.
    """

    can_revert: bool
    can_roll_back: bool

    @property
    def goes_back(self) -> str:
        """How it can be reverted, for a person; empty if it cannot."""
        if self.can_revert:
            return "yes"
        return "with --later" if self.can_roll_back else ""


def table_status(registry: Registry, table: str) -> TableStatus:
    """Return the current status of a table. Raises `ServingError`."""
    state = known_state(registry, table)
    infos = list(registry.infos(table, sorted(state.segments)))
    seen = [info for info in infos if info.name in state.routed]
    return TableStatus(
        table=table,
        segments=len(seen),
        rows=sum(info.rows for info in seen),
        size_bytes=sum(info.size_bytes for info in seen),
        as_of=min((info.as_of for info in seen), default=None),
        stored_bytes=sum(info.size_bytes for info in infos),
        head=seen[0].head if seen else None,
    )


def in_sight(registry: Registry, table: str) -> str:
    """Return what readers see of a table, as a sentence."""
    found = table_status(registry, table)
    if not found.segments:
        return f"Readers of {table} see nothing: there was no earlier push. Queries are refused until the next one."
    return f"Readers of {table} see {found.rows:,} rows, as of {found.as_of:%Y-%m-%d %H:%M:%S} UTC."


def lineage_status(registry: Registry, table: str) -> list[EntryStatus]:
    """Return the entries of a table, the newest first. Raises `ServingError`."""
    return entries_status(known_state(registry, table))


def entries_status(state: TableState) -> list[EntryStatus]:
    """Return the entries of a lineage, the newest first."""
    entries = sorted(state.lineage.entries.values(), key=lambda entry: (entry.timestamp, entry.id), reverse=True)
    return [
        EntryStatus(
            **vars(entry),
            can_revert=_is_allowed(revert_replace, state, entry),
            can_roll_back=_is_allowed(roll_back, state, entry),
        )
        for entry in entries
    ]


def switched_with(table: str, entry: EntryStatus, found: Mapping[str, Sequence[EntryStatus]]) -> dict[str, str]:
    """Return the entries of other tables that have to be reverted together with an entry.

    They belong to the same push, and can be reverted in the same way: alone, or together with later entries.

    Args:
        table: The entry's table.
        entry: The entry.
        found: Table → its entries.

    Returns:
        Other table → its entry's id.
    """
    push_ids = _push_ids(entry.segments_to)
    others = {}
    for other, entries in found.items():
        if other == table:
            continue
        for candidate in entries:
            same_way = candidate.can_revert if entry.can_revert else candidate.can_roll_back
            if same_way and push_ids & _push_ids(candidate.segments_to):
                others[other] = candidate.id
    return others


def way_back(table: str, entry_id: str, others: Mapping[str, str] | None = None, *, later: bool = False) -> str:
    """Return the command that reverts a push.

    Args:
        table: The served table.
        entry_id: Its lineage entry.
        others: Other table → its entry, reverted in the same switch.
        later: Whether to revert later pushes, too.
    """
    words = ["lake serving revert", table, entry_id]
    for other, other_id in (others or {}).items():
        words.append(f"--with {other}={other_id}")
    if later:
        words.append("--later")
    return " ".join(words)


def known_state(registry: Registry, table: str) -> TableState:
    """Return the state of a table. Raises `ServingError`."""
    state = registry.read(table)[table]
    if state.version is None:
        raise not_served(table, registry.tables())
    return state


def _is_allowed(operation: Callable[..., Change], state: TableState, entry: LineageEntry) -> bool:
    """Whether an operation that reverts the entry is allowed without force."""
    try:
        operation(state.lineage, entry.id, present=state.segments, now=entry.timestamp)
    except ServingError:
        return False
    return True


def _push_ids(segments: Iterable[str]) -> set[str]:
    """The pushes of segments, except those whose names do not contain one."""
    found = set()
    for segment in segments:
        push_id = push_of(segment)
        if push_id is not None:
            found.add(push_id)
    return found
