"""How many runs fit beside the services, and what `lake up` says about it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from lake_assets.services.dagster_services import write_dagster_files
from lake_assets.services.memory.budget import RUN_MB, heap_mb, needs, runs_that_fit, services_mb
from lake_assets.services.memory.machine import machine_mb
from lake_assets.settings import Settings

ALL = ("spark", "zookeeper", "kafka", "code", "webserver", "daemon")
GB = 1024


def test_all_services_and_two_runs_fit_4_gb() -> None:
    needed = services_mb(ALL, Settings.model_fields["spark_memory"].default)
    assert runs_that_fit(4 * GB, needed) == 2
    assert needed + 2 * RUN_MB <= 4 * GB


@pytest.mark.parametrize(("machine_gb", "runs"), [(2, 1), (4, 2), (8, 2), (9, 3), (10, 4), (16, 4), (256, 4)])
def test_larger_machines_have_more_runs_at_once(machine_gb: int, runs: int) -> None:
    assert runs_that_fit(machine_gb * GB, services_mb(ALL, "1500m")) == runs


@pytest.mark.parametrize(
    ("text", "mb"), [("1500m", 1500), ("2g", 2048), ("2G", 2048), ("524288k", 512), ("much", 1500)]
)
def test_the_heap_is_read_as_java_reads_it(text: str, mb: int) -> None:
    assert heap_mb(text) == mb


def test_who_starts_the_services_hears_what_they_need() -> None:
    assert needs(3 * GB, 2, 8 * GB) == "Memory: up to 3.0 GB for the services and 0.7 GB for 2 runs at once, of 8.0 GB."
    assert needs(3 * GB, 1, 2 * GB).endswith("This machine has 2.0 GB: set LAKE_SPARK_MEMORY to less.")


def test_a_container_has_less_than_its_machine(tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    whole = machine_mb(limit)
    limit.write_text("max\n")
    assert machine_mb(limit) == whole
    limit.write_text(f"{512 << 20}\n")
    assert machine_mb(limit) == 512


def test_dagster_gets_the_number_of_runs(bare_home: Settings) -> None:
    write_dagster_files(bare_home, 1234, runs=2)
    written = yaml.safe_load((bare_home.home / "dagster" / "dagster.yaml").read_text())
    assert written["concurrency"]["runs"] == {"max_concurrent_runs": 2}
    assert written["concurrency"]["pools"]["default_limit"] == 1
