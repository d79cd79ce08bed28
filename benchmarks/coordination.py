"""Duration of a turn on ZooKeeper with one and three servers, and with the claim on a lake's table.

It also measures how long the others wait after the process that holds the lock is killed.

    python -m benchmarks.coordination [--turns 300] [--claims 50] [--kills 5]
"""

from __future__ import annotations

import argparse
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from lake_assets.connections.spark import open_spark
from lake_assets.coordination import ANY, JobCoordinator, zookeeper_client
from lake_assets.engagement.lakes import EMAIL_EVENT
from lake_assets.engagement.tables import open_tables
from lake_assets.engagement.turn_order import coordinator_of
from lake_assets.services.lifecycle import lake_services
from lake_assets.services.servers import ensemble
from lake_assets.services.service import all_running
from lake_assets.settings import Settings

LOCK = "benchmark"
SESSIONS = (2.0, 4.0)
WARM_UP_CLAIMS = 10
"""Claims that are not measured: a Spark that was just started is slow."""
TURN_SECONDS = 10


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=300)
    parser.add_argument("--claims", type=int, default=50, help="turns that claim the engagement table of a lake")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--hold", nargs=2, metavar=("HOSTS", "SESSION"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.hold:
        hosts, session = arguments.hold
        _hold(hosts, float(session))
        return
    for size in (1, 3):
        _measure_ensemble(size, arguments.turns, arguments.kills)
    _report("1 server, and the claim on the table", _claimed(arguments.claims))


def _measure_ensemble(size: int, turns: int, kills: int) -> None:
    with tempfile.TemporaryDirectory(prefix="lake-bench-") as folder:
        servers = ensemble(Path(folder), size)
        with all_running(servers):
            hosts = ",".join(f"127.0.0.1:{server.port}" for server in servers)
            _report(f"{size} server(s)", _turns(hosts, turns))
            for session in SESSIONS:
                takeovers = [_takeover(hosts, session) for _ in range(kills)]
                _report_takeovers(size, session, takeovers)


def _turns(hosts: str, count: int) -> list[float]:
    """Return the milliseconds of turns without work, without the first, which creates the folders."""
    with zookeeper_client(hosts) as zk:
        coordinator = JobCoordinator(LOCK, "stream", ANY, zk, timeout=TURN_SECONDS)
        return [_turn(coordinator, coordinator.confirm) for _ in range(count + 1)][1:]


def _turn(coordinator: JobCoordinator, work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    with coordinator.turn(max_wait=TURN_SECONDS):
        work()
    return 1000 * (time.perf_counter() - begun)


def _claimed(count: int) -> list[float]:
    """Return the milliseconds of turns that only claim a real Delta table through Spark, after a warm-up."""
    with (
        tempfile.TemporaryDirectory(prefix="lake-bench-") as folder,
        lake_services(Settings(home=Path(folder))) as home,
    ):
        spark = open_spark(home)
        tables = open_tables(home, EMAIL_EVENT)
        tables.create(spark)
        with zookeeper_client(str(home.zookeeper)) as zk:
            coordinator = coordinator_of("ingestion", tables, zk, spark, timeout=TURN_SECONDS)
            found = [_turn(coordinator, coordinator.claim) for _ in range(count + WARM_UP_CLAIMS)][WARM_UP_CLAIMS:]
        spark.stop()
    return found


def _takeover(hosts: str, session: float) -> float:
    """Return the seconds from the kill of the process that holds the lock until another process has the lock."""
    command = [sys.executable, "-m", "benchmarks.coordination", "--hold", hosts, str(session)]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    holder.stdout.readline()
    with zookeeper_client(hosts, session_seconds=session) as zk:
        successor = JobCoordinator(LOCK, "stream", ANY, zk, timeout=10 * session)
        holder.kill()
        begun = time.perf_counter()
        assert successor.lock()
        taken = time.perf_counter() - begun
        successor.register()
        successor.done()
        successor.unlock()
    holder.communicate()
    return taken


def _hold(hosts: str, session: float) -> None:
    with zookeeper_client(hosts, session_seconds=session) as zk:
        coordinator = JobCoordinator(LOCK, "stream", ANY, zk, timeout=TURN_SECONDS)
        assert coordinator.lock()
        coordinator.register()
        print("held", flush=True)
        sys.stdin.read()


def _report(what: str, found: list[float]) -> None:
    p95 = sorted(found)[math.ceil(0.95 * len(found)) - 1]
    print(f"{what}: a turn p50 {statistics.median(found):5.1f} ms  p95 {p95:5.1f} ms  of {len(found)}")


def _report_takeovers(size: int, session: float, found: list[float]) -> None:
    spread = f"{min(found):.1f} to {max(found):.1f} s of {len(found)}"
    print(f"{size} server(s): takeover after kill -9, session {session:g} s: {spread}")


if __name__ == "__main__":
    main()
