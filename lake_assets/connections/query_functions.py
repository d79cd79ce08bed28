"""Functions in the plan of a DataFrame whose value differs between two calls, such as `rand()`.

The plan is read where the client has it; the server is not asked. A Connect client has the plan as it was written, with
SQL texts as texts. A session in this process has the analysed plan as a text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NONDETERMINISTIC = (
    "current_date",
    "current_timestamp",
    "localtimestamp",
    "monotonically_increasing_id",
    "now",
    "rand",
    "randn",
    "random",
    "randstr",
    "shuffle",
    "uniform",
    "unix_timestamp",
    "uuid",
)
"""Spark's functions; `unix_timestamp` only without arguments."""

_CALL = re.compile(rf"\b({'|'.join(NONDETERMINISTIC)})\s*\(", re.IGNORECASE)
_CALL_WITHOUT_ARGUMENTS = re.compile(r"\bunix_timestamp\s*\(\s*(?!\s*\))", re.IGNORECASE)
_BARE = re.compile(r"\b(current_date|current_timestamp|localtimestamp)\b(?!\s*\()", re.IGNORECASE)
_SQL_STRING = re.compile(r"'(?:[^'\\]|\\.|'')*'|`[^`]*`|--[^\n]*")


def nondeterministic_functions(rows: DataFrame, inputs: Sequence[DataFrame]) -> tuple[str, ...]:
    """Return the names of such functions that a DataFrame calls and its inputs do not, in alphabetical order."""
    known: set[str] = set()
    for each in inputs:
        known |= _functions_of(each)
    return tuple(sorted(_functions_of(rows) - known))


def functions_in_sql(text: str) -> set[str]:
    """Return the names of such functions that an SQL text calls, in lower case. Strings and comments are left out."""
    code = _SQL_STRING.sub(" ", text)
    code = _CALL_WITHOUT_ARGUMENTS.sub(" ", code)
    called = {name.lower() for name in _CALL.findall(code)}
    return called.union(name.lower() for name in _BARE.findall(code))


def functions_in_message(message: Any) -> set[str]:
    """Return the names of such functions in a plan of Spark Connect: a message, whose parts are messages, too."""
    name = type(message).__name__
    if name == "UnresolvedFunction":
        has_fixed_value = message.function_name.lower() == "unix_timestamp" and message.arguments
        called = {message.function_name.lower()}.intersection(NONDETERMINISTIC) if not has_fixed_value else set()
        return called | _functions_in_parts(message)
    if name == "ExpressionString":
        return functions_in_sql(message.expression)
    if name == "SQL":
        return functions_in_sql(message.query) | _functions_in_parts(message)
    return _functions_in_parts(message)


def _functions_in_parts(message: Any) -> set[str]:
    found: set[str] = set()
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        for part in _messages(value):
            found |= functions_in_message(part)
    return found


def _messages(value: Any) -> Iterable[Any]:
    if hasattr(value, "ListFields"):
        return (value,)
    items = value.values() if hasattr(value, "values") else value
    return [item for item in items if hasattr(item, "ListFields")]


def _functions_of(rows: DataFrame) -> set[str]:
    classic = getattr(rows, "_jdf", None)
    if classic is not None:
        return functions_in_sql(classic.queryExecution().analyzed().toString())
    connected: Any = rows
    plan = connected._plan.to_proto(connected.sparkSession.client)
    return functions_in_message(plan)
