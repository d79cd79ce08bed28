"""The memory of this machine, and the number of runs that it has room for."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from lake_assets.services.memory.budget import MOST_RUNS, needs, runs_that_fit, services_mb

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
