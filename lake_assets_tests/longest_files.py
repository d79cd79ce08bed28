"""The files whose tests take longest, for the order in which processes take them.

The seconds were measured in a run of all tests by two processes. Only their order counts, so they
need not be measured again for each change. A file that is not listed is ordered by what its tests need.
"""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parent

SECONDS = {
    "engagement/test_faults.py": 261,
    "incremental/test_equivalence.py": 166,
    "engagement/streams/test_turn.py": 151,
    "services/test_lifecycle.py": 127,
    "services/backup/test_engagement_goes_on.py": 114,
    "test_from_nothing.py": 106,
    "engagement/maintenance/test_executors.py": 106,
    "benchmarks/faults/test_faults.py": 88,
    "engagement/erasure/test_registry.py": 79,
    "examples/test_flights.py": 79,
    "engagement/dagster/test_assets.py": 74,
    "benchmarks/cluster/test_cluster.py": 73,
    "engagement/streams/settled/test_settling.py": 73,
}
"""File → seconds of all its tests."""


def seconds_of(file: Path) -> int:
    """Return the seconds of a file's tests; 0 if the file is not listed."""
    return SECONDS.get(file.relative_to(TESTS).as_posix(), 0)
