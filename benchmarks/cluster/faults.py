"""Faults on the servers of a cluster and on the lake that uses them, some at once, while data flow.

The kinds of faults follow each other in a random order of a seed. They are played in rounds: one fault follows the
other without waiting for it to heal, and each round ends when all is well again.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from threading import Timer

import psutil

from benchmarks.cluster import other_project
from benchmarks.cluster.proxy import CALM, Disturbance, Proxy
from benchmarks.cluster.stack import WORKERS, Cluster
from benchmarks.faults.__main__ import faults_settings
from benchmarks.faults.player import WORK_SECONDS, Player, Row, total
from lake_assets.connections import addresses
from lake_assets.settings import Settings

FAULT_SECONDS = 20
"""How long a server is paused or a connection disturbed."""

BROKERS = tuple(f"kafka-{number}" for number in (1, 2, 3))
ENSEMBLE = tuple(f"zookeeper-{number}" for number in (1, 2, 3))
ZONES = ("landing-a", "landing-b")

KILLED = {
    "a worker of Spark": WORKERS,
    "the master of Spark": ("master",),
    "a broker of Kafka": BROKERS,
    "a server of ZooKeeper": ENSEMBLE,
    "PostgreSQL": ("postgresql",),
    "the Connect server": ("spark",),
    "the code server": ("code",),
    "the code server of another project": (other_project.NAME,),
    "the daemon": ("daemon",),
    "landing of a zone": ZONES,
    "the loader of landing": ("landing-load",),
}
"""What is killed → its services, one of which is chosen. S3 is not among them: it keeps all objects in memory."""

PAUSED = {name: KILLED[name] for name in KILLED if "landing" not in name} | {"S3": ("s3",)}

DISTURBED = {
    "S3 answers half of the requests with 500": ("s3", Disturbance(status=500, share=0.5)),
    "S3 answers half of the requests with 503": ("s3", Disturbance(status=503, share=0.5)),
    "S3 takes 2 s longer for each request": ("s3", Disturbance(delay_seconds=2)),
    "a third of the answers of S3 are lost": ("s3", Disturbance(is_lost=True, share=0.33)),
    "the network to S3 is cut": ("s3", Disturbance(is_cut=True)),
    "the network to PostgreSQL is cut": ("postgresql", Disturbance(is_cut=True)),
}
"""Fault → the server whose proxy disturbs, and how."""

PROXIED = ("s3", "postgresql")


class ClusterPlayer(Player):
    """The player of `make faults`, with the servers of a cluster besides.

    Args:
        settings: Of the lake, which reaches S3 and PostgreSQL through the proxies.
        servers: The servers, which run.
        proxies: Name of a server → its proxy.
        chance: Chooses among servers of one kind.
        report: Receives lines for the person who waits.
    """

    def __init__(
        self,
        settings: Settings,
        servers: Cluster,
        proxies: Mapping[str, Proxy],
        chance: random.Random,
        report: Callable[[str], None],
    ) -> None:
        super().__init__(settings, report)
        self._servers = servers
        self._proxies = proxies
        self._chance = chance
        self._under_way: list[str] = []

    @property
    def faults(self) -> Mapping[str, Callable[[], None]]:
        """Fault, as a sentence → what does it."""
        found: dict[str, Callable[[], None]] = {"the processes of runs at work are killed": self.kill_worker}
        for what, names in KILLED.items():
            found[f"{what} is killed"] = partial(self._kill_one, names)
        for what, names in PAUSED.items():
            found[_for_a_while(f"{what} is paused")] = partial(self._pause_one, names)
        for what, (server, disturbance) in DISTURBED.items():
            found[_for_a_while(what)] = partial(self._disturb, server, disturbance)
        return found

    def _kill_one(self, names: Sequence[str]) -> None:
        name, process = self._running(names)
        self.report(f"    {name} is killed")
        process.kill()

    def _pause_one(self, names: Sequence[str]) -> None:
        name, process = self._running(names)
        paused = [process, *process.children(recursive=True)]
        _each(paused, psutil.Process.suspend)
        self._later(f"{name} is paused", lambda: _each(paused, psutil.Process.resume))

    def _disturb(self, server: str, disturbance: Disturbance) -> None:
        proxy = self._proxies[server]
        proxy.disturbance = disturbance

        def calm() -> None:
            if proxy.disturbance is disturbance:  # a later fault may have replaced it
                proxy.disturbance = CALM

        self._later(f"{server} is disturbed", calm)

    def _later(self, what: str, undo: Callable[[], None]) -> None:
        """Undo a fault after its time; until then the lake does not count as healed."""
        self.report(f"    {what} for {FAULT_SECONDS} s")
        self._under_way.append(what)

        def end() -> None:
            undo()
            self._under_way.remove(what)

        timer = Timer(FAULT_SECONDS, end)
        timer.daemon = True
        timer.start()

    def _running(self, names: Sequence[str]) -> tuple[str, psutil.Process]:
        """Return one of the services that runs. Wait for one: an earlier fault may have hit all of them."""
        ends = time.monotonic() + WORK_SECONDS
        while time.monotonic() < ends:
            for name in self._chance.sample(names, len(names)):
                for home in (self._servers.home, self.home):
                    process = addresses.process_of(home, name)
                    if process is not None:
                        return name, process
            time.sleep(0.1)
        raise SystemExit(f"None of these services runs: {', '.join(names)}.")

    def _state(self) -> str:
        if self._under_way:
            return ", ".join(self._under_way)
        down = [f"{service.name} is not ready" for service in self._servers.services if not service.ready()]
        return ", ".join(down) or super()._state()


def order(faults: Sequence[str], count: int, chance: random.Random) -> list[str]:
    """Return so many faults in a random order in which each comes once before one comes again."""

    def shuffled() -> Iterator[str]:
        while True:
            yield from chance.sample(faults, len(faults))

    return list(islice(shuffled(), count))


@dataclass(frozen=True)
class Course:
    """How faults follow each other.

    Attributes:
        count: Number of faults.
        seed: Decides the order and what is hit.
        at_once: Number of faults of a round.
        minutes: No round starts later than so many minutes after the first.
    """

    count: int
    seed: int
    at_once: int
    minutes: float


def play(servers: Cluster, course: Course, report: Callable[[str], None]) -> list[Row]:
    """Play faults on running servers and on their lake.

    Args:
        servers: The servers, which run.
        course: How many faults, and in which order.
        report: Receives lines for the person who waits.

    Returns:
        A row for each kind of fault that was played.
    """
    chance = random.Random(course.seed)
    with _proxies(servers, chance) as proxies:
        os.environ.update(servers.variables({name: proxy.port for name, proxy in proxies.items()}))
        player = ClusterPlayer(faults_settings(servers.lake), servers, proxies, chance, report)
        with player.started():
            return _rounds(player, order(list(player.faults), course.count, chance), course)


def _rounds(player: ClusterPlayer, faults: Sequence[str], course: Course) -> list[Row]:
    rows: dict[str, Row] = {}
    ends = time.monotonic() + 60 * course.minutes
    for first in range(0, len(faults), course.at_once):
        if time.monotonic() > ends:
            player.report(f"{len(faults) - first} faults are left out, because {course.minutes:g} minutes are over.")
            break
        together = faults[first : first + course.at_once]
        healed = player.play(*together)
        counted = total(player.traffic.count())
        for fault in together:
            rows.setdefault(fault, Row(fault)).add(healed, counted)
        if healed.seconds is None:
            break
    return list(rows.values())


@contextmanager
def _proxies(servers: Cluster, chance: random.Random) -> Iterator[Mapping[str, Proxy]]:
    with ExitStack() as stack:
        yield {name: stack.enter_context(Proxy(servers.ports[name], chance).serving()) for name in PROXIED}


def _for_a_while(fault: str) -> str:
    return f"{fault} for {FAULT_SECONDS} s"


def _each(processes: Sequence[psutil.Process], do: Callable[[psutil.Process], None]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            do(process)
