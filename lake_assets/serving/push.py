"""Pushes: rows become segments, and segments replace those of a served table, all of them in one switch.

A push is started, with the names of all its segments, before any of them is uploaded: a segment that no entry names
would be routed at once. Any failure reverts the push. The calls of a controller of Apache Pinot do the same one by one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from kazoo.exceptions import KazooException
from pyarrow import ArrowException

from lake_assets.base.failpoints import reach
from lake_assets.connections.storage import sha256_of
from lake_assets.errors import (
    EntryEnded,
    LakeError,
    ServiceError,
    ServingError,
    UsageError,
    quota_exceeded,
    replace_refused,
    target_taken,
)
from lake_assets.serving.lineage import (
    Change,
    State,
    end_replace,
    missing,
    retired_segments,
    revert_replace,
    start_replace,
    whole_milliseconds,
)
from lake_assets.serving.registry import SegmentInfo, States, TableState, checked_segment, checked_table
from lake_assets.serving.store import (
    FOLDER,
    SEGMENT_ROWS,
    Store,
    checksum,
    columns_of,
    draft_file,
    segment_name,
    writing,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake_assets.connections.storage import Storage

SEGMENTS_OF_PART = 10_000
"""Numbers of segments that each part of the rows has: those of its names."""

MAX_SEGMENTS = 2_000
"""Of a push. ZooKeeper accepts 1 MB per request, and one request has to give up a whole snapshot."""


@dataclass(frozen=True)
class Rows:
    """The rows of a push.

    Attributes:
        schema: Of all parts.
        parts: Each reads some of the rows: once, if they come from a stream. Those of a table of the lake can be sent
            to another process.

    Raises:
        UsageError: They have no column.
    """

    schema: pa.Schema
    parts: Sequence[Callable[[], Iterable[pa.RecordBatch]]]

    def __post_init__(self) -> None:
        _require_columns(len(self.schema))

    @classmethod
    def of(cls, rows: pa.Table | Sequence[Path]) -> Rows:
        """Return rows of this process, or of Parquet files (see `from_parquet`), in one part."""
        if isinstance(rows, pa.Table):
            return cls(rows.schema, [rows.to_batches])
        return from_parquet(*rows)


def _require_columns(count: int) -> None:
    if not count:
        raise UsageError("The rows have no column: no query could read them.", remedy="Push rows with columns.")


@dataclass(frozen=True)
class Draft:
    """A segment that is stored, but not among those of its table yet.

    Attributes:
        name: The segment.
        rows: Their number.
        size_bytes: Of its file.
        sha256: Of its file, hexadecimal.
        columns: Column → what readers take it for, as `columns_of` returns it.
    """

    name: str
    rows: int
    size_bytes: int
    sha256: str
    columns: Mapping[str, str]


def from_parquet(*files: Path) -> Rows:
    """Return the rows of Parquet files, one after the other.

    Raises:
        UsageError: A file cannot be read as Parquet, or has other columns than the first one.
    """
    opened = []
    for file in files:
        try:
            opened.append(pq.ParquetFile(file))
        except (OSError, ArrowException) as error:
            raise UsageError(f"{file} cannot be read as Parquet: {error}.", remedy="Name a Parquet file.") from error
        if not opened[-1].schema_arrow.equals(opened[0].schema_arrow):
            raise UsageError(
                f"{file} has other columns than {files[0]}: they are no rows of one table.",
                remedy="Push files of one schema together, or one file alone.",
            )
    return Rows(opened[0].schema_arrow, [lambda: (batch for found in opened for batch in found.iter_batches())])


@dataclass(frozen=True)
class Drafting:
    """Rows that become drafts of segments. It can be sent to another process if its rows can.

    Attributes:
        storage: Where the drafts are stored.
        table: The served table.
        rows: All of its rows.
        push_id: Of the push.
        as_of: A time before the rows were read; UTC.
        segment_rows: Rows of a segment, at most.
    """

    storage: Storage
    table: str
    rows: Rows
    push_id: str
    as_of: datetime
    segment_rows: int = SEGMENT_ROWS

    def write(self, spark: SparkSession | None = None) -> list[Draft]:
        """Write all segments, at least one: a table without rows still has columns.

        Args:
            spark: Writes each part in a task of its own; None: this process writes one after the other.

        Raises:
            UsageError: There are too many rows.
            ServingError: The rows cannot be read, or a draft cannot be written.
        """
        numbers = range(len(self.rows.parts))
        drafts: list[Draft] = []
        for of_part in [self._by_spark(spark)] if spark else map(self.write_part, numbers):
            drafts += of_part
            if len(drafts) > MAX_SEGMENTS:
                raise self._too_many()
        return drafts or [self._segment(0, [])]

    def write_part(self, number: int) -> list[Draft]:
        """Write the segments of a part of the rows; none if it has no rows. Raises as `write`."""
        drafts: list[Draft] = []
        for batches in _cut(self._read(number), self.segment_rows):
            if len(drafts) == MAX_SEGMENTS:
                raise self._too_many()
            drafts.append(self._segment(number * SEGMENTS_OF_PART + len(drafts), batches))
        return drafts

    def _by_spark(self, spark: SparkSession) -> list[Draft]:
        parts = len(self.rows.parts)
        numbers = spark.range(0, parts, 1, parts)
        rows = numbers.mapInArrow(lambda batches: _written(self, batches), "draft string").collect()
        return [Draft(**json.loads(row["draft"])) for row in rows]

    def _read(self, number: int) -> Iterator[pa.RecordBatch]:
        """Only errors of the source become `ServingError`; those of the caller, which writes, do not."""
        try:
            yield from self.rows.parts[number]()
        except (OSError, ArrowException) as error:
            raise ServingError(
                f"The source of {self.table} could not be read: {error}.",
                remedy="Check that its files exist and can be read, then push again.",
            ) from error

    def _segment(self, number: int, batches: Iterable[pa.RecordBatch]) -> Draft:
        """Write batches of rows to one segment."""
        name = segment_name(self.table, self.push_id, self.as_of, number)
        rows = 0
        with TemporaryDirectory(prefix=FOLDER) as folder:
            path = Path(folder) / f"{name}.parquet"
            with (
                writing(self.table, gettempdir(), "TMPDIR"),
                pq.ParquetWriter(path, self.rows.schema, compression="zstd") as writer,
            ):
                for batch in batches:
                    writer.write_batch(batch)
                    rows += batch.num_rows
            with writing(self.table, self.storage.address, "LAKE_SERVING_FOLDER"):
                self.storage.put(draft_file(self.table, name), path)
            return Draft(name, rows, path.stat().st_size, sha256_of(path), columns_of(path))

    def _too_many(self) -> UsageError:
        return UsageError(
            f"{self.table} would have more than {MAX_SEGMENTS:,} segments of {self.segment_rows:,} rows.",
            remedy="Serve an aggregate of it, or raise the number of rows of a segment.",
        )


def _written(drafting: Drafting, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write the parts with these numbers, in a task of Spark; yield each draft as JSON."""
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            drafts = [json.dumps(vars(draft)) for draft in drafting.write_part(number)]
            yield pa.record_batch([pa.array(drafts, pa.string())], ["draft"])


