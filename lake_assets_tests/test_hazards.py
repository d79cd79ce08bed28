"""Every hazard of docs/hazards.md has a test that carries its id."""

from __future__ import annotations

import ast
from pathlib import Path

PROJECT = Path(__file__).parents[1]


def test_every_hazard_on_the_page_has_a_test_with_its_id() -> None:
    page = (PROJECT / "docs" / "hazards.md").read_text()
    listed = {line.split("|")[1].strip().lower() for line in page.splitlines() if line.startswith("| ")} - {"id", "---"}
    names = [
        node.name
        for module in (PROJECT / "lake_assets_tests").rglob("test_*.py")
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, ast.FunctionDef)
    ]
    assert listed
    assert listed <= {word for name in names for word in name.split("_")}
