"""The manifest: the only index of what the zones have, in one transactional store that they share.

SQLite in the home by default, PostgreSQL when configured. Every change begins with the next version: the row that holds
it is locked until the change is there, whole, or not at all; so changes come one after the other, and each is decided
on what is true. A file is there for readers once its add is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from functools import reduce
from operator import add
from pathlib import Path

import sqlalchemy as sa
from tenacity import retry, retry_if_exception_type, stop_after_attempt

from lake_assets.errors import (
    FilesDiffer,
    LandingError,
    OffsetsOverlap,
    ServiceError,
    StateMoved,
    SumsDisagree,
    UsageError,
)
from lake_assets.landing.checksum import NOTHING, Checksum
from lake_assets.landing.manifest import DataFile, check_file_name, compare, identity, offsets
from lake_assets.landing.schema import (
    FILES,
    HEAD,
    METADATA,
    RANGES,
    Entry,
    Stage,
    Verdict,
    entry_of,
    milliseconds,
    ranges_of,
    row_of,
)
from lake_assets.landing.sharding import Shard, parse_shard
from lake_assets.settings import Settings

LOCK_SECONDS = 60
"""How long a change waits for another one, in SQLite."""

_HEAD = 1


def open_manifest(settings: Settings) -> Manifest:
    """The manifest of a home; its tables are made when missing. `ServiceError` if it cannot be reached."""
    address = sa.make_url(settings.landing_manifest_address)
    arguments: dict[str, object] = {}
    if address.get_backend_name() == "sqlite":
        Path(str(address.database)).parent.mkdir(parents=True, exist_ok=True)
        arguments = {"timeout": LOCK_SECONDS}
    try:
        manifest = Manifest(sa.create_engine(address, connect_args=arguments, pool_pre_ping=True))
        manifest.create()
    except sa.exc.DBAPIError as error:
        raise ServiceError(
            f"The manifest {address.render_as_string(hide_password=True)} cannot be opened: {error.orig}",
            remedy="Check LAKE_LANDING_MANIFEST_URI, and that its server or folder can be reached from here.",
        ) from error
    return manifest


class Manifest:
    """Reads and changes the manifest. Each method that changes it is one transaction."""

    def __init__(self, engine: sa.Engine) -> None:
        self.engine = engine

    @retry(retry=retry_if_exception_type(sa.exc.DBAPIError), stop=stop_after_attempt(3), reraise=True)
    def create(self) -> None:
        """Make the tables that are not there. Safe to repeat; who comes second to another looks again."""
        with self.engine.begin() as connection:
            METADATA.create_all(connection)
            if connection.execute(sa.select(HEAD.c.version)).first() is None:
                connection.execute(sa.insert(HEAD).values(id=_HEAD, version=0))

    @contextmanager
    def change(self) -> Iterator[tuple[sa.Connection, int]]:
        """A transaction that no other change runs beside, and the version that it makes."""
        with self.engine.begin() as connection:
            connection.execute(sa.update(HEAD).values(version=HEAD.c.version + 1))
            yield connection, connection.execute(sa.select(HEAD.c.version)).scalar_one()

    def version(self) -> int:
        """The last version: what was read at it is still true as long as it is the same."""
        with self.engine.connect() as connection:
            return int(connection.execute(sa.select(HEAD.c.version)).scalar_one())

    def entries(
        self,
        zone: str | None = None,
        topic: str | None = None,
        *,
        stages: Sequence[Stage] = ("live",),
        verdicts: Sequence[Verdict] = ("provisional", "verified"),
    ) -> list[Entry]:
        """The files, by default those that readers may read, of all zones and topics; by shard, version and name."""
        wanted: list[sa.ColumnElement[bool]] = [FILES.c.stage.in_(stages), FILES.c.verdict.in_(verdicts)]
        wanted += [FILES.c.zone == zone] if zone else []
        wanted += [FILES.c.topic == topic] if topic else []
        query = sa.select(FILES).where(*wanted).order_by(FILES.c.shard, FILES.c.version, FILES.c.name, FILES.c.zone)
        with self.engine.connect() as connection:
            return [entry_of(row) for row in connection.execute(query)]

    def entry(self, zone: str, name: str) -> Entry | None:
        """What the manifest has of a file, if anything."""
        with self.engine.connect() as connection:
            return _find(connection, zone, name)

    def next_offset(self, zone: str, topic: str, partition: int) -> int | None:
        """The offset behind what a zone has landed of a partition without a gap; None if it has nothing.

        What is quarantined is a gap: it is landed again.
        """
        query = (
            sa.select(RANGES.c.first, RANGES.c.last)
            .join(FILES, (FILES.c.zone == RANGES.c.zone) & (FILES.c.name == RANGES.c.name))
            .where(FILES.c.zone == zone, FILES.c.topic == topic, RANGES.c.partition == partition)
            .where(FILES.c.verdict != "quarantined", FILES.c.shard != str(Shard(topic, dead_letters=True)))
            .order_by(RANGES.c.first)
        )
        end: int | None = None
        with self.engine.connect() as connection:
            for first, last in connection.execute(query):
                if end is not None and first > end:
                    return end
                end = max(end or 0, last + 1)
        return end

    def add(self, file: DataFile, *, now: datetime, stage: Stage = "live") -> Verdict:
        """Add a file of a zone and check it against the other's; what it then is. The same file again is no change.

        Raises `FilesDiffer` when it holds other records than a comparable file: it is then quarantined, and that other
        one is what it was. Raises `OffsetsOverlap`, and `LandingError` for a name or a shard that is none.
        """
        _check(file)
        with self.change() as (connection, version):
            found = _find(connection, file.zone, file.name)
            if found and found.verdict != "quarantined":
                return _same(found, file)
            _refuse_overlap(connection, file, ())
            verdict = self._judge(connection, Entry(file, "provisional", stage, version, now, None, ""))
        return _told(file, verdict)

    def replace(
        self, operation: str, taken: Sequence[DataFile], file: DataFile, *, now: datetime, removed: Checksum = NOTHING
    ) -> Verdict:
        """Put a file in the place of those that it was made from, which retire. Done again, it is no change.

        removed: the records that the operation left out. Raises `SumsDisagree` if the file and these are not all that
        was taken, `StateMoved` if a file that was taken is not live any more, and what `add` raises: when the file is
        quarantined, those that it was made from stay.
        """
        _check(file)
        _conserve(operation, taken, [file], removed)
        with self.change() as (connection, version):
            found = _find(connection, file.zone, file.name)
            if found and found.verdict != "quarantined":
                return _same(found, file)
            stage = _stage(connection, file.zone, taken)
            _refuse_overlap(connection, file, [f.name for f in taken])
            verdict = self._judge(connection, Entry(file, "provisional", stage, version, now, None, ""))
            if not isinstance(verdict, FilesDiffer):
                _retire(connection, file.zone, [f.name for f in taken], now)
        return _told(file, verdict)

    def exchange(self, operation: str, zone: str, taken: Sequence[str], given: Sequence[str], *, now: datetime) -> None:
        """Let staged files take the place of live ones, all at once. Done again, it is no change.

        Raises `SumsDisagree` if they do not hold the same records, `StateMoved` if one of those taken is not live any
        more, and `LandingError` if one of those given is not verified.
        """
        with self.change() as (connection, _):
            old, new = ([_found(connection, zone, name) for name in names] for names in (taken, given))
            if all(e.stage == "retired" for e in old) and all(e.stage == "live" for e in new):
                return
            _require(connection, zone, [e.file for e in old], "live")
            for entry in new:
                if entry.verdict != "verified":
                    raise LandingError(
                        f"{entry.file.name} of zone {zone} is {entry.verdict}, not verified.",
                        remedy=f"Run the {operation} of the other zone, too; then this one again.",
                    )
            _conserve(operation, [e.file for e in old], [e.file for e in new], NOTHING)
            _retire(connection, zone, taken, now)
            for name in given:
                _set(connection, zone, name, stage="live")

    def overdue(self, now: datetime, deadline: timedelta) -> list[Entry]:
        """The provisional files that have waited for the other zone for longer than a deadline."""
        waiting = self.entries(stages=("staged", "live"), verdicts=("provisional",))
        return [entry for entry in waiting if now - entry.added_at > deadline]

    def release(self, zone: str, name: str, *, now: datetime) -> list[Entry]:
        """Take a quarantined file for right: it is verified, and what it was made from retires.

        The comparable files of other zones are quarantined in its stead, and returned. Raises `UsageError` if it is
        not quarantined.
        """
        with self.change() as (connection, _):
            entry = _quarantined(connection, zone, name)
            others = [e for e in _comparable(connection, entry.file) if compare(entry.file, e.file) == "corrupt"]
            _refuse_overlap(connection, entry.file, entry.file.made_from)
            _set(connection, zone, name, verdict="verified", reason="")
            _retire(connection, zone, entry.file.made_from, now)
            for other in others:
                reason = f"{name} of zone {zone}, which differs, was released"
                _set(connection, other.file.zone, other.file.name, verdict="quarantined", reason=reason)
            return others

    def discard(self, zone: str, name: str) -> None:
        """Take a quarantined file out of the manifest: its zone makes it again. Raises `UsageError`."""
        with self.change() as (connection, _):
            _quarantined(connection, zone, name)
            _remove(connection, zone, name)

    def forget(self, zone: str, names: Sequence[str]) -> None:
        """Take retired files out of the manifest: nobody needs them any more. Raises `StateMoved` if one is not."""
        with self.change() as (connection, _):
            _require(connection, zone, [_found(connection, zone, name).file for name in names], "retired")
            for name in names:
                _remove(connection, zone, name)

    def _judge(self, connection: sa.Connection, entry: Entry) -> Verdict | FilesDiffer:
        """Insert a file as what the other zones' comparable ones make of it, and verify those that it matches."""
        others = _comparable(connection, entry.file)
        _remove(connection, entry.file.zone, entry.file.name)
        for other in others:
            if compare(entry.file, other.file) == "corrupt":
                differ = FilesDiffer(
                    entry.file.name,
                    offsets(entry.file),
                    found=str(entry.file.checksum),
                    expected=str(other.file.checksum),
                    zone=other.file.zone,
                )
                _insert(connection, replace(entry, verdict="quarantined", reason=differ.problem))
                return differ
        verdict: Verdict = "verified" if others else "provisional"
        _insert(connection, replace(entry, verdict=verdict))
        for other in others:
            _set(connection, other.file.zone, other.file.name, verdict="verified")
        return verdict


