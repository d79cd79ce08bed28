"""What in a query may give another result on the same rows: the order of rows, and functions such as `rand()`.

Spark does not keep the order of rows: after a compaction, or with another number of partitions, they come in another
one, and `first()` returns another value. The texts of queries and the plans of DataFrames are read where the client has
them; the server is not asked. A Connect client has the plan as it was written, with SQL texts as texts. A session in
this process has the analysed plan as a text.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PICKS = ("any_value", "first", "first_value", "last", "last_value")
"""Functions that take the value of one row. A window with an order says which."""

LISTS = ("array_agg", "collect_list", "collect_set", "listagg", "string_agg")
"""Functions that list the values of rows."""

NUMBERS = ("row_number", "monotonically_increasing_id", "zipWithIndex")
"""Functions that number rows. Rows that are equal in the order of a window are numbered by chance."""

SORTS = ("array_sort", "sort_array")
"""Functions that bring a list into an order."""

SUMS = re.compile(r"\b(sum|avg|mean|std|stddev\w*|var\w*|variance|corr|covar\w*|regr_\w+|skewness|kurtosis)\s*\(", re.I)

REMEDY = {
    **dict.fromkeys(PICKS, "use min_by() or max_by() by a column that no two rows share"),
    **dict.fromkeys(LISTS, "sort the list: sort_array(collect_list(...)), or listagg(...) WITHIN GROUP (ORDER BY ...)"),
    **dict.fromkeys(NUMBERS, "end the ORDER BY of its window with the key, so that no two rows are equal in it"),
    "limit": "give it an ORDER BY that ends with the key",
    "dropDuplicates": "use max_by(), or a row_number() whose ORDER BY ends with the key",
}
"""Operation → what to do instead."""

_WITHOUT_CODE = re.compile(r"'(?:[^'\\]|\\.|'')*'|--[^\n]*|/\*.*?\*/", re.DOTALL)
_CALL = re.compile(
    rf"\b({'|'.join((*PICKS, *LISTS, 'row_number', 'monotonically_increasing_id'))})\s*\(", re.IGNORECASE
)
_SORTED = re.compile(rf"\b({'|'.join(SORTS)})\s*\(\s*$", re.IGNORECASE)
_AFTER = re.compile(
    r"\s*(?:(?:ignore|respect)\s+nulls\s*)?(?:filter\s*\([^()]*\)\s*)?"
    r"(?P<kind>over|within\s+group|windowspecdefinition)\s*\(",
    re.IGNORECASE,
)
_LIMIT = re.compile(r"\blimit\s+\d+", re.IGNORECASE)
_ORDER = re.compile(r"\border\s+by\b(?P<columns>.*)", re.IGNORECASE | re.DOTALL)


def order_dependent_in_sql(text: str, keys: Collection[str]) -> set[str]:
    """Return the operations of an SQL text that depend on the order of rows. Strings and comments are left out.

    Args:
        keys: The columns that tell rows apart: a window that is ordered by one of them leaves nothing to chance.
    """
    code = _WITHOUT_CODE.sub(" ", text)
    found = set()
    for call in _CALL.finditer(code):
        name = call[1].lower()
        if name in LISTS and _SORTED.search(code[: call.start()]):
            continue
        if not _is_ordered(name, code[_end(code, call.end()) :], keys):
            found.add(name)
    if _LIMIT.search(code) and not _ORDER.search(code):
        found.add("limit")
    return found


def order_dependent(rows: DataFrame, inputs: Sequence[DataFrame], keys: Collection[str]) -> tuple[str, ...]:
    """Return the operations between some DataFrames and one made of them, in alphabetical order. See `REMEDY`.

    A session in this process has the analysed plan as a text only: what the inputs do themselves is left out by name.
    """
    classic = getattr(rows, "_jdf", None)
    if classic is not None:
        known: set[str] = set()
        for each in inputs:
            known |= order_dependent_in_sql(_analysed(each), keys)
        return tuple(sorted(order_dependent_in_sql(_analysed(rows), keys) - known))
    connected: Any = rows
    plan = connected._plan.to_proto(connected.sparkSession.client)
    read: Sequence[Any] = inputs
    roots = {each._plan._plan_id for each in read}
    return tuple(sorted(set(_in_message(plan, roots, keys))))


def sums_of_floats(text: str) -> bool:
    """Whether an SQL text calls a function that adds numbers."""
    return SUMS.search(_WITHOUT_CODE.sub(" ", text)) is not None


def _analysed(rows: Any) -> str:
    text: str = rows._jdf.queryExecution().analyzed().toString()
    return text.replace("GlobalLimit ", "limit ")


def _end(code: str, start: int) -> int:
    """Return the place after the parenthesis that closes the one before `start`."""
    depth = 1
    for place in range(start, len(code)):
        depth += {"(": 1, ")": -1}.get(code[place], 0)
        if depth == 0:
            return place + 1
    return len(code)


def _is_ordered(name: str, rest: str, keys: Collection[str]) -> bool:
    """Whether what follows a call gives it an order."""
    after = _AFTER.match(rest)
    if after is None:
        return False
    window = rest[after.end() : _end(rest, after.end()) - 1]
    if after["kind"].lower() == "windowspecdefinition":
        is_ordered, columns = re.search(r"\b(ASC|DESC) NULLS", window) is not None, window
    else:
        order = _ORDER.search(window)
        is_ordered, columns = order is not None, order["columns"] if order else ""
    if name in NUMBERS:
        return any(re.search(rf"\b{re.escape(key)}\b", columns, re.IGNORECASE) for key in keys)
    return is_ordered


def _in_message(message: Any, roots: Collection[int], keys: Collection[str], parent: str = "") -> Iterator[str]:
    """Yield the operations in a plan of Spark Connect, but not those below the plans with the ids of `roots`."""
    kind = type(message).__name__
    if kind == "Relation" and message.common.plan_id in roots:
        return
    if kind == "Window":
        yield from _in_window(message, roots, keys)
        return
    yield from _here(message, kind, keys, parent)
    if kind == "UnresolvedFunction":
        parent = message.function_name
    for part in _parts(message):
        yield from _in_message(part, roots, keys, parent)


def _here(message: Any, kind: str, keys: Collection[str], parent: str) -> Iterable[str]:
    """Return the operation that a message is itself, or those in its SQL text; none if it is another one."""
    if kind == "UnresolvedFunction":
        name = message.function_name
        is_list = name in LISTS and parent not in SORTS
        return [name] if is_list or name in PICKS or name in NUMBERS else []
    if kind in ("ExpressionString", "SQL"):
        return order_dependent_in_sql(message.query if kind == "SQL" else message.expression, keys)
    if kind == "Limit" and message.input.WhichOneof("rel_type") != "sort":
        return ["limit"]
    return ["dropDuplicates"] if kind == "Deduplicate" and message.column_names else []


def _in_window(window: Any, roots: Collection[int], keys: Collection[str]) -> Iterator[str]:
    called = window.window_function.unresolved_function
    columns = " ".join(str(order) for order in window.order_spec)
    is_exact = any(re.search(rf"\b{re.escape(key)}\b", columns) for key in keys)
    is_ordered = is_exact if called.function_name in NUMBERS else bool(window.order_spec)
    if called.function_name and not is_ordered:
        yield from _in_message(called, roots, keys)
    for part in (*called.arguments, *window.partition_spec, *window.order_spec):
        yield from _in_message(part, roots, keys)


def _parts(message: Any) -> Iterable[Any]:
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if hasattr(value, "ListFields"):
            yield value
        else:
            items = value.values() if hasattr(value, "values") else value
            yield from (item for item in items if hasattr(item, "ListFields"))


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

_NONDETERMINISTIC_CALL = re.compile(rf"\b({'|'.join(NONDETERMINISTIC)})\s*\(", re.IGNORECASE)
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
    called = {name.lower() for name in _NONDETERMINISTIC_CALL.findall(code)}
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
