"""Calling the function of a target: its mistakes are named with the target, the function, its file and its line.

Spark analyses what the function returns here, so that a column that does not exist is not found first when rows are
written, where nothing tells which function named it.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence

from pyspark.sql import DataFrame

from lake_assets.connections.query_functions import nondeterministic_functions
from lake_assets.connections.row_order import REMEDY, order_dependent
from lake_assets.errors import FunctionFailed, LakeError
from lake_assets.errors.described import is_machines_fault
from lake_assets.errors.refusals import explain, find_refusal
from lake_assets.errors.texts import ErrorText, first_line, text_of
from lake_assets.incremental.declaration import SessionContext, Target
from lake_assets.incremental.user_code.places import definition, shown_place, user_line


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
