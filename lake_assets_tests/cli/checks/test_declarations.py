"""Tables of YAML and SQL by the commands alone: no line of Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lake_assets_tests.doors.lake_door import Done, LakeDoor
from lake_assets_tests.incremental.sql.folders import PAYMENTS_SQL, payments

if TYPE_CHECKING:
    from pathlib import Path


def lake(folder: Path, *arguments: str, **variables: str) -> Done:
    return LakeDoor(folder, {"LAKE_PIPELINES": "tables"}).run(*arguments, **variables)


def test_a_folder_of_yaml_needs_no_python(tmp_path: Path, spark_server: str) -> None:
    payments(tmp_path / "tables")
    done = lake(tmp_path, "init", LAKE_SPARK_REMOTE=spark_server)
    assert done.code == 0, done.err
    printed = done.out.splitlines()
    assert printed[0] == "analysed core.payment_fact"
    assert {"created raw.payments", "created core.payment_fact"} <= set(printed)
    nowhere = "sc://127.0.0.1:1"  # needs no Spark
    assert lake(tmp_path, "plan", "payment_fact", LAKE_SPARK_REMOTE=nowhere).out.startswith("No session: ")
    payments(tmp_path / "tables", sql=PAYMENTS_SQL + "WHERE amount <> 0")
    refused = lake(tmp_path, "plan", "payment_fact", LAKE_SPARK_REMOTE=nowhere).err.splitlines()
    assert refused[0].startswith("Error: tables/payment_fact/payment_fact.sql:1: The query of core.payment_fact, or")
    assert refused[1].startswith("  → Run `lake check tables`")
    checked = lake(tmp_path, "check", LAKE_SPARK_REMOTE=spark_server)
    assert checked.code == 0, checked.err
    assert "core.payment_fact" in checked.out
    assert "written" in checked.out
