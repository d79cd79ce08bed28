"""The supervisor's log says which service ended first by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from lake_assets.services.supervisor import Ended, died, first_to_end, log_of

STARTED = "12:00:00 system | spark started (pid=1)\n12:00:00 system | code started (pid=2)\n"
CODE_FAILED = "12:00:09 system | code stopped (rc=1)\n"
SPARK_KILLED = "12:00:09 system | spark stopped (rc=-9)\n"
ASKED_TO_STOP = "12:00:05 system | SIGTERM received\n12:00:05 system | sending SIGTERM to code (pid 2)\n"


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (STARTED, None),
        (STARTED + CODE_FAILED + SPARK_KILLED, Ended("code", 1)),
        (STARTED + SPARK_KILLED + CODE_FAILED, Ended("spark", -9)),
        (STARTED + ASKED_TO_STOP + CODE_FAILED, None),
    ],
)
def test_the_first_service_that_ended_without_a_request_is_named(
    tmp_path: Path, log: str, expected: Ended | None
) -> None:
    log_of(tmp_path).parent.mkdir()
    log_of(tmp_path).write_text(log)
    assert first_to_end(tmp_path) == expected


def test_without_a_log_nothing_ended(tmp_path: Path) -> None:
    assert first_to_end(tmp_path) is None
    assert str(log_of(tmp_path)) in str(died([], tmp_path))
