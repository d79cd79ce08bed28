"""The manifest of a zone: the index of its files, a copy of what other zones publish of theirs, and all commands.

Each zone has a manifest in a database of its own: SQLite in the data directory by default, or PostgreSQL if configured.
Every change first increments the version. That locks the version's row until the change is committed or rolled back, so
changes run one after the other, and each decides on committed state. Readers see a file only after its add. Times are
milliseconds since 1970-01-01 UTC, as in Kafka.

After each change, a zone publishes the changed rows in its storage: `published/<incarnation>-<version>.json`, and all
of its rows once in a while. Before a manifest is read, what the other zones have published since is copied into it.
So zones compare their files without a database that they share: each looks at its own file and at its copy of the other
one's row, and both come to the same verdict. A zone whose storage cannot be read is known as it was last copied.

What zones must agree on (policies, deletion requests, rounds, epochs, losses, retentions) are commands in one log. Each
zone copies them into its manifest in the order of the log; of a key, the first one counts. A zone that cannot read the
log goes on with its copy, and has commands from publications of the other zone, too. A log that is lost is written
again from a copy. `state` has the meaning of the commands.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args
from uuid import uuid4

import sqlalchemy as sa

from lake_assets.base.described import describe
from lake_assets.base.hours import from_milliseconds, milliseconds
from lake_assets.connections.storage import Folder
from lake_assets.errors import (
    ConfigurationError,
    DiskFull,
    FilesDiffer,
    LandingError,
    ServiceError,
    StoredByNewerVersion,
    UsageError,
    offsets_overlap,
    state_moved,
    sums_disagree,
)
from lake_assets.landing.files import ZONES, Zone, zone_of
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

FORMAT = 4
"""Of these tables. A version reads all formats up to its own. Up to format 3, all zones shared one manifest, and what
are commands now had tables of their own."""

METADATA = sa.MetaData()
_LENGTHS = {
    "zone": 16,
    "kind": 16,
    "verdict": 16,
    "stage": 16,
    "identity": 32,
    "storage": 32,
    "incarnation": 16,
    "written_by": 40,
    "sum": 64,
    "digest": 64,
    "topic": 160,
    "shard": 200,
    "name": 255,
    "published": 40,
    "commands_read": 80,
    "item": 300,
    "key": 400,
}
"""Of texts."""

_TYPES: dict[str, sa.types.TypeEngine[Any]] = {
    **{name: sa.String(length) for name, length in _LENGTHS.items()},
    **dict.fromkeys(("id", "partition", "number", "shards", "format", "epoch"), sa.Integer()),
    **dict.fromkeys(("ranges", "deletions", "made_from", "reason", "problem", "remedy", "body"), sa.Text()),
}


def _column(name: str, *, key: bool = False, optional: bool = False) -> sa.Column[Any]:
    kind = _TYPES.get(name, sa.BigInteger())
    return sa.Column(name, kind, primary_key=key, autoincrement=False, nullable=optional)


def _table(name: str, key: str, columns: str = "", optional: str = "", *indexes: sa.Index) -> sa.Table:
    made = [_column(column, key=True) for column in key.split()]
    made += [_column(column) for column in columns.split()]
    made += [_column(column, optional=True) for column in optional.split()]
    return sa.Table(name, METADATA, *made, *indexes)


HEAD = _table("landing_head", "id", "version", "incarnation commands_read")
"""One row. incarnation: of the manifest, after those of earlier ones of its zone. commands_read: so far the log is
copied."""

FORMATS = _table("landing_format", "format", "written_by")
"""The formats that versions have given the manifest. One of an earlier version has no row, and the first format."""

STORAGES = _table("landing_zone", "zone", "storage", "published")
"""The id of the storage of a zone, which the marker in its folder repeats; a zone of an earlier version has none. Of
other zones: the name of the last publication that was copied."""

COMMANDS = _table(
    "landing_command", "number", "kind key topic body", "", sa.Index("landing_command_key", "kind", "key", unique=True)
)
UNPUBLISHED = _table("landing_unpublished", "version item")
"""What has changed since the last publication: `<table>/<name>` of a file or command, or else `<table>/`."""

FILES = _table(
    "landing_file",
    "zone name",
    "version topic shard shards identity kind size count sum digest ranges deletions made_from verdict stage added_at "
    "reason",
    "retired_at",
    sa.Index("ix_landing_file_identity", "identity"),
)
RANGES = _table(
    "landing_range",
    "zone name partition",
    "shard first last",
    "",
    sa.Index("landing_range_place", "zone", "shard", "partition", "last"),
)
IDLE_SPANS = _table("landing_idle_span", "zone topic partition", "first last heartbeat")
DONE = _table("landing_round_done", "zone shard number")
ENDS = _table("landing_end", "zone topic partition", "begun end")
"""The first offset that a zone has landed, and the offset after the last one, whatever becomes of its files' rows."""

DEAD_LETTERS = _table("landing_dead_letters", "zone topic partition first", "last")
"""Where a zone has landed dead letters, whatever becomes of the rows of their files."""

RETENTION_MARKS = _table("landing_retention_mark", "topic partition at", "epoch end")
STOPS = _table("landing_stop", "zone topic partition", "problem remedy since")

_ORDER_DIGITS = 13
"""So many digits begin an incarnation; those of earlier versions are times in milliseconds."""

NOT_SHARDED = 0
"""The stored sharding specification of dead letters."""

PUBLISHED = (IDLE_SPANS, DONE, ENDS, DEAD_LETTERS, STOPS)
"""Of these, a publication has all rows of the zone, if one has changed."""

KEYS = {
    "policy": ("topic", "partition", "from_offset"),
    "deletion": ("topic", "request_id"),
    "round": ("shard", "number"),
    "topic": ("topic", "number"),
    "loss": ("topic", "partition", "first", "last"),
    "retention": ("topic", "id"),
    "horizon": ("topic", "partition"),
}
"""Kind of command → the fields of its key. Of commands with one key, the first one counts; of horizons, the farthest.

No file begins at or beyond the horizon of its partition. So a policy that comes after it in the log begins there, or
later: a zone that lands beyond it has read a later horizon, and the policy before that.
"""

_IDLE_POLICIES = "landing_policy_idle"
"""A table of earlier formats: the limit of idle files of some policies."""

_POSTGRES_LOCK = "SELECT pg_advisory_xact_lock(hashtext('landing_head' || coalesce(current_schema(), '')))"
_LOCKS = {"sqlite": "BEGIN IMMEDIATE", "postgresql": _POSTGRES_LOCK}
"""By store: the statement after which other processes wait with creating tables until the transaction has ended."""


@dataclass(frozen=True)
class Command:
    """Something that all zones must agree on. body: JSON values, with the fields of the key of its kind."""

    kind: str
    topic: str
    body: Mapping[str, Any]

    @property
    def key(self) -> str:
        """Of commands of a kind with one key, the first one in the log counts."""
        return "/".join(str(self.body.get(name, "")) for name in KEYS[self.kind])

    def __str__(self) -> str:
        return json.dumps({"kind": self.kind, "topic": self.topic, "body": self.body}, sort_keys=True)


