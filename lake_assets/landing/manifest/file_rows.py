"""Reads and writes of files in the manifest, inside a transaction that the caller has begun."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime

import sqlalchemy as sa

from lake_assets.base.hours import milliseconds
from lake_assets.errors import FilesDiffer, LandingError, OffsetsOverlap, StateMoved, UsageError
from lake_assets.landing.files.entries import DataFile, compare, identity_of, offsets
from lake_assets.landing.files.offset_ranges import RangeIndex
from lake_assets.landing.files.sharding import Shard, parse_shard
from lake_assets.landing.manifest.row_conversion import NOT_SHARDED, entry_of, range_rows_of, row_of
from lake_assets.landing.manifest.schema import (
    CURRENT_STAGES,
    DEAD_LETTERS,
    DELETIONS,
    DONE,
    ENDS,
    FILES,
    RANGES,
    ROUNDS,
    Entry,
    Stage,
    Verdict,
)


class FileRows:
    """Reads and writes the rows of files inside a transaction."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection

    def find(self, zone: str, name: str) -> Entry | None:
        """Return the entry of a file; None if the manifest does not have it."""
        row = self._connection.execute(sa.select(FILES).where(_is(zone, name))).first()
        return None if row is None else entry_of(row)

    def find_all(self, zone: str, names: Iterable[str]) -> list[Entry]:
        """Return the entries of those files that the manifest has."""
        entries = []
        for name in names:
            entry = self.find(zone, name)
            if entry is not None:
                entries.append(entry)
        return entries

    def require_entry(self, zone: str, name: str) -> Entry:
        """Return the entry of a file. Raises `UsageError` if the manifest does not have it."""
        entry = self.find(zone, name)
        if entry is None:
            raise UsageError(f"Zone {zone} has no file {name}.", remedy="See `lake landing status`.")
        return entry

    def require_entries(self, zone: str, names: Iterable[str]) -> list[Entry]:
        """Return the entries of files. Raises `UsageError` if the manifest does not have one of them."""
        return [self.require_entry(zone, name) for name in names]

    def require_verdict(self, zone: str, name: str, verdicts: Sequence[Verdict]) -> Entry:
        """Return the entry of a file. Raises `UsageError` if it has none of the verdicts."""
        entry = self.require_entry(zone, name)
        if entry.verdict not in verdicts:
            raise UsageError(f"{name} of zone {zone} is {entry.verdict}.", remedy="See `lake landing quarantine list`.")
        return entry

    def common_stage(self, zone: str, files: Sequence[DataFile]) -> Stage:
        """Return the stage of files that are to be replaced. Raises `StateMoved` unless all are staged, or all live."""
        stage = self.require_entry(zone, files[0].name).stage
        expected: Stage = "staged" if stage == "staged" else "live"
        self.require_stage(zone, files, expected)
        return expected

    def require_stage(self, zone: str, files: Iterable[DataFile], stage: Stage) -> None:
        """Raise `StateMoved` unless all files are at a stage and none is quarantined."""
        for file in files:
            entry = self.require_entry(zone, file.name)
            if entry.stage != stage or entry.verdict == "quarantined":
                raise StateMoved(f"{file.name} of zone {zone}", expected=stage, found=f"{entry.verdict}, {entry.stage}")

    def comparable(self, file: DataFile) -> list[Entry]:
        """Return the files of other zones that must hold the same records, including retired ones."""
        query = (
            sa.select(FILES)
            .where(
                FILES.c.identity == identity_of(file),
                FILES.c.zone != file.zone,
                FILES.c.verdict != "quarantined",
            )
            .order_by(FILES.c.zone, FILES.c.name)
        )
        return [entry_of(row) for row in self._connection.execute(query)]

    def require_known(self, file: DataFile) -> None:
        """Raise `LandingError` if the file's sharding specification or a deletion request of it is not recorded."""
        shard = parse_shard(file.shard)
        if shard.of > 1:
            self._require_resharded(file, shard)
        query = sa.select(DELETIONS.c.request_id).where(DELETIONS.c.topic == shard.topic)
        requested = self._connection.execute(query).scalars()
        unknown = file.deletions.difference(requested)
        if unknown:
            raise LandingError(
                f"{file.name} was scrubbed for {', '.join(sorted(unknown))}, which nobody requested of {shard.topic}.",
                remedy="Record each deletion request before a file is scrubbed for it.",
            )

    def _require_resharded(self, file: DataFile, shard: Shard) -> None:
        query = sa.select(ROUNDS.c.shards).where(ROUNDS.c.topic == shard.topic, ROUNDS.c.shards == shard.of)
        if self._connection.execute(query).first() is None:
            raise LandingError(
                f"{file.name} is of {shard}, but {shard.topic} was never resharded to {shard.of} shards.",
                remedy=f"Run `lake landing reshard {shard.topic} {shard.of}` first.",
            )

    def refuse_overlap(self, file: DataFile, replaced: Iterable[str], stage: Stage) -> None:
        """Check that no other file of the zone has an offset of this file.

        Files of the same shard are compared. A live file is also compared with live files under another sharding
        specification that may share a record with it: what was resharded must not land again in the old shard.

        Args:
            file: The file to add.
            replaced: Names of files that it replaces; they may overlap it.
            stage: The stage that it will have.

        Raises:
            OffsetsOverlap: Another file has one of its offsets.
        """
        shard = parse_shard(file.shard)
        others = _files_that_must_not_overlap(file, shard, [file.name, *replaced], stage)
        for partition, (first, last) in file.ranges.items():
            overlapping = others.where(
                RANGES.c.partition == partition,
                RANGES.c.first <= last,
                RANGES.c.last >= first,
            )
            for other in self._connection.execute(overlapping):
                if shard.overlaps(parse_shard(other.shard)):
                    raise OffsetsOverlap(partition, max(first, other.first), names=(other.name, file.name))

    def retired_for(self, file: DataFile) -> list[str]:
        """Return the names of the zone's retired files that share records with a file.

        Empty if a file that it was made from is not retired.
        """
        origin = self.find_all(file.zone, file.made_from)
        if any(entry.stage != "retired" for entry in origin):
            return []
        shard = parse_shard(file.shard)
        index = RangeIndex([file.ranges])
        query = sa.select(FILES).where(
            FILES.c.zone == file.zone,
            FILES.c.topic == shard.topic,
            FILES.c.stage == "retired",
        )
        names = []
        for row in self._connection.execute(query):
            retired = entry_of(row).file
            if shard.overlaps(parse_shard(retired.shard)) and index.overlaps(retired.ranges):
                names.append(retired.name)
        return names

    def copies_of(self, file: DataFile) -> list[str]:
        """Return the names of the zone's staged files that were made from a file."""
        query = sa.select(FILES).where(FILES.c.zone == file.zone, FILES.c.stage == "staged")
        staged = [entry_of(row).file for row in self._connection.execute(query)]
        return [copy.name for copy in staged if file.name in copy.made_from]

    def insert_compared(self, entry: Entry) -> Verdict | FilesDiffer:
        """Insert a file with the verdict of its comparison with other zones; verify the files that it matches.

        Returns:
            The verdict; for a file that differs, and is now quarantined, the error. The caller raises it after the
            commit.
        """
        file = entry.file
        others = self.comparable(file)
        self.remove(file.zone, file.name)
        for other in others:
            if compare(file, other.file) == "corrupt":
                differ = FilesDiffer(
                    file.name,
                    offsets(file),
                    found=str(file.checksum),
                    expected=str(other.file.checksum),
                    zone=other.file.zone,
                )
                self.insert(replace(entry, verdict="quarantined", reason=differ.problem))
                return differ
        verdict: Verdict = "verified" if others else "provisional"
        self.insert(replace(entry, verdict=verdict))
        for other in others:
            self.change(other.file.zone, other.file.name, verdict="verified")
        return verdict

    def insert(self, entry: Entry) -> None:
        """Insert a file and its ranges."""
        self._connection.execute(sa.insert(FILES).values(row_of(entry)))
        self._connection.execute(sa.insert(RANGES), list(range_rows_of(entry.file)))
        if entry.verdict != "quarantined":
            self._raise_ends(entry.file)

    def lower_ends(self, file: DataFile) -> None:
        """Let the landed ends of a file's partitions follow from the files that are left, after it was discarded."""
        topic = parse_shard(file.shard).topic
        if file.holds_dead_letters:
            for partition, (first, _) in file.ranges.items():
                dead = {"zone": file.zone, "topic": topic, "partition": partition, "first": first}
                self._connection.execute(sa.delete(DEAD_LETTERS).filter_by(**dead))
            return
        for partition in file.ranges:
            query = (
                sa.select(sa.func.max(RANGES.c.last))
                .join(FILES, (FILES.c.zone == RANGES.c.zone) & (FILES.c.name == RANGES.c.name))
                .where(FILES.c.zone == file.zone, FILES.c.topic == topic, RANGES.c.partition == partition)
                .where(FILES.c.verdict != "quarantined", FILES.c.shards != NOT_SHARDED)
            )
            last = self._connection.execute(query).scalar()
            place = _is_end(file.zone, topic, partition)
            if last is None:
                self._connection.execute(sa.delete(ENDS).where(place))
            else:
                self._connection.execute(sa.update(ENDS).where(place).values(end=last + 1))

    def _raise_ends(self, file: DataFile) -> None:
        shard = parse_shard(file.shard)
        if shard.dead_letters:
            self._remember_dead_letters(file, shard.topic)
            return
        for partition, (first, last) in file.ranges.items():
            place = _is_end(file.zone, shard.topic, partition)
            found = self._connection.execute(sa.select(ENDS.c.begun, ENDS.c.end).where(place)).first()
            if found is None:
                values = {"zone": file.zone, "topic": shard.topic, "partition": partition}
                values |= {"begun": first, "end": last + 1}
                self._connection.execute(sa.insert(ENDS).values(values))
            elif first < found.begun or last >= found.end:
                widened = {"begun": min(first, found.begun), "end": max(last + 1, found.end)}
                self._connection.execute(sa.update(ENDS).where(place).values(widened))

    def _remember_dead_letters(self, file: DataFile, topic: str) -> None:
        for partition, (first, last) in file.ranges.items():
            place = {"zone": file.zone, "topic": topic, "partition": partition, "first": first}
            if self._connection.execute(sa.select(DEAD_LETTERS.c.last).filter_by(**place)).first() is None:
                self._connection.execute(sa.insert(DEAD_LETTERS).values(**place, last=last))

    def remove(self, zone: str, name: str) -> None:
        """Delete a file and its ranges; does nothing if the manifest does not have it."""
        self._connection.execute(sa.delete(FILES).where(_is(zone, name)))
        self._connection.execute(sa.delete(RANGES).where(RANGES.c.zone == zone, RANGES.c.name == name))

    def retire(self, zone: str, names: Iterable[str], now: datetime) -> None:
        """Mark files as replaced."""
        for name in names:
            self.change(zone, name, stage="retired", retired_at=milliseconds(now))

    def change(self, zone: str, name: str, **values: object) -> None:
        """Set columns of a file."""
        self._connection.execute(sa.update(FILES).where(_is(zone, name)).values(values))


