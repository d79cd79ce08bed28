"""Places in code of the user, as messages show them: `file:line`, relative to the current folder if it is in there.

Which columns of its sources the function of a target may read, as far as its code says it.

The answer may be yes for a column that is not read, and never no for one that is, unless its name is put together from
parts, or comes from a file.

Rows that the function of a target cannot compute: the error is named with the target, its hours and the line.

Spark computes rows when they are counted or written, long after the function has returned. What it reports then is the
place of the expression: in the text of a query, or in the Python code that made it. Imports no Spark.

Calling an audit: an error in it is named with the target and the audit.

Calling the function of a target: its mistakes are named with the target, the function, its file and its line.

Spark analyses what the function returns here, so that a column that does not exist is not found first when rows are
written, where nothing tells which function named it.
"""

from __future__ import annotations

import re
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from lake_assets.base.hours import format_hours
from lake_assets.connections.query_functions import nondeterministic_functions
from lake_assets.connections.row_order import REMEDY, order_dependent
from lake_assets.errors import AuditBroken, FunctionFailed, LakeError, RowsFailed
from lake_assets.errors.described import is_machines_fault
from lake_assets.errors.refusals import Refusal, explain, find_refusal
from lake_assets.errors.texts import ErrorText, first_line, text_of
from lake_assets.incremental.declaration import SessionContext, Target
from lake_assets.incremental.declaration.target import Audit, AuditScope, Offenders, Verdict

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

INSTALLED = ("site-packages", "dist-packages", "lib-dynload")
"""Folders of code that the user has not written."""

PACKAGE = Path(__file__).parents[2]
CALLERS = tuple(PACKAGE / name for name in ("base", "connections", "incremental"))
"""Code of the project that calls code of the user, or that it calls. The demo's pipelines are in the project, too."""

STANDARD_LIBRARY = Path(traceback.__file__).parent


def user_line(error: BaseException) -> str | None:
    """Return `file:line` of the innermost call in code of the user; None if there is none."""
    if isinstance(error, SyntaxError) and error.filename:
        return shown_place(f"{error.filename}:{error.lineno}")
    found = None
    for frame in traceback.extract_tb(error.__traceback__):
        if _is_users(Path(frame.filename)):
            found = f"{frame.filename}:{frame.lineno}"
    return shown_place(found)


def users_place(place: str | None) -> str | None:
    """Return `file:line` as messages show it; None if it is not in code of the user."""
    is_users = place is not None and _is_users(Path(place.rpartition(":")[0]))
    return shown_place(place) if is_users else None


def definition(function: Callable[..., Any]) -> str:
    """Return `file:line` where a function is defined; of a query, where it is written."""
    written_at: str | None = getattr(function, "defined_at", None)
    if written_at is not None:
        return written_at
    code = getattr(function, "__code__", None)
    if code is None:
        return "an unknown place"
    return shown_place(f"{code.co_filename}:{code.co_firstlineno}") or code.co_filename


def shown_place(place: str | None) -> str | None:
    """Return `file:line` with the file's path relative to the current folder, if it is in that folder."""
    if place is None:
        return None
    file, _, line = place.rpartition(":")
    path = Path(file)
    if path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    return f"{path}:{line}"


def _is_users(path: Path) -> bool:
    is_ours = any(path.is_relative_to(caller) for caller in CALLERS)
    is_installed = path.is_relative_to(STANDARD_LIBRARY) or not set(INSTALLED).isdisjoint(path.parts)
    return path.is_file() and not is_ours and not is_installed


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


@contextmanager
def naming_failed_rows(target: Target, hours: Collection[int]) -> Iterator[None]:
    """Name the target, the hours and the line if Spark fails to compute the target's rows within the block.

    Args:
        target: The target.
        hours: The hours that are built.

    Raises:
        RowsFailed: An expression of the target's function failed on a row.
    """
    try:
        yield
    except LakeError:
        raise
    except Exception as error:  # of Spark, or of whatever else the block calls
        refusal = find_refusal(error)
        place = None if refusal is None else _place_of(target, refusal)
        if refusal is None or place is None:
            raise
        found = explain(Refusal(refusal.condition, refusal.message, refusal.parameters))
        raise RowsFailed(target.table, place, format_hours(hours), found) from error


def _place_of(target: Target, refusal: Refusal) -> str | None:
    """Return `file:line` of the expression that failed; None if it is not in the function of the target."""
    place_in_query = getattr(target.transform, "place_in_query", None)
    if place_in_query is not None:
        place: str | None = place_in_query(refusal)
        return place
    return users_place(refusal.call_site)


def call_audit(audit: Audit, scope: AuditScope) -> Verdict | Offenders:
    """Return what an audit finds.

    Raises:
        AuditBroken: The audit raised an error that is none of the project.
    """
    try:
        return audit.run(scope)
    except LakeError:
        raise
    except Exception as error:  # of Spark, or of whatever an audit of the user calls
        _raise_broken(scope.target.table, audit, error)


