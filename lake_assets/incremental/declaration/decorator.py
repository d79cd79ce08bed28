"""`incremental_asset`: the decorator that turns a transform into a target, and the version of its code.

The version changes with what decides which rows are built, and with nothing else. Of a function, that is its syntax
tree and those of the functions, classes and constants of the same project that it uses, directly or not; of a query,
its tokens. So comments, docstrings, formatting and the order of definitions do not matter. What is imported from other
packages counts by its name alone.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from lake_assets.base.sql_text import kind_of, tokens
from lake_assets.incremental.declaration.model import (
    DEFAULT_QUARANTINE_LIMIT,
    Audit,
    Defer,
    Mode,
    Served,
    Source,
    Stateless,
    Target,
    Transform,
    declared_grain,
    declared_served,
)
from lake_assets.incremental.declaration.pipeline import check_arguments, check_target

DIGITS = 12
"""Hexadecimal digits of a code version."""

OWN = "lake_assets"
"""This package. Of a target that it declares, such as those of the demo, the project is the folder of the target."""


def version_of(*parts: object) -> str:
    """Return the version of code that consists of some values, equal in every process."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:DIGITS]


def query_code(query: str) -> list[str]:
    """Return what a query consists of, without comments and white space; words of the language in upper case."""
    return [each.text.upper() if kind_of(each) == each.text.upper() else each.text for each in tokens(query)]


def function_code(function: Callable[..., Any]) -> list[str]:
    """Return the code of a function and of all that it uses of its project, sorted."""
    module = inspect.getmodule(function)
    top = _definitions(module) if module is not None else {}
    if module is None or function.__name__ not in top or "<locals>" in function.__qualname__:
        return _code_of_local(function, module)
    return sorted(_reached(module, [function.__name__]).values())


def _code_of_local(function: Callable[..., Any], module: ModuleType | None) -> list[str]:
    """Return the code of a function that its module does not define at the top, with what it uses of the module."""
    try:
        node = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):  # typed into an interpreter, or no function of Python
        return [repr(getattr(function, "__code__", function).__class__), getattr(function, "__qualname__", "")]
    used = _reached(module, sorted(_names(node))) if module is not None else {}
    return sorted([_dumped(node), *used.values()])


def _reached(module: ModuleType, names: list[str]) -> dict[tuple[str, str], str]:
    """Return (module, name) → code, for all definitions of the project that some names of a module lead to."""
    project = _project_of(module)
    found: dict[tuple[str, str], str] = {}
    todo = [(module, name) for name in names]
    while todo:
        of, name = todo.pop()
        definition = _definitions(of).get(name)
        if definition is None or (of.__name__, name) in found:
            continue
        if isinstance(definition, (ast.Import, ast.ImportFrom)):
            found[of.__name__, name] = _dumped(definition)
            todo += [each for each in _imported(of, definition, name) if _is_in(project, each[0])]
            continue
        found[of.__name__, name] = _dumped(definition)
        todo += [(of, used) for used in _names(definition)]
    return found


def _imported(
    module: ModuleType, statement: ast.Import | ast.ImportFrom, name: str
) -> Iterator[tuple[ModuleType, str]]:
    """Yield the definitions that a name of a module stands for: one, or all of a module that is imported as a whole."""
    for alias in statement.names:
        if (alias.asname or alias.name.partition(".")[0]) != name:
            continue
        if isinstance(statement, ast.Import):
            whole = _loaded(alias.name if alias.asname else name)
        else:
            package = _absolute(module, statement)
            defined_in = _loaded(package)
            if defined_in is not None and alias.name in _definitions(defined_in):
                yield defined_in, alias.name
                continue
            whole = _loaded(f"{package}.{alias.name}")
        if whole is not None:
            yield from ((whole, each) for each in _definitions(whole))


def _absolute(module: ModuleType, statement: ast.ImportFrom) -> str:
    if not statement.level:
        return statement.module or ""
    parts = (module.__package__ or "").split(".")
    parts = parts[: len(parts) - statement.level + 1]
    return ".".join([*parts, *([statement.module] if statement.module else [])])


def _loaded(name: str) -> ModuleType | None:
    if name in sys.modules:
        return sys.modules[name]
    try:
        return import_module(name)
    except Exception:  # an import under TYPE_CHECKING or in a function, of whatever is not there
        return None


