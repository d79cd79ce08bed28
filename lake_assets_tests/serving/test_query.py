"""Queries over served tables, in the process and over HTTP: what they may read, and how much."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from pydantic import SecretStr

from lake_assets.errors import SegmentDamaged, ServingError
from lake_assets.serving.http import endpoint
from lake_assets.serving.query import Broker, QueryLimits, query
from lake_assets.serving.query_worker import connect, restrict, tables_of
from lake_assets.serving.registry import SEGMENTS, encode_segment
from lake_assets.serving.served_tables import Serving, open_serving
from lake_assets.settings import Settings
from lake_assets_tests.serving.scenario import COUNTED, World, fresh_name, now, world

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def members(zookeeper: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A served table of three members."""
    rows = pa.table({"name": ["a", "b", "c"], "price": [Decimal("1.50"), Decimal("2.50"), None], "at": [NOON] * 3})
    with world(zookeeper, tmp_path_factory.mktemp("segments"), fresh_name()) as found:
        found.writer.push({found.table: rows}, push_id="members1", as_of=now())
        yield found


def test_rows_come_with_their_types_and_the_version_that_they_are_of(members: World) -> None:
    found = query(members.broker, f"select * from {members.table} order by name desc", QueryLimits())
    assert (found.columns, found.truncated) == (("name", "price", "at"), False)
    assert found.types == ("string", "decimal128(3, 2)", "timestamp[us, tz=UTC]")
    assert found.rows == [("c", None, NOON), ("b", Decimal("2.50"), NOON), ("a", Decimal("1.50"), NOON)]
    assert found.versions == {members.table: members.registry.read(members.table)[members.table].version}


def test_values_of_any_type_are_answered(members: World) -> None:
    sql = f"select map([name], [[price]]) as found, [name], {{'a': 1}} from {members.table} where name = 'a'"
    (row,) = query(members.broker, sql, QueryLimits()).rows
    assert row == ([("a", [Decimal("1.50")])], ["a"], {"a": 1})


@pytest.mark.parametrize(
    ("sql", "tables"),
    [
        ("select 1", set()),
        ("from T", {"t"}),
        ("select * from a join (select * from b where x in (select y from c)) using (z)", {"a", "b", "c"}),
        ("with a as (select * from b) select * from a union select * from d", {"b", "d"}),
        ("select * from range(3), unnest([1, 2])", set()),
        ("summarize t", {"t"}),
    ],
)
def test_the_tables_of_a_query(sql: str, tables: set[str]) -> None:
    assert tables_of(sql) == tables


@pytest.mark.parametrize(
    "sql",
    [
        "select * from read_csv('/etc/passwd')",
        "select * from read_parquet('/etc/passwd')",
        "select * from read_text('/etc/passwd')",
        "select * from glob('/*')",
        "select * from '/etc/passwd'",
        "select (select count(*) from read_blob('/etc/passwd')) from t",
        "copy t to '/tmp/out.csv'",
        "copy (select 1) to '/tmp/out.csv'",
        "export database '/tmp/out'",
        "attach '/tmp/other.db'",
        "install httpfs",
        "load httpfs",
        "pragma database_list",
        "set memory_limit = '100GB'",
        "reset memory_limit",
        "select current_setting('allowed_paths')",
        "select * from duckdb_settings()",
        "select * from information_schema.tables",
        "select * from pg_catalog.pg_tables",
        "select * from sqlite_master",
        "with duckdb_views as (select 1) select * from duckdb_views",
        "select * from query('select 1')",
        "select * from query_table(['t'])",
        "show tables",
        "create table x as select 1",
        "insert into t values (1)",
        "drop view t",
        "select 1; select 2",
        "call pragma_version()",
        "explain select 1",
        "selec 1",
        "select ?",
        "select * from " + "(select * from " * 900 + "t" + ")" * 900,
        "select " + "(" * 9000 + "1" + ")" * 9000,
        "",
    ],
)
def test_nothing_but_served_tables_can_be_asked_for(members: World, sql: str) -> None:
    with pytest.raises(ServingError, match=r"is refused|is served|could not run"):
        query(members.broker, sql, QueryLimits())