def check_queries(audits: Sequence[Audit], offenders: Mapping[int, Offenders], table: str) -> None:
    """Find the audit whose query Spark refuses, after it refused one query of all audits.

    Args:
        audits: The audits of a target.
        offenders: Number of the audit → its offending rows.
        table: The target.

    Raises:
        AuditBroken: Spark refuses the query of an audit.
    """
    for number, found in offenders.items():
        try:
            found.rows.schema  # noqa: B018 - Spark analyses the query
        except Exception as error:
            _raise_broken(table, audits[number], error)


def _raise_broken(table: str, audit: Audit, error: Exception) -> NoReturn:
    if is_machines_fault(error):
        raise error
    refusal = find_refusal(error)
    if refusal is None:
        raised = f"{type(error).__name__}: {first_line(text_of(error))}"
        found = ErrorText(f"its function raised {raised}", "Correct the audit, then run the command again.")
    else:
        found = explain(refusal)
    raise AuditBroken(table, audit.name, found) from error


class NondeterministicFunction(UserWarning):
    """The function of a target calls a function whose value differs between two calls."""


class OrderDependentFunction(UserWarning):
    """The result of the function of a target depends on the order of rows."""


def call_function(target: Target, context: SessionContext, inputs: Sequence[DataFrame]) -> DataFrame:
    """Call the function of a target.

    Returns:
        Its rows, with the columns of the target in their order.

    Raises:
        FunctionFailed: The function raised an error, or it did not return a DataFrame with the target's columns.
    """
    try:
        rows = target.transform(context, *inputs)
        found = _wrong_result(target, rows)
    except LakeError:
        raise
    except Exception as error:  # of whatever the function calls
        if is_machines_fault(error):
            raise
        raise _failure(target, error) from error
    if found is not None:
        raise FunctionFailed(target.table, target.transform.__name__, definition(target.transform), found)
    _warn_of_nondeterministic(target, rows, inputs)
    _warn_of_order(target, rows, inputs)
    return rows.select(*target.columns)


def _wrong_result(target: Target, rows: object) -> ErrorText | None:
    """Return how the result of a function is no DataFrame with the target's columns; None if it is one."""
    from pyspark.sql import DataFrame

    if not isinstance(rows, DataFrame):
        remedy = "Add `return` before the DataFrame." if rows is None else "Return a DataFrame."
        return ErrorText(f"the function returns {_kind(rows)} and no DataFrame", remedy)
    return _wrong_columns(target, rows)


def _wrong_columns(target: Target, rows: DataFrame) -> ErrorText | None:
    returned = Counter(column.lower() for column in rows.columns)
    missing = [column for column in target.columns if column not in returned]
    if missing:
        return ErrorText(
            f"the DataFrame that it returns has no column {', '.join(map(repr, missing))}",
            f"Select it, or remove it from columns= of the target. The DataFrame has: {', '.join(rows.columns)}.",
        )
    repeated = [column for column in target.columns if returned[column] > 1]
    if repeated:
        return ErrorText(
            f"the DataFrame that it returns has more than one column {', '.join(map(repr, repeated))}",
            "Drop the others, or give them another name.",
        )
    return None


def _failure(target: Target, error: Exception) -> FunctionFailed:
    refusal = find_refusal(error)
    place = user_line(error) or definition(target.transform)
    if refusal is None:
        message = first_line(text_of(error))
        raised = f"{type(error).__name__}: {message}" if message else type(error).__name__
        found = ErrorText(f"the function raised {raised}", "Correct the function, then run the command again.")
    else:
        found = explain(refusal)
        place = shown_place(refusal.call_site) or place
    return FunctionFailed(target.table, target.transform.__name__, place, found)


def _warn_of_nondeterministic(target: Target, rows: DataFrame, inputs: Sequence[DataFrame]) -> None:
    functions = nondeterministic_functions(rows, inputs)
    if functions:
        called = ", ".join(f"{name}()" for name in functions)
        message = ErrorText(
            f"{target.table}: its function {target.transform.__name__}() at {definition(target.transform)} calls "
            f"{called}, whose value changes with every run.",
            "Compute the column from the rows of the source: otherwise a rebuilt hour never equals the published one.",
        )
        warnings.warn(str(message), NondeterministicFunction, stacklevel=2)


def _warn_of_order(target: Target, rows: DataFrame, inputs: Sequence[DataFrame]) -> None:
    keys = {*target.key, *(source.key for source in target.sources if source.key is not None)}
    for name in order_dependent(rows, inputs, keys):
        message = ErrorText(
            f"{target.table}: its function {target.transform.__name__}() at {definition(target.transform)} calls "
            f"{name}(), whose result depends on the order of rows, which Spark does not keep.",
            f"{REMEDY[name][:1].upper()}{REMEDY[name][1:]}.",
        )
        warnings.warn(str(message), OrderDependentFunction, stacklevel=2)


def _kind(value: object) -> str:
    return "None" if value is None else f"a value of class {type(value).__name__}"
