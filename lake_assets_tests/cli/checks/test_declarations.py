"""Tables of YAML and SQL by the commands alone: no line of Python."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from lake_assets_tests.incremental.sql.folders import PAYMENTS_SQL, payments

if TYPE_CHECKING:
    from pathlib import Path


def lake(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LAKE_HOME": str(folder / "home"), "LAKE_PIPELINES": "tables", **variables}
    command = [sys.executable, "-m", "lake_assets.cli.main", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_a_folder_of_yaml_needs_no_python(tmp_path: Path, spark_server: str) -> None:
    payments(tmp_path / "tables")
    done = lake(tmp_path, "init", LAKE_SPARK_REMOTE=spark_server)
    assert done.returncode == 0, done.stderr
    printed = done.stdout.splitlines()
    assert printed[0] == "analysed core.payment_fact"
    assert {"created raw.payments", "created core.payment_fact"} <= set(printed)
    nowhere = "sc://127.0.0.1:1"  # needs no Spark
    assert lake(tmp_path, "plan", "payment_fact", LAKE_SPARK_REMOTE=nowhere).stdout.startswith("No session: ")
    payments(tmp_path / "tables", sql=PAYMENTS_SQL + "WHERE amount <> 0")
    refused = lake(tmp_path, "plan", "payment_fact", LAKE_SPARK_REMOTE=nowhere).stderr.splitlines()
    assert refused[0].startswith("Error: tables/payment_fact/payment_fact.sql:1: The query of core.payment_fact, or")
    assert refused[1].startswith("  → Run `lake check tables`")
    checked = lake(tmp_path, "check", LAKE_SPARK_REMOTE=spark_server)
    assert checked.returncode == 0, checked.stderr
    assert "core.payment_fact" in checked.stdout
    assert "written" in checked.stdout
