"""The manifest: the only index of the zones' files, in one transactional store that they share.

The store is SQLite in the data directory by default, or PostgreSQL if configured. Every change first increments the
version. That locks the version's row until the change is committed or rolled back, so changes run one after the other,
and each decides on committed state. Readers see a file only after its add.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from lake_assets.errors import ConfigurationError, DiskFull, FilesDiffer, LandingError, ServiceError
from lake_assets.errors.described import describe
from lake_assets.landing.files.checksum import NOTHING, Checksum
from lake_assets.landing.files.entries import DataFile, compare, names_of
from lake_assets.landing.manifest.file_rows import FileRows, finish_round
from lake_assets.landing.manifest.file_validation import validate_file, validate_same_file, validate_sums
from lake_assets.landing.manifest.row_conversion import entry_of
from lake_assets.landing.manifest.schema import (
    CURRENT_STAGES,
    FILES,
    HEAD,
    READABLE,
    ZONES,
    Entry,
    Stage,
    Verdict,
    create_tables,
    files_of,
)
from lake_assets.settings import Settings

LOCK_SECONDS = 60
"""How long a change waits for another one, in SQLite."""

_NO_SPACE = ("disk is full", "No space left")
"""Words of the errors of SQLite and of PostgreSQL."""


def has_landed(settings: Settings) -> bool:
    """Return whether a manifest may exist.

    If it returns False, nothing ever landed in the data directory, and opening the manifest would create it.
    """
    address = sa.make_url(settings.landing_manifest_address)
    return address.get_backend_name() != "sqlite" or Path(str(address.database)).exists()


def _engine_options(address: sa.URL) -> dict[str, Any]:
    if address.get_backend_name() == "sqlite":
        return {"connect_args": {"timeout": LOCK_SECONDS}}
    if address.get_backend_name() == "postgresql":
        return {"isolation_level": "READ COMMITTED"}  # its default, unless the role or the server has another one
    raise ConfigurationError(
        f"The manifest cannot be kept in {address.get_backend_name()}.",
        remedy="Set LAKE_LANDING_MANIFEST_URI to an address of PostgreSQL or SQLite: postgresql+psycopg2://...",
    )


def open_manifest(settings: Settings) -> Manifest:
    """Open the manifest of a home and create its tables if they are missing.

    Raises:
        ConfigurationError: The address is not one of SQLite or PostgreSQL.
        ServiceError: The store cannot be reached.
        StoredByNewerVersion: A later version has changed its tables.
    """
    address = sa.make_url(settings.landing_manifest_address)
    options = _engine_options(address)
    if address.get_backend_name() == "sqlite":
        Path(str(address.database)).parent.mkdir(parents=True, exist_ok=True)
    try:
        manifest = Manifest(sa.create_engine(address, pool_pre_ping=True, **options))
        create_tables(manifest.engine)
    except sa.exc.DBAPIError as error:
        found = describe(error)
        raise ServiceError(
            f"The manifest {address.render_as_string(hide_password=True)} cannot be opened. {found.problem}",
            remedy=found.remedy,
        ) from error
    return manifest


@dataclass(frozen=True)
class RoundNumber:
    """A round of a shard, by number."""

    shard: str
    number: int


class Manifest:
    """Reads and changes the manifest. Each method that changes it is one transaction."""

    def __init__(self, engine: sa.Engine) -> None:
        self.engine = engine

    @contextmanager
    def change(self) -> Iterator[tuple[sa.Connection, int]]:
        """Begin a transaction that excludes other changes; yield its connection and the version that it makes.

        Raises:
            DiskFull: There is no space for the change; nothing is changed.
        """
        try:
            with self.engine.begin() as connection:
                connection.execute(sa.update(HEAD).values(version=HEAD.c.version + 1))
                version = connection.execute(sa.select(HEAD.c.version)).scalar_one()
                yield connection, version
        except sa.exc.OperationalError as error:
            reason = str(error.orig)
            if any(words in reason for words in _NO_SPACE):
                raise DiskFull(f"The manifest {self.engine.url.render_as_string()}", reason) from error
            raise

    def version(self) -> int:
        """Return the last version. As long as it is the same, the manifest has not changed."""
        with self.engine.connect() as connection:
            return int(connection.execute(sa.select(HEAD.c.version)).scalar_one())

    def entries(
        self,
        zone: str | None = None,
        topic: str | None = None,
        *,
        stages: Sequence[Stage] = ("live",),
        verdicts: Sequence[Verdict] = READABLE,
    ) -> list[Entry]:
        """Return files, by default those that readers may read, ordered by shard, version, name and zone.

        Args:
            zone: Of this zone; None means all.
            topic: Of this topic; None means all.
            stages: At one of these stages.
            verdicts: With one of these verdicts.
        """
        query = sa.select(FILES).where(FILES.c.stage.in_(stages), FILES.c.verdict.in_(verdicts))
        if zone:
            query = query.where(FILES.c.zone == zone)
        if topic:
            query = query.where(FILES.c.topic == topic)
        ordered = query.order_by(FILES.c.shard, FILES.c.version, FILES.c.name, FILES.c.zone)
        with self.engine.connect() as connection:
            return [entry_of(row) for row in connection.execute(ordered)]

    def storage_id(self, zone: str) -> str | None:
        """Return the id of the storage of a zone; None if none was recorded."""
        with self.engine.connect() as connection:
            return connection.execute(sa.select(ZONES.c.storage).where(ZONES.c.zone == zone)).scalar()

    def record_storage(self, zone: str, storage: str) -> str:
        """Record the id of the storage of a zone; return the recorded one, which may be another process's."""
        with self.change() as (connection, _):
            query = sa.select(ZONES.c.storage).where(ZONES.c.zone == zone)
            recorded = connection.execute(query).scalar()
            if recorded is None:
                connection.execute(sa.insert(ZONES).values(zone=zone, storage=storage))
            return recorded or storage

    def entry(self, zone: str, name: str) -> Entry | None:
        """Return the entry of a file; None if the manifest does not have it."""
        with self.engine.connect() as connection:
            return FileRows(connection).find(zone, name)

    def add(self, file: DataFile, *, now: datetime, stage: Stage = "live") -> Verdict:
        """Add a file of a zone and compare it with the other zone's file. Adding it again changes nothing.

        Returns:
            The verdict of the file.

        Raises:
            FilesDiffer: It holds other records than a comparable file. It is quarantined; the other one is unchanged.
            OffsetsOverlap: Another file of the zone has one of its offsets.
            LandingError: Its name, shard or a deletion request is not valid.
        """
        validate_file(file)
        with self.change() as (connection, version):
            rows = FileRows(connection)
            existing = rows.find(file.zone, file.name)
            if existing and existing.verdict != "quarantined":
                return validate_same_file(existing, file)
            rows.require_known(file)
            rows.refuse_overlap(file, (), stage)
            verdict = rows.insert_compared(_new_entry(file, stage, version, now))
        # Raised after the commit: the quarantined file stays in the manifest.
        if isinstance(verdict, FilesDiffer):
            raise verdict
        return verdict

    def replace(
        self,
        operation: str,
        taken: Sequence[DataFile],
        file: DataFile,
        *,
        now: datetime,
        removed: Checksum = NOTHING,
    ) -> Verdict:
        """Add a file and retire the files that it was made from. Repeating it changes nothing.

        Args:
            operation: Its name, for messages.
            taken: The files that it was made from.
            file: The new file.
            now: The present time.
            removed: The checksum of the records that the operation left out.

        Returns:
            The verdict of the new file.

        Raises:
            SumsDisagree: The new file and the removed records are not exactly the records of the files taken.
            StateMoved: A file taken is not live any more.
            FilesDiffer: As in `add`; the files taken stay.
            LandingError: As in `add`.
        """
        validate_file(file)
        validate_sums(operation, taken, [file], removed)
        names = names_of(taken)
        with self.change() as (connection, version):
            rows = FileRows(connection)
            existing = rows.find(file.zone, file.name)
            if existing and existing.verdict != "quarantined":
                return validate_same_file(existing, file)
            stage = rows.common_stage(file.zone, taken)
            rows.require_known(file)
            rows.refuse_overlap(file, names, stage)
            verdict = rows.insert_compared(_new_entry(file, stage, version, now))
            if not isinstance(verdict, FilesDiffer):
                rows.retire(file.zone, names, now)
        if isinstance(verdict, FilesDiffer):
            raise verdict
        return verdict

    def exchange(
        self, zone: str, taken: Sequence[str], given: Sequence[str], *, finishes: RoundNumber, now: datetime
    ) -> None:
        """Replace live files by staged ones, all at once, and finish a reshard. Repeating it changes nothing.

        Args:
            zone: The zone.
            taken: Names of the live files.
            given: Names of the staged files.
            finishes: The round of the reshard.
            now: The present time.

        Raises:
            SumsDisagree: Both do not hold the same records.
            StateMoved: A file taken is not live any more.
            LandingError: A staged file is not verified.
        """
        with self.change() as (connection, _):
            rows = FileRows(connection)
            old = rows.require_entries(zone, taken)
            new = rows.require_entries(zone, given)
            if _are_all(old, "retired") and _are_all(new, "live"):
                return
            rows.require_stage(zone, files_of(old), "live")
            for entry in new:
                if entry.verdict != "verified":
                    raise LandingError(
                        f"{entry.file.name} of zone {zone} is {entry.verdict}, not verified.",
                        remedy="Run the reshard of the other zone, then this one again.",
                    )
            validate_sums("reshard", files_of(old), files_of(new), NOTHING)
            rows.retire(zone, taken, now)
            for name in given:
                rows.change(zone, name, stage="live")
            finish_round(connection, zone, finishes.shard, finishes.number)

    def overdue(self, now: datetime, deadline: timedelta) -> list[Entry]:
        """Return the provisional files that have waited for the other zone longer than a deadline."""
        waiting = self.entries(stages=CURRENT_STAGES, verdicts=("provisional",))
        return [entry for entry in waiting if entry.overdue(now, deadline)]

    def release(self, zone: str, name: str, *, now: datetime) -> list[Entry]:
        """Verify a quarantined file, retire the files that it was made from, and quarantine the files that differ.

        Returns:
            The comparable files of other zones, which are now quarantined.

        Raises:
            UsageError: The file is not quarantined.
        """
        with self.change() as (connection, _):
            rows = FileRows(connection)
            entry = rows.require_verdict(zone, name, ("quarantined",))
            comparable = rows.comparable(entry.file)
            others = [other for other in comparable if compare(entry.file, other.file) == "corrupt"]
            origin = rows.find_all(zone, entry.file.made_from)
            # A copy of a reshard does not replace its origin: that waits for all other copies.
            replaced = [found.file.name for found in origin if found.file.shard == entry.file.shard]
            rows.refuse_overlap(entry.file, replaced, entry.stage)
            rows.change(zone, name, verdict="verified", reason="")
            rows.retire(zone, replaced, now)
            for other in others:
                reason = f"{name} of zone {zone}, which differs, was released"
                rows.change(other.file.zone, other.file.name, verdict="quarantined", reason=reason)
            return others

    def discard(self, zone: str, name: str, *, verdicts: Sequence[Verdict] = ("quarantined",)) -> list[str]:
        """Remove a file from the manifest, so that its zone lands the offsets again.

        Retired files that share records with it are removed too; otherwise the zone would take them for the file that
        it has to make. So are the staged copies that were made of it: its records land again in their shards.

        Args:
            zone: The zone.
            name: Of the file.
            verdicts: The file must have one of these.

        Returns:
            The names of all removed files.

        Raises:
            UsageError: The file has another verdict.
        """
        with self.change() as (connection, _):
            rows = FileRows(connection)
            entry = rows.require_verdict(zone, name, verdicts)
            removed = [name, *rows.retired_for(entry.file), *rows.copies_of(entry.file)]
            for each in removed:
                rows.remove(zone, each)
            rows.lower_ends(entry.file)
            return removed

    def forget(self, zone: str, names: Sequence[str]) -> None:
        """Remove retired files from the manifest. Raises `StateMoved` if one of them is not retired."""
        with self.change() as (connection, _):
            rows = FileRows(connection)
            entries = rows.require_entries(zone, names)
            rows.require_stage(zone, files_of(entries), "retired")
            for name in names:
                rows.remove(zone, name)


def _new_entry(file: DataFile, stage: Stage, version: int, now: datetime) -> Entry:
    return Entry(file, "provisional", stage, version, added_at=now, retired_at=None, reason="")


def _are_all(entries: Sequence[Entry], stage: Stage) -> bool:
    return all(entry.stage == stage for entry in entries)