def create_tables(engine: sa.Engine, storage: Zone, others: Sequence[sa.Engine] = ()) -> bool:
    """Create the missing tables, and the rows that each manifest has; return whether the manifest was shared before.

    Args:
        engine: Of the manifest.
        storage: Of the zone.
        others: Of the manifests of the other zones. If zones have shared this one, each of them gets all that it has.

    Raises:
        StoredByNewerVersion: A later version has changed the tables.
        ServiceError: The manifest is new, and what its zone has published cannot be read.
    """
    newest = sa.select(FORMATS).order_by(FORMATS.c.format.desc()).limit(1)
    with engine.connect() as connection:
        tables = set(sa.inspect(connection).get_table_names())
        found = connection.execute(newest).first() if FORMATS.name in tables else None
    if found is not None and found.format > FORMAT:
        manifest = f"The manifest {engine.url.render_as_string()}"
        raise StoredByNewerVersion(manifest, found=found.format, readable=FORMAT, written_by=found.written_by)
    if found is not None and found.format == FORMAT and METADATA.tables.keys() <= tables:
        return False  # columns and rows were written together with the format
    with engine.begin() as connection:
        connection.exec_driver_sql(_LOCKS[connection.dialect.name])
        tables = set(sa.inspect(connection).get_table_names())
        was_shared = HEAD.name in tables and COMMANDS.name not in tables
        METADATA.create_all(connection)
        if was_shared:
            existing = sa.inspect(connection)
            for column in (HEAD.c.incarnation, HEAD.c.commands_read, STORAGES.c.published):
                table = column.table.name
                if column.name not in {each["name"] for each in existing.get_columns(table)}:
                    kind = column.type.compile(connection.dialect)
                    connection.exec_driver_sql(f"ALTER TABLE {table} ADD COLUMN {column.name} {kind}")
            _insert_commands(connection, _commands_of_tables(connection, tables))
        elif connection.execute(sa.select(HEAD)).first() is None:
            connection.execute(sa.insert(HEAD).values(id=1, version=0))
        if connection.execute(sa.select(HEAD.c.incarnation)).scalar() is None:
            last = max((int(name[:_ORDER_DIGITS]) for name in storage.published()), default=0)
            # With digits of chance: a zone that has lost its storage, too, begins anew, and others remember its names.
            incarnation = f"{last + 1:0{_ORDER_DIGITS}}{uuid4().hex[:3]}"
            connection.execute(sa.update(HEAD).values(incarnation=incarnation))
        if connection.execute(sa.select(FORMATS).filter_by(format=FORMAT)).first() is None:
            connection.execute(sa.insert(FORMATS).values(format=FORMAT, written_by=__version__))
        for other in others if was_shared else ():
            _copy_all(connection, other, storage)
    return was_shared


def _commands_of_tables(connection: sa.Connection, tables: Collection[str]) -> Iterator[Command]:
    """Yield the commands of tables of earlier formats, and drop these."""
    idle = {}
    if _IDLE_POLICIES in tables:
        place = "topic", "partition", "from_offset"
        for row in connection.execute(sa.text(f"SELECT * FROM {_IDLE_POLICIES}")).mappings():
            idle[tuple(row[name] for name in place)] = row["max_idle_ms"]
        connection.exec_driver_sql(f"DROP TABLE {_IDLE_POLICIES}")
    for kind, key in KEYS.items():
        table = f"landing_{kind}"
        if table not in tables:
            continue
        bodies = [dict(row) for row in connection.execute(sa.text(f"SELECT * FROM {table}")).mappings()]
        for body in sorted(bodies, key=lambda body: [body.get(name, "") for name in key]):
            if idle and kind == "policy":
                body["max_idle_ms"] = idle.get((body["topic"], body["partition"], body["from_offset"]))
            yield Command(kind, body["topic"], body)
        connection.exec_driver_sql(f"DROP TABLE {table}")


def _copy_all(connection: sa.Connection, other: sa.Engine, storage: Zone) -> None:
    """Write all that a manifest has to another one, in place of what that has."""
    create_tables(other, storage)
    with other.begin() as written:
        for table in METADATA.sorted_tables:
            rows = [dict(row) for row in connection.execute(sa.select(table)).mappings()]
            written.execute(sa.delete(table))
            if rows:
                written.execute(sa.insert(table), rows)


_ALL_COMMANDS = sa.select(COMMANDS).order_by(COMMANDS.c.number)


def _command_of(row: sa.Row[Any]) -> Command:
    return Command(row.kind, row.topic, json.loads(row.body))


def _insert_commands(connection: sa.Connection, commands: Iterable[Command]) -> list[int]:
    """Insert the commands whose keys are not known yet, in this order; return their numbers."""
    last = connection.execute(sa.select(sa.func.max(COMMANDS.c.number))).scalar() or 0
    made = []
    for command in commands:
        place, body = {"kind": command.kind, "key": command.key}, command.body
        known = connection.execute(sa.select(COMMANDS).filter_by(**place)).first()
        if known is not None and (command.kind != "horizon" or json.loads(known.body)["to"] >= body["to"]):
            continue
        if known is not None:
            connection.execute(sa.update(COMMANDS).filter_by(**place).values(body=json.dumps(body, sort_keys=True)))
            made.append(known.number)
            continue
        if command.kind == "policy" and "begins" not in body:
            horizon = horizon_of(commands_of(connection, "horizon", command.topic), body["partition"])
            body = {**body, "begins": max(body["from_offset"], horizon)}
        last += 1
        values = {**place, "number": last, "topic": command.topic, "body": json.dumps(body, sort_keys=True)}
        connection.execute(sa.insert(COMMANDS).values(values))
        made.append(last)
        if command.kind == "topic" and command.body["number"] > 1:  # they are of the former topic
            connection.execute(sa.delete(IDLE_SPANS).filter_by(topic=command.topic))
    return made


def horizon_of(horizons: Iterable[Mapping[str, Any]], partition: int) -> int:
    """Return the horizon of a partition; 0 if it has none. horizons: the commands of this kind, of its topic."""
    return next((each["to"] for each in horizons if each["partition"] == partition), 0)


def commands_of(connection: sa.Connection, kind: str, topic: str | None = None) -> list[dict[str, Any]]:
    """Return the bodies of commands of a kind, of a topic or (None) of all, in the order of the log."""
    query = sa.select(COMMANDS.c.body).filter_by(kind=kind, **({"topic": topic} if topic else {}))
    return [json.loads(body) for body in connection.execute(query.order_by(COMMANDS.c.number)).scalars()]