def _definitions(module: ModuleType) -> dict[str, ast.stmt]:
    """Return name → the statement that defines it at the top of a module; the last one if there are several."""
    try:
        return _definitions_in(inspect.getsource(module))
    except (OSError, TypeError, SyntaxError):
        return {}


@lru_cache(256)
def _definitions_in(source: str) -> dict[str, ast.stmt]:
    tree = ast.parse(source)
    found: dict[str, ast.stmt] = {}
    for statement in _top(tree.body):
        for name in _defined(statement):
            found[name] = statement
    return found


def _top(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module, those in conditions and tries included."""
    for statement in body:
        if isinstance(statement, (ast.If, ast.Try)):
            for part in ("body", "orelse", "finalbody"):
                yield from _top(getattr(statement, part, []))
        else:
            yield statement


def _defined(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield statement.name
    elif isinstance(statement, (ast.Import, ast.ImportFrom)):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in statement.names)
    elif isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        for target in targets:
            yield from (node.id for node in ast.walk(target) if isinstance(node, ast.Name))


def _names(node: ast.AST) -> set[str]:
    """Return the names that a piece of code uses; those of its decorators and annotations do not build rows."""
    return {each.id for each in ast.walk(_bare(node)) if isinstance(each, ast.Name)}


def _dumped(node: ast.AST) -> str:
    return ast.dump(_bare(node))


class _Bare(ast.NodeTransformer):
    """Leaves out what decides no row: docstrings, decorators of functions, annotations."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        if ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        node.decorator_list, node.returns = [], None
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self.generic_visit(node)
        if ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return ast.arg(node.arg, None, None)


def _bare(node: ast.AST) -> ast.AST:
    copy = ast.parse(ast.unparse(ast.fix_missing_locations(node)))
    bare: ast.AST = _Bare().visit(copy)
    return bare


def _project_of(module: ModuleType) -> str:
    """Return the package that counts as the project of a module; empty for a module without a package."""
    parts = module.__name__.split(".")
    if parts[0] == OWN:
        return ".".join(parts[:2])
    return parts[0] if len(parts) > 1 else ""


def _is_in(project: str, module: ModuleType) -> bool:
    """Return whether a module belongs to a project; a module without a package has those that are not installed.

    This package is no part of it, also where it runs from its repository.
    """
    if project:
        return f"{module.__name__}.".startswith(f"{project}.")
    if module.__name__.partition(".")[0] == OWN:
        return False
    file = getattr(module, "__file__", None) or ""
    return "site-packages" not in file and "dist-packages" not in file and not file.startswith(sys.base_prefix)


def incremental_asset(
    *,
    mode: Mode,
    sources: Sequence[Source],
    key: str | Sequence[str],
    time_column: str,
    columns: Mapping[str, str],
    audits: Sequence[Audit] = (),
    namespace: str = "core",
    quarantine_limit: float = DEFAULT_QUARANTINE_LIMIT,
    code_version: str | None = None,
    owners: Sequence[str] = (),
    lineage: Mapping[str, Sequence[str]] | None = None,
    max_delay: timedelta | None = None,
    grain: Literal["hour", "day"] = "hour",
    timezone: str = "UTC",
    descriptions: Mapping[str, str] | None = None,
    served: bool | str | Path | Mapping[str, Any] | Served = False,
    late: Defer | None = None,
    renamed_from: Mapping[str, str] | None = None,
) -> Callable[[Transform], Target]:
    """Declare the table `namespace.<function name>`. The function's docstring describes it.

    Args:
        mode: How the target is built.
        sources: The tables that it is built from, in the order of the function's parameters.
        key: One or more columns. A row's identity is (key, time).
        time_column: The column of the event time; a timestamptz.
        columns: Column → Iceberg type.
        audits: Checks of each staged snapshot.
        namespace: Of the table.
        quarantine_limit: A blocking check fails if a session adds more rows than this to the quarantine; below 1, a
            larger share of the rows that it reads. Default: 100 rows, or half of those read if that is more.
        code_version: Default: a hash of the function, of what it uses of its project, and of the sources with their
            rules, the mode, the audits and the limit. Comments and formatting do not matter. If it changes, commands
            and Dagster say which hours other code has built; nothing is rebuilt by itself.
        owners: Shown in Dagster.
        lineage: Target column → source columns (`raw.signups.event_ts`), where names differ. Equal names are found.
        max_delay: The freshness check fails if an hour or day ended longer ago than this and is not complete.
        grain: What one partition contains. A day is built as a whole: if any of its hours changed, and once all are
            complete. Chunks and the catch-up threshold are rounded up to days. A stateless target takes rows at once.
        timezone: With `grain="day"`, the IANA time zone whose calendar days the partitions are: `America/New_York`. Its
            days must begin at full hours of UTC. A day then has 23 to 25 hours.
        descriptions: Column → what is in it, for people. Shown in Dagster; columns may be left out.
        served: Whether the serving part pushes the target, so that readers can query it; or how it does: `Served(...)`,
            Apache Pinot's table configuration as a dict, or its file of JSON or YAML, relative to the function's.
        late: Which hours of a stateless target wait if late rows change them, and how long: `Defer(...)`.
        renamed_from: Column → its former name, under which the table may still have it: `lake migrate` renames it.

    Raises:
        ConfigurationError: Something in the declaration cannot work.
    """

    def declare(transform: Transform) -> Target:
        table = f"{namespace}.{transform.__name__}"
        check_arguments(table, mode=mode, sources=sources, key=key, columns=columns, audits=audits, owners=owners)
        keyed = tuple(sources)
        if isinstance(mode, Stateless) and isinstance(key, str):
            keyed = tuple(source if source.key is not None else replace(source, key=key) for source in sources)
        folder = Path(transform.__code__.co_filename).parent if inspect.isfunction(transform) else Path()
        target = Target(
            table=table,
            mode=mode,
            sources=keyed,
            key=(key,) if isinstance(key, str) else tuple(key),
            time_column=time_column,
            columns=dict(columns),
            transform=transform,
            audits=tuple(audits),
            quarantine_limit=quarantine_limit,
            code_version=code_version or _code_version(transform, keyed, audits, quarantine_limit, mode),
            code_version_before=code_version or _code_hash(transform, keyed, audits, quarantine_limit),
            grain=declared_grain(table, grain, timezone),
            description=inspect.getdoc(transform) or "",
            descriptions=dict(descriptions or {}),
            lineage=dict(lineage or {}),
            owners=tuple(owners),
            max_delay=max_delay,
            late=late,
            renamed_from=renamed_from or {},
            served=declared_served(table, served, folder),
        )
        check_target(target)
        return target

    return declare


def _code_version(
    transform: Transform,
    sources: Sequence[Source],
    audits: Sequence[Audit],
    quarantine_limit: float,
    mode: Mode,
) -> str:
    """Return a hash of everything that decides which rows are built and published; equal in every OS process."""
    declared_audits = [(audit.name, audit.description, audit.blocking) for audit in audits]
    declared_sources = [_as_hashed(source) for source in sources]
    return version_of(
        function_code(transform), declared_sources, declared_audits, quarantine_limit, type(mode).__name__
    )


def _code_hash(
    transform: Transform,
    sources: Sequence[Source],
    audits: Sequence[Audit],
    quarantine_limit: float,
) -> str:
    """Return the code version of a target as the version before computed it."""
    declared_audits = [(audit.name, audit.description, audit.blocking) for audit in audits]
    code = inspect.getsource(inspect.getmodule(transform) or transform)
    declared_sources = "[" + ", ".join(_as_hashed(source) for source in sources) + "]"
    hashed = f"({code!r}, {declared_sources}, {declared_audits!r}, {quarantine_limit!r})"
    return hashlib.sha256(hashed.encode()).hexdigest()[:DIGITS]


def _as_hashed(source: Source) -> str:
    """Return a source as text. What it does not use is left out, so its hash stays as it was before that existed."""
    names = ["table", "time_column", "key", "rules"]
    if source.has_versions:
        names += ["keep", "order_by", "deleted"]
    if source.landed_column is not None:
        names.append("landed_column")
    values = ", ".join(f"{name}={getattr(source, name)!r}" for name in names)
    return f"Source({values})"
