"""Dead letters after landing: how many there are and why, landing them again after a correction, and accepting them.

A dead letter stays in its file in both zones, whatever becomes of it. The raw table records which ones are settled:
those that were loaded after a correction of the declaration or of the code, and those that a person has accepted. Rows
and record are one commit, so each dead letter is loaded once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from operator import attrgetter

from pyiceberg.table import Table

from lake_assets.base.hours import from_milliseconds, is_moment
from lake_assets.errors import PublishConflict
from lake_assets.incremental.engine import iceberg
from lake_assets.landing.files import Zone, sound_records
from lake_assets.landing.loading import (
    Batch,
    LandedRow,
    LetterCounts,
    Loader,
    Progress,
    Spans,
    commit,
    read_progress,
)
from lake_assets.landing.manifest import Entry, Manifest, files_of
from lake_assets.landing.messages import BAD_TIMESTAMP, Feed, Row
from lake_assets.landing.records import Record

READ = 10_000
"""So many of the newest unsettled dead letters are read, to tell their reasons."""

NOW_A_ROW = "a row by the present declaration"
"""The reason of a dead letter that would be a row now."""


@dataclass(frozen=True)
class DeadLetter:
    """One message that made no row.

    Attributes:
        partition: Of the topic.
        offset: As landed.
        sent: When it was sent, by its own timestamp; None if that is no moment.
        reason: Why it makes no row.
        value: The message.
    """

    partition: int
    offset: int
    sent: datetime | None
    reason: str
    value: str


@dataclass(frozen=True)
class DeadLetters:
    """The unsettled dead letters of a topic: those that were neither loaded again nor accepted.

    Attributes:
        topic: The topic.
        table: Its raw table.
        unsettled: How many there are.
        newest: The newest of them, up to `READ`; by partition and offset.
        counts: Messages and dead letters since complete-through moved, and whether it stands still.
        limit: The share of dead letters beyond which complete-through stands still.
    """

    topic: str
    table: str
    unsettled: int
    newest: Sequence[DeadLetter]
    counts: LetterCounts
    limit: float

    @property
    def over_limit(self) -> bool:
        """Whether complete-through stands still, or would."""
        return self.counts.held or self.counts.exceeds(self.limit)

    @property
    def causes(self) -> Mapping[str, int]:
        """Reason → number of the newest ones, most first."""
        return dict(Counter(letter.reason for letter in self.newest).most_common())

    @property
    def sentence(self) -> str:
        """How many there are, and why."""
        causes = "; ".join(f"{count:,} {reason}" for reason, count in self.causes.items())
        if not self.over_limit:
            return f"{self.topic} has {self.unsettled:,} dead letters: {causes}."
        share = f"{self.counts.dead:,} of {self.counts.messages:,} messages of {self.topic} are dead letters: {causes}."
        return f"{share} Complete-through of {self.table} stands still." if self.counts.held else share

    @property
    def remedy(self) -> str:
        """What to do."""
        command = f"lake landing dead-letters {self.topic}"
        return (
            f"`{command}` lists them. Correct the sender or the columns of {self.table}, then run `{command} "
            f"--land-again`; or run `{command} --accept`, which gives them up."
        )


def dead_letters(
    manifest: Manifest, zones: Sequence[Zone], progress: Progress, feed: Feed, *, limit: float
) -> DeadLetters:
    """Return the unsettled dead letters of a topic.

    Args:
        manifest: Of the zones.
        zones: The zones that may be read.
        progress: Of the raw table.
        feed: The topic.
        limit: The share of dead letters beyond which complete-through stands still.

    Raises:
        FileDamaged: A file is damaged in each zone that has it.
    """
    unsettled = 0
    newest: list[DeadLetter] = []
    for entries in reversed(_same_files(manifest, zones, feed.topic)):
        ((partition, span),) = entries[0].file.ranges.items()
        if progress.letters.settles(partition, *span):
            continue
        if len(newest) >= READ:
            unsettled += entries[0].file.count
            continue
        for record in _records(zones, entries):
            if not progress.letters.settles(partition, record.offset, record.offset):
                unsettled += 1
                newest.append(_letter(feed, record))
    newest.sort(key=lambda letter: (letter.partition, letter.offset))
    return DeadLetters(feed.topic, feed.raw.table, unsettled, newest, progress.letters, limit)


@dataclass(frozen=True)
class LandedAgain:
    """The result of landing dead letters again.

    Attributes:
        rows: Number of rows loaded.
        erased: Number of them that were left out, because their subject was erased.
        left: Number of dead letters that are still none.
    """

    rows: int
    erased: int
    left: int


def land_again(loader: Loader) -> LandedAgain:
    """Load the dead letters of a topic that are rows by the present declaration. Repeating it loads nothing twice.

    Only those that the loader has passed are loaded, so that each of them is counted.

    Raises:
        FileDamaged: A file is damaged in each zone that has it.
    """
    loaded, erased = 0, 0
    for attempt in iceberg.retrying(PublishConflict):
        with attempt:
            table = iceberg.load(loader.catalog, loader.feed.raw.table)
            iceberg.check_columns(table, loader.feed.raw.table, loader.feed.raw.all_columns)
            progress = read_progress(table.metadata.properties, loader.feed.topic)
            rows, spans, left = _due(loader, progress)
            kept = loader.without_erased(rows)
            _commit(loader, table, progress, kept, spans, len(rows))
            loaded, erased = len(kept), len(rows) - len(kept)
    return LandedAgain(loaded, erased, left)


def accept(loader: Loader) -> int:
    """Give up the dead letters that the loader has passed, so that they hold no hour; return how many there were."""
    count = 0
    for attempt in iceberg.retrying(PublishConflict):
        with attempt:
            table = iceberg.load(loader.catalog, loader.feed.raw.table)
            progress = read_progress(table.metadata.properties, loader.feed.topic)
            spans = {partition: [(0, end - 1)] for partition, end in progress.offsets.items() if end}
            count = progress.letters.dead
            _commit(loader, table, progress, [], spans, count)
    return count


def _commit(
    loader: Loader, table: Table, progress: Progress, rows: Sequence[LandedRow], settled: Spans, count: int
) -> None:
    """Commit rows together with the record that dead letters are settled, and the complete-through that they held."""
    letters = progress.letters
    counts = replace(letters, dead=max(0, letters.dead - count), settled={**letters.settled, **settled})
    counts = replace(counts, held=letters.held and counts.exceeds(loader.dead_letter_share))
    current = iceberg.complete_through(table, loader.feed.raw.table)
    following = replace(progress, letters=counts, batch=progress.batch + 1)
    after, through = following.judged(loader.partitions, current, loader.dead_letter_share)
    commit(loader.catalog, table, Batch(rows, after, through))


def _due(loader: Loader, progress: Progress) -> tuple[list[LandedRow], dict[int, list[tuple[int, int]]], int]:
    """Return the rows to load, which dead letters are settled then, and how many are left."""
    now = loader.clock()
    rows: list[LandedRow] = []
    spans: dict[int, list[tuple[int, int]]] = {}
    left = 0
    continues: dict[int, bool] = {}
    for entries in _same_files(loader.manifest, loader.zones, loader.feed.topic):
        for record in _records(loader.zones, entries):
            partition, offset = record.partition, record.offset
            row = None
            if not progress.letters.settles(partition, offset, offset):
                row = _row(loader.feed, record) if offset < progress.offsets.get(partition, 0) else None
                if row is None:
                    left += 1
                    continues[partition] = False
                    continue
                (landed_at,), _ = replace(progress, heartbeats={}).landed([record], now)
                rows.append(LandedRow(row, landed_at, record))
            several = spans.setdefault(partition, [])
            if continues.get(partition) and several:
                several[-1] = (several[-1][0], offset)
            else:
                several.append((offset, offset))
            continues[partition] = True
    return rows, spans, left


def _row(feed: Feed, record: Record) -> Row | None:
    """Return the row of a message that was a dead letter; None if it is still one."""
    if feed.flaw(record.value, record.headers, record.timestamp) not in (None, BAD_TIMESTAMP):
        return None
    row = feed.parse(record.value)
    return None if isinstance(row, str) else row


def _letter(feed: Feed, record: Record) -> DeadLetter:
    return DeadLetter(
        record.partition,
        record.offset,
        from_milliseconds(record.timestamp) if is_moment(record.timestamp) else None,
        feed.flaw(record.value, record.headers, record.timestamp) or NOW_A_ROW,
        (record.value or b"").decode(errors="replace"),
    )


def _same_files(manifest: Manifest, zones: Sequence[Zone], topic: str) -> list[list[Entry]]:
    """Return the live files of dead letters, those of the same offsets together, in order of partition and offset."""
    found: dict[tuple[int, int], list[Entry]] = {}
    for zone in zones:
        for entry in manifest.entries(zone.name, topic):
            if entry.file.holds_dead_letters:
                ((partition, (first, _)),) = entry.file.ranges.items()
                found.setdefault((partition, first), []).append(entry)
    return [entries for _, entries in sorted(found.items())]


def _records(zones: Sequence[Zone], entries: Sequence[Entry]) -> list[Record]:
    """Return the records of equal files in order of offset. Raises `FileDamaged` if none of the files can be read."""
    found = sound_records({zone.name: zone for zone in zones}, files_of(entries))
    return sorted(found, key=attrgetter("offset"))
