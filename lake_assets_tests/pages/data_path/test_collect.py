"""The data path as the report shows it: real services, some of them, and none."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import Catalog

from examples import flights
from lake_assets.base.hours import hour_key
from lake_assets.engagement.checkpoint import Batch, Checkpoint, OffsetRange
from lake_assets.engagement.lakes import EMAIL_EVENT, metrics_locations
from lake_assets.engagement.tables import ENGAGEMENT, ENGAGEMENT_METRICS, open_tables
from lake_assets.engagement.topics import KafkaTopic
from lake_assets.errors import FilesDiffer
from lake_assets.incremental.engine.engine import Engine
from lake_assets.incremental.operations.overview import overview
from lake_assets.landing.kafka import beat
from lake_assets.landing.records import Checksum, DataFile, file_name
from lake_assets.landing.zones import open_zones
from lake_assets.membership import PIPELINE
from lake_assets.pages.data_path import BAD_FILES, LAST_PUSHES, DataPath, Fact, Stage, data_path
from lake_assets.serving.push import PushReport
from lake_assets.serving.served_tables import serving_at
from lake_assets.serving.sources import metrics_sources
from lake_assets.settings import Settings
from lake_assets_tests.conftest import with_zookeeper
from lake_assets_tests.incremental.scenario import START, signup
from lake_assets_tests.serving.scenario import fresh_name

NOW = datetime(2026, 1, 2, tzinfo=UTC)
PREFIX = f"{fresh_name()}."
TOPIC = f"{PREFIX}raw.signups"


@pytest.fixture
def engine(catalog: Catalog) -> Engine:
    found = Engine(catalog, PIPELINE, clock=lambda: NOW)
    found.create_tables()
    return found


def path_of(settings: Settings, engine: Engine) -> DataPath:
    return data_path(settings, engine, overview(engine.catalog, engine.pipeline, now=NOW))


def stage(path: DataPath, name: str) -> Stage:
    (found,) = [s for s in (*path.stages, path.pushes, path.quarantine) if s and s.name == name]
    return found


def names(path: DataPath) -> list[str]:
    return [s.name for s in path.stages]


def land(settings: Settings, zone: str, first: int, last: int, *, sum_of: int = 0) -> None:
    """Add a file of a zone to the manifest, and an empty one to its folder. sum_of: another sum, for other records."""
    shard, ranges = f"{TOPIC}/0-of-1", {0: (first, last)}
    name = file_name(shard, ranges, frozenset(), "append")
    file = DataFile(name, 1, shard, ranges, frozenset(), last + 1 - first, Checksum(last + 1 - first, sum_of), zone)
    (writer,) = open_zones(settings, [zone])
    writer.require_storage()
    (settings.landing_folder / zone / name).touch()
    writer.manifest.add(file, now=NOW - timedelta(hours=1))


def test_without_services_only_the_tables_have_facts(bare_home: Settings, engine: Engine) -> None:
    path = path_of(bare_home, engine)
    assert [s.name for s in path.stages if s.facts] == ["Raw tables", "Facts and dimensions"]
    assert [fact.what for fact in stage(path, "Raw tables").facts] == [raw.table for raw in PIPELINE.raw]
    assert not any(s.broken for s in path.stages)
    assert names(path) == ["Kafka", "Landing zones", "Raw tables", "Facts and dimensions", "Served tables"]
    assert stage(path, "Kafka").instead.startswith("No Kafka runs for this data directory")
    assert stage(path, "Served tables").instead == stage(path, "Last pushes").instead
    assert "lake landing run" in stage(path, "Landing zones").instead
    assert not (bare_home.home / "landing.db").exists()


def test_raw_tables_without_a_topic_are_shown(bare_home: Settings, catalog: Catalog) -> None:
    of_flights = Engine(catalog, flights.PIPELINE, clock=lambda: NOW)
    of_flights.create_tables()
    path = path_of(bare_home, of_flights)
    assert stage(path, "Raw tables").facts == (
        Fact("flights_raw.departures", "no hour is complete yet"),
        Fact("flights_raw.arrivals", "no hour is complete yet"),
    )
    assert (names(path), path.pushes, path.quarantine) == (["Raw tables", "Facts and dimensions"], None, None)


def test_a_raw_table_shows_its_complete_through(bare_home: Settings, engine: Engine) -> None:
    table = engine.catalog.load_table("raw.signups")
    table.append(pa.Table.from_pylist([signup(1, 3)], schema=table.schema().as_arrow()))
    with table.transaction() as transaction:
        transaction.set_properties({"lake.complete-through": hour_key(START + 3)})
    facts = {fact.what: fact.stands for fact in stage(path_of(bare_home, engine), "Raw tables").facts}
    assert facts["raw.signups"] == "complete through 2026-01-01-03:00"
    assert facts["raw.cancels"] == "no hour is complete yet"


def test_a_stage_that_cannot_be_read_shows_why_and_the_others_are_shown(bare_home: Settings, engine: Engine) -> None:
    (bare_home.home / "landing.db").write_text("no database at all")
    path = path_of(bare_home, engine)
    assert [s.name for s in path.stages if s.broken] == ["Landing zones", "Raw tables"]
    assert stage(path, "Landing zones").instead.startswith("The manifest ")
    assert len(stage(path, "Facts and dimensions").facts) == len(PIPELINE.targets)


def test_landed_files_are_shown_by_topic_and_zone(bare_home: Settings, engine: Engine, kafka: str) -> None:
    home = bare_home.model_copy(update={"kafka": kafka, "landing_prefix": PREFIX})
    KafkaTopic(kafka, TOPIC).create(1)
    for _ in range(3):
        beat(kafka, {TOPIC: NOW})
    land(home, "a", 0, 0)
    land(home, "b", 0, 0)
    land(home, "a", 1, 1)
    path = path_of(home, engine)
    assert stage(path, "Kafka").facts[0] == Fact(TOPIC, "3 offsets in 1 partitions")
    behind, *zones = stage(path, "Landing zones").facts
    assert behind.bad
    assert behind.pending == (  # for an hour: longer than the deadline
        f"Zone b has not landed 1 files of {TOPIC} that zone a has since 2026-01-01 23:00:00 UTC."
    )
    assert "lake landing run" in behind.remedy
    assert zones == [
        Fact(
            f"{TOPIC}, zone a",
            "last file at 2026-01-01 23:00:00; 1 verified",
            "1 files are not verified yet, 1 offsets of Kafka are not landed",
        ),
        Fact(
            f"{TOPIC}, zone b",
            "last file at 2026-01-01 23:00:00; 1 verified",
            "2 offsets of Kafka are not landed",
            bad=True,
            remedy=BAD_FILES,
        ),
    ]
    pending = {fact.what: fact.pending for fact in stage(path, "Raw tables").facts}
    assert pending == {raw.table: "" for raw in PIPELINE.raw} | {"raw.signups": "2 landed offsets are not loaded"}

    with pytest.raises(FilesDiffer):
        land(home, "b", 1, 1, sum_of=7)
    (aside,) = stage(path_of(home, engine), "Landed files").facts
    assert aside.bad
    assert aside.command.startswith("lake landing quarantine release b ")


def test_a_served_table_shows_that_its_source_changed_after_the_push(
    bare_home: Settings, engine: Engine, zookeeper: str
) -> None:
    home, location = with_zookeeper(bare_home, zookeeper), metrics_locations(bare_home)[EMAIL_EVENT.name]
    source = metrics_sources(metrics_locations(home))[0]

    def served() -> Fact:
        (fact,) = stage(path_of(home, engine), "Served tables").facts
        return fact

    write_deltalake(location, pa.table({"sent": [1]}))
    reading = source.read(engine.catalog)
    with serving_at(str(home.zookeeper), home, clock=lambda: NOW) as serving:
        rows, heads = {source.name: reading.rows}, {source.name: reading.head}
        serving.writer.push(rows, push_id="pushed001", as_of=NOW, heads=heads)
    assert served() == Fact(source.name, "1 rows as of 2026-01-02 00:00:00")
    write_deltalake(location, pa.table({"sent": [2]}), mode="append")
    assert served().pending == f"{source.table} is at 1, 0 is served"
    (Path(unquote(urlparse(location).path)) / "_delta_log" / f"{2:020}.json").write_text("no commit")
    assert served().bad


def test_the_last_pushes_have_the_command_that_reverts_them(
    bare_home: Settings, engine: Engine, zookeeper: str
) -> None:
    seconds, pushed = count(), list[PushReport]()
    home = with_zookeeper(bare_home, zookeeper).model_copy(update={"serving_snapshots": 3})
    with serving_at(str(home.zookeeper), home, clock=lambda: NOW + timedelta(seconds=next(seconds))) as serving:
        for number in range(LAST_PUSHES + 2):
            rows = pa.table({"n": range(number)})
            pushed += serving.writer.push({"members": rows}, push_id=f"pushed{number:03}", as_of=NOW)
    path = path_of(home, engine)
    assert stage(path, "Served tables").facts == (Fact("members", f"{LAST_PUSHES + 1} rows as of 2026-01-02 00:00:00"),)
    shown = stage(path, "Last pushes").facts
    assert len(shown) == LAST_PUSHES
    back = [fact.command for fact in shown]
    commands = [f"lake serving revert members {report.entry_id}" for report in reversed(pushed)]
    assert back == [commands[0], f"{commands[1]} --later", *[""] * (LAST_PUSHES - 2)]


def test_an_engagement_lake_is_shown_by_its_streams(bare_home: Settings, engine: Engine) -> None:
    tables = open_tables(bare_home, EMAIL_EVENT)
    for name in (ENGAGEMENT, ENGAGEMENT_METRICS):
        DeltaTable.create(tables.location(name), pa.schema([("org_id", pa.string())]))
    tables.checkpoints.create()
    first = Checkpoint(Batch(1, OffsetRange("t", "id", {0: 0}, {0: 5}), {}), ("engagement",))
    tables.checkpoints.move(EMAIL_EVENT.app_name("ingestion"), None, first)
    ingestion, mutation, *_, metrics = stage(path_of(bare_home, engine), "Engagement lakes").facts
    assert ingestion == Fact("email_event.ingestion", "batch 1", "unfinished: engagement")
    assert mutation == Fact("email_event.mutation", "no batch yet")
    assert metrics == Fact("email_event: metrics", "show version 0")
