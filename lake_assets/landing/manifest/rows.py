"""Rows of the manifest, one file's at a time: read and written inside a change, which the caller has begun."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

import sqlalchemy as sa

from lake_assets.errors import LandingError, OffsetsOverlap, StateMoved, UsageError
from lake_assets.landing.files.entries import DataFile, identity
from lake_assets.landing.files.sharding import parse_shard
from lake_assets.landing.manifest.coverage import meets
from lake_assets.landing.manifest.schema import (
    DELETIONS,
    DONE,
    FILES,
    RANGES,
    ROUNDS,
    Entry,
    Stage,
    Verdict,
    entry_of,
    milliseconds,
    ranges_of,
    row_of,
)


def find(connection: sa.Connection, zone: str, name: str) -> Entry | None:
    """What there is of a file, if anything."""
    row = connection.execute(sa.select(FILES).where(_is(zone, name))).first()
    return entry_of(row) if row else None


def found(connection: sa.Connection, zone: str, name: str) -> Entry:
    """A file that must be there. Raises `UsageError`."""
    entry = find(connection, zone, name)
    if entry is None:
        raise UsageError(f"Zone {zone} has no file {name}.", remedy="See `lake landing status`.")
    return entry


def judged(connection: sa.Connection, zone: str, name: str, verdicts: Sequence[Verdict]) -> Entry:
    """A file that must have one of some verdicts. Raises `UsageError`."""
    entry = found(connection, zone, name)
    if entry.verdict not in verdicts:
        raise UsageError(f"{name} of zone {zone} is {entry.verdict}.", remedy="See `lake landing quarantine list`.")
    return entry


def common_stage(connection: sa.Connection, zone: str, files: Sequence[DataFile]) -> Stage:
    """The stage that files which are to be replaced have in common."""
    stage = found(connection, zone, files[0].name).stage
    expected: Stage = "staged" if stage == "staged" else "live"
    require(connection, zone, files, expected)
    return expected


def require(connection: sa.Connection, zone: str, files: Iterable[DataFile], stage: Stage) -> None:
    """Raise `StateMoved` unless files are at a stage, and none is quarantined."""
    for file in files:
        entry = found(connection, zone, file.name)
        if entry.stage != stage or entry.verdict == "quarantined":
            raise StateMoved(f"{file.name} of zone {zone}", expected=stage, found=f"{entry.verdict}, {entry.stage}")


def comparable(connection: sa.Connection, file: DataFile) -> list[Entry]:
    """The files of other zones that must hold the same records, retired ones too."""
    same = FILES.c.identity == identity(file.shard, file.ranges, file.deletions)
    query = sa.select(FILES).where(same, FILES.c.zone != file.zone, FILES.c.verdict != "quarantined")
    return [entry_of(row) for row in connection.execute(query.order_by(FILES.c.zone, FILES.c.name))]


def require_known(connection: sa.Connection, file: DataFile) -> None:
    """Raise `LandingError` for a sharding specification, or a deletion request, that nobody has recorded."""
    shard = parse_shard(file.shard)
    resharded = sa.select(ROUNDS.c.shards).where(ROUNDS.c.topic == shard.topic, ROUNDS.c.shards == shard.of)
    if shard.of > 1 and connection.execute(resharded).first() is None:
        raise LandingError(
            f"{file.name} is of {shard}, but {shard.topic} was never resharded to {shard.of} shards.",
            remedy=f"`lake landing reshard {shard.topic} {shard.of}` comes first.",
        )
    requests = sa.select(DELETIONS.c.request_id).where(DELETIONS.c.topic == shard.topic)
    if unknown := file.deletions.difference(connection.execute(requests).scalars()):
        raise LandingError(
            f"{file.name} was scrubbed for {', '.join(sorted(unknown))}, which nobody requested of {shard.topic}.",
            remedy="Record each deletion request before a file is scrubbed for it.",
        )


def refuse_overlap(connection: sa.Connection, file: DataFile, but: Iterable[str], stage: Stage) -> None:
    """Raise `OffsetsOverlap` if another file of the zone has an offset of this one, though it should be in one alone.

    That is a file of the same shard. For a live file it is also a live one of a shard under another specification, if
    the two may have a record in common: what was resharded does not come again in the old shard.
    """
    shard = parse_shard(file.shard)
    query = sa.select(RANGES.c.name, RANGES.c.first, RANGES.c.shard).join(
        FILES, (FILES.c.zone == RANGES.c.zone) & (FILES.c.name == RANGES.c.name)
    )
    there = FILES.c.stage.in_(("staged", "live")) & (FILES.c.verdict != "quarantined")
    exclusive = FILES.c.shard == file.shard
    if stage == "live" and not shard.dead_letters:
        resharded = (FILES.c.topic == shard.topic) & FILES.c.shards.not_in((0, shard.of)) & (FILES.c.stage == "live")
        exclusive |= resharded
    for partition, (first, last) in file.ranges.items():
        meet = (RANGES.c.partition == partition) & (RANGES.c.first <= last) & (RANGES.c.last >= first)
        elsewhere = (RANGES.c.zone == file.zone) & RANGES.c.name.not_in([file.name, *but])
        for other in connection.execute(query.where(elsewhere, meet, there, exclusive)):
            if shard.meets(parse_shard(other.shard)):
                raise OffsetsOverlap(partition, max(first, other.first), names=(other.name, file.name))


def retired_for(connection: sa.Connection, file: DataFile) -> list[str]:
    """The retired files of a zone with records in the place of a file; none if what it was made from is still there."""
    made_from = [e for name in file.made_from if (e := find(connection, file.zone, name))]
    if any(entry.stage != "retired" for entry in made_from):
        return []
    shard, several = parse_shard(file.shard), meets([file.ranges])
    wanted = (FILES.c.zone == file.zone, FILES.c.topic == shard.topic, FILES.c.stage == "retired")
    retired = (entry_of(row).file for row in connection.execute(sa.select(FILES).where(*wanted)))
    return [f.name for f in retired if shard.meets(parse_shard(f.shard)) and several(f.ranges)]


def _is(zone: str, name: str) -> sa.ColumnElement[bool]:
    return (FILES.c.zone == zone) & (FILES.c.name == name)


def insert(connection: sa.Connection, entry: Entry) -> None:
    """A file and its ranges."""
    connection.execute(sa.insert(FILES).values(row_of(entry)))
    connection.execute(sa.insert(RANGES), list(ranges_of(entry.file)))


def remove(connection: sa.Connection, zone: str, name: str) -> None:
    """The same; nothing happens if it is not there."""
    connection.execute(sa.delete(FILES).where(_is(zone, name)))
    connection.execute(sa.delete(RANGES).where(RANGES.c.zone == zone, RANGES.c.name == name))


def retire(connection: sa.Connection, zone: str, names: Iterable[str], now: datetime) -> None:
    """Let files retire, which others replaced."""
    for name in names:
        change(connection, zone, name, stage="retired", retired_at=milliseconds(now))


def end_round(connection: sa.Connection, zone: str, shard: str, number: int) -> None:
    """Record that a zone has done a round. Safe to repeat."""
    values = {"zone": zone, "shard": shard, "number": number}
    there = [DONE.c[name] == value for name, value in values.items()]
    if connection.execute(sa.select(DONE.c.number).where(*there)).first() is None:
        connection.execute(sa.insert(DONE).values(values))


def change(connection: sa.Connection, zone: str, name: str, **values: object) -> None:
    """Give columns of a file other values."""
    connection.execute(sa.update(FILES).where(_is(zone, name)).values(values))
