"""The memory of this machine, and how it is divided among services."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

    from lake_assets.settings import Settings

CGROUPS = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")
"""Lists the control groups of this process: number, controllers and path, separated by colons."""


def machine_mb(cgroups: Path = CGROUPS, own_groups: Path = OWN_GROUPS) -> int:
    """Return the memory of this machine in MiB, or that of the container or control group if it has less.

    Args:
        cgroups: Where control groups are mounted, of version 1 or 2.
        own_groups: The control groups of this process.
    """
    import psutil

    total = int(psutil.virtual_memory().total)
    for limit in _limit_files(cgroups, own_groups):
        with suppress(OSError, ValueError):
            total = min(total, int(limit.read_text()))
    return total >> 20


def _limit_files(cgroups: Path, own_groups: Path) -> list[Path]:
    """Return the files that may hold a limit in bytes, or `max`: of the mounted group, and of this process.

    A container sees its own group as the mounted one; a process outside sees its group below it.
    """
    files = [cgroups / "memory.max", cgroups / "memory" / "memory.limit_in_bytes"]
    with suppress(OSError):
        for line in own_groups.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            group = path.lstrip("/")
            if not controllers:
                files.append(cgroups / group / "memory.max")
            elif controllers == "memory":
                files.append(cgroups / "memory" / group / "memory.limit_in_bytes")
    return files


def memory_bytes(process: psutil.Process) -> int:
    """Return the memory of a process. A page that processes share counts for each of them in part, where that is known.

    The run of a fork server shares most of its pages with the code server. Where the kernel does not say how many
    processes share a page, the resident memory is returned, in which each of them counts in full.

    Raises:
        psutil.Error: The process has ended, or is another user's.
    """
    found = process.memory_full_info()
    return int(getattr(found, "pss", found.rss))


def choose_runs(settings: Settings, services: Collection[str], report: Callable[[str], None]) -> int:
    """Return how many runs may be at work at once, and report what they and the services need.

    Args:
        settings: The heap of Spark, and the number of runs if it is set.
        services: Names of the services that are started here. If Spark is not one of them, sessions do not take the
            processors of this machine.
        report: Receives one line for the person who waits.
    """
    needed = services_mb(services, settings.spark_memory)
    machine = machine_mb()
    processors = os.cpu_count() if "spark" in services else None
    runs = settings.max_runs or runs_that_fit(machine, needed, processors or MOST_RUNS)
    report(needs(needed, runs, machine))
    return runs


SERVICE_MB = {"zookeeper": 150, "kafka": 280, "code": 350, "webserver": 250, "daemon": 280}
"""Resident memory of each service, rounded up; see docs/reliability.md."""

OTHER_SERVICE_MB = 230
"""Of a service that is not listed: a Python process with the package loaded."""

STREAMS_OF = "streams-"
"""Begins the name of a service that runs the streams of an engagement lake, with a Spark of its own."""

SUPERVISOR_MB = 40
"""Of the supervisor and its guard."""

SPARK_MB_BESIDE_HEAP = 500
"""Of Spark's JVM: classes, compiled code, threads and buffers."""

RUN_MB = 340
"""Of a run's process."""

MOST_RUNS = 4
"""More runs at once make all of them late."""

LEAST_RUNS = 2
"""Runs at once on a machine with one processor: a long run does not keep all others waiting."""

LEAST_BUDGET_MB = 4096
SHARE = 0.5
"""Of the machine's memory, for the lake: the rest is for a browser, an editor and the cache of files."""

_UNITS_MB = {"k": 1 / 1024, "m": 1, "g": 1024, "t": 1024 * 1024}
_HEAP = re.compile(r"\s*(\d+)\s*([kmgt])b?\s*", re.IGNORECASE)
DEFAULT_HEAP_MB = 1500


def services_mb(names: Iterable[str], spark_memory: str) -> int:
    """Return the memory that services take once each of them has worked.

    Args:
        names: Names of the services.
        spark_memory: Heap of Spark, as `LAKE_SPARK_MEMORY` has it.
    """
    total = SUPERVISOR_MB
    for name in names:
        if name == "spark":
            total += heap_mb(spark_memory) + SPARK_MB_BESIDE_HEAP
        elif name.startswith(STREAMS_OF):
            total += heap_mb(spark_memory) + SPARK_MB_BESIDE_HEAP + OTHER_SERVICE_MB
        else:
            total += SERVICE_MB.get(name, OTHER_SERVICE_MB)
    return total


def heap_mb(text: str) -> int:
    """Return a heap such as `1500m` or `2g` in MiB; the default one if the text is none."""
    found = _HEAP.fullmatch(text)
    if found is None:
        return DEFAULT_HEAP_MB
    number, unit = found.groups()
    return round(int(number) * _UNITS_MB[unit.lower()])


def runs_that_fit(machine_mb: int, services: int, processors: int) -> int:
    """Return how many runs may be at work at once; the others wait in the queue.

    The lake may take half of the machine's memory, and 4 GB of a smaller machine. One run always may work. If there are
    more runs than processors, each of them ends later than if they work one after the other.

    Args:
        machine_mb: Memory of the machine, or of the container.
        services: What the services take.
        processors: Number of processors that the sessions of the runs share.
    """
    budget = max(min(machine_mb, LEAST_BUDGET_MB), round(machine_mb * SHARE))
    most = min(MOST_RUNS, max(LEAST_RUNS, processors))
    return max(1, min(most, (budget - services) // RUN_MB))


def needs(services: int, runs: int, machine_mb: int) -> str:
    """Return what the services and their runs need, for the person who starts them."""
    text = f"Memory: up to {_gb(services)} for the services and {_gb(RUN_MB * runs)} for {runs} runs at once"
    if services + RUN_MB * runs > machine_mb:
        return f"{text}. This machine has {_gb(machine_mb)}: set LAKE_SPARK_MEMORY to less."
    return f"{text}, of {_gb(machine_mb)}."


def _gb(mb: int) -> str:
    return f"{mb / 1024:.1f} GB"