@pytest.mark.parametrize(
    "sql",
    [
        "select * from read_csv('/etc/passwd')",
        "select * from glob('/etc/*')",
        "copy (select 1) to '{folder}/out.csv'",
        "attach '{folder}/other.db'",
        "install httpfs",
        "set memory_limit = '100GB'",
        "set enable_external_access = true",
        "select * from secret_of_this_process",
    ],
)
def test_the_database_itself_is_closed_too(members: World, tmp_path: Path, sql: str) -> None:
    """Should a query get past the first check, there is nothing to be had."""
    secret_of_this_process = pa.table({"a": [1]})
    with connect() as database:
        restrict(database, {}, memory_mb=64)
        with pytest.raises(duckdb.Error):
            database.execute(sql.format(folder=tmp_path)).fetchall()
    assert secret_of_this_process.num_rows
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("limits", "sql", "match"),
    [
        (
            QueryLimits(seconds=0.3),
            "select sum(a.range * b.range) from range(10000000) a, range(100000) b",
            "longer than",
        ),
        (QueryLimits(memory_mb=40), "select a.range, count(*) from range(50000000) a group by all", "more than 40 MB"),
        (QueryLimits(memory_mb=40), "select repeat('x', 1000000) from range(100)", "more than 40 MB"),
        (QueryLimits(rows=10**9, seconds=0.3), "select range, range + 1 from range(5000000)", "longer than"),
    ],
)
def test_a_query_beyond_its_limits_is_stopped(members: World, limits: QueryLimits, sql: str, match: str) -> None:
    with pytest.raises(ServingError, match=match):
        query(members.broker, sql, limits)


def test_a_semicolon_and_a_comment_do_no_harm(members: World) -> None:
    assert query(members.broker, "select 1; -- one", QueryLimits()).rows == [(1,)]


def test_a_row_that_fails_late_fails_the_query(members: World) -> None:
    sql = "select cast(case when range = 9000 then 'x' else '1' end as int) from range(9001)"
    with pytest.raises(ServingError, match="Could not convert string 'x'"):
        query(members.broker, sql, QueryLimits())


@pytest.mark.parametrize("value", ["timestamp 'infinity'", "date '290000-01-01'", "[timestamptz '-infinity']"])
def test_a_time_that_python_has_not_is_refused(members: World, value: str) -> None:
    with pytest.raises(ServingError, match="cannot be converted"):
        query(members.broker, f"select {value}", QueryLimits())


@pytest.mark.parametrize("damage", [slice(0, None), slice(4, 30), slice(-60, -8)])
def test_a_damaged_segment_is_not_the_users_fault_and_tells_no_path(
    members: World, tmp_path: Path, damage: slice
) -> None:
    """Also one whose damage DuckDB finds: here its registered checksum is that of the damaged file."""
    with world(members.hosts, tmp_path, fresh_name()) as found:
        found.push(1)
        for info in found.registry.infos(found.table, found.registry.read(found.table)[found.table].routed):
            content = bytearray(found.files.path(found.table, info.name).read_bytes())
            content[damage] = b"?" * len(content[damage])
            found.files.path(found.table, info.name).write_bytes(content)
            accepted = replace(info, sha256=hashlib.sha256(content).hexdigest())
            found.zk.set(f"{SEGMENTS}/{found.table}/{info.name}", encode_segment(accepted))
        with pytest.raises(ServingError, match="gone, or damaged") as caught:
            found.seen()
        assert str(tmp_path) not in str(caught.value)


def test_a_file_that_is_gone_is_told(members: World, tmp_path: Path) -> None:
    with world(members.hosts, tmp_path, fresh_name()) as found:
        found.push(1)
        found.files.remove(found.table, found.registry.read(found.table)[found.table].routed)
        with pytest.raises(SegmentDamaged, match="gone, or damaged"):
            found.seen()


