"""The public API: which names there are, what `Lake` takes, what an import loads, and that the page has all of it."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import lake_assets
from lake_assets import JobCoordinator, Lake

PROJECT = Path(__file__).parents[1]

NAMES = """
ChangesExpired Defer IncrementalTable JobCoordinator Lake LakeError LakeIOManager Pipeline RawTable Rule Sequential
Served SessionContext Settings Source SourceTable Stateful Stateless Subject Topic __version__ audits
incremental_asset incremental_definitions lake_resources landing read_changes utc_now
"""
LAKE = {
    "catalog": "property",
    "catch_up": "(self, target: 'str | None' = None) -> 'list[Outcome]'",
    "close": "(self) -> 'None'",
    "create_tables": "(self) -> 'list[str]'",
    "open": "(pipeline: 'Declared', *, catalog: 'Catalog | None' = None, spark: 'SparkSession | None' = None,"
    " settings: 'Settings | None' = None) -> 'Lake'",
    "pipeline": "property",
    "plan": "(self, target: 'str') -> 'Decision'",
    "sessions": "(self, target: 'str', *, newest: 'int | None' = None) -> 'list[SessionRecord]'",
    "verify": "(self, target: 'str | None' = None) -> 'list[Comparison]'",
    "why": "(self, target: 'str', hour: 'str') -> 'list[HourBuild]'",
}
COORDINATOR = """
claim close confirm done explain from_properties give_turn give_up lock locked register token turn unlock
"""
NOT_LOADED = ("dagster", "pyspark", "pyiceberg", "pyarrow", "pydantic")


def test_these_names_are_public_and_each_can_be_used() -> None:
    assert sorted(lake_assets.__all__) == dir(lake_assets) == sorted(NAMES.split())
    assert [name for name in lake_assets.__all__ if not hasattr(lake_assets, name)] == []
    with pytest.raises(AttributeError, match="'lake_assets' has no attribute 'Pipelines'"):
        lake_assets.Pipelines  # type: ignore[attr-defined]  # noqa: B018 - a type checker finds it, too


def test_the_surface_of_lake() -> None:
    found = {}
    for name in dir(Lake):
        member = getattr(Lake, name)
        if not name.startswith("_"):
            found[name] = "property" if isinstance(member, property) else str(inspect.signature(member))
    assert found == LAKE


def test_the_surface_of_the_coordinator_is_on_its_page() -> None:
    assert [name for name in dir(JobCoordinator) if not name.startswith("_")] == COORDINATOR.split()
    page = (PROJECT / "docs" / "coordination.md").read_text()
    assert [name for name in COORDINATOR.split() if f"`{name}" not in page and f".{name}(" not in page] == []


def test_an_import_loads_neither_dagster_nor_spark() -> None:
    code = f"import sys, lake_assets; print([name for name in {NOT_LOADED} if name in sys.modules])"
    declared = "from lake_assets import Lake, Pipeline, Source, audits, incremental_asset"
    heavy = "print([name for name in ('dagster', 'pyspark') if name in sys.modules])"
    program = f"{code}; {declared}; {heavy}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "[]"]


def test_a_type_checker_sees_what_is_loaded() -> None:
    tree = ast.parse((PROJECT / "lake_assets" / "__init__.py").read_text())
    (checked,) = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    froms = [node for node in checked.body if isinstance(node, ast.ImportFrom)]
    seen = {alias.name: f"{node.module}" for node in froms for alias in node.names}
    loaded = {
        name: module.removesuffix(".audits").removesuffix(".landing") for name, module in lake_assets._MODULES.items()
    }
    assert seen == loaded


def test_the_page_has_every_public_name_and_every_member_of_lake() -> None:
    page = (PROJECT / "docs" / "api.md").read_text()
    missing = [name for name in lake_assets.__all__ if f"`{name}" not in page and f"lake_assets.{name}`" not in page]
    assert missing == []
    assert [name for name in LAKE if f"`{name}" not in page and f"`Lake.{name}" not in page] == []


def test_the_version_is_that_of_the_project_and_the_package_is_typed() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    assert lake_assets.__version__ == project["version"]
    assert (PROJECT / "lake_assets" / "py.typed").is_file()
