"""The faults of a cluster that are played, in which order, and what is hit."""

from __future__ import annotations

import random
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.cluster.__main__ import BEGIN, END
from benchmarks.cluster.faults import DISTURBED, KILLED, PAUSED, PROXIED, order
from benchmarks.cluster.stack import cluster
from benchmarks.faults.__main__ import PAGE, faults_settings
from benchmarks.faults.player import Healed, Row
from benchmarks.faults.table import table, written
from benchmarks.faults.traffic import Count
from lake_assets.services.stack import PORT_NAMES, services_of


@given(st.integers(1, 9), st.integers(0, 60), st.integers())
def test_each_fault_comes_once_before_one_comes_again(kinds: int, count: int, seed: int) -> None:
    faults = [str(number) for number in range(kinds)]
    found = order(faults, count, random.Random(seed))
    assert len(found) == count
    assert found == order(faults, count, random.Random(seed))
    times = [found.count(fault) for fault in faults]
    assert max(times) - min(times) <= 1


def test_what_is_killed_or_paused_is_a_service(tmp_path: Path) -> None:
    servers = cluster(tmp_path / "servers", tmp_path / "lake")
    named = {"kafka": "kafka:1", "zookeeper": "zookeeper:1"}
    lake = faults_settings(servers.lake).model_copy(update=named)
    services = [*servers.services, *services_of(lake, dict.fromkeys(PORT_NAMES, 1))]
    names = {service.name for service in services}
    assert {name for group in (*KILLED.values(), *PAUSED.values()) for name in group} <= names
    assert {server for server, _ in DISTURBED.values()} == set(PROXIED)
    assert servers.services is servers.services  # they keep their ports


def test_settings_lead_through_the_proxies(tmp_path: Path) -> None:
    servers = cluster(tmp_path / "servers", tmp_path / "lake")
    direct, through = servers.variables(), servers.variables({"s3": 7, "postgresql": 8})
    changed = {name for name in direct if direct[name] != through[name]}
    databases = {"LAKE_CATALOG_URI", "LAKE_LANDING_MANIFEST_URI", "LAKE_DAGSTER_URI"}
    assert changed == {*databases, "LAKE_CATALOG__S3__ENDPOINT"}
    assert through["LAKE_CATALOG__S3__ENDPOINT"] == "http://127.0.0.1:7"
    assert all(":8/" in through[name] for name in databases)


def test_a_row_of_faults_that_have_a_sentence() -> None:
    row = Row("PostgreSQL is killed")
    harmless = []
    for seconds, lost, doubled in ((30.2, 0, 0), (50.0, 1, 0), (40.0, 0, 2), (None, 0, 0)):
        row.add(Healed(row.fault, seconds), Count(lost, doubled))
        harmless.append(row.is_harmless)
    assert harmless == [True, False, False, False]
    assert table([row]).splitlines()[2:] == ["| PostgreSQL is killed | 4 | 3 | 40 (at most 50) | 0 | 0 |"]


def test_the_page_has_a_place_for_the_table() -> None:
    page = PAGE.read_text()
    changed = written(page, "| new |", begin=BEGIN, end=END)
    assert changed.partition(BEGIN)[0] == page.partition(BEGIN)[0]
    assert changed.partition(END)[2] == page.partition(END)[2]
    assert changed.count("| new |") == 1