def _check(file: DataFile) -> None:
    """What can be said of a file by itself."""
    check_file_name(file.name)
    parse_shard(file.shard)
    for partition, (first, last) in file.ranges.items():
        if not 0 <= first <= last or partition < 0:
            raise LandingError(
                f"{file.name} has the offsets {first} to {last} of partition {partition}.",
                remedy="Give both inclusive, from 0 on, the lesser first.",
            )
    if not file.ranges:
        raise LandingError(f"{file.name} has no offsets.", remedy="Add files of messages only.")


def _conserve(operation: str, taken: Sequence[DataFile], given: Sequence[DataFile], removed: Checksum) -> None:
    before, after = (reduce(add, (f.checksum for f in files), NOTHING) for files in (taken, given))
    if before != after + removed:
        names = ", ".join(f.name for f in taken)
        raise SumsDisagree(operation, names, taken=str(before), given=str(after + removed))


def _same(found: Entry, file: DataFile) -> Verdict:
    """The verdict of a file that is added again."""
    if compare(found.file, file) == "match":
        return found.verdict
    raise LandingError(
        f"{file.name} of zone {file.zone} ({offsets(file)}) is there with the checksum {found.file.checksum}, "
        f"and was now written with {file.checksum}.",
        remedy="The file that is there stays. Run `lake landing verify`: what the zone reads has changed.",
    )


