"""Which columns of its sources the function of a target may read, as far as its code says it.

The answer may be yes for a column that is not read, and never no for one that is, unless its name is put together from
parts, or comes from a file.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType, FunctionType, ModuleType
from typing import Any

from lake_assets.incremental.declaration import Target

_WORD = re.compile(r"\w+")

_OTHERS = ("lake_assets", "pyspark", "pyiceberg", "pandas", "pyarrow", "numpy", *sys.stdlib_module_names)
"""Packages whose code names no column of a user."""


def reads(target: Target, column: str) -> bool:
    """Return whether a target may read a column of this name, of any of its sources."""
    of_query = getattr(target.transform, "reads", None)
    if of_query is not None:
        return bool(of_query(column))
    if column in target.columns:
        return True
    names = _names(target.transform)
    return names is None or column.casefold() in names


@lru_cache(maxsize=1024)
def _names(function: Any) -> frozenset[str] | None:
    """Return all words that a function names, and those that it calls; None if nothing shows its code."""
    known: set[int] = set()
    found: set[str] = set()
    waiting = [function]
    while waiting:
        each = waiting.pop()
        if id(each) in known:
            continue
        known.add(id(each))
        if isinstance(each, FunctionType):
            waiting += _used_by(each)
            found.update(_words(each.__code__))
        elif not isinstance(each, type | ModuleType):
            found.update(_WORD.findall(repr(each).casefold()))
    return frozenset(found) if isinstance(function, FunctionType) else None


def _used_by(function: FunctionType) -> list[Any]:
    """Return the values that a function uses from around it; not those of other packages."""
    names = set(_global_names(function.__code__))
    used = [value for name, value in function.__globals__.items() if name in names]
    for module in [value for value in used if isinstance(value, ModuleType)]:
        used += [value for name, value in vars(module).items() if name in names]
    used += [cell.cell_contents for cell in function.__closure__ or ()]
    used += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    wrapped = getattr(function, "__wrapped__", None)
    return [value for value in [*used, wrapped] if value is not None and not _is_of_others(value)]


def _is_of_others(value: object) -> bool:
    module = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", "") or ""
    is_code = isinstance(value, FunctionType | ModuleType | type)
    return is_code and module.partition(".")[0] in _OTHERS


def _global_names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _global_names(constant)


def _words(code: CodeType) -> Iterator[str]:
    """Yield the words of names and texts in the code of a function, and of those within it."""
    for name in code.co_names:
        yield name.casefold()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _words(constant)
        else:
            yield from _WORD.findall(repr(constant).casefold())
