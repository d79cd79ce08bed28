"""Two zones with a manifest of their own, and what was sent to them: real files, a real database, no Kafka."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa

from lake_assets.base.failpoints import EXIT_CODE
from lake_assets.landing.files import zone_of
from lake_assets.landing.heal import Finding, verify
from lake_assets.landing.manifest import ALL_STAGES, COMMANDS, FileRows, Manifest, Verdict, open_manifest
from lake_assets.landing.messages import Scrub
from lake_assets.landing.operations import GroupLimits, merge, scrub, sweep, to_columns
from lake_assets.landing.records import Checksum, DataFile, Record, Shard, checksum, shards
from lake_assets.landing.reshard import reshard
from lake_assets.landing.state import DeletionRequest, SharedState
from lake_assets.landing.zones import ZoneWriter
from lake_assets.settings import Settings, settings
from lake_assets_tests.landing.made import key_of, record
from lake_assets_tests.processes import Child, environment

TOPIC = "raw.signups"
WHOLE = Shard(TOPIC)
NOW = datetime(2026, 1, 1, tzinfo=UTC)
DEADLINE = timedelta(minutes=15)
EVER = datetime.max.replace(tzinfo=UTC)
LIMITS = GroupLimits(max_files=3, max_bytes=1 << 20)
PEOPLE = 5
OF = 2
BY = Scrub(key_of, lambda identity: f"hash of {identity}")


def quarantine(manifest: Manifest, zone: str, name: str) -> None:
    """Put a file in quarantine, as the release of the other zone's does."""
    with manifest.change() as (connection, _):
        FileRows(connection).change(zone, name, verdict="quarantined", reason="the other zone's was released")


def share_manifest(home: Settings, *statements: str) -> None:
    """Make the manifest that zones of a version before formats shared, with no file, and change it."""
    made = (
        "CREATE TABLE landing_head (id INTEGER PRIMARY KEY, version BIGINT NOT NULL)",
        "INSERT INTO landing_head VALUES (1, 7)",
        "CREATE TABLE landing_zone (zone VARCHAR(16) PRIMARY KEY, storage VARCHAR(32) NOT NULL)",
        "CREATE TABLE landing_policy (topic VARCHAR(160), partition INTEGER, from_offset BIGINT, max_messages BIGINT, "
        "max_bytes BIGINT, max_age_ms BIGINT, by_heartbeats BOOLEAN, PRIMARY KEY (topic, partition, from_offset))",
        "CREATE TABLE landing_deletion (request_id VARCHAR(100), topic VARCHAR(160), id_hash VARCHAR(64), "
        "sent_through BIGINT, PRIMARY KEY (request_id, topic))",
    )
    home.home.mkdir(parents=True, exist_ok=True)
    with sa.create_engine(home.landing_manifest_address("a")).begin() as connection:
        for statement in (*made, *statements):
            connection.execute(sa.text(statement))


def change_commands(
    home: Settings, kind: str, changed: Callable[[dict[str, Any]], dict[str, Any] | None] = lambda _: None
) -> None:
    """Change or remove (None) the commands of a kind in all zones and in the log."""
    for zone in ("a", "b"):
        with open_manifest(home, zone).engine.begin() as connection:
            for row in connection.execute(sa.select(COMMANDS).filter_by(kind=kind)).all():
                place, body = {"number": row.number}, changed(json.loads(row.body))
                connection.execute(sa.delete(COMMANDS).filter_by(**place))
                if body is not None:
                    connection.execute(sa.insert(COMMANDS).values({**row._mapping, "body": json.dumps(body)}))
    (home.landing_folder / "commands.jsonl").unlink()  # it is written again from a copy


def sent(partition: int, offset: int) -> Record:
    """The message of an offset: its person and its bytes follow from it."""
    value = f"message {offset} of {partition}".encode()
    return record(offset, partition=partition, value=value, key=f"person {(offset + partition) % PEOPLE}")