def test_a_flipped_bit_is_found_before_a_sum_is_wrong(members: World, tmp_path: Path) -> None:
    """Wherever it is, by a process that has not read the file; also by one that has, if the file was written since."""
    with world(members.hosts, tmp_path, fresh_name()) as found:
        (name, *_) = found.push(1).segments
        file = found.files.path(found.table, name)
        pushed = file.read_bytes()
        for number in range(12):
            damaged = bytearray(pushed)
            damaged[number * len(pushed) // 12] ^= 1 << (number % 8)
            file.write_bytes(damaged)
            fresh = Broker(found.registry, found.files, found.leases)
            with pytest.raises(SegmentDamaged, match=name) as caught:
                query(fresh, COUNTED.format(table=found.table), QueryLimits())
            assert str(tmp_path) not in f"{caught.value.problem} {caught.value.remedy}"
        file.write_bytes(pushed)
        assert found.seen() == [1]
        status = file.stat()
        file.write_bytes(damaged)
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))  # nobody can set the time of the inode back
        with pytest.raises(SegmentDamaged, match=name):
            found.seen()


def test_more_rows_than_allowed_are_left_out_and_said_to_be(members: World) -> None:
    found = query(members.broker, f"select name from {members.table} order by name", QueryLimits(rows=2))
    assert (found.rows, found.truncated) == ([("a",), ("b",)], True)


@pytest.fixture
def serving(members: World) -> Serving:
    return replace(
        open_serving(members.zk, Settings(serving_folder=members.files.folder), clock=now), limits=QueryLimits(rows=2)
    )


def local_client(app: FastAPI) -> TestClient:
    return TestClient(app, base_url="http://127.0.0.1:8090")


def test_the_endpoint_answers(serving: Serving, members: World) -> None:
    client = local_client(endpoint(serving))
    assert client.get("/health").json() == {"status": "ok"}
    answer = client.post("/query", json={"sql": f"select * from {members.table} order by name"}).json()
    assert answer["rows"] == [["a", "1.50", "2026-01-01T12:00:00Z"], ["b", "2.50", "2026-01-01T12:00:00Z"]]
    assert answer["truncated"]
    listed = {table["table"]: table for table in client.get("/tables").json()}
    assert listed[members.table]["rows"] == 3
    (entry,) = client.get(f"/lineage/{members.table}").json()
    assert (entry["state"], entry["can_revert"]) == ("COMPLETED", True)
    assert "/query" in client.get("/openapi.json").json()["paths"]
    assert "/openapi.json" in client.get("/docs").text
    odd = client.post("/query", json={"sql": r"select '\xFF'::blob, [{'b': '\x00'::blob}], 'nan'::double"}).json()
    assert odd["rows"] == [["ff", [{"b": "00"}], None]]


@pytest.mark.parametrize(
    ("sql", "status", "problem"),
    [
        ("drop table t", 400, "it is not a SELECT"),
        ("select timestamp 'infinity'", 400, "cannot be converted"),
        ("select * from nowhere", 404, "No table 'nowhere' is served"),
        ("select x from {table}", 400, "Referenced column"),
        ("select 1 " + " " * 20_000, 422, None),
    ],
)
def test_the_endpoint_refuses(serving: Serving, members: World, sql: str, status: int, problem: str | None) -> None:
    answer = local_client(endpoint(serving)).post("/query", json={"sql": sql.format(table=members.table)})
    assert answer.status_code == status
    assert problem is None or problem in answer.json()["problem"]


def test_the_endpoint_answers_to_its_own_name_alone(serving: Serving) -> None:
    assert TestClient(endpoint(serving), base_url="http://elsewhere").get("/health").status_code == 400


def test_with_a_token_all_but_health_asks_for_it(serving: Serving, members: World) -> None:
    client = local_client(endpoint(serving, token=SecretStr("sesame")))
    assert client.get("/health").status_code == 200
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        for page in ("/tables", "/docs", "/redoc", "/openapi.json"):
            assert client.get(page, headers=headers).status_code == 401
        assert client.get(f"/lineage/{members.table}", headers=headers).status_code == 401
        assert client.post("/query", json={"sql": "select 1"}, headers=headers).status_code == 401
    assert client.get("/tables", headers={"Authorization": "Bearer sesame"}).status_code == 200
