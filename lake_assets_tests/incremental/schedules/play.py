"""Schedules are played, and failing ones shortened.

python -m lake_assets_tests.incremental.schedules --schedules 300 --seed 1
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from lake_assets.settings import Settings
from lake_assets_tests.incremental.schedules.runner import at_failpoints
from lake_assets_tests.incremental.schedules.world import Step, Violation, World

if TYPE_CHECKING:
    from collections import Counter

LENGTH = 30


def play(operations: Sequence[Step], seed: int, spark: str) -> tuple[Violation | None, Counter[str]]:
    """Play a schedule on a lake of its own. Returns what did not hold, and what happened how often."""
    with TemporaryDirectory(prefix="lake-schedule-") as folder, at_failpoints():
        world = World(Settings(home=Path(folder), spark_remote=spark), seed)
        try:
            for operation in operations:
                world.do(operation)
            world.settle()
        except Violation as violation:
            return violation, world.counts
        except Exception as error:
            failed = Violation(f"{type(error).__name__}: {error}")
            failed.__cause__ = error
            return failed, world.counts
        finally:
            world.close()
        return None, world.counts


def shortened(operations: Sequence[Step], seed: int, spark: str) -> list[Step]:
    """A part of a failing schedule that fails, too, and does so without any of its operations no more."""
    found = list(operations)
    size = len(found) // 2
    while size:
        at = 0
        while at < len(found):
            less = found[:at] + found[at + size :]
            if play(less, seed, spark)[0] is not None:
                found = less
            else:
                at += size
        size //= 2
    return found
