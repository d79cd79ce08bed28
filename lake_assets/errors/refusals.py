"""What Spark refuses about a query: the parts of its error, and two lines from them. Imports no Spark."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lake_assets.errors.infrastructure import recognise
from lake_assets.errors.refusal_remedies import known_text
from lake_assets.errors.texts import ErrorText, chain, chain_text, first_line, text_of

UNRESOLVED_COLUMN = "UNRESOLVED_COLUMN"
NO_ATTRIBUTE = "ATTRIBUTE_NOT_SUPPORTED"
"""Spark's conditions for a column that does not exist, in an expression and as an attribute of a DataFrame."""

CORRECT = "Correct it, then run the command again."


@dataclass(frozen=True)
class Refusal:
    """An error of Spark.

    Attributes:
        condition: Spark's name of the error; None if it has none.
        message: Its message.
        parameters: The parameters of the message.
        call_site: `file:line` of the expression that Spark refuses; None if it does not know.
        sql: The line of the SQL text that Spark refuses, `line 1: text`; None if it was no SQL text.
    """

    condition: str | None
    message: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    call_site: str | None = None
    sql: str | None = None


def find_refusal(error: BaseException) -> Refusal | None:
    """Return the first error in a chain of causes with which Spark refuses a query.

    None if there is none, or if it is no answer to the query: Spark has ended, or is otherwise out of order.
    """
    if recognise(chain_text(error)) is not None:
        return None
    for found in chain(error):
        if hasattr(found, "getMessageParameters"):
            return _read(found)
    return None


def explain(refusal: Refusal) -> ErrorText:
    """Return the problem as a clause without its place, and the remedy."""
    condition = refusal.condition or ""
    place = f" in the SQL, {refusal.sql}" if refusal.sql else ""
    if condition.startswith(UNRESOLVED_COLUMN):
        column = _plain(refusal.parameters.get("objectName", ""))
        similar = _plain(refusal.parameters.get("proposal", ""))
        return ErrorText(f"the column {column!r} does not exist{place}", _remedy_of_column(similar))
    if condition == NO_ATTRIBUTE:
        column = refusal.parameters.get("attr_name", "")
        return ErrorText(f"the DataFrame has no column {column!r}", "Use a column that its source has.")
    python_error = _python_error(refusal.message)
    if python_error:
        return ErrorText(f"a Python function that it calls raised {python_error}", CORRECT)
    message = _cleaned(refusal.message)
    known = known_text(condition, refusal.parameters, message)
    if known is not None:
        return ErrorText(f"{known.problem}{place}", known.remedy)
    return ErrorText(f"Spark refuses the query{place}: {message}", CORRECT)


def _read(error: Any) -> Refusal:
    call_site = None
    sql = None
    contexts = error.getQueryContext() or []
    for context in contexts[:1]:
        if context.contextType().name == "SQL":
            sql = _sql_of(context.summary())
        else:
            call_site = _python_call_site(context.callSite())
    return Refusal(
        condition=error.getCondition(),
        message=text_of(error),
        parameters=error.getMessageParameters() or {},
        call_site=call_site,
        sql=sql,
    )


def _sql_of(summary: str) -> str | None:
    """Return `line 1: text` of a context's summary, which has the text in its second line.

    Spark has replaced each DataFrame in the text by the name of a view, so that positions in the line are not those
    that the user has written. It cuts long lines, also within such a name.
    """
    found = re.search(r"== SQL[^(]*\((line \d+), position \d+\)[^\n]*\n([^\n]*)", summary)
    if found is None:
        return None
    text = re.sub(r"^\.\.\.\w*|`?_pyspark_\w+`?", "…", found[2]).strip()
    return f"{found[1]}: {text}"


def _python_call_site(call_site: str) -> str | None:
    """Return a call site of Python; Spark also names places in its own Java code."""
    return call_site if re.search(r"\.py:\d+$", call_site) else None


def _remedy_of_column(similar: str) -> str:
    nearest, _, others = similar.partition(", ")
    if not nearest:
        return "Use a column that its source has."
    return f"Did you mean {nearest!r}?" + (f" There are also: {others}." if others else "")


def _python_error(message: str) -> str | None:
    """Return the last line of a Python traceback that a message contains."""
    if "Traceback (most recent call last)" not in message:
        return None
    raised = re.findall(r"^(?:\w+\.)*\w+(?:Error|Exception|Exit|Interrupt)\b.*$", message, re.MULTILINE)
    return first_line(raised[-1]) if raised else None


def _cleaned(message: str) -> str:
    """Return the first line of a message, without Spark's name of the error and its SQL state."""
    line = first_line(message)
    line = re.sub(r"^\[[A-Z0-9_.]+\] ", "", line)
    return re.sub(r"\.? SQLSTATE: \w+.*$", "", line)


def _plain(name: str) -> str:
    return name.replace("`", "")
