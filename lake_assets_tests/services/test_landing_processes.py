"""The processes of landing: when they run, and that they land, load and come back while the others go on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Producer

from lake_assets.connections import addresses
from lake_assets.connections.catalog import open_catalog
from lake_assets.engagement.topics import KafkaTopic
from lake_assets.errors import UsageError
from lake_assets.incremental.engine.iceberg import create_raw, load
from lake_assets.incremental.from_settings import open_pipeline
from lake_assets.landing.zones import locked_zone
from lake_assets.services import lifecycle, supervisor
from lake_assets.services.lifecycle import PORT_NAMES, landing_processes, services_of
from lake_assets.settings import Settings
from lake_assets_tests.processes import wait_until

NAMES = ["landing-a", "landing-b", "landing-load"]
PORTS = dict.fromkeys(PORT_NAMES, 9)
SECONDS = 180

DECLARED = """
from lake_assets import Pipeline, RawTable, Source, Stateless, Topic, incremental_asset

COLUMNS = {{"order_id": "string", "customer_id": "string", "ordered_at": "timestamptz"}}
FED = RawTable("raw.orders", COLUMNS, time_column="ordered_at", feed=Topic("customer_id", name="{topic}"))
NOT_FED = RawTable("raw.orders", COLUMNS, time_column="ordered_at")
PIPELINE = Pipeline(raw=(FED,), targets=(), start="2026-01-01-00:00")
WITHOUT = Pipeline(raw=(NOT_FED,), targets=(), start="2026-01-01-00:00")

ORDERS = Source(NOT_FED.table, time_column="ordered_at")
@incremental_asset(
    mode=Stateless(), sources=[ORDERS], key="order_id", time_column="ordered_at", columns=COLUMNS, served=True
)
def order_fact(spark, orders):
    return orders

SERVED = Pipeline(raw=(NOT_FED,), targets=(order_fact,), start="2026-01-01-00:00")
"""


CONTINUOUS = "{name: calls, continuous: true, fields: {words: int}, metrics: {calls: {kinds: {calls: call}}}}"


@pytest.fixture
def topic() -> str:
    return f"orders-{uuid4().hex}"


@pytest.fixture
def module(topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of a user's own, whose pipeline is landed from the topic."""
    name = f"orders_{uuid4().hex}"
    (tmp_path / f"{name}.py").write_text(DECLARED.format(topic=topic))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return name


@pytest.fixture
def home(bare_home: Settings, module: str, kafka: str) -> Iterator[Settings]:
    quick = {"landing_age_seconds": 1, "landing_heartbeat_seconds": 1}
    yield bare_home.model_copy(update={"pipelines": f"{module}:PIPELINE", "kafka": kafka, **quick})
    lifecycle.down(bare_home, report=print)


def test_services_are_those_that_what_is_declared_needs(bare_home: Settings, module: str) -> None:
    def found(pipelines: str, **changed: str | None) -> dict[str, int | None]:
        chosen = bare_home.model_copy(update={"pipelines": pipelines, **changed})
        services = {s.name: s.after for s in services_of(chosen, PORTS)}
        assert {"spark", "code", "webserver", "daemon"} <= set(services)
        optional = ("landing", "kafka", "zookeeper", "streams")
        return {name: after for name, after in services.items() if name.startswith(optional)}

    without, both = f"{module}:WITHOUT", {"zookeeper", "kafka"}
    assert found(without) == {}
    assert set(found(without, lakes="email_event")) == both
    lake = bare_home.home.with_name("calls.yaml")
    lake.write_text(CONTINUOUS)
    assert found(without, lakes=f"email_event,{lake}") == {"zookeeper": None, "kafka": None, "streams-calls": 9}
    assert found(without, lakes=str(lake), kafka="elsewhere:9092") == {"zookeeper": None, "streams-calls": None}
    assert set(found(f"{module}:SERVED")) == {"zookeeper"}
    assert found(f"{module}:PIPELINE") == {"kafka": None} | dict.fromkeys(NAMES, 9)
    assert found(f"{module}:PIPELINE", kafka="elsewhere:9092") == dict.fromkeys(NAMES)
    for every in ("lake_assets.membership:PIPELINE", "nowhere:PIPELINE"):
        assert set(found(every)) == both
    assert set(found(without, lakes="no_such_lake")) == both  # the code server says what is wrong with it


def test_they_land_and_load_and_one_that_is_killed_comes_back_alone(home: Settings, kafka: str, topic: str) -> None:
    KafkaTopic(kafka, topic).create(1)
    catalog = open_catalog(home)
    (raw,) = open_pipeline(home).raw
    create_raw(catalog, raw)

    def orders() -> list[str]:
        found: list[str] = load(catalog, raw.table).scan().to_arrow()["order_id"].to_pylist()
        return sorted(found)

    services = landing_processes(home, kafka_port=None)
    supervisor.start(services, home.home)
    wait_until(lambda: all(service.ready() for service in services), SECONDS)
    send(kafka, topic, "first")
    wait_until(lambda: orders() == ["first"], SECONDS)
    with pytest.raises(UsageError, match="Zone b is landed by another process, with pid"):
        locked_zone(home.landing_folder, "b").__enter__()

    pids = {service.name: pid_of(home, service.name) for service in services}
    killed = addresses.process_of(home.home, "landing-a")
    assert killed is not None
    killed.kill()
    wait_until(lambda: pid_of(home, "landing-a") not in (None, pids["landing-a"]), SECONDS)
    send(kafka, topic, "second")
    wait_until(lambda: orders() == ["first", "second"], SECONDS)
    assert {**pids, "landing-a": 0} == {name: pid_of(home, name) if name != "landing-a" else 0 for name in pids}
    lifecycle.down(home, report=print)
    assert addresses.processes_of(home.home) == []


def send(kafka: str, topic: str, order: str) -> None:
    now = datetime.now(UTC)
    value = {"order_id": order, "customer_id": "c", "ordered_at": now.isoformat()}
    producer = Producer({"bootstrap.servers": kafka})
    producer.produce(topic, json.dumps(value).encode(), timestamp=int(now.timestamp() * 1000))
    assert producer.flush(60) == 0


def pid_of(home: Settings, name: str) -> int | None:
    process = addresses.process_of(home.home, name)
    return process.pid if process else None