def finish_round(connection: sa.Connection, zone: str, shard: str, number: int) -> None:
    """Record that a zone has finished a round. Safe to repeat."""
    recorded = sa.select(DONE.c.number).where(
        DONE.c.zone == zone,
        DONE.c.shard == shard,
        DONE.c.number == number,
    )
    if connection.execute(recorded).first() is None:
        connection.execute(sa.insert(DONE).values(zone=zone, shard=shard, number=number))


def _files_that_must_not_overlap(
    file: DataFile, shard: Shard, excluded: Sequence[str], stage: Stage
) -> sa.Select[tuple[str, int, str]]:
    """Return a query of name, first offset and shard."""
    may_share_records = FILES.c.shard == file.shard
    if stage == "live" and not shard.dead_letters:
        may_share_records |= (
            (FILES.c.topic == shard.topic) & FILES.c.shards.not_in((NOT_SHARDED, shard.of)) & (FILES.c.stage == "live")
        )
    same_file = (FILES.c.zone == RANGES.c.zone) & (FILES.c.name == RANGES.c.name)
    return (
        sa.select(RANGES.c.name, RANGES.c.first, RANGES.c.shard)
        .join(FILES, same_file)
        .where(
            RANGES.c.zone == file.zone,
            RANGES.c.name.not_in(excluded),
            FILES.c.stage.in_(CURRENT_STAGES),
            FILES.c.verdict != "quarantined",
            may_share_records,
        )
    )


def _is_end(zone: str, topic: str, partition: int) -> sa.ColumnElement[bool]:
    return (ENDS.c.zone == zone) & (ENDS.c.topic == topic) & (ENDS.c.partition == partition)


def _is(zone: str, name: str) -> sa.ColumnElement[bool]:
    return (FILES.c.zone == zone) & (FILES.c.name == name)
