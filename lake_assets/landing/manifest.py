"""The manifest that the zones share: its tables, the rows of files, and the checks of what is added.

The tables of the manifest, and the entry of a file. Times are milliseconds since 1970-01-01 UTC, as in Kafka.

Conversion between the entry of a file and its rows in the manifest's tables.

Reads and writes of files in the manifest, inside a transaction that the caller has begun.

Validation of files that are added to the manifest, as far as it needs no other entry. Pure.

The manifest: the only index of the zones' files, in one transactional store that they share.

The store is SQLite in the data directory by default, or PostgreSQL if configured. Every change first increments the
version. That locks the version's row until the change is committed or rolled back, so changes run one after the other,
and each decides on committed state. Readers see a file only after its add.

The rows of the manifest that follow from those of files: ranges, what files are found by, and landed ends.

The shards and topics that have files, and the status of each shard in each zone. Reads the manifest alone.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal, get_args

import sqlalchemy as sa

from lake_assets.base.hours import from_milliseconds, milliseconds
from lake_assets.errors import (
    ConfigurationError,
    DiskFull,
    FilesDiffer,
    LandingError,
    OffsetsOverlap,
    ServiceError,
    StateMoved,
    StoredByNewerVersion,
    SumsDisagree,
    UsageError,
)
from lake_assets.errors.described import describe
from lake_assets.landing.records import (
    NOTHING,
    Checksum,
    DataFile,
    RangeIndex,
    Ranges,
    Shard,
    check_file_name,
    compare,
    first_offsets,
    identity_of,
    names_of,
    next_offsets,
    offsets,
    parse_shard,
    total,
)
from lake_assets.settings import Settings, __version__

Verdict = Literal["provisional", "verified", "quarantined"]
Stage = Literal["staged", "live", "retired"]
ALL_VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
ALL_STAGES: tuple[Stage, ...] = get_args(Stage)
CURRENT_STAGES: tuple[Stage, ...] = ("staged", "live")
"""The stages of files that were not replaced."""

READABLE: tuple[Verdict, ...] = ("provisional", "verified")
"""The verdicts of files that are not quarantined."""

FORMAT = 2
"""Of these tables. A version reads all formats up to its own. Format 2: deletion requests have a cut in offsets, and
policies say whether the clock of heartbeats counts."""

METADATA = sa.MetaData()
HEAD = sa.Table(
    "landing_head",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("version", sa.BigInteger, nullable=False),
)
FORMATS = sa.Table(
    "landing_format",
    METADATA,
    sa.Column("format", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("written_by", sa.String(40), nullable=False),
)
"""The formats that versions have given the manifest. One of an earlier version has no row, and the first format."""

ZONES = sa.Table(
    "landing_zone",
    METADATA,
    sa.Column("zone", sa.String(16), primary_key=True),
    sa.Column("storage", sa.String(32), nullable=False),
)
"""The id of the storage of each zone, which the marker in its folder repeats. A zone of an earlier version has none."""

FILES = sa.Table(
    "landing_file",
    METADATA,
    sa.Column("zone", sa.String(16), primary_key=True),
    sa.Column("name", sa.String(255), primary_key=True),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("topic", sa.String(160), nullable=False),
    sa.Column("shard", sa.String(200), nullable=False),
    sa.Column("shards", sa.Integer, nullable=False),
    sa.Column("identity", sa.String(32), nullable=False, index=True),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("size", sa.BigInteger, nullable=False),
    sa.Column("count", sa.BigInteger, nullable=False),
    sa.Column("sum", sa.String(64), nullable=False),
    sa.Column("digest", sa.String(64), nullable=False),
    sa.Column("ranges", sa.Text, nullable=False),
    sa.Column("deletions", sa.Text, nullable=False),
    sa.Column("made_from", sa.Text, nullable=False),
    sa.Column("verdict", sa.String(16), nullable=False),
    sa.Column("stage", sa.String(16), nullable=False),
    sa.Column("added_at", sa.BigInteger, nullable=False),
    sa.Column("retired_at", sa.BigInteger),
    sa.Column("reason", sa.Text, nullable=False),
)
RANGES = sa.Table(
    "landing_range",
    METADATA,
    sa.Column("zone", sa.String(16), primary_key=True),
    sa.Column("name", sa.String(255), primary_key=True),
    sa.Column("partition", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("shard", sa.String(200), nullable=False),
    sa.Column("first", sa.BigInteger, nullable=False),
    sa.Column("last", sa.BigInteger, nullable=False),
    sa.Index("landing_range_place", "zone", "shard", "partition", "last"),
)
POLICIES = sa.Table(
    "landing_policy",
    METADATA,
    sa.Column("topic", sa.String(160), primary_key=True),
    sa.Column("partition", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("from_offset", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("max_messages", sa.BigInteger, nullable=False),
    sa.Column("max_bytes", sa.BigInteger, nullable=False),
    sa.Column("max_age_ms", sa.BigInteger, nullable=False),
    sa.Column("by_heartbeats", sa.Boolean),
)
IDLE_POLICIES = sa.Table(
    "landing_policy_idle",
    METADATA,
    sa.Column("topic", sa.String(160), primary_key=True),
    sa.Column("partition", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("from_offset", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("max_idle_ms", sa.BigInteger, nullable=False),
)
"""A further limit of a policy; policies of earlier versions have none."""

IDLE_SPANS = sa.Table(
    "landing_idle_span",
    METADATA,
    sa.Column("zone", sa.String(16), primary_key=True),
    sa.Column("topic", sa.String(160), primary_key=True),
    sa.Column("partition", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("first", sa.BigInteger, nullable=False),
    sa.Column("last", sa.BigInteger, nullable=False),
    sa.Column("heartbeat", sa.BigInteger, nullable=False),
)
DELETIONS = sa.Table(
    "landing_deletion",
    METADATA,
    sa.Column("request_id", sa.String(100), primary_key=True),
    sa.Column("topic", sa.String(160), primary_key=True),
    sa.Column("id_hash", sa.String(64), nullable=False),
    sa.Column("sent_through", sa.BigInteger, nullable=False),
    sa.Column("cut", sa.Text),
)
ROUNDS = sa.Table(
    "landing_round",
    METADATA,
    sa.Column("shard", sa.String(200), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("topic", sa.String(160), nullable=False),
    sa.Column("cut", sa.Text, nullable=False),
    sa.Column("groups", sa.Text, nullable=False),
    sa.Column("shards", sa.Integer),
)
DONE = sa.Table(
    "landing_round_done",
    METADATA,
    sa.Column("zone", sa.String(16), primary_key=True),
    sa.Column("shard", sa.String(200), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
)

ENDS = sa.Table(
    "landing_end",
    METADATA,
    sa.Column("zone", sa.String(16), primary_key=True),
    sa.Column("topic", sa.String(160), primary_key=True),
    sa.Column("partition", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("begun", sa.BigInteger, nullable=False),
    sa.Column("end", sa.BigInteger, nullable=False),
)
"""The first offset that a zone has landed, and the offset after the last one, whatever becomes of its files' rows."""

