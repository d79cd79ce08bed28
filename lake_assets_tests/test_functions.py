"""Functions stay small: at most 40 source lines, and a cyclomatic complexity of at most 8."""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

import pytest
from radon.complexity import cc_visit

from lake_assets.settings import PROJECT

MAX_LINES = 40
MAX_COMPLEXITY = 8
MODULES = sorted((PROJECT / "lake_assets").rglob("*.py"))
NO_CODE = {
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.COMMENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def name_of(module: Path) -> str:
    return module.relative_to(PROJECT).as_posix()


def docstring_lines(tree: ast.AST) -> set[int]:
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            found.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return found


def source_lines(text: str, tree: ast.AST) -> set[int]:
    """The lines that hold code: no blank line, comment or docstring."""
    skipped = docstring_lines(tree)
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE and token.start[0] not in skipped:
            found.update(range(token.start[0], token.end[0] + 1))
    return found


@pytest.mark.parametrize("module", MODULES, ids=name_of)
def test_no_function_is_long(module: Path) -> None:
    text = module.read_text()
    tree = ast.parse(text)
    code = source_lines(text, tree)
    long = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = len(code.intersection(range(node.lineno, (node.end_lineno or node.lineno) + 1)))
            if lines > MAX_LINES:
                long[node.name] = lines
    assert not long


@pytest.mark.parametrize("module", MODULES, ids=name_of)
def test_no_function_has_many_branches(module: Path) -> None:
    blocks = [block for block in cc_visit(module.read_text()) if block.letter in "FM"]
    assert {block.name: block.complexity for block in blocks if block.complexity > MAX_COMPLEXITY} == {}
