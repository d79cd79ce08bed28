"""Queries that would take the machine: each is held by limits of its own process, and others are answered meanwhile."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace

import psutil
import pytest
from fastapi.testclient import TestClient
from tenacity import retry, retry_if_result, stop_after_delay, wait_fixed

from lake_assets.errors import ServingError
from lake_assets.serving import query_worker
from lake_assets.serving.http import endpoint
from lake_assets.serving.query import MB, QueryLimits, query
from lake_assets.serving.served_tables import open_serving
from lake_assets.settings import Settings
from lake_assets_tests.serving.child import start
from lake_assets_tests.serving.scenario import ROWS, World, now

LIMITS = QueryLimits(memory_mb=64, seconds=20)
WORKER_MB = 140
"""What a worker may take, resident, before its query: Python, DuckDB and Arrow, most of it shared."""

ATTACKS = [
    "select unnest(range(2000000000))",
    "select list_sum(range(2000000000))",
    "select repeat('x', 2000000000)",
    "select unnest(range(15000000))",  # one allocation of 120 MB, and no more
    "select length(regexp_replace(repeat('a', 20000000), 'a', 'bbbbbbbbbb', 'g'))",
    "select string_agg(range::varchar) from range(50000000)",
    "select list_transform(range(1000000), lambda x: {'a': x > 0})",  # small in Arrow, 200 MB in Python
    "select " + "case " * 30 + "1" + " when 1 then 1 when 2 then 2 end" * 30,  # 2^30 nodes, once it is parsed
    "select " + ", ".join(["(select 1 group by cube(" + ", ".join("abcdefghijklmno") + "))"] * 20),
]
ENDLESS = "select sum(a.range * b.range) from range(10000000) a, range(100000) b"
TABLE_ROWS = "select count(*) from {}"


def workers(server: psutil.Process) -> list[psutil.Process]:
    """The process that forks workers comes first, then those at work."""
    found = []
    for process in server.children(recursive=True):
        with suppress(psutil.Error):
            if query_worker.__name__ in process.cmdline():
                found.append(process)
    return found


@retry(retry=retry_if_result(lambda found: not found), wait=wait_fixed(0.02), stop=stop_after_delay(30))
def _at_work(server: psutil.Process) -> psutil.Process | None:
    return next((process for process in workers(server)[1:] if process.cpu_times().user > 0.2), None)


def at_work(server: psutil.Process) -> psutil.Process:
    """Wait for a worker that takes processor time."""
    found = _at_work(server)
    assert found is not None
    return found


@contextmanager
def peaks() -> Iterator[Counter[str]]:
    """Bytes resident at most, of the server (this process) and of the largest worker."""
    server, found, stop = psutil.Process(), Counter[str](), threading.Event()

    def watch() -> None:
        while not stop.wait(0.005):
            found["server"] = max(found["server"], server.memory_info().rss)
            for process in workers(server):
                with suppress(psutil.Error):
                    found["worker"] = max(found["worker"], process.memory_info().rss)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield found
    finally:
        stop.set()
        watching.join()


@pytest.mark.parametrize("sql", ATTACKS)
def test_memory_that_duckdb_does_not_count_is_limited(served: World, sql: str) -> None:
    query(served.broker, "select 1", LIMITS)
    before = psutil.Process().memory_info().rss
    with peaks() as found, pytest.raises(ServingError, match="more than 64 MB"):
        query(served.broker, sql, LIMITS)
    assert found["server"] - before < LIMITS.memory_mb * MB
    assert 0 < found["worker"] < (WORKER_MB + query_worker.ROOM * LIMITS.memory_mb) * MB


def test_what_fits_the_least_limit_is_answered(served: World) -> None:
    served.push(1)
    sql = f"select count(*), count(distinct a.range) from range(50000) a, {served.table}"
    assert query(served.broker, sql, QueryLimits(memory_mb=32)).rows == [(50_000 * ROWS, 50_000)]


def test_other_questions_are_answered_meanwhile(served: World) -> None:
    """Over HTTP: three that attack, one after the other without a pause, and one that asks."""
    served.push(1)
    serving = open_serving(served.zk, Settings(serving_folder=served.files.folder), clock=now)
    limits = replace(LIMITS, seconds=3)
    client = TestClient(endpoint(replace(serving, limits=limits)), base_url="http://127.0.0.1:8090")

    def asked(sql: str) -> tuple[int, str]:
        answer = client.post("/query", json={"sql": sql})
        return answer.status_code, answer.text

    asked("select 1")
    stop, seconds = threading.Event(), []

    def attack(sql: str) -> set[tuple[int, str]]:
        answers = set()
        while not stop.is_set():
            answers.add(asked(sql))
        return answers

    with peaks() as found, ThreadPoolExecutor(3) as pool:
        attacking = {sql: pool.submit(attack, sql) for sql in (*ATTACKS[:2], ENDLESS)}
        try:
            for _ in range(20):
                begun = time.monotonic()
                assert '"rows":[[40]]' in asked(TABLE_ROWS.format(served.table))[1]
                seconds.append(time.monotonic() - begun)
        finally:
            stop.set()
        for sql, done in attacking.items():
            ((status, text),) = done.result()
            expected = "longer than 3 s" if sql == ENDLESS else "more than 64 MB"
            assert (status, expected in text) == (422, True), text
    assert max(seconds) < limits.seconds
    assert found["worker"] < (WORKER_MB + query_worker.ROOM * LIMITS.memory_mb) * MB


def test_a_query_beyond_its_time_leaves_no_process(served: World) -> None:
    with pytest.raises(ServingError, match=r"longer than 0\.5 s"):
        query(served.broker, ENDLESS, QueryLimits(seconds=0.5))
    gone(workers(psutil.Process())[1:])


def test_a_worker_that_is_killed_fails_its_query_alone(served: World) -> None:
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(query, served.broker, ENDLESS, LIMITS)
        at_work(psutil.Process()).kill()
        with pytest.raises(ServingError, match="process died"):
            asking.result()
    assert query(served.broker, "select 1", LIMITS).rows == [(1,)]


def test_what_forks_workers_dies_with_them_and_is_started_again(served: World) -> None:
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(query, served.broker, ENDLESS, LIMITS)
        working = at_work(psutil.Process())
        forker = workers(psutil.Process())[0]
        forker.kill()
        with pytest.raises(ServingError, match="process died"):
            asking.result()
    gone([forker, working])
    assert query(served.broker, "select 1", LIMITS).rows == [(1,)]


def test_what_forks_workers_has_no_thread(served: World) -> None:
    """A fork has one thread alone, and the locks of all."""
    query(served.broker, "select 1", LIMITS)
    assert workers(psutil.Process())[0].num_threads() == 1


def test_a_worker_has_no_setting_and_no_file_of_the_server(served: World) -> None:
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(query, served.broker, ENDLESS, LIMITS)
        found = at_work(psutil.Process())
        names, files, sockets = found.environ(), found.open_files(), found.num_fds()
        found.kill()
        assert asking.exception()
    assert not [name for name in names if name.startswith("LAKE_")]
    assert not [file for file in files if file.fd > 2]
    assert sockets == 3


@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGINT])
def test_no_worker_outlives_its_server(served: World, by: signal.Signals) -> None:
    child = start(served, "ask", ENDLESS)
    at_work(child.process)
    left = workers(child.process)
    assert len(left) == 2
    child.process.send_signal(by)
    child.end()
    gone(left)


@retry(retry=retry_if_result(lambda there: there), wait=wait_fixed(0.02), stop=stop_after_delay(10))
def gone(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Waits until they have ended; one that init has not yet reaped has."""
    return [found for found in processes if found.is_running() and found.status() != psutil.STATUS_ZOMBIE]
