"""docs/designs.md names modules and tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

PROJECT = Path(__file__).parents[1]


def test_every_module_and_test_that_the_page_of_designs_names_exists() -> None:
    page = (PROJECT / "docs" / "designs.md").read_text()
    names = {name for line in page.splitlines() if line.startswith("| ") for name in re.findall(r"`([^`]+)`", line)}
    tests = {tuple(name.split("::")) for name in names if "::" in name}
    modules = {name for name in names if "/" in name and "::" not in name and name.split("/")[0].islower()}
    assert tests
    assert modules
    missing = {file for file in modules if not (PROJECT / "lake_assets" / file).exists()}
    for file, test in tests:
        path = PROJECT / "lake_assets_tests" / file
        if not path.exists() or f"\ndef {test}(" not in path.read_text():
            missing.add(f"{file}::{test}")
    assert missing == set()