def _told(file: DataFile, verdict: Verdict | FilesDiffer) -> Verdict:
    if isinstance(verdict, FilesDiffer):
        raise verdict
    return verdict


def _find(connection: sa.Connection, zone: str, name: str) -> Entry | None:
    row = connection.execute(sa.select(FILES).where(_is(zone, name))).first()
    return entry_of(row) if row else None


def _found(connection: sa.Connection, zone: str, name: str) -> Entry:
    entry = _find(connection, zone, name)
    if entry is None:
        raise UsageError(f"Zone {zone} has no file {name}.", remedy="See `lake landing status`.")
    return entry


def _quarantined(connection: sa.Connection, zone: str, name: str) -> Entry:
    entry = _found(connection, zone, name)
    if entry.verdict != "quarantined":
        raise UsageError(f"{name} of zone {zone} is {entry.verdict}.", remedy="See `lake landing quarantine list`.")
    return entry


def _stage(connection: sa.Connection, zone: str, files: Sequence[DataFile]) -> Stage:
    """The stage that files which are to be replaced have in common."""
    stage = _found(connection, zone, files[0].name).stage
    expected: Stage = "staged" if stage == "staged" else "live"
    _require(connection, zone, files, expected)
    return expected


def _require(connection: sa.Connection, zone: str, files: Iterable[DataFile], stage: Stage) -> None:
    for file in files:
        entry = _found(connection, zone, file.name)
        if entry.stage != stage or entry.verdict == "quarantined":
            raise StateMoved(f"{file.name} of zone {zone}", expected=stage, found=f"{entry.verdict}, {entry.stage}")


