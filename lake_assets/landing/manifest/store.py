"""The manifest: the only index of what the zones have, in one transactional store that they share.

SQLite in the home by default, PostgreSQL when configured. Every change begins with the next version: the row that holds
it is locked until the change is there, whole, or not at all; so changes come one after the other, and each is decided
on what is true. A file is there for readers once its add is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import sqlalchemy as sa
from tenacity import retry, retry_if_exception_type, stop_after_attempt

from lake_assets.errors import FilesDiffer, LandingError, ServiceError
from lake_assets.landing.files.checksum import NOTHING, Checksum
from lake_assets.landing.files.entries import DataFile, compare, offsets
from lake_assets.landing.manifest import file_validation, rows
from lake_assets.landing.manifest.schema import FILES, HEAD, METADATA, Entry, Stage, Verdict, entry_of
from lake_assets.settings import Settings

LOCK_SECONDS = 60
"""How long a change waits for another one, in SQLite."""

_HEAD = 1


def has_landed(settings: Settings) -> bool:
    """Whether there may be a manifest already. False: opening it would create it, for a home that never landed."""
    address = sa.make_url(settings.landing_manifest_address)
    return address.get_backend_name() != "sqlite" or Path(str(address.database)).exists()


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
            return rows.find(connection, zone, name)

    def add(self, file: DataFile, *, now: datetime, stage: Stage = "live") -> Verdict:
        """Add a file of a zone and check it against the other's; what it then is. The same file again is no change.

        Raises `FilesDiffer` when it holds other records than a comparable file: it is then quarantined, and that other
        one is what it was. Raises `OffsetsOverlap`, and `LandingError` for a name, a shard or a deletion request that
        is none.
        """
        file_validation.check(file)
        with self.change() as (connection, version):
            there = rows.find(connection, file.zone, file.name)
            if there and there.verdict != "quarantined":
                return file_validation.same_again(there, file)
            rows.require_known(connection, file)
            rows.refuse_overlap(connection, file, (), stage)
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
        file_validation.check(file)
        file_validation.conserve(operation, taken, [file], removed)
        with self.change() as (connection, version):
            there = rows.find(connection, file.zone, file.name)
            if there and there.verdict != "quarantined":
                return file_validation.same_again(there, file)
            stage = rows.common_stage(connection, file.zone, taken)
            rows.require_known(connection, file)
            rows.refuse_overlap(connection, file, [f.name for f in taken], stage)
            verdict = self._judge(connection, Entry(file, "provisional", stage, version, now, None, ""))
            if not isinstance(verdict, FilesDiffer):
                rows.retire(connection, file.zone, [f.name for f in taken], now)
        return _told(file, verdict)

    def exchange(
        self, zone: str, taken: Sequence[str], given: Sequence[str], *, ends: tuple[str, int], now: datetime
    ) -> None:
        """Let staged files take the place of live ones, all at once, which ends a reshard. Done again, it is no change.

        ends: the round, its shard and number.

        Raises `SumsDisagree` if they do not hold the same records, `StateMoved` if one of those taken is not live any
        more, and `LandingError` if one of those given is not verified.
        """
        with self.change() as (connection, _):
            old, new = ([rows.found(connection, zone, name) for name in names] for names in (taken, given))
            if all(e.stage == "retired" for e in old) and all(e.stage == "live" for e in new):
                return
            rows.require(connection, zone, [e.file for e in old], "live")
            for entry in new:
                if entry.verdict != "verified":
                    raise LandingError(
                        f"{entry.file.name} of zone {zone} is {entry.verdict}, not verified.",
                        remedy="Run the reshard of the other zone, too; then this one again.",
                    )
            file_validation.conserve("reshard", [e.file for e in old], [e.file for e in new], NOTHING)
            rows.retire(connection, zone, taken, now)
            for name in given:
                rows.change(connection, zone, name, stage="live")
            rows.end_round(connection, zone, *ends)

    def overdue(self, now: datetime, deadline: timedelta) -> list[Entry]:
        """The provisional files that have waited for the other zone for longer than a deadline."""
        waiting = self.entries(stages=("staged", "live"), verdicts=("provisional",))
        return [entry for entry in waiting if entry.overdue(now, deadline)]

    def release(self, zone: str, name: str, *, now: datetime) -> list[Entry]:
        """Take a quarantined file for right: it is verified, and what it was made from retires.

        The comparable files of other zones are quarantined in its stead, and returned. Raises `UsageError` if it is
        not quarantined.
        """
        with self.change() as (connection, _):
            entry = rows.judged(connection, zone, name, ("quarantined",))
            others = [e for e in rows.comparable(connection, entry.file) if compare(entry.file, e.file) == "corrupt"]
            made_from = [e for n in entry.file.made_from if (e := rows.find(connection, zone, n))]
            # A copy of a reshard does not replace what it was made from: that waits for all the others.
            replaced = [e.file.name for e in made_from if e.file.shard == entry.file.shard]
            rows.refuse_overlap(connection, entry.file, replaced, entry.stage)
            rows.change(connection, zone, name, verdict="verified", reason="")
            rows.retire(connection, zone, replaced, now)
            for other in others:
                reason = f"{name} of zone {zone}, which differs, was released"
                rows.change(connection, other.file.zone, other.file.name, verdict="quarantined", reason=reason)
            return others

    def discard(self, zone: str, name: str, *, verdicts: Sequence[Verdict] = ("quarantined",)) -> list[str]:
        """Take a file with one of `verdicts` out of the manifest: its zone makes it again. Raises `UsageError`.

        What has retired for it goes, too, or the zone would take it for what it is to make; returned are all names.
        """
        with self.change() as (connection, _):
            entry = rows.judged(connection, zone, name, verdicts)
            gone = [name, *rows.retired_for(connection, entry.file)]
            for each in gone:
                rows.remove(connection, zone, each)
            return gone

    def forget(self, zone: str, names: Sequence[str]) -> None:
        """Take retired files out of the manifest: nobody needs them any more. Raises `StateMoved` if one is not."""
        with self.change() as (connection, _):
            rows.require(connection, zone, [rows.found(connection, zone, name).file for name in names], "retired")
            for name in names:
                rows.remove(connection, zone, name)

    def _judge(self, connection: sa.Connection, entry: Entry) -> Verdict | FilesDiffer:
        """Insert a file as what the other zones' comparable ones make of it, and verify those that it matches."""
        others = rows.comparable(connection, entry.file)
        rows.remove(connection, entry.file.zone, entry.file.name)
        for other in others:
            if compare(entry.file, other.file) == "corrupt":
                differ = FilesDiffer(
                    entry.file.name,
                    offsets(entry.file),
                    found=str(entry.file.checksum),
                    expected=str(other.file.checksum),
                    zone=other.file.zone,
                )
                rows.insert(connection, replace(entry, verdict="quarantined", reason=differ.problem))
                return differ
        verdict: Verdict = "verified" if others else "provisional"
        rows.insert(connection, replace(entry, verdict=verdict))
        for other in others:
            rows.change(connection, other.file.zone, other.file.name, verdict="verified")
        return verdict


def _told(file: DataFile, verdict: Verdict | FilesDiffer) -> Verdict:
    if isinstance(verdict, FilesDiffer):
        raise verdict
    return verdict
