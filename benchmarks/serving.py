"""Cost of serving on one ZooKeeper server: a switch and its revert, routing, the lease of a query, a large push.

python -m benchmarks.serving [--rounds 30] [--rows 1000000] [--pushes 5]

A ZooKeeper server keeps its last 500 transactions in memory: more than 40 rounds do not fit into the heap of a local
one.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
from kazoo.client import KazooClient

from lake_assets.coordination import zookeeper_client
from lake_assets.services.servers import zookeeper
from lake_assets.services.service import free_port, running
from lake_assets.serving.lineage import (
    Change,
    LineageEntry,
    Retention,
    SegmentLineage,
    State,
    clean_up,
    end_replace,
    revert_replace,
    routed,
    start_replace,
)
from lake_assets.serving.push import Writer
from lake_assets.serving.query import QueryLimits, query
from lake_assets.serving.registry import Decide, Registry, SegmentInfo, States
from lake_assets.serving.served_tables import Serving, open_serving
from lake_assets.serving.store import Policy
from lake_assets.settings import Settings

SEGMENTS = 1_000
ENTRIES = 50
LEASE_SECONDS = 30
START_MICROSECONDS = 1_767_225_600_000_000
STATES = ("Active", "Upgraded", "Downgraded", "Canceled")


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--pushes", type=int, default=5, help=f"of {SEGMENTS:,} small files each")
    arguments = parser.parse_args()
    with opened() as (zk, serving):
        ends, reverts = Switches(serving.registry, arguments.rounds).measured()
        report(f"end_replace, {SEGMENTS:,} segments by {SEGMENTS:,}", ends)
        report(f"revert_replace of it, its {SEGMENTS:,} segments given up", reverts)
        for what, found in small_files(Timed(zk), serving, arguments.pushes).items():
            report(what, found)
        report(f"routing {SEGMENTS:,} segments by {ENTRIES} entries, computed", computed(arguments.rounds))
        report("the same, read from ZooKeeper", read(serving.registry, arguments.rounds))
        pushed(serving, arguments.rows)
        report("a query's pin: lease, routing, release", pinned(serving, arguments.rounds))
        report("a query of a million rows, all of it", asked(serving, arguments.rounds))


@contextmanager
def opened() -> Iterator[tuple[KazooClient, Serving]]:
    """Yield served tables on their own ZooKeeper server and folder."""
    with tempfile.TemporaryDirectory(prefix="lake-bench-") as folder:
        home = Settings(home=Path(folder))
        with running(zookeeper(home.home, free_port())) as service, zookeeper_client(f"127.0.0.1:{service.port}") as zk:
            yield zk, open_serving(zk, home, clock=now)


def now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True)
class Switches:
    """A table whose segments are all replaced and reverted in each round. It has no files: only ZooKeeper is timed."""

    registry: Registry
    rounds: int

    def measured(self) -> tuple[list[float], list[float]]:
        """Return the milliseconds of each switch and of each revert."""
        self.end(self.begin("first"))
        ends = []
        reverts = []
        for number in range(self.rounds):
            entry_id = self.begin(f"round{number}")
            ends.append(timed(lambda entry_id=entry_id: self.end(entry_id)))
            reverts.append(timed(lambda entry_id=entry_id: self.revert(entry_id)))
            self.forget()
        return ends, reverts

    def begin(self, push: str) -> str:
        return begin(self.registry, "switched", [f"switched_{push}_{number:04d}" for number in range(SEGMENTS)])

    def forget(self) -> None:
        """Remove the reverted entry, as clean-up does a day later."""
        old = now() + timedelta(days=1)
        self.registry.update(
            lambda states: {
                "switched": clean_up(
                    states["switched"].lineage,
                    present=states["switched"].segments,
                    now=old,
                    retention=Retention(timedelta(0), timedelta(0)),
                )
            },
            "switched",
        )

    def end(self, entry_id: str) -> None:
        self.registry.update(
            lambda states: {
                "switched": end_replace(
                    states["switched"].lineage, entry_id, ready=states["switched"].segments, now=now()
                )
            },
            "switched",
        )

    def revert(self, entry_id: str) -> None:
        self.registry.update(
            lambda states: {
                "switched": revert_replace(
                    states["switched"].lineage, entry_id, present=states["switched"].segments, now=now()
                )
            },
            "switched",
        )


class Timed(Registry):
    """A registry that times its writes. last: milliseconds of the last one; after a push, that is its switch."""

    last = 0.0

    def update(self, decide: Decide, *tables: str) -> Mapping[str, Change]:
        changes: dict[str, Change] = {}
        self.last = timed(lambda: changes.update(super(Timed, self).update(decide, *tables)))
        return changes


def small_files(registry: Timed, serving: Serving, rounds: int) -> dict[str, list[float]]:
    """Return title → milliseconds of each round of pushes and reverts, including their files."""
    policy = Policy(segment_rows=1)
    rows = pa.table({"n": range(SEGMENTS)})
    writer = Writer(registry, serving.files, serving.leases, clock=now, policy=policy)
    writer.push({"files": rows}, push_id="filesfirst", as_of=now())
    pushes = []
    switches = []
    visible_reverts = []
    reverts = []
    for number in range(rounds):
        begun = time.perf_counter()
        (done,) = writer.push({"files": rows}, push_id=f"files{number:05d}", as_of=now())
        pushes.append(1000 * (time.perf_counter() - begun))
        switches.append(registry.last)
        reverts.append(timed(lambda entry_id=done.entry_id: writer.revert("files", entry_id)))
        visible_reverts.append(registry.last)
    return {
        f"a push of {SEGMENTS:,} small files": pushes,
        "the switch in it, until readers see them": switches,
        "its revert, until readers see what was before": visible_reverts,
        f"the same, until its {SEGMENTS:,} files are removed": reverts,
    }


def begin(registry: Registry, table: str, names: list[str]) -> str:
    """Start to replace all routed segments, and register new ones as if they were uploaded; return the entry's id."""
    begun = []

    def decide(states: States) -> Mapping[str, Change]:
        state = states[table]
        started = start_replace(
            state.lineage, segments_from=state.routed, segments_to=names, routed=state.routed, now=now()
        )
        begun.append(started.entry_id)
        return {table: started}

    registry.update(decide, table)
    infos = [SegmentInfo(name, 1, 1, "0" * 64, now(), begun[-1]) for name in names]
    registry.register(table, begun[-1], infos)
    return begun[-1]


