"""Names of Dagster's that are no part of its API stand in one module, are as this version has them, and may move."""

from __future__ import annotations

import ast
from pathlib import Path

import dagster as dg
import pytest

import lake_assets
from lake_assets.connections import dagster as private
from lake_assets.incremental.dagster.checks import of_newest_materialization
from lake_assets.resources import WatchedRunLauncher

PACKAGE = Path(lake_assets.__file__).parent


def test_no_other_module_imports_a_private_name() -> None:
    found = []
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [each.name for each in node.names] if isinstance(node, ast.Import) else []
            found += [str(file.relative_to(PACKAGE)) for name in names if name.startswith("dagster._")]
    assert set(found) == {"connections/dagster.py"}


@pytest.mark.parametrize("name", private.CLASSES)
def test_a_class_is_where_it_was(name: str) -> None:
    assert getattr(private, name).__name__ in (name, "Iterator", "Generator")


def test_where_classes_have_moved_dagster_does_what_it_does_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = WatchedRunLauncher()
    assert launcher.supports_check_run_worker_health is True
    for name in private.CLASSES:
        monkeypatch.setitem(private.CLASSES, name, "dagster")
    with pytest.raises(private.Moved, match=r"dagster\.SensorDaemon"):
        getattr(private, "Sensor" + "Daemon")
    assert WatchedRunLauncher().supports_check_run_worker_health is False
    with dg.DagsterInstance.ephemeral() as instance:
        instance.report_runless_asset_event(dg.AssetMaterialization("table"))
        evaluation = dg.AssetCheckEvaluation(asset_key=dg.AssetKey("table"), check_name="a", passed=True, metadata={})
        assert of_newest_materialization(instance, evaluation) is evaluation
