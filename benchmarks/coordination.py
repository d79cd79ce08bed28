"""What a turn costs on ZooKeeper, one server and three, and with the claim on a lake's table; and how long a killed
holder keeps the others waiting.

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
from lake_assets.engagement.model.lakes import EMAIL_EVENT
from lake_assets.engagement.model.tables import open_tables
from lake_assets.engagement.model.turn_order import coordinator_of
from lake_assets.services.service import all_running
from lake_assets.services.stack import lake_services
from lake_assets.services.zookeeper import ensemble
from lake_assets.settings import Settings

LOCK = "benchmark"
SESSIONS = (2.0, 4.0)
WARMING = 10
"""Claims before those that count: a Spark that was just started is slow."""


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=300)
    parser.add_argument("--claims", type=int, default=50, help="turns that claim the engagement table of a lake")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--hold", nargs=2, metavar=("HOSTS", "SESSION"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.hold:
        _hold(arguments.hold[0], float(arguments.hold[1]))
        return
    for size in (1, 3):
        with tempfile.TemporaryDirectory(prefix="lake-bench-") as folder:
            servers = ensemble(Path(folder), size)
            with all_running(servers):
                hosts = ",".join(f"127.0.0.1:{server.port}" for server in servers)
                _report(f"{size} server(s)", _turns(hosts, arguments.turns))
                for session in SESSIONS:
                    _report_takeovers(size, session, [_takeover(hosts, session) for _ in range(arguments.kills)])
    _report("1 server, and the claim on the table", _claimed(arguments.claims))


def _turns(hosts: str, count: int) -> list[float]:
    """Milliseconds of whole turns without work; the first one, which makes the folders, aside."""
    with zookeeper_client(hosts) as zk:
        coordinator = JobCoordinator(LOCK, "stream", ANY, zk, timeout=10)
        return [_turn(coordinator, coordinator.confirm) for _ in range(count + 1)][1:]


def _turn(coordinator: JobCoordinator, work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    with coordinator.turn(max_wait=10):
        work()
    return 1000 * (time.perf_counter() - begun)


def _claimed(count: int) -> list[float]:
    """Milliseconds of whole turns that claim a real Delta table through Spark, and do no more; warm ones."""
    with (
        tempfile.TemporaryDirectory(prefix="lake-bench-") as folder,
        lake_services(Settings(home=Path(folder))) as home,
    ):
        spark = open_spark(home)
        tables = open_tables(home, EMAIL_EVENT)
        tables.create(spark)
        with zookeeper_client(str(home.zookeeper)) as zk:
            coordinator = coordinator_of("ingestion", tables, zk, spark, timeout=10)
            found = [_turn(coordinator, coordinator.claim) for _ in range(count + WARMING)][WARMING:]
        spark.stop()
    return found


def _takeover(hosts: str, session: float) -> float:
    """Seconds from the kill of a holder in its turn to another's having the lock."""
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
        coordinator = JobCoordinator(LOCK, "stream", ANY, zk, timeout=10)
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
