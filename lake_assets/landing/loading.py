"""Loading landed files into raw tables, each offset once.

How far a topic is loaded: properties of its raw table, which are committed together with the rows.

Names of files change under compaction, and summaries of snapshots expire; offsets and table properties stay.

The files that a loader has not read to their ends. The cost depends on their number, not on that of all files.

The manifest has an index of ranges by zone, shard, partition and last offset. Its beginning also gives the shards of a
zone without a look at every range: each search finds the next larger shard.

One batch of a raw table: rows, offsets and complete-through in one Iceberg commit.

The rows are staged first. They are published together with the next offsets only if main is still the snapshot at which
the offsets were read. (An append of pyiceberg would retry on a main that has moved, with offsets that another loader
has changed by then.) A snapshot that was staged by a process that died is never published, and expires.

Loading landed files into raw tables: each offset once, however often files are compacted or a loader dies.

A batch begins at the offsets in the raw table and ends where the readable files of a zone stop covering them in all
shards. The zone that reaches further is read, or the other one if a file is damaged: verified files are equal. Rows
sent before the erasure of their subject are dropped.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any
from uuid import uuid4

import pyarrow as pa
import sqlalchemy as sa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import Table
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from lake_assets.base.failpoints import reach
from lake_assets.base.hours import from_milliseconds, hour_of, is_moment, milliseconds
from lake_assets.errors import FileDamaged, PublishConflict, ServiceError, SourceError, main_moved, state_moved
from lake_assets.incremental.declaration import Subject
from lake_assets.incremental.engine import iceberg, publish
from lake_assets.incremental.engine.erasures import FED_BATCH, Erasures
from lake_assets.landing.coverage import Cover, limit_ends, ready_ends
from lake_assets.landing.files import Zone
from lake_assets.landing.manifest import FILES, RANGES, SAME_FILE, Entry, Manifest, entry_of, files_of
from lake_assets.landing.messages import Feed, Row, heartbeat_of
from lake_assets.landing.records import (
    DataFile,
    Record,
    Shard,
    first_offsets,
    parse_shard,
    with_number_keys,
    with_text_keys,
)
from lake_assets.landing.state import DeletionRequest, Ledger, SharedState, idle_heartbeats, idle_spans

OFFSETS = "lake.landing.offsets"
"""Table property: JSON, topic → partition → the next offset to load."""

HEARTBEATS = "lake.landing.heartbeats"
"""Table property: JSON, topic → partition → the latest heartbeat that was loaded, in ISO 8601."""

BATCH = "lake.landing.batch"
"""Table property: the number of the last batch that was loaded."""

LETTERS = "lake.landing.dead-letters"
"""Table property: JSON, topic → the fields of `LetterCounts`."""

TIMES = "lake.landing.wrong-times"
"""Table property: JSON, topic → the fields of `WrongTimes`."""

NEAR = timedelta(hours=1)
"""A message's own time counts if it is not earlier than the heartbeat before it, nor later than the loader's clock, by
more than this."""

KAFKA_BEGAN = datetime(2011, 1, 1, tzinfo=UTC)
"""No message is older than Kafka; a time in seconds is one of 1970, if it is taken for milliseconds."""

FEW = 10
"""Fewer messages have no share: one dead letter in a quiet hour must not stop a table."""

MAX_AHEAD = timedelta(minutes=10)
"""A heartbeat that is later than the clock by more than this does not count: a clock is wrong."""

BATCH_PREFIX = FED_BATCH
"""Begins the `batch_id` of landed rows. Rows with another one were written to the raw table without landing."""


Spans = Mapping[int, Sequence[tuple[int, int]]]
"""Partition → ranges of offsets, both inclusive, in ascending order. All dead letters within a range are meant."""


@dataclass(frozen=True)
class LetterCounts:
    """The dead letters of a topic, as far as it is loaded.

    Attributes:
        messages: Number of messages since complete-through moved, without heartbeats; of few, since earlier.
        dead: Number of dead letters among them.
        held: Whether complete-through stands still because too many of the messages were dead letters.
        settled: The dead letters that were loaded again or accepted.
    """

    messages: int = 0
    dead: int = 0
    held: bool = False
    settled: Spans = field(default_factory=dict)

    def exceeds(self, share: float) -> bool:
        """Return whether more of the messages are dead letters than a share of them. `FEW` messages have no share."""
        return self.dead > share * self.messages and (self.messages >= FEW or not share)

    def settles(self, partition: int, first: int, last: int) -> bool:
        """Return whether all dead letters of a range of offsets, both inclusive, are settled."""
        return any(begin <= first and last <= end for begin, end in self.settled.get(partition, ()))


@dataclass(frozen=True)
class WrongTimes:
    """Messages whose own time was not taken for `landed_at`, because somebody's clock or unit is wrong.

    Attributes:
        messages: How many have been loaded.
        at: When the last one was loaded.
        timestamp: Of the last one.
    """

    messages: int
    at: datetime
    timestamp: int

    @property
    def cause(self) -> str:
        """What is wrong with the last one."""
        now = milliseconds(self.at)
        for unit, factor in (("seconds", 1e3), ("microseconds", 1e-3), ("nanoseconds", 1e-6)):
            if abs(self.timestamp * factor - now) < now / 2:
                return f"{self.timestamp}, which are {unit} where Kafka wants milliseconds"
        if self.timestamp <= 0:
            return f"{self.timestamp}, which is none"
        side = "behind" if self.timestamp < now else "ahead of"
        return f"{from_milliseconds(self.timestamp):%Y-%m-%d %H:%M:%S} UTC, by a clock that is {side} that of the load"


@dataclass(frozen=True)
class Progress:
    """The part of a topic that is in its raw table.

    Attributes:
        topic: The topic.
        offsets: Partition → the next offset to load.
        heartbeats: Partition → the latest heartbeat.
        batch: The number of the last batch; 0 if there is none.
        letters: The dead letters.
        wrong: Messages whose own time was not taken; None if there was none.
    """

    topic: str
    offsets: Mapping[int, int] = field(default_factory=dict)
    heartbeats: Mapping[int, datetime] = field(default_factory=dict)
    batch: int = 0
    letters: LetterCounts = field(default_factory=LetterCounts)
    wrong: WrongTimes | None = None

    @property
    def batch_id(self) -> str:
        """The `batch_id` of the rows of the last batch."""
        return f"{BATCH_PREFIX}{self.batch:09}"

    def after(self, offsets: Mapping[int, int], heartbeats: Mapping[int, datetime]) -> Progress:
        """Return the progress after one more batch. A heartbeat never goes back.

        Args:
            offsets: Partition → the offset after the last one of the batch.
            heartbeats: Partition → the latest heartbeat in the batch.
        """
        latest = dict(self.heartbeats)
        for partition, at in heartbeats.items():
            latest[partition] = max(at, latest.get(partition, at))
        return replace(
            self,
            offsets={**self.offsets, **offsets},
            heartbeats=latest,
            batch=self.batch + 1,
        )

    def counting(self, messages: int, dead: int) -> Progress:
        """Return the progress with further messages, some of them dead letters."""
        counts = replace(self.letters, messages=self.letters.messages + messages, dead=self.letters.dead + dead)
        return replace(self, letters=counts)

    def landed(self, records: Sequence[Record], now: datetime) -> tuple[list[datetime], Progress]:
        """Return when each of further messages landed, and the progress with those whose own time is wrong.

        That is the message's own time. If it cannot be, it is the time of the load.

        Args:
            records: Messages and heartbeats, those of a partition in order of offset.
            now: The present time.
        """
        least = {partition: at - NEAR for partition, at in self.heartbeats.items()}
        found, wrong = [], self.wrong
        for record in records:
            heartbeat = heartbeat_of(record.headers)
            if isinstance(heartbeat, datetime) and is_credible(heartbeat, now):
                least[record.partition] = max(heartbeat - NEAR, least.get(record.partition, KAFKA_BEGAN))
            at = from_milliseconds(record.timestamp) if is_moment(record.timestamp) else None
            if heartbeat is None and (at is None or not least.get(record.partition, KAFKA_BEGAN) <= at <= now + NEAR):
                wrong = WrongTimes((wrong.messages if wrong else 0) + 1, now, record.timestamp)
                at = now
            found.append(at or now)
        return found, replace(self, wrong=wrong)

    def judged(self, partitions: Iterable[int], current: int | None, share: float) -> tuple[Progress, int | None]:
        """Return the progress and the complete-through that it reaches, which dead letters may hold.

        Args:
            partitions: All partitions of the topic.
            current: The complete-through of the table.
            share: If more of the messages since it moved are dead letters, it stays there until they are settled.
        """
        reached = self.complete_through(partitions)
        if reached is None or (current is not None and reached <= current):
            return self, reached
        if self.letters.held or self.letters.exceeds(share):
            return replace(self, letters=replace(self.letters, held=True)), current
        if self.letters.messages < FEW and self.letters.dead:
            return self, reached  # counted with those of the next hours
        return replace(self, letters=replace(self.letters, messages=0, dead=0)), reached

    def without_future(self, now: datetime) -> Progress:
        """Return the progress without heartbeats of the future, which a version before may have stored."""
        counted = {partition: at for partition, at in self.heartbeats.items() if is_credible(at, now)}
        return replace(self, heartbeats=counted)

    def complete_through(self, partitions: Iterable[int]) -> int | None:
        """Return the hour before the earliest of the partitions' latest heartbeats.

        The time of other messages does not count: a message dated 2099 completes nothing.

        Args:
            partitions: All partitions of the topic.

        Returns:
            Hours since 1970-01-01 UTC; None as long as a partition has no heartbeat, or there is no partition.
        """
        times = []
        for partition in partitions:
            at = self.heartbeats.get(partition)
            if at is None:
                return None
            times.append(at)
        return hour_of(min(times)) - 1 if times else None


def is_credible(heartbeat: datetime, now: datetime) -> bool:
    """Return whether a heartbeat is not of the future, with regard to clocks that differ by `MAX_AHEAD`."""
    return heartbeat <= now + MAX_AHEAD


def read_progress(properties: Mapping[str, str], topic: str) -> Progress:
    """Return the progress of a topic according to the properties of its raw table."""

    def of_topic(name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(properties.get(name, "{}")).get(topic, {})
        return found

    letters, wrong = of_topic(LETTERS), of_topic(TIMES)
    spans: dict[int, list[list[int]]] = with_number_keys(letters.get("settled", {}))
    settled = {partition: [(first, last) for first, last in several] for partition, several in spans.items()}
    return Progress(
        topic,
        offsets=with_number_keys(of_topic(OFFSETS)),
        heartbeats={int(partition): datetime.fromisoformat(at) for partition, at in of_topic(HEARTBEATS).items()},
        batch=int(properties.get(BATCH, "0")),
        letters=LetterCounts(**{**letters, "settled": settled}),
        wrong=WrongTimes(**{**wrong, "at": datetime.fromisoformat(wrong["at"])}) if wrong else None,
    )


def progress_of(catalog: Catalog, table: str, topic: str) -> Progress:
    """Return the progress of a topic according to a table of the catalog, which may be missing."""
    try:
        properties = catalog.load_table(table).metadata.properties
    except NoSuchTableError:
        return Progress(topic)
    return read_progress(properties, topic)


def progress_properties(progress: Progress, properties: Mapping[str, str]) -> dict[str, str]:
    """Return the table properties of a progress.

    Args:
        progress: Of one topic.
        properties: The present properties of the table; their values of other topics are kept.
    """
    values: dict[str, Mapping[Any, Any]] = {
        OFFSETS: with_text_keys(progress.offsets),
        HEARTBEATS: {str(partition): at.isoformat() for partition, at in progress.heartbeats.items()},
    }
    if LETTERS in properties or progress.letters != LetterCounts():
        values[LETTERS] = {**vars(progress.letters), "settled": with_text_keys(progress.letters.settled)}
    if progress.wrong is not None:
        values[TIMES] = {**vars(progress.wrong), "at": progress.wrong.at.isoformat()}
    found = {BATCH: str(progress.batch)}
    for name, value in values.items():
        by_topic = {**json.loads(properties.get(name, "{}")), progress.topic: value}
        found[name] = json.dumps(by_topic, sort_keys=True, separators=(",", ":"))
    return found


def unread_files(
    manifest: Manifest,
    topic: str,
    zones: Iterable[str],
    partitions: Sequence[int],
    next_offsets: Mapping[int, int],
) -> list[Entry]:
    """Return the live files of rows, with any verdict, that reach beyond the next offset of a partition.

    Args:
        manifest: The manifest.
        topic: The topic.
        zones: Names of the zones.
        partitions: The partitions to look at.
        next_offsets: Partition → the next offset to load; of a partition without one, all files are returned.

    Returns:
        In order of their zones, shards, versions and names.
    """
    found: dict[tuple[str, str], Entry] = {}
    manifest.refresh()
    with manifest.engine.connect() as connection:
        for zone in zones:
            for shard in _shards(connection, zone, topic):
                for partition in partitions:
                    start = next_offsets.get(partition, -1)
                    for entry in _files_from(connection, zone, shard, partition, start):
                        found[zone, entry.file.name] = entry
    return sorted(found.values(), key=lambda e: (e.file.zone, e.file.shard, e.version, e.file.name))


def dead_letter_files(manifest: Manifest, topic: str, zone: str, starts: Mapping[int, int]) -> list[DataFile]:
    """Return the live files of dead letters of a zone that end at an offset of a partition, or beyond it."""
    shard = str(Shard(topic, dead_letters=True))
    with manifest.engine.connect() as connection:
        found = [_files_from(connection, zone, shard, partition, start) for partition, start in starts.items()]
        return [entry.file for entries in found for entry in entries]


def _shards(connection: sa.Connection, zone: str, topic: str) -> Iterator[str]:
    """Yield the shards of a topic that have files of rows in a zone.

    All shards of the zone are visited: the order of texts differs between databases, so no prefix could end the search.
    """
    name: str | None = ""
    while name is not None:
        larger = sa.select(sa.func.min(RANGES.c.shard)).where(RANGES.c.zone == zone, RANGES.c.shard > name)
        name = connection.execute(larger).scalar_one()
        shard = None if name is None else parse_shard(name)
        if shard is not None and shard.topic == topic and not shard.dead_letters:
            yield str(shard)


def _files_from(connection: sa.Connection, zone: str, shard: str, partition: int, start: int) -> Iterator[Entry]:
    query = (
        sa.select(FILES)
        .join_from(RANGES, FILES, SAME_FILE)
        .where(
            RANGES.c.zone == zone,
            RANGES.c.shard == shard,
            RANGES.c.partition == partition,
            RANGES.c.last >= start,
            FILES.c.stage == "live",
        )
    )
    for row in connection.execute(query):
        yield entry_of(row)


@dataclass(frozen=True)
class LandedRow:
    """A row, its message, and when that landed, in UTC: when it was sent, if its own time can be right."""

    row: Row
    landed_at: datetime
    record: Record


@dataclass(frozen=True)
class Batch:
    """The content of one commit.

    Attributes:
        rows: May be empty.
        progress: After this batch.
        complete_through: Hours since 1970-01-01 UTC; None if no hour is complete.
    """

    rows: Sequence[LandedRow]
    progress: Progress
    complete_through: int | None


def commit(catalog: Catalog, table: Table, batch: Batch) -> None:
    """Commit a batch to the raw table.

    Args:
        catalog: Of the table.
        table: As it was when the progress was read.
        batch: The batch.

    Raises:
        PublishConflict: The table has changed since.
        TargetError: Rows cannot be staged in this table.
    """
    name = ".".join(table.name())
    parent = publish.main_id(table)
    iceberg.check_write_audit_publish(table, name)
    # Without rows the commit publishes main again, so it too needs main to be unchanged.
    staged = _stage(catalog, table, name, batch) if batch.rows or parent is None else parent
    reach("loading-staged")
    publish.publish(
        catalog,
        name,
        staged,
        parent=parent,
        session_id=batch.progress.batch_id,
        complete_through=batch.complete_through,
        properties=progress_properties(batch.progress, table.metadata.properties),
    )
    reach("loading-committed")


def _stage(catalog: Catalog, table: Table, name: str, batch: Batch) -> int:
    """Write the rows to a staged snapshot and return its id."""
    # A unique number: two loaders of the same batch must not see each other's snapshots.
    wap_id = publish.wap_id(batch.progress.batch_id, uuid4().int)
    location = table.metadata_location
    parent = publish.main_id(table)
    rows = []
    for landed in batch.rows:
        at, own = landed.landed_at, {"batch_id": batch.progress.batch_id}
        rows.append({**landed.row, "landed_at": at, "landing_date": at.date(), "landing_hour": at.hour, **own})
    arrow = pa.Table.from_pylist(rows, schema=schema_to_pyarrow(table.schema(), include_field_ids=False))
    try:
        with iceberg.committing(catalog, table):
            table.append(arrow, snapshot_properties={publish.WAP_ID: wap_id}, branch=None)
    except CommitFailedException as error:
        current = iceberg.load(catalog, name)
        if current.metadata_location == location:
            raise
        raise main_moved(name, expected=parent, found=publish.main_id(current)) from error
    return publish.staged_snapshot(iceberg.load(catalog, name), wap_id).snapshot_id


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
            SourceError: The raw table has other columns than declared.
            TargetError: Rows cannot be staged in the raw table.
            FileDamaged: No zone has an undamaged file.
            ServiceError: The object store of the zone that has it does not answer.
        """
        while True:
            loaded = self.load_next()
            if loaded is None:
                return
            yield loaded

    @retry(
        retry=retry_if_exception_type(PublishConflict),
        wait=wait_random_exponential(multiplier=0.05, max=1),
        stop=stop_after_attempt(_ATTEMPTS),
        reraise=True,
    )
    def load_next(self) -> Loaded | None:
        """Load the next batch after the offsets in the table; return None if no offset is ready. Raises as `load`."""
        table = iceberg.load(self.catalog, self.feed.raw.table)
        iceberg.check_columns(table, self.feed.raw.table, self.feed.raw.all_columns)
        progress = read_progress(table.metadata.properties, self.feed.topic)
        # With quarantined ones, of all zones: the first file begins its partition.
        zones = [zone.name for zone in self.zones]
        entries = unread_files(self.manifest, self.feed.topic, zones, self.partitions, progress.offsets)
        choices = [self._choice(zone, entries, progress) for zone in self.zones]
        ready = sorted(filter(attrgetter("offset_count"), choices), key=attrgetter("offset_count"), reverse=True)
        if not ready:
            return self._load_idle(table, progress, begun=first_offsets(files_of(entries)))
        for choice in ready:  # the first one that can be read
            try:
                records = sorted(self._records(choice), key=attrgetter("partition", "offset"))
            except (FileDamaged, ServiceError) as error:
                damaged = error
            else:
                return self._commit(table, progress, choice, records)
        raise damaged

    def _load_idle(self, table: Table, progress: Progress, *, begun: Mapping[int, int]) -> Loaded | None:
        """Move complete-through on by the heartbeats of idle partitions, whose rows are all loaded."""
        now = self.clock()
        before = progress.without_future(now)
        offsets: dict[int, int | None] = {}
        for partition in self.partitions:
            if partition in progress.offsets or partition not in begun:
                offsets[partition] = progress.offsets.get(partition)
        spans, zones = idle_spans(self.manifest, self.feed.topic), [zone.name for zone in self.zones]
        found = idle_heartbeats(spans, zones, offsets, any_zone=self.provisional)
        after = before.after({}, {partition: at for partition, at in found.items() if is_credible(at, now)})
        reached = after.complete_through(self.partitions)
        if reached is None or reached == before.complete_through(self.partitions):
            return None
        after, complete_through = self._judged(table, after)
        if after.letters.held and before.letters.held:
            return None
        commit(self.catalog, table, Batch([], after, complete_through))
        return Loaded(self.feed.raw.table, after.batch_id, "", {}, 0, 0, complete_through)

    def _choice(self, zone: Zone, entries: Sequence[Entry], progress: Progress) -> _Choice:
        own = [entry for entry in entries if entry.file.zone == zone.name and entry.verdict != "quarantined"]
        begun = first_offsets(files_of(entries))
        starts = {p: start for p, start in {**begun, **progress.offsets}.items() if p in self.partitions}
        readable = ("verified", "provisional") if self.provisional else ("verified",)
        covers = [Cover(entry.file.ranges, entry.verdict in readable, parse_shard(entry.file.shard)) for entry in own]
        lost = Ledger(self.manifest).gaps(self.feed.topic)
        ends = limit_ends(starts, ready_ends([*covers, *lost], starts), max_offsets=MAX_OFFSETS)
        return _Choice(zone, own, {partition: (start, ends[partition]) for partition, start in starts.items()})

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
        starts, dead = {partition: start for partition, (start, _) in choice.offsets.items()}, 0
        for file in dead_letter_files(self.manifest, self.feed.topic, choice.zone.name, starts):
            ((partition, (_, last)),) = file.ranges.items()
            if last < choice.ends[partition]:  # those of the files that end within the batch
                dead += file.count
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

    def _records(self, choice: _Choice) -> Iterator[Record]:
        """Yield the records of a choice. Files are read to their ends, because their checksum is checked there.

        Raises:
            FileDamaged: A live file is damaged.
            PublishConflict: A file was replaced meanwhile, and perhaps removed.
        """
        for entry in choice.entries:
            if not choice.overlaps(entry.file):
                continue
            try:
                yield from filter(choice.includes, choice.zone.records(entry.file))
            except FileDamaged:
                current = self.manifest.entry(entry.file.zone, entry.file.name)
                stage = "gone" if current is None else current.stage
                if stage != "live":
                    what = f"{entry.file.name} of zone {entry.file.zone}"
                    raise state_moved(what, expected="live", found=stage) from None
                raise

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