@dataclass(frozen=True)
class CommandLog:
    """The log of commands, in a file: its id, then a command a line. A place in it is `<id>:<bytes before it>`."""

    path: Path

    def end(self) -> str:
        """Return the place after the last command; empty if there is no log."""
        try:
            with self.path.open("rb") as log:
                return f"{log.readline().decode().strip()}:{os.fstat(log.fileno()).st_size}"
        except FileNotFoundError:
            return ""

    def append(self, commands: Iterable[Command], *, at: str | None = None) -> None:
        """Write commands at the end. at: do nothing if that is not here any more."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a+b") as log:
            fcntl.flock(log, fcntl.LOCK_EX)
            if os.fstat(log.fileno()).st_size == 0:
                log.write(f"{uuid4().hex}\n".encode())
            elif at not in (None, self.end()):
                return
            whole = self.path.read_bytes().rfind(b"\n") + 1
            if whole:  # a process that died may have left a part of a line
                log.truncate(whole)
            log.write("".join(f"{command}\n" for command in commands).encode())
            log.flush()
            os.fsync(log.fileno())

    def read(self, after: str = "") -> tuple[list[Command], str]:
        """Return the commands after a place, and the place after them. Of another log, or without a place: all."""
        name, _, size = self.end().partition(":")
        if not size:
            return [], ""
        of, _, before = after.partition(":")
        begin = int(before) if of == name else len(name) + 1
        with self.path.open("rb") as log:
            log.seek(begin)
            text = log.read()
        whole = text[: text.rfind(b"\n") + 1]
        return [Command(**json.loads(line)) for line in whole.splitlines()], f"{name}:{begin + len(whole)}"


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


def row_of(entry: Entry) -> dict[str, Any]:
    """Return an entry as a row of `landing_file`."""
    file, retired_at = entry.file, entry.retired_at
    shard = parse_shard(file.shard)
    same = ("zone", "name", "shard", "kind", "size", "count", "digest")
    return {
        **{name: getattr(file, name) for name in same},
        **{name: getattr(entry, name) for name in ("version", "verdict", "stage", "reason")},
        "topic": shard.topic,
        "shards": NOT_SHARDED if shard.dead_letters else shard.of,
        "identity": identity_of(file),
        "sum": f"{file.checksum.sum:064x}",
        "ranges": json.dumps(ranges_to_json(file.ranges)),
        "deletions": json.dumps(sorted(file.deletions)),
        "made_from": json.dumps(list(file.made_from)),
        "added_at": milliseconds(entry.added_at),
        "retired_at": None if retired_at is None else milliseconds(retired_at),
    }


def range_rows_of(file: DataFile) -> list[dict[str, Any]]:
    """Return the rows of a file in `landing_range`."""
    same = {"zone": file.zone, "name": file.name, "shard": file.shard}
    return [{**same, "partition": p, "first": first, "last": last} for p, (first, last) in file.ranges.items()]


def entry_of(row: sa.Row[Any] | Mapping[str, Any]) -> Entry:
    """Return the entry of a row of `landing_file`."""
    found = row._mapping if isinstance(row, sa.Row) else row
    retired_at = found["retired_at"]
    same = ("name", "size", "shard", "count", "zone", "kind", "digest")
    file = DataFile(
        **{name: found[name] for name in same},
        ranges=ranges_from_json(json.loads(found["ranges"])),
        deletions=frozenset(json.loads(found["deletions"])),
        checksum=Checksum(found["count"], int(found["sum"], 16)),
        made_from=tuple(json.loads(found["made_from"])),
    )
    return Entry(
        file=file,
        **{name: found[name] for name in ("verdict", "stage", "version", "reason")},
        added_at=from_milliseconds(found["added_at"]),
        retired_at=None if retired_at is None else from_milliseconds(retired_at),
    )


def ranges_to_json(ranges: Ranges) -> dict[str, list[int]]:
    """Return ranges as a JSON object."""
    return {str(partition): list(span) for partition, span in sorted(ranges.items())}


def ranges_from_json(found: Mapping[str, list[int]]) -> dict[int, tuple[int, int]]:
    """Return the ranges of a JSON object."""
    return {int(partition): (first, last) for partition, (first, last) in found.items()}


class FileRows:
    """Reads and writes the rows of files inside a transaction that the caller has begun."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection

    def find(self, zone: str, name: str) -> Entry | None:
        """Return the entry of a file; None if the manifest does not have it."""
        row = self._connection.execute(sa.select(FILES).filter_by(zone=zone, name=name)).first()
        return None if row is None else entry_of(row)

    def find_all(self, zone: str, names: Iterable[str]) -> list[Entry]:
        """Return the entries of those files that the manifest has."""
        return [entry for entry in (self.find(zone, name) for name in names) if entry is not None]

    def require_entry(self, zone: str, name: str) -> Entry:
        """Return the entry of a file. Raises `UsageError` if the manifest does not have it."""
        entry = self.find(zone, name)
        if entry is None:
            raise UsageError(f"Zone {zone} has no file {name}.", remedy="See `lake landing status`.")
        return entry

    def require_verdict(self, zone: str, name: str, verdicts: Sequence[Verdict]) -> Entry:
        """Return the entry of a file. Raises `UsageError` if it has none of the verdicts."""
        entry = self.require_entry(zone, name)
        if entry.verdict not in verdicts:
            raise UsageError(f"{name} of zone {zone} is {entry.verdict}.", remedy="See `lake landing quarantine list`.")
        return entry

    def require_stage(self, zone: str, names: Iterable[str], stage: Stage) -> None:
        """Raise `PublishConflict` unless all files are at a stage and none is quarantined."""
        for name in names:
            entry = self.require_entry(zone, name)
            if entry.stage != stage or entry.verdict == "quarantined":
                raise state_moved(f"{name} of zone {zone}", expected=stage, found=f"{entry.verdict}, {entry.stage}")

    def comparable(self, file: DataFile) -> list[Entry]:
        """Return the files of other zones that must hold the same records, including retired ones."""
        query = sa.select(FILES).filter_by(identity=identity_of(file))
        others = query.where(FILES.c.zone != file.zone, FILES.c.verdict != "quarantined")
        return list(map(entry_of, self._connection.execute(others.order_by(FILES.c.zone, FILES.c.name))))

    def require_known(self, file: DataFile) -> None:
        """Raise `LandingError` if the file's sharding specification or a deletion request of it is not recorded."""
        shard = parse_shard(file.shard)
        rounds = commands_of(self._connection, "round", shard.topic) if shard.of > 1 else []
        if shard.of > 1 and shard.of not in {found["shards"] for found in rounds}:
            raise LandingError(
                f"{file.name} is of {shard}, but {shard.topic} was never resharded to {shard.of} shards.",
                remedy=f"Run `lake landing reshard {shard.topic} {shard.of}` first.",
            )
        requested = commands_of(self._connection, "deletion", shard.topic) if file.deletions else []
        unknown = file.deletions.difference(found["request_id"] for found in requested)
        if unknown:
            raise LandingError(
                f"{file.name} was scrubbed for {', '.join(sorted(unknown))}, which nobody requested of {shard.topic}.",
                remedy="Record each deletion request before a file is scrubbed for it.",
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
            LandingError: Another file has one of its offsets.
        """
        shard = parse_shard(file.shard)
        may_share_records = FILES.c.shard == file.shard
        if stage == "live" and not shard.dead_letters:
            other_specification = FILES.c.shards.not_in((NOT_SHARDED, shard.of)) & (FILES.c.stage == "live")
            may_share_records |= (FILES.c.topic == shard.topic) & other_specification
        others = (
            sa.select(RANGES.c.name, RANGES.c.first, RANGES.c.shard)
            .join(FILES, SAME_FILE)
            .where(
                RANGES.c.zone == file.zone,
                RANGES.c.name.not_in([file.name, *replaced]),
                FILES.c.stage.in_(CURRENT_STAGES),
                FILES.c.verdict != "quarantined",
                may_share_records,
            )
        )
        for partition, (first, last) in file.ranges.items():
            is_overlap = (RANGES.c.partition == partition) & (RANGES.c.first <= last) & (RANGES.c.last >= first)
            for other in self._connection.execute(others.where(is_overlap)):
                if shard.overlaps(parse_shard(other.shard)):
                    raise offsets_overlap(partition, max(first, other.first), names=(other.name, file.name))

    def retired_for(self, file: DataFile) -> list[str]:
        """Return the names of the zone's retired files that share records with a file.

        Empty if a file that it was made from is not retired.
        """
        if any(entry.stage != "retired" for entry in self.find_all(file.zone, file.made_from)):
            return []
        shard, index = parse_shard(file.shard), RangeIndex([file.ranges])
        query = sa.select(FILES).filter_by(zone=file.zone, topic=shard.topic, stage="retired")
        retired = files_of(map(entry_of, self._connection.execute(query)))
        return [old.name for old in retired if shard.overlaps(parse_shard(old.shard)) and index.overlaps(old.ranges)]

    def copies_of(self, file: DataFile) -> list[str]:
        """Return the names of the zone's staged files that were made from a file."""
        query = sa.select(FILES).filter_by(zone=file.zone, stage="staged")
        staged = files_of(map(entry_of, self._connection.execute(query)))
        return [copy.name for copy in staged if file.name in copy.made_from]

    def insert_compared(self, entry: Entry, *, landed: bool = False) -> tuple[Verdict | FilesDiffer, list[Entry]]:
        """Insert a file, in place of its row, compared with the files that must hold the same records.

        Both zones come to the same verdicts: equal files are verified. Of two that differ, the one that lands now goes
        to quarantine, or the later one if both were landed in the dark; but the other one if a release has verified it.

        Args:
            entry: The file as a zone lands it, releases it, or has published it.
            landed: It lands now.

        Returns:
            Its verdict, or the error if it went to quarantine; and the files of other zones that did so.
        """
        file, known = entry.file, self.find(entry.file.zone, entry.file.name)
        self.remove(file.zone, file.name)
        differs: FilesDiffer | None = None
        aside = []
        others = self.comparable(file) if entry.verdict != "quarantined" else []
        for other in (other for other in others if compare(file, other.file) == "corrupt"):
            if entry.verdict == "verified":
                # If both are verified, one manifest is wrong, unless this one was released.
                if other.verdict == "verified" and (known is None or known.verdict != "quarantined"):
                    continue
                reason = f"{file.name} of zone {file.zone}, which differs, was released"
            elif landed or other.verdict == "verified" or _landed_order(entry) > _landed_order(other):
                differs = _difference(entry, other)
                entry = replace(entry, verdict="quarantined", reason=differs.problem)
                break
            else:
                reason = _difference(other, entry).problem
            self.change(other.file.zone, other.file.name, verdict="quarantined", reason=reason)
            aside.append(other)
        for other in (other for other in others if differs is None and compare(file, other.file) == "match"):
            entry = replace(entry, verdict="verified")
            if other.verdict != "verified":  # or both zones would publish it for ever
                self.change(other.file.zone, other.file.name, verdict="verified")
        self.insert(entry)
        return differs or entry.verdict, aside

    def insert(self, entry: Entry) -> None:
        """Insert a file and its ranges."""
        self._connection.execute(sa.insert(FILES).values(row_of(entry)))
        self._connection.execute(sa.insert(RANGES), range_rows_of(entry.file))
        mark_changed(self._connection, FILES, entry.file.zone, entry.file.name)
        if entry.verdict != "quarantined":
            self._raise_ends(entry.file)

    def lower_ends(self, file: DataFile) -> None:
        """Let the landed ends of a file's partitions follow from the files that are left, after it was discarded."""
        topic = parse_shard(file.shard).topic
        mark_changed(self._connection, DEAD_LETTERS if file.holds_dead_letters else ENDS, file.zone)
        for partition, (first, last) in file.ranges.items():
            place = {"zone": file.zone, "topic": topic, "partition": partition}
            with_rows = (
                sa.select(sa.func.max(RANGES.c.last))
                .join(FILES, SAME_FILE)
                .where(FILES.c.zone == file.zone, FILES.c.topic == topic, RANGES.c.partition == partition)
                .where(FILES.c.verdict != "quarantined", FILES.c.shards != NOT_SHARDED)
            )
            if file.holds_dead_letters:
                # Beside rows that have landed, nobody reads these offsets again: that they are missing must be known.
                beside = with_rows.where(RANGES.c.first <= last, RANGES.c.last >= first)
                if self._connection.execute(beside).scalar() is None:
                    self._connection.execute(sa.delete(DEAD_LETTERS).filter_by(**place, first=first))
                continue
            end = self._connection.execute(with_rows).scalar()
            if end is None:
                self._connection.execute(sa.delete(ENDS).filter_by(**place))
            else:
                self._connection.execute(sa.update(ENDS).filter_by(**place).values(end=end + 1))

    def _raise_ends(self, file: DataFile) -> None:
        shard = parse_shard(file.shard)
        mark_changed(self._connection, DEAD_LETTERS if shard.dead_letters else ENDS, file.zone)
        for partition, (first, last) in file.ranges.items():
            place = {"zone": file.zone, "topic": shard.topic, "partition": partition}
            if shard.dead_letters:
                place["first"] = first
                if self._connection.execute(sa.select(DEAD_LETTERS).filter_by(**place)).first() is None:
                    self._connection.execute(sa.insert(DEAD_LETTERS).values(**place, last=last))
                continue
            found = self._connection.execute(sa.select(ENDS).filter_by(**place)).first()
            if found is None:
                self._connection.execute(sa.insert(ENDS).values(**place, begun=first, end=last + 1))
            elif first < found.begun or last >= found.end:
                widened = {"begun": min(first, found.begun), "end": max(last + 1, found.end)}
                self._connection.execute(sa.update(ENDS).filter_by(**place).values(widened))

    def remove(self, zone: str, name: str) -> None:
        """Delete a file and its ranges; does nothing if the manifest does not have it."""
        for table in (FILES, RANGES):
            self._connection.execute(sa.delete(table).filter_by(zone=zone, name=name))
        mark_changed(self._connection, FILES, zone, name)

    def retire(self, zone: str, names: Iterable[str], now: datetime) -> None:
        """Mark files as replaced."""
        for name in names:
            self.change(zone, name, stage="retired", retired_at=milliseconds(now))

    def change(self, zone: str, name: str, **values: object) -> None:
        """Set columns of a file."""
        self._connection.execute(sa.update(FILES).filter_by(zone=zone, name=name).values(values))
        mark_changed(self._connection, FILES, zone, name)


def _landed_order(entry: Entry) -> tuple[datetime, str]:
    return entry.added_at, entry.file.zone


def _difference(entry: Entry, other: Entry) -> FilesDiffer:
    file, expected = entry.file, other.file
    sums = {"found": str(file.checksum), "expected": str(expected.checksum)}
    return FilesDiffer(file.name, offsets(file), **sums, zone=expected.zone)


def mark_changed(connection: sa.Connection, table: sa.Table, zone: str, name: str = "") -> None:
    """Have the next publication of a zone contain a file, or all rows of another table."""
    connection.info.setdefault("marks", set()).add((zone, f"{table.name}/{name}"))


SAME_FILE = (FILES.c.zone == RANGES.c.zone) & (FILES.c.name == RANGES.c.name)
"""Joins the ranges of files with these."""


def finish_round(connection: sa.Connection, zone: str, shard: str, number: int) -> None:
    """Record that a zone has finished a round. Safe to repeat."""
    done = {"zone": zone, "shard": shard, "number": number}
    if connection.execute(sa.select(DONE).filter_by(**done)).first() is None:
        connection.execute(sa.insert(DONE).values(done))
        mark_changed(connection, DONE, zone)


def validate_file(file: DataFile) -> None:
    """Raise `LandingError` unless name, shard, offsets and zone of a file are valid. Pure."""
    check_file_name(file.name)
    parse_shard(file.shard)
    for partition, (first, last) in file.ranges.items():
        if not 0 <= first <= last or partition < 0:
            raise LandingError(
                f"{file.name} has the offsets {first} to {last} of partition {partition}.",
                remedy="Give both inclusive, from 0 on, the lesser first.",
            )
    for missing, value in (("zone", file.zone), ("offsets", file.ranges)):
        if not value:
            raise LandingError(
                f"{file.name} has no {missing}.", remedy="Add the files of a zone, as `Zone.draft` makes them."
            )


def validate_sums(operation: str, taken: Sequence[DataFile], given: Sequence[DataFile], removed: Checksum) -> None:
    """Check that an operation wrote exactly the records that it read. Pure.

    Args:
        operation: Its name, for the message.
        taken: The files that it read.
        given: The files that it wrote.
        removed: The checksum of the records that it left out.

    Raises:
        LandingError: The checksums do not add up.
    """
    before = total(file.checksum for file in taken)
    after = total(file.checksum for file in given) + removed
    if before != after:
        raise sums_disagree(operation, ", ".join(names_of(taken)), taken=str(before), given=str(after))


def validate_same_file(existing: Entry, file: DataFile) -> Verdict:
    """Return the verdict of a file that is added again. Raises `LandingError` if it holds other records now. Pure."""
    if compare(existing.file, file) == "match":
        return existing.verdict
    raise LandingError(
        f"{file.name} of zone {file.zone} ({offsets(file)}) is there with the checksum {existing.file.checksum}, "
        f"and was now written with {file.checksum}.",
        remedy="The existing file stays. Run `lake landing verify`: the input of the zone has changed.",
    )


LOCK_SECONDS = 60
"""How long a change waits for another one, in SQLite."""

_NO_SPACE = ("disk is full", "No space left")
"""Words of the errors of SQLite and of PostgreSQL."""


_LOOKS_APART = 0.5
"""Seconds between two looks at what another zone has published in an object store."""

MOST_PUBLISHED = 100
"""So many publications of changes are kept; the next one has all rows, and replaces them."""


def has_landed(settings: Settings, zone: str | None = None) -> bool:
    """Return whether the manifest of a zone or (None) of any may exist.

    If it returns False, nothing ever landed in the data directory, and opening the manifest would create it.
    """
    addresses = [sa.make_url(settings.landing_manifest_address(name)) for name in ([zone] if zone else ZONES)]
    return any(each.get_backend_name() != "sqlite" or Path(str(each.database)).exists() for each in addresses)


def _engine_of(settings: Settings, zone: str) -> sa.Engine:
    address = sa.make_url(settings.landing_manifest_address(zone))
    if address.get_backend_name() == "sqlite":
        Path(str(address.database)).parent.mkdir(parents=True, exist_ok=True)
        return sa.create_engine(address, pool_pre_ping=True, connect_args={"timeout": LOCK_SECONDS})
    if address.get_backend_name() != "postgresql":
        raise ConfigurationError(
            f"The manifest cannot be kept in {address.get_backend_name()}.",
            remedy="Set LAKE_LANDING_MANIFEST_URI to an address of PostgreSQL or SQLite: postgresql+psycopg2://...",
        )
    # READ COMMITTED is its default, unless the role or the server has another one.
    engine = sa.create_engine(address, pool_pre_ping=True, isolation_level="READ COMMITTED")
    if f"search_path=landing_{zone}" in str(address.query.get("options")):
        with engine.begin() as connection:
            connection.exec_driver_sql(_LOCKS["postgresql"])
            connection.exec_driver_sql(f"CREATE SCHEMA IF NOT EXISTS landing_{zone}")
    return engine


def open_manifest(settings: Settings, zone: str | None = None) -> Manifest:
    """Open the manifest of a zone and create its tables if they are missing.

    What zones of an earlier version shared is divided first.

    Args:
        settings: Of the home.
        zone: The zone. None: the first one whose manifest can be read. It has a copy of what the others have published.

    Raises:
        ConfigurationError: The address is not one of SQLite or PostgreSQL.
        ServiceError: The store cannot be reached.
        StoredByNewerVersion: A later version has changed its tables.
    """
    if zone is None:
        return _any_manifest(settings)
    address = sa.make_url(settings.landing_manifest_address(zone))
    zones = [zone_of(settings, name) for name in ZONES]
    own = zones.pop(ZONES.index(zone))
    try:
        engine = _engine_of(settings, zone)
        if not sa.inspect(engine).has_table(COMMANDS.name) and has_landed(settings, ZONES[0]):
            divide(settings)
        create_tables(engine, own)
    except sa.exc.DBAPIError as error:
        raise _unreachable(address, error) from error
    sa.event.listen(engine, "handle_error", _tell)
    manifest = Manifest(engine, own, zones, CommandLog(settings.landing_folder / "commands.jsonl"))
    manifest.recover()
    return manifest


def _unreachable(address: sa.URL, error: BaseException) -> ServiceError:
    found = describe(error)
    what = f"The manifest {address.render_as_string(hide_password=True)} cannot be opened. {found.problem}"
    return ServiceError(what, remedy=found.remedy)


def _tell(context: sa.ExceptionContext) -> None:
    """Raise what a person and another zone can go on with: the store has no space, or does not answer any more."""
    error = context.sqlalchemy_exception
    if isinstance(error, sa.exc.OperationalError) and context.engine is not None:
        reason = str(error.orig)
        if any(words in reason for words in _NO_SPACE):
            raise DiskFull(f"The manifest {context.engine.url.render_as_string()}", reason) from error
        raise _unreachable(context.engine.url, error) from error


def divide(settings: Settings) -> bool:
    """Make one manifest for each zone of the one that zones of an earlier version shared; return whether there was one.

    If it dies, another call finishes it: the manifest counts as shared until the others have all that it has.
    """
    if not has_landed(settings, ZONES[0]):
        return False
    first = _engine_of(settings, ZONES[0])
    tables = set(sa.inspect(first).get_table_names())
    if HEAD.name not in tables or COMMANDS.name in tables:
        return False
    return create_tables(first, zone_of(settings, ZONES[0]), [_engine_of(settings, zone) for zone in ZONES[1:]])


def _any_manifest(settings: Settings) -> Manifest:
    opened: list[Manifest] = []
    for zone in [zone for zone in ZONES if has_landed(settings, zone)] or ZONES[:1]:
        try:
            opened.append(open_manifest(settings, zone))
        except ServiceError as found:
            error = found
        else:
            if opened[-1].is_of_use():
                return opened[-1]
    if not opened:
        raise error
    return opened[0]


class Manifest:
    """Reads and changes the manifest of a zone. Each method that changes it is one transaction.

    Attributes:
        zone: The name of the zone.
        peers: The other zones.
        published_here: Number of publications of all zones by this process: after each, it looks at once.
    """

    published_here: ClassVar[int] = 0

    def __init__(self, engine: sa.Engine, storage: Zone, peers: Sequence[Zone], log: CommandLog) -> None:
        self.engine = engine
        self.zone = storage.name
        self._storage = storage
        self.peers = peers
        self._log = log
        self._log_read: str | None = None
        self._is_recovered = False
        self._seen: dict[str, str] = {}
        self._looks: dict[str, tuple[float, int]] = {}

    @contextmanager
    def change(self) -> Iterator[tuple[sa.Connection, int]]:
        """Begin a transaction that excludes other changes; yield its connection and the version that it makes.

        It begins with what others have published, and what it changes is published.

        Raises:
            DiskFull: There is no space for the change; nothing is changed.
        """
        self.refresh()
        with self._transaction() as begun:
            yield begun
        self._publish()

    @contextmanager
    def _transaction(self) -> Iterator[tuple[sa.Connection, int]]:
        with self.engine.begin() as connection:
            connection.execute(sa.update(HEAD).values(version=HEAD.c.version + 1))
            version = connection.execute(sa.select(HEAD.c.version)).scalar_one()
            connection.info["marks"] = set()
            yield connection, version
            items = [item for zone, item in connection.info["marks"] if zone == self.zone]
            if items:
                connection.execute(sa.insert(UNPUBLISHED), [{"version": version, "item": item} for item in items])

    def refresh(self) -> None:
        """Copy what other zones have published, and the commands of the log, since the last call."""
        if not self._is_recovered:
            self.recover()
        if self._log.end() != self._log_read:
            self._copy_commands()
        for peer in self.peers:
            if not isinstance(peer.storage, Folder):  # each look is a request
                looked_at, counted = self._looks.get(peer.name, (0.0, -1))
                if counted == Manifest.published_here and time.monotonic() < looked_at + _LOOKS_APART:
                    continue
                self._looks[peer.name] = time.monotonic(), Manifest.published_here
            names, seen = _published(peer), self._seen.get(peer.name, "")
            if names and names[-1] != seen:
                self._copy(peer, names)

    def issue(self, *commands: Command) -> None:
        """Write commands to the log, and copy it. Of commands with one key, the first one counts."""
        self.refresh()
        self._log.append(commands)
        self.refresh()

    def commands(self, kind: str, topic: str | None = None) -> list[dict[str, Any]]:
        """Return the bodies of commands of a kind, of a topic or (None) of all, in the order of the log."""
        self.refresh()
        with self.engine.connect() as connection:
            return commands_of(connection, kind, topic)

    def command_counts(self) -> dict[str, int]:
        """Return the number of commands of each kind."""
        return dict(sorted(Counter(row.kind for row in self.rows(sa.select(COMMANDS.c.kind))).items()))

    def _copy_commands(self) -> None:
        with self.engine.connect() as connection:
            before = connection.execute(sa.select(HEAD.c.commands_read)).scalar() or ""
            is_lost = self._log.end().partition(":")[0] != before.partition(":")[0]  # or there was none yet
            own = list(map(_command_of, connection.execute(_ALL_COMMANDS))) if is_lost else []
        if own:
            found, end = self._log.read()
            known = set(map(str, found))
            self._log.append((each for each in own if str(each) not in known), at=end)
        found, self._log_read = self._log.read(before)
        if self._log_read != before:
            with self._transaction() as (connection, _):
                for number in _insert_commands(connection, found):
                    mark_changed(connection, COMMANDS, self.zone, str(number))
                connection.execute(sa.update(HEAD).values(commands_read=self._log_read))
            self._publish()

    def _copy(self, peer: Zone, names: Sequence[str]) -> None:
        """Copy publications of another zone, or of the own one into a manifest that has lost them."""
        self._seen[peer.name] = names[-1]
        query, aside = sa.select(STORAGES).filter_by(zone=peer.name), []
        with self.engine.connect() as connection:
            row = connection.execute(query).first()
        if row is not None and row.published == names[-1]:
            return  # another process of the zone was faster
        with self._transaction() as (connection, _):
            row = connection.execute(query).first()
            copied = (row.published if row else None) or ""
            if names[-1] < copied:
                names = _published(peer)  # another process was faster, or the zone was restored from a backup
                copied = copied if not names or names[-1] >= copied else ""
            rows = FileRows(connection)
            for name in names:
                if name <= copied:
                    continue
                found = peer.publication(name)
                if found is None:  # it is damaged, or was replaced by one that has all
                    break
                copied = name
                if found["whole"]:
                    known = connection.execute(sa.select(FILES.c.name).filter_by(zone=peer.name)).scalars()
                    found["files"] |= dict.fromkeys(set(known).difference(found["files"]))
                for name_of_file, file in found["files"].items():
                    if file is None:
                        rows.remove(peer.name, name_of_file)
                    else:
                        verdict, others = rows.insert_compared(entry := entry_of(file))
                        aside += [entry, *others] if isinstance(verdict, FilesDiffer) else others
                for table in PUBLISHED:
                    if table.name in found["tables"]:
                        connection.execute(sa.delete(table).filter_by(zone=peer.name))
                        if found["tables"][table.name]:
                            connection.execute(sa.insert(table), found["tables"][table.name])
                for number in _insert_commands(connection, (Command(**each) for each in found["commands"])):
                    mark_changed(connection, COMMANDS, self.zone, str(number))
            connection.execute(sa.delete(STORAGES).filter_by(zone=peer.name))
            storage = (row.storage if row else "") or (peer.storage_id() or "" if peer.name == self.zone else "")
            connection.execute(sa.insert(STORAGES).values(zone=peer.name, storage=storage, published=copied))
        for each in aside:
            if each.file.zone == self.zone:
                self._storage.quarantine(each.file.name)
        self._publish()

    def _publish(self) -> None:
        """Publish what has changed, in the storage of the zone, if it is there. One process of the zone at a time."""
        with self.engine.connect() as connection:
            is_due = connection.execute(sa.select(UNPUBLISHED.c.item).limit(1)).first() is not None
            recorded = connection.execute(sa.select(STORAGES.c.storage).filter_by(zone=self.zone)).scalar()
        try:
            if not (is_due and recorded) or self._storage.storage_id() != recorded:
                return  # what has changed is published with a later change
            with self.engine.begin() as connection:
                connection.execute(sa.update(HEAD).values(version=HEAD.c.version))  # as a change, it excludes others
                items = list(connection.execute(sa.select(UNPUBLISHED.c.item).distinct()).scalars())
                if not items:
                    return  # another process was faster
                head = connection.execute(sa.select(HEAD)).one()
                name = f"{head.incarnation}-{head.version:012}.json"
                before = _published(self._storage)
                is_whole = max(len(before), len(items) // 10) >= MOST_PUBLISHED
                is_whole = is_whole or not any(each.startswith(head.incarnation) for each in before)
                is_whole = is_whole or name in before  # of a process that died in here: it may have had all rows
                found = self._content(connection, items, is_whole=is_whole)
                self._storage.publish(name, found, replaces=set(before) - {name} if is_whole else ())
                Manifest.published_here += 1
                connection.execute(sa.delete(UNPUBLISHED))
        except (DiskFull, ServiceError):
            return

    def _content(self, connection: sa.Connection, items: Iterable[str], *, is_whole: bool) -> dict[str, Any]:
        marked: dict[str, list[str]] = {}
        for item in items:
            table, name = item.split("/", 1)
            marked.setdefault(table, []).append(name)
        files: dict[str, Any] = {} if is_whole else dict.fromkeys(marked.get(FILES.name, ()))
        query = sa.select(FILES).filter_by(zone=self.zone).order_by(FILES.c.version, FILES.c.name)
        for row in connection.execute(query if is_whole else query.where(FILES.c.name.in_(files))).mappings():
            files[row["name"]] = dict(row)
        tables = {}
        for each in PUBLISHED:
            if is_whole or each.name in marked:
                rows = connection.execute(sa.select(each).filter_by(zone=self.zone)).mappings()
                tables[each.name] = [dict(row) for row in rows]
        numbered = _ALL_COMMANDS
        if not is_whole:
            numbered = numbered.where(COMMANDS.c.number.in_([int(name) for name in marked.get(COMMANDS.name, ())]))
        commands = [vars(_command_of(row)) for row in connection.execute(numbered)]
        return {"whole": is_whole, "files": files, "tables": tables, "commands": commands}

    def is_of_use(self) -> bool:
        """Return whether the manifest knows the storage or a file of its zone."""
        own = sa.select(FILES.c.name).filter_by(zone=self.zone).limit(1)
        return bool(self.storage_id(self.zone) or self.rows(own))

    def recover(self, *, whole: bool = False) -> bool:
        """Take what the zone has published and the manifest does not have: it was restored from a backup, or is new.

        A storage that does not answer is asked again by `refresh`, until it does: what is published before that would
        be passed over by the other zone, or taken back by the next process.

        Args:
            whole: Do so for a manifest that is new, too.

        Returns:
            Whether there was anything to take.
        """
        try:
            published = self._storage.published()  # first: what is published was committed before
        except (OSError, ServiceError):
            return False
        self._is_recovered = True
        with self.engine.connect() as connection:
            head = connection.execute(sa.select(HEAD)).one()
        known = f"{head.incarnation}-{head.version:012}.json"
        later = [name for name in published if name > known and name.startswith(head.incarnation)]
        if whole and not self.is_of_use():
            later = published
        if not later:
            return False
        self._copy(self._storage, later)
        version = int(later[-1].removesuffix(".json").partition("-")[2])
        with self.engine.begin() as connection:  # so that the next publication follows
            connection.execute(sa.update(HEAD).where(HEAD.c.version < version).values(version=version))
        return True

    def rows(self, query: sa.Select[Any]) -> list[sa.Row[Any]]:
        """Return the rows of a query."""
        self.refresh()
        with self.engine.connect() as connection:
            return list(connection.execute(query).all())

    def version(self) -> int:
        """Return the last version. As long as it is the same, the manifest has not changed."""
        ((version,),) = self.rows(sa.select(HEAD.c.version))
        return int(version)

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
        query = query.filter_by(**({"zone": zone} if zone else {}), **({"topic": topic} if topic else {}))
        ordered = query.order_by(FILES.c.shard, FILES.c.version, FILES.c.name, FILES.c.zone)
        return list(map(entry_of, self.rows(ordered)))

    def storage_id(self, zone: str) -> str | None:
        """Return the id of the storage of a zone; None if none was recorded."""
        return next((row.storage or None for row in self.rows(sa.select(STORAGES).filter_by(zone=zone))), None)

    def record_storage(self, zone: str, storage: str) -> str:
        """Record the id of the storage of a zone; return the recorded one, which may be another process's."""
        with self.change() as (connection, _):
            recorded = connection.execute(sa.select(STORAGES.c.storage).filter_by(zone=zone)).scalar()
            if recorded is None:
                connection.execute(sa.insert(STORAGES).values(zone=zone, storage=storage))
            return recorded or storage

    def entry(self, zone: str, name: str) -> Entry | None:
        """Return the entry of a file; None if the manifest does not have it."""
        self.refresh()
        with self.engine.connect() as connection:
            return FileRows(connection).find(zone, name)

    def add(self, file: DataFile, *, now: datetime, stage: Stage = "live") -> Verdict:
        """Add a file of a zone and compare it with the other zone's file. Adding it again changes nothing.

        Returns:
            The verdict of the file.

        Raises:
            FilesDiffer: It holds other records than a comparable file. It is quarantined; the other one is unchanged.
            LandingError: Another file of the zone has one of its offsets.
            LandingError: Its name, shard or a deletion request is not valid.
        """
        return self._add(file, (), stage, now)

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
            LandingError: The new file and the removed records are not exactly the records of the files taken.
            PublishConflict: A file taken is not live any more.
            FilesDiffer: As in `add`; the files taken stay.
            LandingError: As in `add`.
        """
        validate_sums(operation, taken, [file], removed)
        return self._add(file, names_of(taken), "live", now)

    def _add(self, file: DataFile, taken: Sequence[str], stage: Stage, now: datetime) -> Verdict:
        validate_file(file)
        with self.change() as (connection, version):
            rows = FileRows(connection)
            existing = rows.find(file.zone, file.name)
            if existing and existing.verdict != "quarantined":
                return validate_same_file(existing, file)
            if taken:  # it takes the stage of these: all are staged, or all live
                stage = "staged" if rows.require_entry(file.zone, taken[0]).stage == "staged" else "live"
                rows.require_stage(file.zone, taken, stage)
            rows.require_known(file)
            rows.refuse_overlap(file, taken, stage)
            entry = Entry(file, "provisional", stage, version, added_at=now, retired_at=None, reason="")
            verdict, _ = rows.insert_compared(entry, landed=True)
            if not isinstance(verdict, FilesDiffer):
                rows.retire(file.zone, taken, now)
        # Raised after the commit: the quarantined file stays in the manifest.
        if isinstance(verdict, FilesDiffer):
            raise verdict
        return verdict

    def exchange(
        self, zone: str, taken: Sequence[str], given: Sequence[str], *, finishes: tuple[str, int], now: datetime
    ) -> None:
        """Replace live files by staged ones, all at once, and finish a reshard. Repeating it changes nothing.

        Args:
            zone: The zone.
            taken: Names of the live files.
            given: Names of the staged files.
            finishes: The round of the reshard: shard and number.
            now: The present time.

        Raises:
            LandingError: Both do not hold the same records.
            PublishConflict: A file taken is not live any more.
            LandingError: A staged file is not verified.
        """
        with self.change() as (connection, _):
            rows = FileRows(connection)
            old, new = ([rows.require_entry(zone, name) for name in names] for names in (taken, given))
            if {entry.stage for entry in old} == {"retired"} and {entry.stage for entry in new} == {"live"}:
                return
            rows.require_stage(zone, taken, "live")
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
            finish_round(connection, zone, *finishes)

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
            origin = rows.find_all(zone, entry.file.made_from)
            # A copy of a reshard does not replace its origin: that waits for all other copies.
            replaced = [found.file.name for found in origin if found.file.shard == entry.file.shard]
            rows.refuse_overlap(entry.file, replaced, entry.stage)
            _, others = rows.insert_compared(replace(entry, verdict="verified", reason=""))
            rows.retire(zone, replaced, now)
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
        """Remove retired files from the manifest. Raises `PublishConflict` if one of them is not retired."""
        with self.change() as (connection, _):
            rows = FileRows(connection)
            rows.require_stage(zone, names, "retired")
            for name in names:
                rows.remove(zone, name)


def _published(zone: Zone) -> list[str]:
    """Return the names of a zone's publications. A zone that cannot be read is known as it was last copied."""
    with suppress(OSError, ServiceError):
        return zone.published()
    return []


DERIVED = ("topic", "shards", "identity")
"""The columns of a file that follow from its shard, ranges and deletions."""


def misfits(manifest: Manifest) -> list[DataFile]:
    """Return the files of the zone whose derived columns or ranges are not those that follow, ordered by name."""
    with manifest.engine.connect() as connection:
        return [file for file, _ in _misfits(connection, manifest.zone)]


def rebuild(manifest: Manifest) -> list[DataFile]:
    """Write derived columns and ranges again where they do not fit; return the files."""
    with manifest.change() as (connection, _):
        found = _misfits(connection, manifest.zone)
        for file, derived in found:
            place = {"zone": file.zone, "name": file.name}
            connection.execute(sa.update(FILES).filter_by(**place).values(derived))
            connection.execute(sa.delete(RANGES).filter_by(**place))
            connection.execute(sa.insert(RANGES), range_rows_of(file))
            mark_changed(connection, FILES, file.zone, file.name)
    return [file for file, _ in found]


def _misfits(connection: sa.Connection, zone: str) -> list[tuple[DataFile, dict[str, Any]]]:
    """Return each file that does not fit, and its derived columns as they should be."""
    recorded: dict[tuple[str, str], set[tuple[int, int, int, str]]] = {}
    for row in connection.execute(sa.select(RANGES).filter_by(zone=zone)):
        recorded.setdefault((row.zone, row.name), set()).add((row.partition, row.first, row.last, row.shard))
    found = []
    for row in connection.execute(sa.select(FILES).filter_by(zone=zone).order_by(FILES.c.name)):
        file = entry_of(row).file
        expected = row_of(entry_of(row))
        derived = {name: expected[name] for name in DERIVED}
        ranges = {(p, first, last, file.shard) for p, (first, last) in file.ranges.items()}
        is_same = all(row._mapping[name] == value for name, value in derived.items())
        if not is_same or recorded.get((file.zone, file.name), set()) != ranges:
            found.append((file, derived))
    return found


def recorded_ends(manifest: Manifest, topic: str) -> dict[str, dict[int, int]]:
    """Return zone → partition → the offset after the last one that it has landed, whatever rows of files are left."""
    found: dict[str, dict[int, int]] = {}
    for row in manifest.rows(sa.select(ENDS).filter_by(topic=topic)):
        found.setdefault(row.zone, {})[row.partition] = row.end
    return found


def lost_dead_letters(manifest: Manifest, topic: str) -> list[tuple[int, int, int]]:
    """Return where the zone has landed dead letters and no zone has a file of them any more: partition, first, last."""
    query = sa.select(DEAD_LETTERS).filter_by(zone=manifest.zone, topic=topic)
    landed = manifest.rows(query.order_by(DEAD_LETTERS.c.partition, DEAD_LETTERS.c.first))
    of_files = sa.select(RANGES.c.partition, RANGES.c.first, RANGES.c.last).join(FILES, SAME_FILE)
    of_files = of_files.where(RANGES.c.shard == str(Shard(topic, dead_letters=True)))
    index = RangeIndex({row.partition: (row.first, row.last)} for row in manifest.rows(of_files))
    spans = [(row.partition, row.first, row.last) for row in landed]
    return [(p, first, last) for p, first, last in spans if not index.overlaps({p: (first, last)})]


def forget_lost_dead_letters(manifest: Manifest, topic: str, earliest: Mapping[int, int]) -> None:
    """Forget the dead letters of the zone that no zone has a file of, and that Kafka does not have any more either.

    Args:
        manifest: Of the zone.
        topic: The topic.
        earliest: Partition → the landed offset of the first message that Kafka has.
    """
    zone = manifest.zone
    lost = lost_dead_letters(manifest, topic)
    with manifest.change() as (connection, _):
        mark_changed(connection, DEAD_LETTERS, zone)
        for partition, first, _ in lost:
            if first < earliest.get(partition, 0):
                place = {"zone": zone, "topic": topic, "partition": partition, "first": first}
                connection.execute(sa.delete(DEAD_LETTERS).filter_by(**place))


def begun_offsets(manifest: Manifest, topic: str, files: Iterable[DataFile]) -> dict[int, int]:
    """Return, for each partition, the first offset that any zone has landed or began to read, whatever files are left.

    Args:
        manifest: The manifest.
        topic: The topic.
        files: Its files in all zones. Dead letters count: their file lands before that of the rows.
    """
    found = first_offsets(files)
    landed = [(row.partition, row.begun) for row in manifest.rows(sa.select(ENDS).filter_by(topic=topic))]
    for partition, first in (*landed, *recorded_firsts(manifest, topic).items()):
        found[partition] = min(first, found.get(partition, first))
    return found


def recorded_firsts(manifest: Manifest, topic: str) -> dict[int, int]:
    """Return, for each partition, where the zone that was the first to read it began.

    A partition that a zone of an earlier version has begun is missing.
    """
    policies = manifest.commands("policy", topic)
    return {body["partition"]: body["first"] for body in policies if body.get("first") is not None}


def landed_topics(manifest: Manifest) -> list[str]:
    """Return all topics that have files, or had any."""
    return sorted({row.topic for table in (FILES, ENDS) for row in manifest.rows(sa.select(table.c.topic).distinct())})


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
    found = []
    for (shard, zone), entries in sorted(grouped.items()):
        verdicts = Counter(entry.verdict for entry in entries)
        files = files_of(entry for entry in entries if entry.verdict != "quarantined")
        found.append(
            ShardStatus(
                zone=zone,
                shard=shard,
                verified=verdicts["verified"],
                provisional=verdicts["provisional"],
                quarantined=verdicts["quarantined"],
                records=sum(file.count for file in files),
                bytes=sum(file.size for file in files),
                next=next_offsets(files),
            )
        )
    return found


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
