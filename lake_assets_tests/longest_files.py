"""The files whose tests take longest, for the order in which two processes take them.

The seconds were measured in a run of all tests by two processes on a busy machine. Only their order counts, so they
need not be measured again for each change. A file that is not listed is ordered by what its tests need.
"""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parent

SECONDS = {
    "engagement/test_faults.py": 670,
    "engagement/streams/test_turn.py": 521,
    "incremental/test_equivalence.py": 376,
    "engagement/deduplication/test_repeated.py": 214,
    "engagement/erasure/test_registry.py": 205,
    "engagement/streams/settled/test_settling.py": 203,
    "engagement/dagster/test_assets.py": 187,
    "benchmarks/cluster/test_cluster.py": 180,
    "services/test_lifecycle.py": 179,
    "benchmarks/faults/test_faults.py": 173,
    "incremental/test_crashes.py": 172,
}
"""File → seconds of all its tests."""


def seconds_of(file: Path) -> int:
    """Return the seconds of a file's tests; 0 if the file is not listed."""
    return SECONDS.get(file.relative_to(TESTS).as_posix(), 0)
