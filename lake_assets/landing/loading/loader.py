"""Loading landed files into raw tables: each offset once, however often files are compacted or a loader dies.

A batch begins at the offsets in the raw table and ends where the readable files of a zone stop covering them in all
shards. The zone that reaches further is read, or the other one if a file is damaged: verified files are equal. Rows
sent before the erasure of their subject are dropped.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from operator import attrgetter

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from lake_assets.base.failpoints import reach
from lake_assets.base.hours import milliseconds
from lake_assets.errors import FileDamaged, PublishConflict, SourceError, StateMoved
from lake_assets.incremental.declaration import Subject
from lake_assets.incremental.engine import iceberg
from lake_assets.incremental.engine.erasures import Erasures
from lake_assets.landing.consume.idle_spans import idle_heartbeats, idle_spans
from lake_assets.landing.consume.messages import Feed, heartbeat_of
from lake_assets.landing.files.entries import DataFile
from lake_assets.landing.files.offset_ranges import first_offsets
from lake_assets.landing.files.records import Record
from lake_assets.landing.files.sharding import parse_shard
from lake_assets.landing.files.zone_folder import Zone
from lake_assets.landing.loading.batch import Batch, LandedRow, commit
from lake_assets.landing.loading.progress import Progress, is_credible, read_progress
from lake_assets.landing.loading.unread_files import dead_letter_files, unread_files
from lake_assets.landing.manifest.coverage import Cover, limit_ends, ready_ends
from lake_assets.landing.manifest.schema import Entry, files_of
from lake_assets.landing.manifest.shared_state import DeletionRequest, SharedState
from lake_assets.landing.manifest.store import Manifest
from lake_assets.landing.topics.ledger import Ledger

MAX_OFFSETS = 25_000
"""The most offsets of a partition in one batch. The rows of a batch are in memory together."""

_ATTEMPTS = 8
_NO_OFFSETS = (0, 0)


@dataclass(frozen=True)
class Loaded:
    """The result of one batch.

    Attributes:
        table: The raw table.
        batch_id: Of its rows.
        zone: The zone that was read.
        offsets: Partition → first offset, and the offset after the last.
        rows: Number of rows committed.
        erased: Number of rows dropped because their subject was erased.
        complete_through: Hours since 1970-01-01 UTC; None if no hour is complete.
        ignored: Partition → the latest heartbeat that does not count, because it is of the future.
    """

    table: str
    batch_id: str
    zone: str
    offsets: Mapping[int, tuple[int, int]]
    rows: int
    erased: int
    complete_through: int | None
    ignored: Mapping[int, datetime] = field(default_factory=dict)


@dataclass(frozen=True)
class _Choice:
    """The files of one zone that a batch may read, and the offsets it may read from them."""

    zone: Zone
    entries: Sequence[Entry]
    offsets: Mapping[int, tuple[int, int]]
    """Partition → first offset, and the offset after the last."""

    @property
    def offset_count(self) -> int:
        return sum(end - start for start, end in self.offsets.values())

    @property
    def ends(self) -> dict[int, int]:
        return {partition: end for partition, (_, end) in self.offsets.items()}

    def includes(self, record: Record) -> bool:
        start, end = self.offsets.get(record.partition, _NO_OFFSETS)
        return start <= record.offset < end

    def overlaps(self, file: DataFile) -> bool:
        for partition, (first, last) in file.ranges.items():
            start, end = self.offsets.get(partition, _NO_OFFSETS)
            if first < end and start <= last:
                return True
        return False


@dataclass(frozen=True)
class Loader:
    """Loads one topic into its raw table.

    Attributes:
        catalog: Of the raw table.
        manifest: Of the zones.
        zones: The zones to read.
        feed: The topic and its raw table.
        partitions: All partitions of the topic.
        subjects: Whose erasures are heeded.
        erasures: The registry of erasures.
        clock: Returns the present time, in UTC.
        provisional: Whether provisional files may be read too.
        dead_letter_share: If more of the messages are dead letters, complete-through stands still.
    """

    catalog: Catalog
    manifest: Manifest
    zones: Sequence[Zone]
    feed: Feed
    partitions: Sequence[int]
    subjects: Sequence[Subject]
    erasures: Erasures
    clock: Callable[[], datetime]
    provisional: bool = False
    dead_letter_share: float = 1.0

    def load(self) -> Iterator[Loaded]:
        """Load batch after batch, until no offset is ready.

        Raises:
            TableMissing: The raw table does not exist.
            ColumnMismatch: The raw table has other columns than declared.
            WriteAuditPublishDisabled: Rows cannot be staged in the raw table.
            FileDamaged: No zone has an undamaged file.
        """
        while True:
            loaded = self.load_next()
            if loaded is None:
                return
            yield loaded

    @retry(
        retry=retry_if_exception_type((PublishConflict, StateMoved)),
        wait=wait_random_exponential(multiplier=0.05, max=1),
        stop=stop_after_attempt(_ATTEMPTS),
        reraise=True,
    )
    def load_next(self) -> Loaded | None:
        """Load the next batch after the offsets in the table; return None if no offset is ready. Raises as `load`."""
        table = iceberg.load(self.catalog, self.feed.raw.table)
        iceberg.check_columns(table, self.feed.raw.table, self.feed.raw.all_columns)
        progress = read_progress(table.metadata.properties, self.feed.topic)
        entries = self._unread(progress)
        choices = self._choices(entries, progress)
        if not choices:
            return self._load_idle(table, progress, begun=first_offsets(files_of(entries)))
        choice, records = self._read_first_undamaged(choices)
        return self._commit(table, progress, choice, records)

    def _load_idle(self, table: Table, progress: Progress, *, begun: Mapping[int, int]) -> Loaded | None:
        """Move complete-through on by the heartbeats of idle partitions, whose rows are all loaded."""
        now = self.clock()
        before = progress.without_future(now)
        after = before.after({}, self._idle_heartbeats(progress, begun, now))
        reached = after.complete_through(self.partitions)
        if reached is None or reached == before.complete_through(self.partitions):
            return None
        after, complete_through = self._judged(table, after)
        if after.letters.held and before.letters.held:
            return None
        commit(self.catalog, table, Batch([], after, complete_through))
        return Loaded(self.feed.raw.table, after.batch_id, "", {}, 0, 0, complete_through)

    def _idle_heartbeats(self, progress: Progress, begun: Mapping[int, int], now: datetime) -> dict[int, datetime]:
        offsets: dict[int, int | None] = {}
        for partition in self.partitions:
            if partition in progress.offsets or partition not in begun:
                offsets[partition] = progress.offsets.get(partition)
        spans = idle_spans(self.manifest, self.feed.topic)
        zones = [zone.name for zone in self.zones]
        found = idle_heartbeats(spans, zones, offsets, any_zone=self.provisional)
        return {partition: at for partition, at in found.items() if is_credible(at, now)}

    def _choices(self, entries: Sequence[Entry], progress: Progress) -> list[_Choice]:
        """Return the zones that have ready offsets, the one with most offsets first."""
        choices = []
        for zone in self.zones:
            choice = self._choice(zone, entries, progress)
            if choice.offset_count:
                choices.append(choice)
        return sorted(choices, key=attrgetter("offset_count"), reverse=True)

    def _unread(self, progress: Progress) -> list[Entry]:
        """Return the unread files of all zones, including quarantined ones: the first file begins its partition."""
        zones = [zone.name for zone in self.zones]
        return unread_files(self.manifest, self.feed.topic, zones, self.partitions, progress.offsets)

    def _choice(self, zone: Zone, entries: Sequence[Entry], progress: Progress) -> _Choice:
        own = [entry for entry in entries if entry.file.zone == zone.name and entry.verdict != "quarantined"]
        begun = first_offsets(files_of(entries))
        starts = {}
        for partition, start in {**begun, **progress.offsets}.items():
            if partition in self.partitions:
                starts[partition] = start
        covers = [*map(self._cover, own), *Ledger(self.manifest).gaps(self.feed.topic)]
        ends = limit_ends(starts, ready_ends(covers, starts), max_offsets=MAX_OFFSETS)
        return _Choice(zone, own, {partition: (start, ends[partition]) for partition, start in starts.items()})

    def _cover(self, entry: Entry) -> Cover:
        readable = entry.verdict == "verified" or (self.provisional and entry.verdict == "provisional")
        return Cover(entry.file.ranges, readable, parse_shard(entry.file.shard))

    def _commit(self, table: Table, progress: Progress, choice: _Choice, records: Sequence[Record]) -> Loaded:
        now = self.clock()
        landed_at, passed = progress.without_future(now).landed(records, now)
        sent = [
            self._landed_row(record, at)
            for record, at in zip(records, landed_at, strict=True)
            if heartbeat_of(record.headers) is None
        ]
        rows = self.without_erased(sent)
        heartbeats, ignored = _latest_heartbeats(records, now)
        dead = self._count_dead_letters(choice)
        counted = passed.after(choice.ends, heartbeats).counting(len(sent) + dead, dead)
        after, complete_through = self._judged(table, counted)
        reach("loading-read")
        commit(self.catalog, table, Batch(rows, after, complete_through))
        return Loaded(
            table=self.feed.raw.table,
            batch_id=after.batch_id,
            zone=choice.zone.name,
            offsets=choice.offsets,
            rows=len(rows),
            erased=len(sent) - len(rows),
            complete_through=complete_through,
            ignored=ignored,
        )

    def _judged(self, table: Table, progress: Progress) -> tuple[Progress, int | None]:
        current = iceberg.complete_through(table, self.feed.raw.table)
        return progress.judged(self.partitions, current, self.dead_letter_share)

    def _count_dead_letters(self, choice: _Choice) -> int:
        """Count the dead letters of the files that end within a batch."""
        starts = {partition: start for partition, (start, _) in choice.offsets.items()}
        count = 0
        for file in dead_letter_files(self.manifest, self.feed.topic, choice.zone.name, starts):
            ((partition, (_, last)),) = file.ranges.items()
            if last < choice.ends[partition]:
                count += file.count
        return count

    def _read_first_undamaged(self, choices: Sequence[_Choice]) -> tuple[_Choice, list[Record]]:
        """Return the first choice that can be read, and its records. Raises `FileDamaged` if none can."""
        for choice in choices:
            try:
                return choice, sorted(self._records(choice), key=attrgetter("partition", "offset"))
            except FileDamaged as error:
                damaged = error
        raise damaged

    def _records(self, choice: _Choice) -> Iterator[Record]:
        """Yield the records of a choice. Files are read to their ends, because their checksum is checked there.

        Raises:
            FileDamaged: A live file is damaged.
            StateMoved: A file was replaced meanwhile, and perhaps removed.
        """
        for entry in choice.entries:
            if not choice.overlaps(entry.file):
                continue
            try:
                yield from filter(choice.includes, choice.zone.records(entry.file))
            except FileDamaged:
                self._require_live(entry)
                raise

    def _require_live(self, entry: Entry) -> None:
        current = self.manifest.entry(entry.file.zone, entry.file.name)
        stage = "gone" if current is None else current.stage
        if stage != "live":
            raise StateMoved(f"{entry.file.name} of zone {entry.file.zone}", expected="live", found=stage)

    def _landed_row(self, record: Record, landed_at: datetime) -> LandedRow:
        row = self.feed.parse_landed(record.value)
        if isinstance(row, str):
            raise SourceError(
                f"Offset {record.offset} of partition {record.partition} of {self.feed.topic} was landed as a row of "
                f"{self.feed.raw.table}, but is none any more: {row}.",
                remedy="Declare the columns of the raw table as they were when it was landed.",
            )
        return LandedRow(row, landed_at, record)

    def without_erased(self, rows: list[LandedRow]) -> list[LandedRow]:
        """Drop rows that an erasure covers. Costs one look at the catalog if nobody was erased.

        A row is covered if a deletion request of the id covers its message, as in the files of the zones, or if its
        message was sent by the time of the erasure. When it happened does not count: what is sent later stays.
        """
        erasures = self.erasures.rows()
        if not erasures:
            return rows
        requests: defaultdict[str, list[DeletionRequest]] = defaultdict(list)
        for request in SharedState(self.manifest).deletions(self.feed.topic):
            requests[request.id_hash].append(request)
        for subject in self.subjects:
            for column in subject.columns_of(self.feed.raw.columns):
                ids = {landed.row[column] for landed in rows} - {None}
                erased_at = self.erasures.known(subject.name, ids, erasures)
                of_id = {value: requests[self.erasures.hash(subject.name, value)] for value in erased_at}
                kept = []
                for landed in rows:
                    value, record = landed.row[column], landed.record
                    if value in erased_at and (
                        record.timestamp <= milliseconds(erased_at[value])
                        or any(request.covers(record, self.feed.sent) for request in of_id[value])
                    ):
                        continue
                    kept.append(landed)
                rows = kept
        return rows


def _latest_heartbeats(records: Iterable[Record], now: datetime) -> tuple[dict[int, datetime], dict[int, datetime]]:
    """Return, for each partition, the latest heartbeat that counts, and the latest one of the future."""
    latest: dict[int, datetime] = {}
    ignored: dict[int, datetime] = {}
    for record in records:
        at = heartbeat_of(record.headers)
        if isinstance(at, datetime):
            found = latest if is_credible(at, now) else ignored
            found[record.partition] = max(at, found.get(record.partition, at))
    return latest, ignored