def _comparable(connection: sa.Connection, file: DataFile) -> list[Entry]:
    """The files of other zones that must hold the same records, retired ones too."""
    same = FILES.c.identity == identity(file.shard, file.ranges, file.deletions)
    query = sa.select(FILES).where(same, FILES.c.zone != file.zone, FILES.c.verdict != "quarantined")
    return [entry_of(row) for row in connection.execute(query.order_by(FILES.c.zone, FILES.c.name))]


def _refuse_overlap(connection: sa.Connection, file: DataFile, but: Iterable[str]) -> None:
    """Raise `OffsetsOverlap` if another file of the zone's shard has an offset of this one."""
    there = FILES.c.stage.in_(("staged", "live")) & (FILES.c.verdict != "quarantined")
    query = sa.select(RANGES.c.name, RANGES.c.first).join(
        FILES, (FILES.c.zone == RANGES.c.zone) & (FILES.c.name == RANGES.c.name)
    )
    for partition, (first, last) in file.ranges.items():
        place = (RANGES.c.zone == file.zone) & (RANGES.c.shard == file.shard) & (RANGES.c.partition == partition)
        meet = (RANGES.c.first <= last) & (RANGES.c.last >= first)
        others = connection.execute(query.where(place, meet, there, RANGES.c.name.not_in([file.name, *but])))
        if other := others.first():
            raise OffsetsOverlap(partition, max(first, other.first), names=(other.name, file.name))


def _is(zone: str, name: str) -> sa.ColumnElement[bool]:
    return (FILES.c.zone == zone) & (FILES.c.name == name)


def _insert(connection: sa.Connection, entry: Entry) -> None:
    connection.execute(sa.insert(FILES).values(row_of(entry)))
    connection.execute(sa.insert(RANGES), list(ranges_of(entry.file)))


def _remove(connection: sa.Connection, zone: str, name: str) -> None:
    connection.execute(sa.delete(FILES).where(_is(zone, name)))
    connection.execute(sa.delete(RANGES).where(RANGES.c.zone == zone, RANGES.c.name == name))


def _retire(connection: sa.Connection, zone: str, names: Iterable[str], now: datetime) -> None:
    for name in names:
        _set(connection, zone, name, stage="retired", retired_at=milliseconds(now))


def _set(connection: sa.Connection, zone: str, name: str, **values: object) -> None:
    connection.execute(sa.update(FILES).where(_is(zone, name)).values(values))
