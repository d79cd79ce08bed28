"""Memory of the services and of runs, in MiB, as measured, and the number of runs that a machine has room for. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

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
