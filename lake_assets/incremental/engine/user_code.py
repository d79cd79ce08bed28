"""Code of the user: calling the function of a target or an audit, and naming the mistakes in it.

Spark analyses what a function returns here, so that a column that does not exist is not found first when rows are
written, where nothing tells which function named it. Rows are computed long after the function has returned. What Spark
reports then is the place of the expression: in the text of a query, or in the Python code that made it. Imports no
Spark.
"""

from __future__ import annotations

import inspect
import re
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any

from lake_assets.base.described import Refusal, explain, find_refusal, is_machines_fault
from lake_assets.base.hours import format_hours
from lake_assets.connections.query_plans import REMEDY, nondeterministic_functions, order_dependent
from lake_assets.errors import (
    ErrorText,
    LakeError,
    audit_broken,
    first_line,
    function_failed,
    rows_failed,
    text_of,
)
from lake_assets.incremental.declaration import SessionContext, Target
from lake_assets.incremental.declaration.decorator import function_code
from lake_assets.incremental.declaration.model import Audit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class NondeterministicFunction(UserWarning):
    """The function of a target calls a function whose value differs between two calls."""


class OrderDependentFunction(UserWarning):
    """The result of the function of a target depends on the order of rows."""


def call_function(target: Target, context: SessionContext, inputs: Sequence[DataFrame]) -> DataFrame:
    """Call the function of a target.

    Returns:
        Its rows, with the columns of the target in their order.

    Raises:
        LakeError: The function raised an error, or it did not return a DataFrame with the target's columns.
    """
    name, place = target.transform.__name__, definition(target.transform)
    try:
        rows = target.transform(context, *inputs)
        found = _wrong_result(target, rows)
    except Exception as error:  # of whatever the function calls
        if isinstance(error, LakeError) or is_machines_fault(error):
            raise
        refusal = find_refusal(error)
        line = (shown_place(refusal.call_site) if refusal else None) or user_line(error) or place
        raise function_failed(target.table, name, line, _explained(error, "the function")) from error
    if found is not None:
        raise function_failed(target.table, name, place, found)
    calls = f"{target.table}: its function {name}() at {place} calls"
    functions = nondeterministic_functions(rows, inputs)
    if functions:
        called = ", ".join(f"{function}()" for function in functions)
        message = ErrorText(
            f"{calls} {called}, whose value changes with every run.",
            "Compute the column from the rows of the source: otherwise a rebuilt hour never equals the published one.",
        )
        warnings.warn(str(message), NondeterministicFunction, stacklevel=2)
    keys = {*target.key, *(source.key for source in target.sources if source.key is not None)}
    for function in order_dependent(rows, inputs, keys):
        message = ErrorText(
            f"{calls} {function}(), whose result depends on the order of rows, which Spark does not keep.",
            f"{REMEDY[function][:1].upper()}{REMEDY[function][1:]}.",
        )
        warnings.warn(str(message), OrderDependentFunction, stacklevel=2)
    return rows.select(*target.columns)


def _wrong_result(target: Target, rows: object) -> ErrorText | None:
    """Return how the result of a function is no DataFrame with the target's columns; None if it is one."""
    from pyspark.sql import DataFrame

    if rows is None:
        return ErrorText("the function returns None and no DataFrame", "Add `return` before the DataFrame.")
    if not isinstance(rows, DataFrame):
        kind = type(rows).__name__
        return ErrorText(f"the function returns a value of class {kind} and no DataFrame", "Return a DataFrame.")
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


@contextmanager
def naming_audit(audit: Audit, table: str) -> Iterator[None]:
    """Name the target and the audit if the block fails: it calls the audit, or has Spark analyse its query.

    Raises:
        LakeError: The block raised an error that is none of the project.
    """
    try:
        yield
    except Exception as error:  # of Spark, or of whatever an audit of the user calls
        if isinstance(error, LakeError) or is_machines_fault(error):
            raise
        raise audit_broken(table, audit.name, _explained(error, "its function", "the audit")) from error


@contextmanager
def naming_failed_rows(target: Target, hours: Collection[int]) -> Iterator[None]:
    """Name the target, the hours and the line if Spark fails to compute the target's rows within the block.

    Args:
        target: The target.
        hours: The hours that are built.

    Raises:
        LakeError: An expression of the target's function failed on a row.
    """
    try:
        yield
    except LakeError:
        raise
    except Exception as error:  # of Spark, or of whatever else the block calls
        refusal = find_refusal(error)
        if refusal is None:
            raise
        place_in_query = getattr(target.transform, "place_in_query", None)
        if place_in_query is not None:
            place = place_in_query(refusal)
        else:
            site = refusal.call_site
            place = shown_place(site) if site is not None and _is_users(Path(site.rpartition(":")[0])) else None
        if place is None:
            raise
        found = explain(Refusal(refusal.condition, refusal.message, refusal.parameters))
        raise rows_failed(target.table, place, format_hours(hours), found) from error


def _explained(error: Exception, who: str, what: str | None = None) -> ErrorText:
    """Return an error of code of the user as a clause and a remedy."""
    refusal = find_refusal(error)
    if refusal is not None:
        return explain(refusal)
    message, kind = first_line(text_of(error)), type(error).__name__
    raised = f"{kind}: {message}" if message else kind
    return ErrorText(f"{who} raised {raised}", f"Correct {what or who}, then run the command again.")


# Places in code of the user: `file:line`

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


# Which columns a function may read

_WORD = re.compile(r"\w+")


def reads(target: Target, column: str) -> bool:
    """Return whether a target may read a column of this name, of any of its sources, as far as its code says it.

    The answer may be yes for a column that is not read, and never no for one that is, unless its name is put together
    from parts, or comes from a file or another project.
    """
    of_query = getattr(target.transform, "reads", None)
    if of_query is not None:
        return bool(of_query(column))
    if column in target.columns:
        return True
    names = _names(target.transform)
    return names is None or column.casefold() in names


@lru_cache(maxsize=1024)
def _names(function: Any) -> frozenset[str] | None:
    """Return the words of a function's code, and of what it uses of its project; None if nothing shows the code."""
    try:
        inspect.getsource(function)
    except (OSError, TypeError):  # typed into an interpreter, or no function of Python
        return None
    closure = [cell.cell_contents for cell in function.__closure__ or ()]
    values = [*closure, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    texts = [*function_code(function), *map(repr, values)]
    for used in (each for each in values if isinstance(each, FunctionType)):
        texts += function_code(used)
    return frozenset(word for text in texts for word in _WORD.findall(text.casefold()))
