"""Landed files into raw tables: each offset once, whatever file covers it by then, however often a loader dies.

A batch goes on from the offsets that the raw table has, as far as the files of a zone that may be read cover them
without a gap, in all shards. Of two zones the one that reaches further is read, or the other one if a file is damaged:
verified files are equal. Rows of those who were erased are dropped here, if they were sent before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from lake_assets.base.failpoints import reach
from lake_assets.errors import FileDamaged, PublishConflict, SourceError, StateMoved
from lake_assets.incremental.declaration import Subject
from lake_assets.incremental.metadata import tables
from lake_assets.incremental.metadata.erasure_registry import Erasures
from lake_assets.landing.consume.messages import Feed, heartbeat_of
from lake_assets.landing.files.records import Record
from lake_assets.landing.files.sharding import parse_shard
from lake_assets.landing.files.zone_folder import Zone
from lake_assets.landing.loading.batch import Batch, Landed, commit
from lake_assets.landing.loading.progress import Progress, read_progress
from lake_assets.landing.manifest.compaction_choice import first_offsets
from lake_assets.landing.manifest.coverage import Cover, Ends, limited, ready
from lake_assets.landing.manifest.schema import ALL_VERDICTS, Entry, moment
from lake_assets.landing.manifest.store import Manifest

MOST_OFFSETS = 25_000
"""Of a partition, in one batch: its rows are in memory together."""


@dataclass(frozen=True)
class Loaded:
    """What one batch brought. offsets: partition → first offset, and the one after the last. erased: rows dropped."""

    table: str
    batch_id: str
    zone: str
    offsets: Mapping[int, tuple[int, int]]
    rows: int
    erased: int
    complete_through: int | None


@dataclass(frozen=True)
class _Choice:
    """Whose files are read next, and how far."""

    zone: Zone
    entries: Sequence[Entry]
    starts: Ends
    ends: Ends

    @property
    def count(self) -> int:
        return sum(self.ends[p] - start for p, start in self.starts.items())

    def takes(self, record: Record) -> bool:
        return self.starts.get(record.partition, 0) <= record.offset < self.ends.get(record.partition, 0)


@dataclass(frozen=True)
class Loader:
    """Loads one topic into its raw table. partitions: all that the topic has. provisional: read such files, too."""

    catalog: Catalog
    manifest: Manifest
    zones: Sequence[Zone]
    feed: Feed
    partitions: Sequence[int]
    subjects: Sequence[Subject]
    erasures: Erasures
    provisional: bool = False

    def load(self) -> Iterator[Loaded]:
        """Load what may be loaded by now, batch after batch.

        Raises `TableMissing`, `ColumnMismatch`, `WriteAuditPublishDisabled`, `FileDamaged`.
        """
        while loaded := self.load_next():
            yield loaded

    @retry(
        retry=retry_if_exception_type((PublishConflict, StateMoved)),
        wait=wait_random_exponential(multiplier=0.05, max=1),
        stop=stop_after_attempt(8),
        reraise=True,
    )
    def load_next(self) -> Loaded | None:
        """Load the next batch, from what the table has by now; None if nothing is ready."""
        table = tables.load(self.catalog, self.feed.raw.table)
        tables.check_columns(table, self.feed.raw.table, self.feed.raw.all_columns)
        progress = read_progress(table.metadata.properties, self.feed.topic)
        files = self._files()
        every = (self._choice(zone, files, progress) for zone in self.zones)
        choices = sorted((c for c in every if c.count), key=lambda c: -c.count)
        return self._load(table, progress, *self._read(choices)) if choices else None

    def _choice(self, zone: Zone, files: Sequence[Entry], progress: Progress) -> _Choice:
        entries = [entry for entry in files if entry.file.zone == zone.name and entry.verdict != "quarantined"]
        covers = [Cover(e.file.ranges, self._may_read(e), parse_shard(e.file.shard)) for e in entries]
        begun = first_offsets(entry.file for entry in files)
        starts = {p: at for p, at in {**begun, **progress.offsets}.items() if p in self.partitions}
        return _Choice(zone, entries, starts, limited(starts, ready(covers, starts), most=MOST_OFFSETS))

    def _files(self) -> list[Entry]:
        """The files of all zones, those in quarantine, too: a partition begins with the first, whoever may read it."""
        found = self.manifest.entries(topic=self.feed.topic, verdicts=ALL_VERDICTS)
        return [entry for entry in found if not parse_shard(entry.file.shard).dead_letters]

    def _may_read(self, entry: Entry) -> bool:
        return entry.verdict == "verified" or (self.provisional and entry.verdict == "provisional")

    def _load(self, table: Table, progress: Progress, choice: _Choice, records: Sequence[Record]) -> Loaded:
        beats = _heartbeats(records)
        sent = [self._landed(record) for record in records if heartbeat_of(record.headers) is None]
        rows = self._without_erased(sent)
        after = progress.after(choice.ends, beats)
        complete_through = after.complete_through(self.partitions)
        reach("loading-read")
        commit(self.catalog, table, Batch(rows, after, complete_through))
        offsets = {p: (start, choice.ends[p]) for p, start in choice.starts.items()}
        return Loaded(
            self.feed.raw.table,
            after.batch_id,
            choice.zone.name,
            offsets,
            rows=len(rows),
            erased=len(sent) - len(rows),
            complete_through=complete_through,
        )

    def _read(self, choices: Sequence[_Choice]) -> tuple[_Choice, list[Record]]:
        """The first choice that can be read, and its records. Raises `FileDamaged` if none can."""
        for choice in choices:
            try:
                return choice, sorted(self._records(choice), key=lambda r: (r.partition, r.offset))
            except FileDamaged as error:
                damaged = error
        raise damaged

    def _records(self, choice: _Choice) -> Iterator[Record]:
        """Every record of the choice; files are read to their ends, where it is known that they are what they were.

        Raises `StateMoved` if one was replaced meanwhile, and maybe swept.
        """
        for entry in choice.entries:
            spans = entry.file.ranges.items()
            if any(first < choice.ends.get(p, 0) and choice.starts.get(p, 0) <= last for p, (first, last) in spans):
                try:
                    yield from (record for record in choice.zone.records(entry.file) if choice.takes(record))
                except FileDamaged:
                    self._require_live(entry)
                    raise

    def _require_live(self, entry: Entry) -> None:
        found = self.manifest.entry(entry.file.zone, entry.file.name)
        if found is None or found.stage != "live":
            stage = "gone" if found is None else found.stage
            raise StateMoved(f"{entry.file.name} of zone {entry.file.zone}", expected="live", found=stage)

    def _landed(self, record: Record) -> Landed:
        row = self.feed.parse(record.value)
        if isinstance(row, str):
            raise SourceError(
                f"Offset {record.offset} of partition {record.partition} of {self.feed.topic} was landed as a row of "
                f"{self.feed.raw.table}, but is none any more: {row}.",
                remedy="Declare the columns of the raw table as they were when it was landed.",
            )
        return Landed(row, moment(record.timestamp))

    def _without_erased(self, rows: list[Landed]) -> list[Landed]:
        """The rows, but for what was sent of somebody before the erasure; one look at the catalog if there is none."""
        among = self.erasures.rows()
        for subject in self.subjects if among else ():
            for column in subject.columns_of(self.feed.raw.columns):
                ids = {landed.row[column] for landed in rows} - {None}
                known = self.erasures.known(subject.name, ids, among)
                rows = [landed for landed in rows if not self._sent_before(landed, known.get(landed.row[column]))]
        return rows

    def _sent_before(self, landed: Landed, erased_at: datetime | None) -> bool:
        """As the door of the engine judges: a row that happened, or landed, by then."""
        return erased_at is not None and min(landed.row[self.feed.raw.time_column], landed.landed_at) <= erased_at


def _heartbeats(records: Iterable[Record]) -> dict[int, datetime]:
    """Partition → the latest heartbeat."""
    found: dict[int, datetime] = {}
    for record in records:
        beat = heartbeat_of(record.headers)
        if isinstance(beat, datetime):
            found[record.partition] = max(beat, found.get(record.partition, beat))
    return found