@dataclass
class Landed:
    """Zones a and b; files of three messages."""

    settings: Settings
    zones: tuple[str, ...] = ("a", "b")
    clock: datetime = NOW
    writers: dict[str, ZoneWriter] = field(init=False)

    def __post_init__(self) -> None:
        self.writers = {
            zone: ZoneWriter(zone_of(self.settings, zone), open_manifest(self.settings, zone)) for zone in self.zones
        }
        self.manifest = self.writers[self.zones[0]].manifest

    def land(self, zone: str, partition: int, first: int, records: Iterable[Record] | None = None) -> Verdict:
        """Three messages from an offset on, or others in their place, as a file of a zone."""
        ranges = {partition: (first, first + 2)}
        found = [sent(partition, offset) for offset in range(first, first + 3)] if records is None else records
        writer = self.writers[zone]
        return writer.land(writer.zone.draft(str(WHOLE), ranges, found), now=self.clock)

    def land_all(self, files: int = 4, partitions: int = 2) -> None:
        """The same in both zones."""
        for zone in self.zones:
            for number in range(files):
                for partition in range(partitions):
                    self.land(zone, partition, 3 * number)

    def ask(self, person: str, request_id: str, sent_through: int) -> None:
        request = DeletionRequest(request_id, TOPIC, BY.hashed(person), sent_through)
        SharedState(self.manifest).request_deletions(TOPIC, [request], now=self.clock)

    def run(self, operation: str, zone: str) -> None:
        """An operation in a zone, as far as it goes."""
        OPERATIONS[operation](self.writers[zone], self.clock)

    def die(self, operation: str, zone: str, step: str) -> None:
        """The same in a process of its own, which dies at a step."""
        child = Child(operate, f"{operation} {zone}", environment(self.settings, step))
        assert child.end() == EXIT_CODE, f"{operation} did not come to {step}"

    def files(self, zone: str) -> list[DataFile]:
        return [entry.file for entry in self.manifest.entries(zone)]

    def records(self, zone: str) -> list[Record]:
        """All that a reader of a zone reads, in order."""
        return sorted(r for file in self.files(zone) for r in self.writers[zone].records(file))

    def sums(self, zone: str) -> Checksum:
        return checksum(r.canonical for r in self.records(zone))

    def findings(self) -> list[Finding]:
        return list(verify(list(self.writers.values()), now=self.clock, deadline=DEADLINE).findings)

    def assert_equal(self) -> None:
        """Both zones hold the same files, all verified, each as the manifest says; and none lies there unnamed."""
        assert self.findings() == []
        for zone, writer in self.writers.items():
            known = {e.file.name for e in self.manifest.entries(zone, stages=ALL_STAGES)}
            assert known == set(writer.zone.names(EVER))
        one, other = ([(f.shard, dict(f.ranges), f.deletions, f.checksum) for f in self.files(z)] for z in self.zones)
        assert sorted(one, key=repr) == sorted(other, key=repr)
        assert {entry.verdict for entry in self.manifest.entries()} <= {"verified"}


def _merge(writer: ZoneWriter, now: datetime) -> None:
    for shard in (WHOLE, *shards(TOPIC, OF)):
        merge(writer, shard, LIMITS, now=now)


OPERATIONS: dict[str, Callable[[ZoneWriter, datetime], object]] = {
    "columns": lambda writer, now: to_columns(writer, TOPIC, now=now),
    "merge": _merge,
    "reshard": lambda writer, now: reshard(writer, TOPIC, OF, key_of, now=now),
    "sweep": lambda writer, now: sweep(writer.manifest, writer.zone, retired_before=now + timedelta(seconds=1)),
    "scrub": lambda writer, now: scrub(writer, TOPIC, BY, now=now),
}


def operate(words: str) -> str:
    """`OPERATION ZONE`, in the home of this process."""
    Landed(settings()).run(*words.split())
    return words
