"""What the tests notice: small faults are put into the code one by one, and the tests that reach the line are run.

    python -m benchmarks.mutants --record -m 'not journey'        run the tests, and keep which lines each reaches
    python -m benchmarks.mutants --part incremental --number 20   20 faults in lake_assets/incremental
    python -m benchmarks.mutants --list                           which faults are drawn, without a run

A fault is drawn by the hash of its module, its line and its operator, so another run draws the same. It is put into a
copy of the tree. It is killed if a test fails, and survives if all pass or no test reaches its line. Only code inside
functions is changed, and no text: who reaches a constant of a module is not recorded.

This module is also a plugin of pytest and of coverage, while the tests are recorded.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import pytest
from coverage import CoverageData, CoveragePlugin

if TYPE_CHECKING:
    from coverage.plugin_support import Plugins

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "lake_assets"
RECORD = ROOT / ".lake-mutants"
"""What the recorded run left: lines of each test, seconds of each test that passed, and hashes of the modules."""
LINES, SECONDS, HASHES = RECORD / "coverage", RECORD / "seconds.jsonl", RECORD / "hashes.json"
NOW = "LAKE_MUTANTS_NOW"
"""A variable with the path of a file: its name ends with the id of a process of tests, and it has the present test."""
NOT_COPIED = shutil.ignore_patterns(".git", ".venv", ".lake*", "__pycache__", ".*_cache", ".hypothesis")

SETTINGS = f"""[run]
source = {PACKAGE}
data_file = {LINES}
parallel = true
concurrency = multiprocessing, thread
patch = subprocess, fork, _exit
sigterm = true
disable_warnings = no-data-collected, module-not-imported
plugins = benchmarks.mutants
"""

COMPARED: Mapping[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
UNTOUCHED = (ast.JoinedStr, ast.Raise, ast.Assert, ast.AnnAssign)
"""Texts and messages; and in the former, Python 3.11 does not know where an expression is."""


@dataclass(frozen=True)
class Mutant:
    """One fault.

    Attributes:
        module: Path of the module, from the root of the project.
        statement: The line at which its statement begins.
        line: Where it is.
        operator: What is done.
        begin: From where code is replaced, in bytes.
        end: Up to where.
        code: What it is replaced by.
    """

    module: str
    statement: int
    line: int
    operator: str
    begin: int
    end: int
    code: str

    def order(self, seed: str) -> str:
        """What decides whether it is drawn."""
        return hashlib.sha256(f"{seed}:{self.module}:{self.line}:{self.operator}".encode()).hexdigest()

    @property
    def text(self) -> str:
        """The module with the fault."""
        raw = (ROOT / self.module).read_bytes()
        return (raw[: self.begin] + self.code.encode() + raw[self.end :]).decode()

    @property
    def compiles(self) -> bool:
        try:
            compile(self.text, self.module, "exec")
        except SyntaxError:
            return False
        return True

    def __str__(self) -> str:
        shown = self.text.splitlines()[self.line - 1].strip()
        return f"{self.module}:{self.line}  {self.operator}:  {shown}"


def faults(node: ast.AST) -> Iterator[tuple[str, str]]:
    """What may be put in the place of a node: operator and new code."""
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in COMPARED:
            other = COMPARED[type(op)]
            yield f"{type(op).__name__} → {other.__name__}", _code(ast.Compare(left, [other()], [right]))
        case ast.BoolOp(op=op, values=values):
            yield type(op).__name__.lower() + " swapped", _code(ast.BoolOp(_swapped(op), values))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "not removed", _code(operand)
        case ast.BinOp(left=left, op=ast.Add(), right=right) if not _is_text(left) and not _is_text(right):
            yield "+ → -", _code(ast.BinOp(left, ast.Sub(), right))
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            yield "- → +", _code(ast.BinOp(left, ast.Add(), right))
        case ast.Constant(value=bool() as value):
            yield f"{value} → {not value}", repr(not value)
        case ast.Constant(value=int() as value):
            yield f"{value} → {value + 1}", repr(value + 1)
            yield f"{value} → {value - 1}", f"({value - 1})"
        case ast.Expr(value=ast.Call()):
            yield "call removed", "pass"
        case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            yield "returns None", "return None"


def _swapped(op: ast.boolop) -> ast.boolop:
    return ast.And() if isinstance(op, ast.Or) else ast.Or()


def _code(node: ast.expr) -> str:
    return f"({ast.unparse(node)})"


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def inside_functions(tree: ast.AST, statement: int = 0) -> Iterator[tuple[int, Any]]:
    """The nodes of functions, without defaults, decorators, annotations and texts; each with the line of its statement.

    statement: 0 outside of functions.
    """
    if isinstance(tree, UNTOUCHED):
        return
    if statement and isinstance(tree, ast.stmt):
        statement = tree.lineno
    if statement:
        yield statement, tree
    if isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef):
        for part in tree.body:
            yield from inside_functions(part, part.lineno)
    else:
        for node in ast.iter_child_nodes(tree):
            yield from inside_functions(node, statement)


def mutants_of(module: Path) -> Iterator[Mutant]:
    """All faults of a module. The second and further ones of a kind on a line are numbered."""
    raw, name = module.read_bytes(), module.relative_to(ROOT).as_posix()
    starts = [0, *accumulate(map(len, raw.splitlines(keepends=True)))]
    kinds = Counter[tuple[int, str]]()
    for statement, node in inside_functions(ast.parse(raw)):
        for operator, code in faults(node):
            kinds[node.lineno, operator] += 1
            number = kinds[node.lineno, operator]
            kind = operator if number == 1 else f"{operator} ({number})"
            begin = starts[node.lineno - 1] + node.col_offset
            end = starts[node.end_lineno - 1] + node.end_col_offset
            yield Mutant(name, statement, node.lineno, kind, begin, end, code)


def drawn(part: str, number: int, seed: str) -> list[Mutant]:
    """The faults of a part of the package, or of a module, that come first by their hash."""
    place = PACKAGE / part
    modules = sorted(place.rglob("*.py")) if place.is_dir() else [place]
    found = [mutant for module in modules for mutant in mutants_of(module)]
    found.sort(key=lambda mutant: mutant.order(seed))
    return list(islice((mutant for mutant in found if mutant.compiles), number))


class Record:
    """What a run of the tests has left."""

    def __init__(self) -> None:
        self._data = CoverageData(str(LINES))
        self._data.read()
        self._seconds = dict(json.loads(line) for line in SECONDS.read_text().splitlines())
        self._hashes = json.loads(HASHES.read_text())
        self._contexts: dict[str, dict[int, list[str]]] = {}

    def is_of(self, module: str) -> bool:
        """Whether the module is as it was."""
        return bool(self._hashes.get(module) == _hash(ROOT / module))

    def tests(self, mutant: Mutant) -> list[str]:
        """The tests that reach the statement and passed, the quickest first."""
        if mutant.module not in self._contexts:
            self._contexts[mutant.module] = self._data.contexts_by_lineno(str(ROOT / mutant.module))
        lines = self._contexts[mutant.module]
        reached = {test for line in range(mutant.statement, mutant.line + 1) for test in lines.get(line, ())}
        return sorted(reached & self._seconds.keys(), key=lambda test: (self._seconds[test], test))


def _hash(module: Path) -> str:
    return hashlib.sha256(module.read_bytes()).hexdigest()


def record(arguments: Sequence[str]) -> int:
    """Run the tests, and keep which lines each reaches."""
    shutil.rmtree(RECORD, ignore_errors=True)
    RECORD.mkdir()
    HASHES.write_text(
        json.dumps({module.relative_to(ROOT).as_posix(): _hash(module) for module in PACKAGE.rglob("*.py")})
    )
    SECONDS.touch()
    settings = RECORD / "settings"
    settings.write_text(SETTINGS)
    coverage = [sys.executable, "-m", "coverage"]
    environment = {**os.environ, "PYTHONPATH": _path(ROOT)}
    tests = ["-m", "pytest", "-q", "-p", "benchmarks.mutants", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run([*coverage, "run", f"--rcfile={settings}", *tests], cwd=ROOT, env=environment, check=False)
    combine = [*coverage, "combine", "--quiet", f"--rcfile={settings}", str(RECORD)]
    subprocess.run(combine, cwd=ROOT, env=environment, check=True)
    return done.returncode


def _path(root: Path) -> str:
    return os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))


def outcome(mutant: Mutant, tests: Sequence[str], copy: Path, limit: float) -> str:
    """Run the tests on the copy with the fault: killed, survived, or what else."""
    if not tests:
        return "survived: no test reaches it"
    module = copy / mutant.module
    original = module.read_text()
    chosen = copy / ".mutant-tests"
    chosen.write_text("\n".join(tests))
    module.write_text(mutant.text)
    command = [sys.executable, "-B", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", f"@{chosen}"]
    process = subprocess.Popen(
        command,
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said = process.communicate(timeout=limit)[0]
    except subprocess.TimeoutExpired:
        process.terminate()  # fixtures end what they started
        try:
            process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
        return f"undecided: over {limit:g} s for {len(tests)} tests"
    finally:
        module.write_text(original)
    if process.returncode == 0:
        return f"survived: {len(tests)} tests"
    failed = next((line.split(" ")[1] for line in said.splitlines() if line.startswith(("FAILED ", "ERROR "))), "")
    if process.returncode not in {1, 2}:
        return f"undecided: pytest ended with {process.returncode}\n{said[-2000:]}"
    return f"killed: {failed}"


def play(chosen: Sequence[Mutant], known: Record, limit: float) -> None:
    """Play the faults one after the other, and print what became of each and all."""
    found: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="lake-mutants-") as folder:
        copy = Path(folder) / "project"
        shutil.copytree(ROOT, copy, ignore=NOT_COPIED)
        (copy / ".venv").symlink_to(ROOT / ".venv")
        for number, mutant in enumerate(chosen, 1):
            begun = time.monotonic()
            said = outcome(mutant, known.tests(mutant), copy, limit)
            found[said.partition(":")[0]] += 1
            print(f"{number:3}  {mutant}\n     {said}  ({time.monotonic() - begun:.0f} s)", flush=True)
    print(", ".join(f"{count} {what}" for what, count in sorted(found.items())))


def main() -> int:
    """Record the tests, or draw faults and play them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--part", default=".", help="a folder or a module of lake_assets; default: all")
    parser.add_argument("--number", type=int, default=50, help="of faults; default: 50")
    parser.add_argument("--seed", default="0", help="draws others")
    parser.add_argument("--limit", type=float, default=600, help="seconds for the tests of one fault; default: 600")
    parser.add_argument("--list", action="store_true", help="print the faults alone")
    parser.add_argument(
        "--record", nargs=argparse.REMAINDER, metavar="ARGUMENT", help="run pytest with these arguments"
    )
    given = parser.parse_args()
    if given.record is not None:
        return record(given.record)
    if not (PACKAGE / given.part).exists():
        parser.error(f"lake_assets has no {given.part}")
    chosen = drawn(given.part, given.number, given.seed)
    if given.list:
        print("\n".join(map(str, chosen)))
        return 0
    if not LINES.exists():
        parser.error("no run is recorded; record one with --record")
    known = Record()
    moved = {mutant.module for mutant in chosen if not known.is_of(mutant.module)}
    if moved:
        parser.error(f"changed since the recorded run: {', '.join(sorted(moved))}; record another one with --record")
    play(chosen, known, given.limit)
    return 0


# The plugins of the recorded run.


class PresentTest(CoveragePlugin):
    """Tells coverage which test a line is reached by, also in processes that tests start."""

    def dynamic_context(self, frame: FrameType) -> str | None:
        now = os.environ.get(NOW)
        if not now:
            return None
        if now.endswith(f"-{os.getpid()}"):
            return present[-1] if present else None
        try:
            return Path(now).read_text() or None
        except OSError:
            return None


present: list[str] = []
"""The test that this process is at."""


def coverage_init(registry: Plugins, options: Mapping[str, str]) -> None:
    registry.add_dynamic_context(PresentTest())


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Tell of the test from its first fixture to its last."""
    now = RECORD / f"now-{os.getpid()}"
    os.environ[NOW] = str(now)
    now.write_text(item.nodeid)
    present.append(item.nodeid)
    try:
        return (yield)
    finally:
        present.pop()
        now.write_text("")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Keep the seconds of a test that passes."""
    report = yield
    if report.when == "call" and report.passed:
        with SECONDS.open("a") as seconds:
            seconds.write(json.dumps([item.nodeid, round(report.duration, 3)]) + "\n")
    return report


if __name__ == "__main__":
    sys.exit(main())
