"""The rules that the folders carry: who may import whom, and who may know Dagster."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from lake_assets.settings import PROJECT

PACKAGE = PROJECT / "lake_assets"
ENGINES = {"incremental", "coordination"}
STAGES = {"landing", "membership", "engagement", "serving", "local"}
BASE = {"settings", "errors"}
KNOW_DAGSTER = {"definitions.py", "resources.py", "assets.py", "asset.py", "checks.py", "sensors.py"}
SERVES_DAGSTER = "local/webserver.py"
"""The process of Dagster's UI. The module that decides which requests it refuses knows no Dagster."""
DEMOS = {"local/demo.py", "local/demo_stage.py", "local/engagement_demo.py", "local/simulating.py"}
MODULES = sorted(PACKAGE.rglob("*.py"))


def name_of(module: Path) -> str:
    return module.relative_to(PACKAGE).as_posix()


@cache
def imports(module: Path) -> frozenset[str]:
    """Every module that it imports, at its top, inside functions, or for types alone."""
    tree = ast.parse(module.read_text())
    plain = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    froms = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert not [node for node in froms if node.level], (
        f"{name_of(module)} imports by relative path; imports are absolute"
    )
    return frozenset(plain | {f"{node.module}.{alias.name}" for node in froms for alias in node.names})


def parts_imported(module: Path) -> set[str]:
    """The parts of this package that it imports: `incremental`, `settings`, ..."""
    return {name.split(".")[1] for name in imports(module) if name.startswith("lake_assets.")}


@pytest.mark.parametrize("module", MODULES, ids=name_of)
def test_only_the_dagster_faces_import_dagster(module: Path) -> None:
    if module.name not in KNOW_DAGSTER and name_of(module) != SERVES_DAGSTER:
        assert not {name for name in imports(module) if name.split(".")[0].startswith("dagster")}


@pytest.mark.parametrize("module", MODULES, ids=name_of)
def test_imports_go_one_way(module: Path) -> None:
    part = module.relative_to(PACKAGE).parts[0].removesuffix(".py")
    allowed = BASE | {part}
    if part in STAGES:
        allowed |= ENGINES
    if part not in STAGES | ENGINES | BASE:  # definitions, resources, cli, the package itself: what assembles
        allowed |= ENGINES | STAGES | {"resources", "data_path"}  # data_path: gathers from all stages for one report
    if module.name == "cli.py" or name_of(module) in DEMOS:  # show stages at work, so they are above them
        allowed |= STAGES
    if part == "errors":
        allowed = {"errors"}
    assert parts_imported(module) <= allowed


@pytest.mark.parametrize("module", MODULES, ids=name_of)
def test_every_module_says_what_it_is_for(module: Path) -> None:
    text = module.read_text()
    assert not text.strip() or ast.get_docstring(ast.parse(text)), f"{name_of(module)} has no docstring"


def test_every_part_of_the_package_is_named_here() -> None:
    parts = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert parts <= ENGINES | STAGES


def test_the_bootstrap_needs_nothing_but_the_standard_library() -> None:
    import sys

    module = PACKAGE / "local" / "bootstrap.py"
    assert {name.split(".")[0] for name in imports(module)} <= set(sys.stdlib_module_names)


def test_every_hazard_on_the_page_has_a_test_with_its_id() -> None:
    page = (PROJECT / "docs" / "hazards.md").read_text()
    listed = {line.split("|")[1].strip().lower() for line in page.splitlines() if line.startswith("| ")} - {"id", "---"}
    names = [
        node.name
        for module in (PROJECT / "lake_assets_tests").rglob("test_*.py")
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, ast.FunctionDef)
    ]
    assert listed <= {word for name in names for word in name.split("_")}