def _cut(batches: Iterable[pa.RecordBatch], segment_rows: int) -> Iterator[list[pa.RecordBatch]]:
    """Batches with `segment_rows` rows together, the last ones with fewer; nothing if there are no rows."""
    part: list[pa.RecordBatch] = []
    free = segment_rows
    for batch in batches:
        rest = batch
        while rest.num_rows:
            piece = rest.slice(0, free)
            rest = rest.slice(free)
            part.append(piece)
            free -= piece.num_rows
            if free == 0:
                yield part
                part = []
                free = segment_rows
    if part:
        yield part


SegmentNames = tuple[str, ...]


@dataclass(frozen=True)
class PushReport:
    """A completed push of a table.

    Attributes:
        table: The served table.
        entry_id: Its lineage entry.
        segments: The pushed segments.
        rows: Of all segments.
        size_bytes: Of all segments' files.
        checksum: Of all segments' files, as `store.checksum` returns it.
        replaced: The segments that readers saw before.
        removed: The segments whose files were removed, before the upload or after the switch.
    """

    table: str
    entry_id: str
    segments: SegmentNames
    rows: int
    size_bytes: int
    checksum: str
    replaced: SegmentNames
    removed: SegmentNames


@dataclass(frozen=True)
class Push:
    """One push of tables.

    Attributes:
        store: Where to push.
        drafts: The segments of each table.
        as_of: A time before the rows were read; UTC.
        force: Whether to revert what is in progress in these tables, instead of being refused.
        new_schema: Whether the columns may differ from those that readers see.
        heads: Table → head of its source.
        quotas: Table → most bytes of all its segments' files; otherwise that of the policy.
        entries: Table → the entry that was started.
    """

    store: Store
    drafts: Mapping[str, Sequence[Draft]]
    as_of: datetime
    force: bool
    new_schema: bool
    heads: Mapping[str, str | None]
    quotas: Mapping[str, int | None]
    entries: dict[str, str] = field(default_factory=dict)

    def run(self) -> list[PushReport]:
        """Start the entries, upload and register the segments, and switch all tables at once.

        Raises:
            ServingError: What stopped the push. It was reverted; a note of the error says if that failed, too.
        """
        self.store.leases.open(*self.drafts)
        self._start()
        try:
            reach("push-started")
            removed = {table: self.store.remove_unreferenced(table, wait=True) for table in self.drafts}
            reach("push-tidied")
            self._upload_and_register()
            replaced = self._end()
        except BaseException as error:
            self._give_up(error)
            raise
        reach("push-ended")
        for table in self.drafts:
            with suppress(LakeError, KazooException, OSError):  # the push is done; a clean-up repeats it
                removed[table] += self.store.remove_unreferenced(table, wait=True)
        return [self._report(table, replaced[table], removed[table]) for table in self.drafts]

    def _start(self) -> None:
        """Start an entry for each table."""
        files_before = {table: self.store.files.stored(table) for table in self.drafts}
        self.store.registry.sync()  # after the files were listed: see `check_lineage_exists`

        def decide(states: States) -> dict[str, Change]:
            changes = {}
            for table, state in states.items():
                self.store.check_lineage_exists(table, state, files_before[table])
                changes[table] = self._started(table, state)
            return changes

        self.store.refuse_similar(self.drafts)
        self.store.registry.update(decide, *self.drafts)

    def _started(self, table: str, state: TableState) -> Change:
        """The oldest snapshot goes with the switch, so a push that dies has deleted nothing; earlier for a quota."""
        before = self._without_others(state) if self.force else state
        if not self.new_schema:
            self.store.check_columns(table, before.routed, self.drafts[table][0].columns)
        started = start_replace(
            before.lineage,
            segments_from=sorted(before.routed),
            segments_to=[draft.name for draft in self.drafts[table]],
            routed=before.routed,
            now=self.store.clock(),
            snapshots=self.store.policy.snapshots + 1,
        )
        deletions = started.deletions | (state.segments - before.segments)
        if self._over_quota(table, state.segments - deletions):  # without room for one snapshot more
            deletions |= retired_segments(before.lineage, before.routed, kept=self.store.policy.snapshots - 1)
            over = self._over_quota(table, state.segments - deletions)
            if over is not None:
                raise over
        self.entries[table] = started.entry_id
        return Change(started.lineage, deletions)

    def _without_others(self, state: TableState) -> TableState:
        """The table with all entries in progress reverted: each of them conflicts with the push of a whole snapshot."""
        lineage = state.lineage
        deletions: set[str] = set()
        for entry in state.lineage.in_state(State.IN_PROGRESS):
            reverted = revert_replace(lineage, entry.id, present=state.segments, now=self.store.clock(), force=True)
            lineage = reverted.lineage
            deletions |= reverted.deletions
        return TableState(lineage, state.version, state.segments - deletions)

    def _over_quota(self, table: str, kept: frozenset[str]) -> ServingError | None:
        quota = self.quotas.get(table) or self.store.policy.quota_bytes
        if quota is None:
            return None
        new = sum(draft.size_bytes for draft in self.drafts[table])
        stored = sum(size for name, size in self.store.files.stored(table).items() if name in kept)
        if stored + new > quota:
            return quota_exceeded(table, stored=stored, new=new, quota=quota)
        return None

    def _upload_and_register(self) -> None:
        try:
            for table in self.drafts:
                self._upload(table)
            reach("push-uploaded")
            for table in self.drafts:
                self._register(table)
            reach("push-registered")
        except EntryEnded:
            # The client that reverted the push may have removed its files before the last one was uploaded.
            self._remove_unregistered()
            raise

    def _upload(self, table: str) -> None:
        """Stop after the file during which the entry was reverted: that client may be uploading its own by now."""
        drafts = self.drafts[table]
        for number, draft in enumerate(drafts):
            if number == len(drafts) // 2:
                reach("push-half-uploaded")
            self.store.files.place(table, draft.name)
            self.store.registry.check_in_progress(table, self.entries[table])

    def _register(self, table: str) -> None:
        """Only segments that were read back are registered, so each registered one is readable."""
        entry_id = self.entries[table]
        infos = [
            SegmentInfo(
                name=draft.name,
                rows=draft.rows,
                size_bytes=draft.size_bytes,
                sha256=draft.sha256,
                as_of=whole_milliseconds(self.as_of),
                entry_id=entry_id,
                head=self.heads.get(table),
            )
            for draft in self.drafts[table]
        ]
        for info in infos:
            self.store.files.verify(table, info)
        self.store.registry.register(table, entry_id, infos)

    def _remove_unregistered(self) -> None:
        """Without waiting for leases: no reader can have seen these files."""
        for table, state in self.store.registry.read(*self.drafts).items():
            names = [draft.name for draft in self.drafts[table]]
            self.store.files.remove(table, missing(names, state.segments))

    def _end(self) -> dict[str, SegmentNames]:
        """Switch all tables at once; return the segments that were replaced, by table."""

        def decide(states: States) -> dict[str, Change]:
            return {table: self._ended(table, state) for table, state in states.items()}

        changes = self.store.registry.update(decide, *self.entries)
        replaced = {}
        for table, entry_id in self.entries.items():
            replaced[table] = changes[table].lineage.entry(entry_id).segments_from
        return replaced

    def _ended(self, table: str, state: TableState) -> Change:
        entry = state.lineage.entry(self.entries[table])
        if entry.state is State.IN_PROGRESS and state.routed != set(entry.segments_from):
            raise ServingError(
                f"{table} was changed by another push while entry {entry.id} was pushed: readers would see both "
                "snapshots.",
                remedy="Push again, unless the other push is the newer one.",
            )
        lost = missing(entry.segments_to, self.store.files.stored(table))
        ended = end_replace(state.lineage, entry.id, ready=state.segments - lost, now=self.store.clock())
        retired = retired_segments(ended.lineage, entry.segments_to, kept=self.store.policy.snapshots)
        return Change(ended.lineage, ended.deletions | (retired & state.segments))

    def _give_up(self, error: BaseException) -> None:
        """Revert the push. If that fails, the error gets a note; a forced push or a clean-up repeats it."""

        def decide(states: States) -> dict[str, Change]:
            changes = {}
            for table, state in states.items():
                entry = state.lineage.entries.get(self.entries[table])
                if entry is not None and entry.state is State.IN_PROGRESS:
                    changes[table] = revert_replace(
                        state.lineage, entry.id, present=state.segments, now=self.store.clock(), force=True
                    )
            return changes

        try:
            changes = self.store.registry.update(decide, *self.entries)
            for table, change in changes.items():
                self.store.files.remove(table, change.deletions)  # no reader can have seen them
            for table in self.entries:
                self.store.remove_unreferenced(table, wait=False)
        except (LakeError, KazooException, OSError) as second:
            error.add_note(f"The push could not be reverted: {second}")

    def _report(self, table: str, replaced: SegmentNames, removed: SegmentNames) -> PushReport:
        drafts = self.drafts[table]
        return PushReport(
            table=table,
            entry_id=self.entries[table],
            segments=tuple(draft.name for draft in drafts),
            rows=sum(draft.rows for draft in drafts),
            size_bytes=sum(draft.size_bytes for draft in drafts),
            checksum=checksum(draft.sha256 for draft in drafts),
            replaced=replaced,
            removed=removed,
        )


