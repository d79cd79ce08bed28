"""What to do about an error of Spark, by Spark's name of it. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping

from lake_assets.errors.texts import ErrorText

SPARKS_OWN = "Spark refuses the query: {message}"
LEAVE_OUT = "or leave such rows out: a condition in the rules of the source quarantines them"

REMEDIES: Mapping[str, tuple[str, str]] = {
    "UNRESOLVED_ROUTINE": (
        "there is no function {routineName!r}",
        "Correct its name; Spark's SQL functions are listed at https://spark.apache.org/docs/latest/api/sql/.",
    ),
    "AMBIGUOUS_REFERENCE": ("the column {name!r} is in more than one table", "Write which one: {referenceNames}."),
    "MISSING_GROUP_BY": (
        "there is an aggregate beside other columns, and no GROUP BY",
        "Add GROUP BY ALL, or OVER (...) after the aggregate.",
    ),
    "MISSING_AGGREGATION": (
        "{expression} is neither aggregated nor in GROUP BY",
        "Add it to GROUP BY, or select {expressionAnyValue}.",
    ),
    "GROUP_BY_POS_OUT_OF_RANGE": (
        "GROUP BY {index} counts columns of the query, which has {size}",
        "Use a number up to {size}, or the names of columns.",
    ),
    "DATATYPE_MISMATCH.FILTER_NOT_BOOLEAN": (
        "the condition {filter} is {type} and not BOOLEAN",
        "Compare it with a value.",
    ),
    "DATATYPE_MISMATCH": (SPARKS_OWN, "Convert its values with CAST(... AS type)."),
    "NUM_COLUMNS_MISMATCH": (
        "the parts of {operator} have {firstNumColumns} and {invalidNumColumns} columns",
        "Select the same columns in each part, in the same order.",
    ),
    "WRONG_NUM_ARGS": (
        "the function {functionName!r} is called with {actualNum} arguments; possible: {expectedNum}",
        "Correct the call.",
    ),
    "UNSUPPORTED_DATATYPE": ("there is no type {typeName}", "Use a type of Spark SQL, such as bigint or string."),
    "TRAILING_COMMA_IN_SELECT": ("there is a comma after the last column", "Remove it."),
    "WINDOW_FUNCTION_WITHOUT_OVER_CLAUSE": ("{funcName} has no OVER clause", "Add OVER (... ORDER BY ...)."),
    "INVALID_WHERE_CONDITION": (
        "the condition {condition} has an aggregate or a window function",
        "Use HAVING for aggregates, and QUALIFY or a subquery for window functions.",
    ),
    "UNBOUND_SQL_PARAMETER": (
        "there is a parameter, such as :name or ?",
        "Write its value: a query has no parameters.",
    ),
    "PARSE_SYNTAX_ERROR": ("the syntax is wrong near {error}", "Correct it there, or in the words before it."),
    "CAST_INVALID_INPUT": (
        "the value {expression} is no {targetType}",
        f"Use try_cast, which makes NULL of it, {LEAVE_OUT}.",
    ),
    "CAST_OVERFLOW": (
        "the value {value} is outside the range of {targetType}",
        f"Use a larger type, or try_cast, which makes NULL of it, {LEAVE_OUT}.",
    ),
    "ARITHMETIC_OVERFLOW": (
        "a result is too large for its type",
        f"Cast to a larger type before, such as decimal(38, 0), {LEAVE_OUT}.",
    ),
    "DIVIDE_BY_ZERO": (
        "a row divides by zero",
        f"Use try_divide(a, b), which makes NULL of it, {LEAVE_OUT}.",
    ),
    "REMAINDER_BY_ZERO": ("a row divides by zero", f"Use try_mod(a, b), which makes NULL of it, {LEAVE_OUT}."),
    "INVALID_ARRAY_INDEX": (
        "the index {indexValue} is outside an array of {arraySize} elements",
        "Use get(array, index), which makes NULL of it.",
    ),
    "SCALAR_SUBQUERY_TOO_MANY_ROWS": (
        "a subquery in the place of a value has more than one row",
        "Aggregate it, or join it instead.",
    ),
    "USER_RAISED_EXCEPTION": ("raise_error() was called: {errorMessage}", "Correct the rows, or the condition."),
}
"""Spark's name of an error, or its beginning → problem and remedy. In braces: parameters of Spark's message, without
backticks, and the first sentence of the message. A name comes before its beginning."""


def known_text(condition: str, parameters: Mapping[str, str], message: str) -> ErrorText | None:
    """Return problem and remedy of an error of Spark; None if nothing better than its message is known.

    Args:
        condition: Spark's name of the error, such as `DATATYPE_MISMATCH.BINARY_OP_WRONG_TYPE`.
        parameters: The parameters of its message.
        message: The message, without the name and the SQL state.
    """
    for known, (problem, remedy) in REMEDIES.items():
        if condition == known or condition.startswith(f"{known}."):
            values = defaultdict(lambda: "a value", {name: _plain(value) for name, value in parameters.items()})
            values["message"] = first_sentence(message)
            return ErrorText(problem.format_map(values), remedy.format_map(values))
    return None


def first_sentence(message: str) -> str:
    """Return a message up to its first full stop. What Spark says after it is advice."""
    return re.split(r"\. (?=[A-Z])", message, maxsplit=1)[0]


def _plain(value: str) -> str:
    """Return a parameter without the quotation marks of its words, and without the brackets around a list."""
    return re.sub(r"[`\"]", "", value).removeprefix("[").removesuffix("]")
