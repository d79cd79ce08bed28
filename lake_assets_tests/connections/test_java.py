"""A Spark that cannot start says why: there is no Java, it is too old, or its log tells. Each on real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lake_assets.connections.spark import explain_java
from lake_assets_tests.processes import wait_until

INSTALL = "  → Install Java 17 or 21 (such as openjdk-17-jre-headless), or set JAVA_HOME to one."
OPENS = """
import sys
from pathlib import Path
from lake_assets.connections.spark import open_spark
from lake_assets.errors import ServiceError
from lake_assets.settings import Settings

sys.stderr.write("before\\n")
try:
    open_spark(Settings(home=Path(sys.argv[1])))
except ServiceError as error:
    print(error)
sys.stderr.write("after\\n")
"""
ELEVEN = """#!/bin/sh
echo 'openjdk version "11.0.2" 2019-01-15' >&2
exit 1
"""


@pytest.mark.parametrize(
    ("java", "problem"),
    [
        (None, "Spark needs Java, and there is no program java in JAVA_HOME or PATH."),
        (ELEVEN, "Spark needs Java 17 or later, and the installed Java is version 11."),
    ],
)
def test_a_spark_without_a_java_that_it_can_use_is_two_lines(tmp_path: Path, java: str | None, problem: str) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    if java:
        (programs / "java").write_text(java)
        (programs / "java").chmod(0o755)
    others = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "LAKE_SPARK_REMOTE")}
    path = f"{programs}:/usr/bin:/bin" if java else str(programs)
    done = subprocess.run(
        [sys.executable, "-c", OPENS, str(tmp_path / "home")],
        env={**others, "PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [problem, INSTALL]
    assert done.stderr.splitlines() == ["before", "after"]
    printed = (tmp_path / "home" / "logs" / "spark-in-process.log").read_text()
    assert ("11.0.2" in printed) == bool(java)


def test_whoever_is_interrupted_while_spark_starts_leaves_no_java(tmp_path: Path) -> None:
    others = {name: value for name, value in os.environ.items() if name != "LAKE_SPARK_REMOTE"}
    process = subprocess.Popen(
        [sys.executable, "-c", OPENS, str(tmp_path / "home")],
        env=others,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    wait_until(lambda: any("pyspark-shell" in line for line in in_session(process.pid)), 60)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) != 0
    wait_until(lambda: not in_session(process.pid), 60)


def in_session(leader: int) -> list[str]:
    """The command lines of the processes that a process has started, and its own, as the system lists them."""
    found = subprocess.run(["ps", "-ww", "-o", "args=", "--sid", str(leader)], capture_output=True, text=True)
    return found.stdout.splitlines()


def test_a_java_that_ends_for_another_reason_refers_to_its_log() -> None:
    found = explain_java('openjdk version "17.0.15" 2025-04-15', Path("logs/spark.log"))
    assert found.problem == "Spark did not start, because Java ended."
    assert "Read logs/spark.log" in found.remedy
    assert explain_java('java version "1.8.0_292"', Path()).problem.endswith("the installed Java is version 8.")
    assert explain_java('openjdk version "21" 2023-09-19', Path()).problem == found.problem