def chain() -> tuple[SegmentLineage, list[str]]:
    """Return a lineage in which each entry replaces a part of the table, and the names of all segments."""
    size = SEGMENTS // (ENTRIES + 1)
    parts = [tuple(f"chain_{part:02d}_{n:04d}" for n in range(size)) for part in range(ENTRIES + 1)]
    entries = [
        LineageEntry(f"e{i}", parts[i], parts[i + 1], State.COMPLETED, datetime(2026, 1, 1, tzinfo=UTC))
        for i in range(ENTRIES)
    ]
    names = [name for part in parts for name in part]
    rest = [f"chain_rest_{n:04d}" for n in range(SEGMENTS - len(names))]
    return SegmentLineage("chain", {entry.id: entry for entry in entries}), names + rest


def computed(rounds: int) -> list[float]:
    lineage, segments = chain()
    return [timed(lambda: routed(lineage, segments)) for _ in range(rounds)]


def read(registry: Registry, rounds: int) -> list[float]:
    lineage, segments = chain()
    begin(registry, "chain", segments)
    registry.update(lambda states: {"chain": Change(lineage, frozenset())}, "chain")
    return [timed(lambda: registry.read("chain")["chain"].routed) for _ in range(rounds)]


def pushed(serving: Serving, rows: int) -> None:
    """Measure a push of a large table, the second of its table."""
    accounts = pa.table(
        {
            "account_id": pa.array([f"a{n}" for n in range(rows)]),
            "state": pa.array([STATES[n % 4] for n in range(rows)]),
            "monthly_price": pa.array([n % 25 + 0.99 for n in range(rows)]),
            "last_event_ts": pa.array([START_MICROSECONDS + n for n in range(rows)], pa.timestamp("us", "UTC")),
        }
    )
    for push_id in ("benchmark1", "benchmark2"):
        begun = time.perf_counter()
        (found,) = serving.writer.push({"accounts": accounts}, push_id=push_id, as_of=now())
        seconds = time.perf_counter() - begun
    print(f"a push of {rows:,} rows: {seconds:.2f} s, {len(found.segments)} segments, {found.size_bytes / 1e6:.1f} MB")


def pinned(serving: Serving, rounds: int) -> list[float]:
    def pin() -> None:
        with serving.broker.pin("accounts", seconds=LEASE_SECONDS) as found:
            found.lease.confirm()

    return [timed(pin) for _ in range(rounds)]


def asked(serving: Serving, rounds: int) -> list[float]:
    sql = "select state, count(*), avg(monthly_price) from accounts group by state"
    return [timed(lambda: query(serving.broker, sql, QueryLimits())) for _ in range(rounds)]


def timed(act: Callable[[], object]) -> float:
    """Return the milliseconds that a call takes."""
    begun = time.perf_counter()
    act()
    return 1000 * (time.perf_counter() - begun)


def report(what: str, found: list[float]) -> None:
    p95 = sorted(found)[math.ceil(0.95 * len(found)) - 1]
    print(f"{what}: p50 {statistics.median(found):.2f} ms  p95 {p95:.1f} ms  of {len(found)}")


if __name__ == "__main__":
    main()
