"""The tables of the manifest, and a file as a row of them. Times are milliseconds since 1970 in UTC, as in Kafka."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, get_args

import sqlalchemy as sa

from lake_assets.landing.files.checksum import Checksum
from lake_assets.landing.files.entries import DataFile, identity
from lake_assets.landing.files.sharding import parse_shard

Verdict = Literal["provisional", "verified", "quarantined"]
Stage = Literal["staged", "live", "retired"]
ALL_VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
ALL_STAGES: tuple[Stage, ...] = get_args(Stage)

METADATA = sa.MetaData()
HEAD = sa.Table(
    "landing_head",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("version", sa.BigInteger, nullable=False),
)
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
)
DELETIONS = sa.Table(
    "landing_deletion",
    METADATA,
    sa.Column("request_id", sa.String(100), primary_key=True),
    sa.Column("topic", sa.String(160), primary_key=True),
    sa.Column("id_hash", sa.String(64), nullable=False),
    sa.Column("sent_through", sa.BigInteger, nullable=False),
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


@dataclass(frozen=True)
class Entry:
    """A file as the manifest has it.

    verdict: `verified` when the other zone's file was found equal, `provisional` until then. stage: a `live` file is
    what readers read; a `staged` one waits for the others of its operation, a `retired` one was replaced. reason: why
    it is quarantined.
    """

    file: DataFile
    verdict: Verdict
    stage: Stage
    version: int
    added_at: datetime
    retired_at: datetime | None
    reason: str

    def overdue(self, now: datetime, deadline: timedelta) -> bool:
        """Whether it has waited for the other zone's file for longer than a deadline."""
        return self.verdict == "provisional" and now - self.added_at > deadline


def row_of(entry: Entry) -> dict[str, Any]:
    """An entry as a row of `landing_file`. shards: the sharding specification; 0 for dead letters, which have none."""
    file, shard = entry.file, parse_shard(entry.file.shard)
    return {
        "zone": file.zone,
        "name": file.name,
        "version": entry.version,
        "topic": shard.topic,
        "shard": file.shard,
        "shards": 0 if shard.dead_letters else shard.of,
        "identity": identity(file.shard, file.ranges, file.deletions),
        "kind": file.kind,
        "size": file.size,
        "count": file.count,
        "sum": f"{file.checksum.sum:064x}",
        "digest": file.digest,
        "ranges": json.dumps(written_ranges(file.ranges)),
        "deletions": json.dumps(sorted(file.deletions)),
        "made_from": json.dumps(list(file.made_from)),
        "verdict": entry.verdict,
        "stage": entry.stage,
        "added_at": milliseconds(entry.added_at),
        "retired_at": None if entry.retired_at is None else milliseconds(entry.retired_at),
        "reason": entry.reason,
    }


def ranges_of(file: DataFile) -> Iterable[dict[str, Any]]:
    """The rows of `landing_range` of a file."""
    for partition, (first, last) in file.ranges.items():
        place = {"zone": file.zone, "name": file.name, "shard": file.shard, "partition": partition}
        yield {**place, "first": first, "last": last}


def entry_of(row: sa.Row[Any]) -> Entry:
    """The entry that a row of `landing_file` holds."""
    found = row._mapping
    file = DataFile(
        found["name"],
        found["size"],
        found["shard"],
        read_ranges(json.loads(found["ranges"])),
        frozenset(json.loads(found["deletions"])),
        found["count"],
        Checksum(found["count"], int(found["sum"], 16)),
        found["zone"],
        found["kind"],
        tuple(json.loads(found["made_from"])),
        found["digest"],
    )
    retired_at = None if found["retired_at"] is None else moment(found["retired_at"])
    added_at = moment(found["added_at"])
    return Entry(file, found["verdict"], found["stage"], found["version"], added_at, retired_at, found["reason"])


def written_ranges(ranges: Mapping[int, tuple[int, int]]) -> dict[str, list[int]]:
    """Ranges as JSON has them."""
    return {str(partition): list(found) for partition, found in sorted(ranges.items())}


def read_ranges(found: Mapping[str, list[int]]) -> dict[int, tuple[int, int]]:
    """Ranges from JSON."""
    return {int(partition): (first, last) for partition, (first, last) in found.items()}


def milliseconds(at: datetime) -> int:
    """A moment as Kafka tells it; what is finer is cut off."""
    return (at - _EPOCH) // _MILLISECOND


def moment(at: int) -> datetime:
    """The moment, in UTC."""
    return _EPOCH + at * _MILLISECOND


def is_moment(at: int) -> bool:
    """Whether milliseconds since 1970 are a moment that can be told, from the year 1 to 9999: microseconds are not."""
    return _FIRST <= at <= _LAST


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_FIRST, _LAST = milliseconds(datetime.min.replace(tzinfo=UTC)), milliseconds(datetime.max.replace(tzinfo=UTC))
