"""How many runs fit beside the services, and what `lake up` says about it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import yaml

from lake_assets.services.memory import RUN_MB, heap_mb, machine_mb, memory_bytes, needs, runs_that_fit, services_mb
from lake_assets.services.servers import write_dagster_files
from lake_assets.settings import Settings

ALL = ("spark", "zookeeper", "kafka", "code", "webserver", "daemon")
GB = 1024


def test_all_services_and_two_runs_fit_4_gb() -> None:
    needed = services_mb(ALL, Settings.model_fields["spark_memory"].default)
    assert runs_that_fit(4 * GB, needed, 8) == 2
    assert needed + 2 * RUN_MB <= 4 * GB


def test_streams_that_run_on_need_a_spark_of_their_own() -> None:
    beside = services_mb([*ALL, "streams-chat_message"], "1g") - services_mb(ALL, "1g")
    assert 1024 + 500 <= beside <= 2048


@pytest.mark.parametrize(("machine_gb", "runs"), [(2, 1), (4, 2), (8, 2), (9, 3), (10, 4), (16, 4), (256, 4)])
def test_larger_machines_have_more_runs_at_once(machine_gb: int, runs: int) -> None:
    assert runs_that_fit(machine_gb * GB, services_mb(ALL, "1500m"), 8) == runs


@pytest.mark.parametrize(("processors", "runs"), [(1, 2), (2, 2), (3, 3), (4, 4), (64, 4)])
def test_more_runs_than_processors_would_all_be_later(processors: int, runs: int) -> None:
    assert runs_that_fit(256 * GB, services_mb(ALL, "1500m"), processors) == runs


@pytest.mark.parametrize(
    ("text", "mb"), [("1500m", 1500), ("2g", 2048), ("2G", 2048), ("524288k", 512), ("much", 1500)]
)
def test_the_heap_is_read_as_java_reads_it(text: str, mb: int) -> None:
    assert heap_mb(text) == mb


def test_who_starts_the_services_hears_what_they_need() -> None:
    assert needs(3 * GB, 2, 8 * GB) == "Memory: up to 3.0 GB for the services and 0.7 GB for 2 runs at once, of 8.0 GB."
    assert needs(3 * GB, 1, 2 * GB).endswith("This machine has 2.0 GB: set LAKE_SPARK_MEMORY to less.")


GROUPS_OF_VERSION = {
    "container": ("", "memory.max"),
    "version 2": ("0::/user/lake", "user/lake/memory.max"),
    "version 1": ("4:cpu:/elsewhere\n9:memory:/user/lake", "memory/user/lake/memory.limit_in_bytes"),
    "container of version 1": ("", "memory/memory.limit_in_bytes"),
}


@pytest.mark.parametrize("version", GROUPS_OF_VERSION)
def test_a_container_has_less_than_its_machine(version: str, tmp_path: Path) -> None:
    listed, file = GROUPS_OF_VERSION[version]
    own_groups = tmp_path / "cgroup"
    own_groups.write_text(listed + "\n" if listed else "")
    limit = tmp_path / file
    limit.parent.mkdir(parents=True, exist_ok=True)
    whole = machine_mb(tmp_path, own_groups)
    limit.write_text("max\n")
    assert machine_mb(tmp_path, own_groups) == whole
    limit.write_text(f"{512 << 20}\n")
    assert machine_mb(tmp_path, own_groups) == 512


def test_without_control_groups_the_machine_counts(tmp_path: Path) -> None:
    assert machine_mb(tmp_path, tmp_path / "missing") > 512


def test_dagster_gets_the_number_of_runs(bare_home: Settings) -> None:
    write_dagster_files(bare_home, 1234, runs=2)
    written = yaml.safe_load((bare_home.home / "dagster" / "dagster.yaml").read_text())
    assert written["concurrency"]["runs"] == {"max_concurrent_runs": 2}
    assert written["concurrency"]["pools"]["default_limit"] == 1


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="the kernel does not count shared pages")
def test_memory_that_a_fork_shares_counts_in_part() -> None:
    """`whole` is written before the fork, so both processes have the same pages."""
    program = """
import os, sys
whole = bytearray(b"1") * (200 << 20)
if os.fork() == 0:
    sys.stdin.read()
    os._exit(0)
print("ready", flush=True)
sys.stdin.read()
"""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        process = psutil.Process(parent.pid)
        counted = [memory_bytes(each) >> 20 for each in (process, *process.children())]
        assert parent.stdin is not None
        parent.stdin.close()
    assert len(counted) == 2
    assert 200 <= sum(counted) < 300