class Writer(Store):
    """Changes served tables, also by pushes. Its methods raise `ServingError`."""

    def push(
        self,
        tables: Mapping[str, Rows | pa.Table | Sequence[Path]],
        *,
        push_id: str,
        as_of: datetime,
        force: bool = False,
        new_schema: bool = False,
        heads: Mapping[str, str | None] | None = None,
        quotas: Mapping[str, int | None] | None = None,
        spark: SparkSession | None = None,
    ) -> list[PushReport]:
        """Replace tables by new snapshots, all of them in one switch: a push group. Any failure reverts the push.

        Args:
            tables: The rows of each table, or its Parquet files.
            push_id: Unique; it becomes a part of the segments' names.
            as_of: A time before the rows were read, UTC; it becomes a part of the segments' names.
            force: Whether to revert what is in progress in these tables, instead of being refused. It repairs a push
                that died.
            new_schema: Whether the columns may differ from those that readers see.
            heads: Table → head of its source, which is registered to detect later changes.
            quotas: Table → the most bytes that its segments may take; otherwise that of the policy.
            spark: Writes the segments, if all rows are of tables of the lake; None: this process does.

        Returns:
            A report for each table, in the order of `tables`.
        """
        for table in tables:
            checked_table(table)
        try:
            drafts = {}
            for table, given in tables.items():
                if force:
                    self.files.remove_drafts(table)
                rows = given if isinstance(given, Rows) else Rows.of(given)
                drafting = Drafting(self.files.storage, table, rows, push_id, as_of, self.policy.segment_rows)
                drafts[table] = drafting.write(spark)
            reach("push-drafted")
            reports = Push(self, drafts, as_of, force, new_schema, heads or {}, quotas or {}).run()
        except BaseException as error:
            with suppress(ServiceError, OSError):
                for table in tables:
                    self.files.remove_drafts(table, of_push=push_id)
            if isinstance(error, Exception):
                self.note_failure(tables, error)
            raise
        self.note_failure(tables, None)
        return reports

    def start_replace(self, table: str, sources: Sequence[str], targets: Sequence[str], *, force: bool = False) -> str:
        """Start a replacement of segments, as a controller of Apache Pinot does: see `lineage.start_replace`.

        Returns:
            The id of its entry.
        """
        self.leases.open(table)
        for name in (*sources, *targets):
            checked_segment(name)
        files_before = self.files.stored(table)
        self.registry.sync()
        self.refuse_similar([table])
        started = ""

        def decide(states: States) -> dict[str, Change]:
            nonlocal started
            state = states[table]
            self.check_lineage_exists(table, state, files_before)
            taken = set(targets) & state.segments
            if taken and not force:
                raise target_taken(table, taken, "segments with these names are stored")
            change = start_replace(
                state.lineage,
                segments_from=sources,
                segments_to=targets,
                routed=state.routed,
                now=self.clock(),
                force=force,
                snapshots=self.policy.snapshots,
            )
            started = change.entry_id
            return {table: Change(change.lineage, change.deletions | taken)}

        self.registry.update(decide, table)
        self.remove_unreferenced(table, wait=True)
        return started

    def upload(
        self, table: str, segment: str, file: Path, *, quota: int | None = None, new_schema: bool = False
    ) -> None:
        """Store a file as a segment that an entry in progress names, read it back, and register it.

        Raises:
            UsageError: The file is not Parquet, or has no column.
            ServingError: No entry in progress names the segment, or it is stored already, or being uploaded.
            ServingError: It has other columns than readers see, and `new_schema` is not set; or than another segment of
                its entry; or the table would exceed its quota.
        """
        try:
            metadata = pq.read_metadata(file)
        except (OSError, ArrowException) as error:
            raise UsageError(
                f"{segment} of {table} is not Parquet: {error}.",
                remedy="Upload a Parquet file. Archives of segments that Pinot built belong into a cluster of Pinot.",
            ) from error
        _require_columns(metadata.num_columns)
        columns = columns_of(file)
        with self.registry.uploading(table, segment):
            state = self.registry.read(table)[table]
            naming = [entry for entry in state.lineage.in_state(State.IN_PROGRESS) if segment in entry.segments_to]
            if segment in state.segments:
                raise target_taken(table, [segment], "a segment with this name is stored")
            if not naming:
                raise replace_refused(  # it would be routed at once
                    f"No replacement in progress of {table} names {segment}, so it cannot be uploaded.",
                    remedy=f"Call startReplaceSegments of {table} first, with it among segmentsTo.",
                )
            if not new_schema:
                self.check_columns(table, state.routed, columns)
            most = quota or self.policy.quota_bytes
            size = file.stat().st_size
            stored = sum(self.files.stored(table).values())
            if most is not None and stored + size > most:
                raise quota_exceeded(table, stored=stored, new=size, quota=most)
            entry = naming[-1]

            def check(state: TableState) -> None:
                self.check_columns(table, state.segments & set(entry.segments_to), columns, together=True)

            checksum, as_of = sha256_of(file), entry.timestamp
            info = SegmentInfo(segment, metadata.num_rows, size, checksum, as_of=as_of, entry_id=entry.id)
            self.files.upload(table, segment, file)
            try:
                self.files.verify(table, info)
                self.registry.register(table, entry.id, [info], check=check)
            except ServingError:
                self.files.remove(table, missing([segment], self.registry.read(table)[table].segments))
                raise

    def end_replace(self, table: str, entry_id: str) -> None:
        """Complete a replacement: see `lineage.end_replace`. Its files must be there."""

        def decide(states: States) -> dict[str, Change]:
            state = states[table]
            entry = state.lineage.entry(entry_id)
            lost = missing(entry.segments_to, self.files.stored(table))
            return {table: end_replace(state.lineage, entry_id, ready=state.segments - lost, now=self.clock())}

        self.registry.update(decide, table)
        self.note_failure([table], None)
