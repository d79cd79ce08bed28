"""The tables of the manifest, and the entry of a file. Times are milliseconds since 1970-01-01 UTC, as in Kafka."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, get_args

import sqlalchemy as sa

from lake_assets.errors import StoredByNewerVersion
from lake_assets.landing.files.entries import DataFile
from lake_assets.settings import __version__

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