DEAD_LETTERS = sa.Table(
    "landing_dead_letters",
    METADATA,
    sa.Column("zone", sa.String(16), primary_key=True),
    sa.Column("topic", sa.String(160), primary_key=True),
    sa.Column("partition", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("first", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("last", sa.BigInteger, nullable=False),
)
"""Where a zone has landed dead letters, whatever becomes of the rows of their files."""

EPOCHS = sa.Table(
    "landing_topic",
    METADATA,
    sa.Column("topic", sa.String(160), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("topic_id", sa.String(64), nullable=False),
    sa.Column("bases", sa.Text, nullable=False),
    sa.Column("since", sa.BigInteger, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
)
LOSSES = sa.Table(
    "landing_loss",
    METADATA,
    sa.Column("topic", sa.String(160), primary_key=True),
    sa.Column("partition", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("first", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("last", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("zones", sa.Text, nullable=False),
    sa.Column("for_good", sa.Boolean, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("accepted_at", sa.BigInteger, nullable=False),
)
RETENTIONS = sa.Table(
    "landing_retention",
    METADATA,
    sa.Column("topic", sa.String(160), primary_key=True),
    sa.Column("hours", sa.Integer, nullable=False),
)
"""For how many hours Kafka keeps a message after it has landed; topics of earlier versions are not here."""

RETENTION_MARKS = sa.Table(
    "landing_retention_mark",
    METADATA,
    sa.Column("topic", sa.String(160), primary_key=True),
    sa.Column("partition", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("at", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("epoch", sa.Integer, nullable=False),
    sa.Column("end", sa.BigInteger, nullable=False),
)
STOPS = sa.Table(
    "landing_stop",
    METADATA,
    sa.Column("zone", sa.String(16), primary_key=True),
    sa.Column("topic", sa.String(160), primary_key=True),
    sa.Column("partition", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("problem", sa.Text, nullable=False),
    sa.Column("remedy", sa.Text, nullable=False),
    sa.Column("since", sa.BigInteger, nullable=False),
)


_LOCKS = {"sqlite": "BEGIN IMMEDIATE", "postgresql": "SELECT pg_advisory_xact_lock(hashtext('landing_head'))"}
"""By store: the statement after which other processes wait with creating tables until the transaction has ended."""


def create_tables(engine: sa.Engine) -> None:
    """Create the missing tables, and the rows that each manifest has.

    Raises:
        StoredByNewerVersion: A later version has changed the tables.
    """
    with engine.connect() as connection:
        complete = _is_complete(connection)
    with engine.begin() as connection:
        if not complete:
            connection.exec_driver_sql(_LOCKS[connection.dialect.name])
            METADATA.create_all(connection)
            for column in _missing_columns(connection):
                kind = column.type.compile(connection.dialect)
                connection.exec_driver_sql(f"ALTER TABLE {column.table.name} ADD COLUMN {column.name} {kind}")
            for missing in _missing_rows(connection):
                connection.execute(missing)
        _check_format(connection)


def _is_complete(connection: sa.Connection) -> bool:
    existing = set(sa.inspect(connection).get_table_names())
    return set(METADATA.tables) <= existing and not _missing_rows(connection) and not _missing_columns(connection)


def _missing_columns(connection: sa.Connection) -> list[sa.Column[Any]]:
    """Return the columns that tables of earlier formats lack. They may be null."""
    found = []
    for column in (DELETIONS.c.cut, POLICIES.c.by_heartbeats):
        if column.name not in {each["name"] for each in sa.inspect(connection).get_columns(column.table.name)}:
            found.append(column)
    return found


def _missing_rows(connection: sa.Connection) -> list[sa.Insert]:
    """Return what adds the row of the head, and the one of this format to a manifest of earlier ones."""
    wanted = {
        sa.select(HEAD): sa.insert(HEAD).values(id=1, version=0),
        sa.select(FORMATS).where(FORMATS.c.format >= FORMAT): sa.insert(FORMATS).values(
            format=FORMAT, written_by=__version__
        ),
    }
    return [missing for found, missing in wanted.items() if connection.execute(found).first() is None]


def _check_format(connection: sa.Connection) -> None:
    newest = connection.execute(sa.select(FORMATS).order_by(FORMATS.c.format.desc()).limit(1)).one()
    if newest.format > FORMAT:
        manifest = f"The manifest {connection.engine.url.render_as_string()}"
        raise StoredByNewerVersion(manifest, found=newest.format, readable=FORMAT, written_by=newest.written_by)


@dataclass(frozen=True)
class Entry:
    """A file in the manifest.

    Attributes:
        file: Its description.
        verdict: `verified` if the other zone's file is equal, `provisional` as long as that is unknown, `quarantined`
            if the files differ.
        stage: Readers read `live` files. A `staged` file waits for the others of its operation; a `retired` file was
            replaced.
        version: The version of the manifest that added the file.
        added_at: When it was added.
        retired_at: When it was replaced; None if it was not.
        reason: Why it is quarantined; empty if it is not.
    """

    file: DataFile
    verdict: Verdict
    stage: Stage
    version: int
    added_at: datetime
    retired_at: datetime | None
    reason: str

    def overdue(self, now: datetime, deadline: timedelta) -> bool:
        """Return whether the file has waited for the other zone's file longer than a deadline."""
        return self.verdict == "provisional" and now - self.added_at > deadline


def files_of(entries: Iterable[Entry]) -> list[DataFile]:
    """Return the files of entries."""
    return [entry.file for entry in entries]


NOT_SHARDED = 0
"""The stored sharding specification of dead letters."""


def row_of(entry: Entry) -> dict[str, Any]:
    """Return an entry as a row of `landing_file`."""
    file = entry.file
    shard = parse_shard(file.shard)
    retired_at = entry.retired_at
    return {
        "zone": file.zone,
        "name": file.name,
        "version": entry.version,
        "topic": shard.topic,
        "shard": file.shard,
        "shards": NOT_SHARDED if shard.dead_letters else shard.of,
        "identity": identity_of(file),
        "kind": file.kind,
        "size": file.size,
        "count": file.count,
        "sum": f"{file.checksum.sum:064x}",
        "digest": file.digest,
        "ranges": json.dumps(ranges_to_json(file.ranges)),
        "deletions": json.dumps(sorted(file.deletions)),
        "made_from": json.dumps(list(file.made_from)),
        "verdict": entry.verdict,
        "stage": entry.stage,
        "added_at": milliseconds(entry.added_at),
        "retired_at": None if retired_at is None else milliseconds(retired_at),
        "reason": entry.reason,
    }


def range_rows_of(file: DataFile) -> Iterable[dict[str, Any]]:
    """Yield the rows of a file in `landing_range`."""
    for partition, (first, last) in file.ranges.items():
        yield {
            "zone": file.zone,
            "name": file.name,
            "shard": file.shard,
            "partition": partition,
            "first": first,
            "last": last,
        }


def entry_of(row: sa.Row[Any]) -> Entry:
    """Return the entry of a row of `landing_file`."""
    found = row._mapping
    retired_at = found["retired_at"]
    return Entry(
        file=_file_of(found),
        verdict=found["verdict"],
        stage=found["stage"],
        version=found["version"],
        added_at=from_milliseconds(found["added_at"]),
        retired_at=None if retired_at is None else from_milliseconds(retired_at),
        reason=found["reason"],
    )


def _file_of(found: Mapping[Any, Any]) -> DataFile:
    return DataFile(
        name=found["name"],
        size=found["size"],
        shard=found["shard"],
        ranges=ranges_from_json(json.loads(found["ranges"])),
        deletions=frozenset(json.loads(found["deletions"])),
        count=found["count"],
        checksum=Checksum(found["count"], int(found["sum"], 16)),
        zone=found["zone"],
        kind=found["kind"],
        made_from=tuple(json.loads(found["made_from"])),
        digest=found["digest"],
    )


def ranges_to_json(ranges: Ranges) -> dict[str, list[int]]:
    """Return ranges as a JSON object."""
    return {str(partition): list(span) for partition, span in sorted(ranges.items())}


def ranges_from_json(found: Mapping[str, list[int]]) -> dict[int, tuple[int, int]]:
    """Return the ranges of a JSON object."""
    return {int(partition): (first, last) for partition, (first, last) in found.items()}


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


def validate_file(file: DataFile) -> None:
    """Raise `LandingError` unless name, shard, offsets and zone of a file are valid."""
    check_file_name(file.name)
    parse_shard(file.shard)
    for partition, (first, last) in file.ranges.items():
        if not 0 <= first <= last or partition < 0:
            raise LandingError(
                f"{file.name} has the offsets {first} to {last} of partition {partition}.",
                remedy="Give both inclusive, from 0 on, the lesser first.",
            )
    if not file.zone:
        raise _incomplete(file, "zone")
    if not file.ranges:
        raise _incomplete(file, "offsets")


def validate_sums(operation: str, taken: Sequence[DataFile], given: Sequence[DataFile], removed: Checksum) -> None:
    """Check that an operation wrote exactly the records that it read.

    Args:
        operation: Its name, for the message.
        taken: The files that it read.
        given: The files that it wrote.
        removed: The checksum of the records that it left out.

    Raises:
        SumsDisagree: The checksums do not add up.
    """
    before = total(file.checksum for file in taken)
    after = total(file.checksum for file in given) + removed
    if before != after:
        raise SumsDisagree(operation, ", ".join(names_of(taken)), taken=str(before), given=str(after))


def validate_same_file(existing: Entry, file: DataFile) -> Verdict:
    """Return the verdict of a file that is added again. Raises `LandingError` if it holds other records now."""
    if compare(existing.file, file) == "match":
        return existing.verdict
    raise LandingError(
        f"{file.name} of zone {file.zone} ({offsets(file)}) is there with the checksum {existing.file.checksum}, "
        f"and was now written with {file.checksum}.",
        remedy="The existing file stays. Run `lake landing verify`: the input of the zone has changed.",
    )


def _incomplete(file: DataFile, missing: str) -> LandingError:
    return LandingError(
        f"{file.name} has no {missing}.",
        remedy="Add the files of a zone, as `Zone.draft` makes them.",
    )


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


DERIVED = ("topic", "shards", "identity")
"""The columns of a file that follow from its shard, ranges and deletions."""


def misfits(manifest: Manifest) -> list[DataFile]:
    """Return the files whose derived columns or ranges are not those that follow, ordered by zone and name."""
    with manifest.engine.connect() as connection:
        return [file for file, _ in _misfits(connection)]


def rebuild(manifest: Manifest) -> list[DataFile]:
    """Write derived columns and ranges again where they do not fit; return the files."""
    with manifest.change() as (connection, _):
        found = list(_misfits(connection))
        for file, derived in found:
            is_row = (FILES.c.zone == file.zone) & (FILES.c.name == file.name)
            connection.execute(sa.update(FILES).where(is_row).values(derived))
            of_file = (RANGES.c.zone == file.zone) & (RANGES.c.name == file.name)
            connection.execute(sa.delete(RANGES).where(of_file))
            connection.execute(sa.insert(RANGES), list(range_rows_of(file)))
        return [file for file, _ in found]


def recorded_ends(manifest: Manifest, topic: str) -> dict[str, dict[int, int]]:
    """Return zone → partition → the offset after the last one that it has landed, whatever rows of files are left."""
    found: dict[str, dict[int, int]] = {}
    with manifest.engine.connect() as connection:
        for row in connection.execute(sa.select(ENDS).where(ENDS.c.topic == topic)):
            found.setdefault(row.zone, {})[row.partition] = row.end
    return found


def lost_dead_letters(manifest: Manifest, zone: str, topic: str) -> list[tuple[int, int, int]]:
    """Return where a zone has landed dead letters and no zone has a file of them any more: partition, first, last."""
    query = sa.select(DEAD_LETTERS.c.partition, DEAD_LETTERS.c.first, DEAD_LETTERS.c.last)
    query = query.where(DEAD_LETTERS.c.zone == zone, DEAD_LETTERS.c.topic == topic)
    shard = str(Shard(topic, dead_letters=True))
    with manifest.engine.connect() as connection:
        landed = connection.execute(query.order_by(DEAD_LETTERS.c.partition, DEAD_LETTERS.c.first)).all()
        of_files = sa.select(RANGES.c.partition, RANGES.c.first, RANGES.c.last)
        of_files = of_files.join(FILES, (FILES.c.zone == RANGES.c.zone) & (FILES.c.name == RANGES.c.name))
        found = RangeIndex(
            {partition: (first, last)}
            for partition, first, last in connection.execute(of_files.where(RANGES.c.shard == shard))
        )
    return [(p, first, last) for p, first, last in landed if not found.overlaps({p: (first, last)})]


def forget_lost_dead_letters(manifest: Manifest, topic: str, earliest: Mapping[int, int]) -> None:
    """Forget the dead letters that no zone has a file of, and that Kafka does not have any more either.

    Args:
        manifest: The manifest.
        topic: The topic.
        earliest: Partition → the landed offset of the first message that Kafka has.
    """
    with manifest.engine.connect() as connection:
        zones = connection.execute(sa.select(DEAD_LETTERS.c.zone).where(DEAD_LETTERS.c.topic == topic).distinct())
        lost = {zone: lost_dead_letters(manifest, zone, topic) for zone in zones.scalars()}
    with manifest.change() as (connection, _):
        for zone, several in lost.items():
            for partition, first, _ in several:
                if first < earliest.get(partition, 0):
                    place = {"zone": zone, "topic": topic, "partition": partition, "first": first}
                    connection.execute(sa.delete(DEAD_LETTERS).filter_by(**place))


def begun_offsets(manifest: Manifest, topic: str, files: Iterable[DataFile]) -> dict[int, int]:
    """Return, for each partition, the first offset that any zone has landed, whatever rows of files are left.

    Args:
        manifest: The manifest.
        topic: The topic.
        files: Its files in all zones, without dead letters.
    """
    found = first_offsets(files)
    query = sa.select(ENDS.c.partition, sa.func.min(ENDS.c.begun)).where(ENDS.c.topic == topic)
    with manifest.engine.connect() as connection:
        for partition, begun in connection.execute(query.group_by(ENDS.c.partition)):
            found[partition] = min(begun, found.get(partition, begun))
    return found


def landed_topics(manifest: Manifest) -> list[str]:
    """Return all topics that have files, or had any."""
    with manifest.engine.connect() as connection:
        topics = {*connection.execute(sa.select(FILES.c.topic)).scalars()}
        topics |= {*connection.execute(sa.select(ENDS.c.topic)).scalars()}
    return sorted(topics)


def _misfits(connection: sa.Connection) -> Iterator[tuple[DataFile, dict[str, Any]]]:
    """Yield each file that does not fit, and its derived columns as they should be."""
    recorded: dict[tuple[str, str], set[tuple[int, int, int, str]]] = {}
    for row in connection.execute(sa.select(RANGES)):
        recorded.setdefault((row.zone, row.name), set()).add((row.partition, row.first, row.last, row.shard))
    query = sa.select(FILES).order_by(FILES.c.zone, FILES.c.name)
    for row in connection.execute(query).all():
        entry = entry_of(row)
        expected = row_of(entry)
        derived = {name: expected[name] for name in DERIVED}
        found = {name: row._mapping[name] for name in DERIVED}
        file = entry.file
        ranges = {(p, first, last, file.shard) for p, (first, last) in file.ranges.items()}
        if found != derived or recorded.get((file.zone, file.name), set()) != ranges:
            yield file, derived


@dataclass(frozen=True)
class ShardStatus:
    """The staged and live files of a shard in a zone.

    Attributes:
        verified: Number of verified files.
        provisional: Number of provisional files.
        quarantined: Number of quarantined files.
        records: Records in files that are not quarantined.
        bytes: Bytes of files that are not quarantined, as in `DataFile.size`.
        next: Partition → the offset after the last one.
    """

    zone: str
    shard: str
    verified: int
    provisional: int
    quarantined: int
    records: int
    bytes: int
    next: dict[int, int]


def status(manifest: Manifest) -> list[ShardStatus]:
    """Return the status of every shard in every zone, ordered by shard and zone."""
    grouped: dict[tuple[str, str], list[Entry]] = {}
    for entry in manifest.entries(stages=CURRENT_STAGES, verdicts=ALL_VERDICTS):
        grouped.setdefault((entry.file.shard, entry.file.zone), []).append(entry)
    return [_status(zone, shard, entries) for (shard, zone), entries in sorted(grouped.items())]


def shards_of(manifest: Manifest, topic: str | None = None) -> list[Shard]:
    """Return the shards that have live files, without dead letters, of one topic or (None) of all."""
    names = {file.shard for file in files_of(manifest.entries(topic=topic)) if not file.holds_dead_letters}
    return [parse_shard(name) for name in sorted(names)]


def topics_of(manifest: Manifest, topic: str | None = None) -> list[str]:
    """Return the topics that have live files.

    Args:
        manifest: The manifest.
        topic: Return only this topic; None means all.

    Raises:
        UsageError: The named topic has no files.
    """
    found = sorted({shard.topic for shard in shards_of(manifest, topic)})
    if topic and not found:
        raise UsageError(f"Nothing of the topic {topic!r} has landed.", remedy="See `lake landing status`.")
    return found


def _status(zone: str, shard: str, entries: list[Entry]) -> ShardStatus:
    verdicts = Counter(entry.verdict for entry in entries)
    files = files_of(entry for entry in entries if entry.verdict != "quarantined")
    return ShardStatus(
        zone=zone,
        shard=shard,
        verified=verdicts["verified"],
        provisional=verdicts["provisional"],
        quarantined=verdicts["quarantined"],
        records=sum(file.count for file in files),
        bytes=sum(file.size for file in files),
        next=next_offsets(files),
    )
