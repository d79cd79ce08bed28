"""The rules that the folders carry: who may import whom, who may know Dagster, and how large a room may be."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from lake_assets.settings import PROJECT

PACKAGE = PROJECT / "lake_assets"
MODULES = sorted(PACKAGE.rglob("*.py"))
FOLDERS = sorted({module.parent for module in MODULES})

BOOTSTRAP = "import sys; sys.path.insert(0, {folder!r}); import lake_assets.services.bootstrap"
MAX_MODULES = 12
MAX_LINES = 350

FOUNDATION = {"errors", "pipeline_names", "settings", "base", "connections"}
ENGINES = {"incremental", "coordination"}
STAGES = {"landing", "membership", "engagement", "serving"}
MAY_IMPORT: Mapping[str, set[str]] = {
    "errors": set(),
    "passed_properties": set(),
    "pipeline_names": set(),
    "private_file": {"errors", "passed_properties"},
    "settings": {"passed_properties", "pipeline_names", "private_file"},
    "base": {"errors", "settings"},
    "connections": {"errors", "settings", "base", "passed_properties"},
    **dict.fromkeys(ENGINES, FOUNDATION),
    **dict.fromkeys(STAGES, FOUNDATION | ENGINES),
    "dagster_processes": FOUNDATION,
    "services": FOUNDATION | {"incremental"},
    "resources": FOUNDATION | ENGINES | STAGES,
    "components": FOUNDATION | ENGINES | STAGES | {"resources"},
    "definitions": FOUNDATION | ENGINES | STAGES | {"resources", "components"},
    "pages": FOUNDATION | ENGINES | STAGES,
    "demo": FOUNDATION | ENGINES | STAGES | {"services", "pages"},
    "cli": FOUNDATION | ENGINES | STAGES | {"services", "pages", "demo", "passed_properties"},
    "__init__": FOUNDATION | ENGINES | {"resources", "components"},
}
"""Part of the package → the other parts that it may import, at its top, inside functions, or for types alone."""

KNOW_DAGSTER = {"definitions.py", "resources.py", "services/webserver.py"}
"""Beside the folders that are called `dagster`; the last one serves Dagster's own web pages."""


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


@cache
def dotted(module: Path) -> str:
    parts = module.relative_to(PROJECT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


KNOWN = {dotted(module): module for module in MODULES}


@cache
def imports(module: Path) -> frozenset[str]:
    """Every module that it imports, at its top, inside functions, or for types alone; names behind them, too."""
    tree = ast.parse(module.read_text())
    plain = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    froms = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert not [node for node in froms if node.level], (
        f"{name_of(module)} imports by relative path; imports are absolute"
    )
    return frozenset(plain | {f"{node.module}.{alias.name}" for node in froms for alias in node.names})


def modules_imported(module: Path) -> set[str]:
    """The modules of this package that it imports."""
    found = set()
    for name in imports(module):
        owner = name if name in KNOWN else name.rpartition(".")[0]
        if owner in KNOWN and owner != dotted(module):
            found.add(owner)
    return found


def part_of(name: str) -> str:
    """`incremental` of `lake_assets.incremental.planning.plan`."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def assert_no_cycle(edges: Mapping[str, Iterable[str]]) -> None:
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        pytest.fail(f"These import each other in a circle: {' → '.join(error.args[1])}")


@pytest.mark.parametrize("module", MODULES, ids=name_of)
def test_imports_go_one_way(module: Path) -> None:
    part = part_of(dotted(module))
    foreign = {part_of(name) for name in modules_imported(module)} - {part}
    assert foreign <= MAY_IMPORT[part], f"{name_of(module)} imports {sorted(foreign - MAY_IMPORT[part])}"


def test_every_part_of_the_package_has_its_place_in_the_order() -> None:
    assert {part_of(dotted(module)) for module in MODULES} == MAY_IMPORT.keys()
    assert_no_cycle(MAY_IMPORT)


def test_no_module_imports_itself_in_a_circle() -> None:
    packages = {dotted(module) for module in MODULES if module.name == "__init__.py"}
    assert_no_cycle({dotted(module): modules_imported(module) - packages for module in MODULES})


def test_no_folder_imports_itself_in_a_circle() -> None:
    edges: dict[str, set[str]] = {}
    for module in MODULES:
        here = dotted(module.parent / "__init__.py")
        for name in modules_imported(module):
            there = dotted(KNOWN[name].parent / "__init__.py")
            nested = f"{here}.".startswith(f"{there}.") or f"{there}.".startswith(f"{here}.")
            if not nested:
                edges.setdefault(here, set()).add(there)
    assert_no_cycle(edges)


def test_audits_read_by_code_that_the_stager_does_not_use() -> None:
    reads = [module for module in MODULES if module.parent.name == "audit_reads"]
    imported = {name for module in reads for name in modules_imported(module)}
    shared = {name for name in imported if name.startswith("lake_assets.incremental.staging")}
    assert not shared | (imported & {"lake_assets.base.time_filters", "lake_assets.incremental.planning.changes"})
    used = {dotted(module) for module in MODULES if set(map(dotted, reads)) & modules_imported(module)}
    assert used - set(map(dotted, reads)) == {
        "lake_assets.incremental.staging.audit_scope",
        "lake_assets.incremental.monitoring.verification",
    }


@pytest.mark.parametrize("module", MODULES, ids=name_of)
def test_only_the_folders_for_it_import_dagster(module: Path) -> None:
    if "dagster" not in module.parent.parts and name_of(module) not in KNOW_DAGSTER:
        assert not {name for name in imports(module) if name.split(".")[0].startswith("dagster")}


@pytest.mark.parametrize("folder", FOLDERS, ids=name_of)
def test_a_folder_is_a_room_that_can_be_overlooked(folder: Path) -> None:
    assert len([file for file in folder.glob("*.py") if file.name != "__init__.py"]) <= MAX_MODULES


@pytest.mark.parametrize("folder", FOLDERS, ids=name_of)
def test_every_folder_says_what_belongs_there(folder: Path) -> None:
    assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text())), f"{name_of(folder)} says nothing"


@pytest.mark.parametrize("module", MODULES, ids=name_of)
def test_a_module_says_what_it_is_for_and_is_not_long(module: Path) -> None:
    text = module.read_text()
    assert ast.get_docstring(ast.parse(text)), f"{name_of(module)} has no docstring"
    assert len(text.splitlines()) <= MAX_LINES


def test_the_bootstrap_needs_nothing_but_the_standard_library() -> None:
    own = PACKAGE / "services" / "installation"
    for module in (PACKAGE / "services" / "bootstrap.py", *own.glob("*.py")):
        foreign = {name for name in imports(module) if name.split(".")[0] not in sys.stdlib_module_names}
        assert not {name for name in foreign if not name.startswith(dotted(own / "__init__.py"))}
    program = BOOTSTRAP.format(folder=str(PROJECT))  # run without the packages of the environment
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


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
