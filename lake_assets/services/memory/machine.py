"""The memory of this machine, and the number of runs that it has room for."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from lake_assets.services.memory.budget import needs, runs_that_fit, services_mb

if TYPE_CHECKING:
    from lake_assets.settings import Settings

CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def machine_mb(limit: Path = CGROUP_LIMIT) -> int:
    """Return the memory of this machine in MiB, or that of the container if it has less.

    Args:
        limit: The file with the limit of the container, in bytes; it may be missing, or say `max`.
    """
    import psutil

    total = int(psutil.virtual_memory().total)
    with suppress(OSError, ValueError):
        total = min(total, int(limit.read_text()))
    return total >> 20


def choose_runs(settings: Settings, services: Collection[str], report: Callable[[str], None]) -> int:
    """Return how many runs may be at work at once, and report what they and the services need.

    Args:
        settings: The heap of Spark, and the number of runs if it is set.
        services: Names of the services that are started here.
        report: Receives one line for the person who waits.
    """
    needed = services_mb(services, settings.spark_memory)
    machine = machine_mb()
    runs = settings.max_runs or runs_that_fit(machine, needed)
    report(needs(needed, runs, machine))
    return runs
