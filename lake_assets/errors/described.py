"""Two lines for any error: of the project, of the machine, of Spark, or of anything else.

At the end: what Spark refuses about a query, from the parts of its error. Imports no Spark.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lake_assets.errors.base import LakeError, ServiceError
from lake_assets.errors.infrastructure import recognise
from lake_assets.errors.texts import ErrorText, chain, chain_text, first_line, text_of

READ_LOG = "Read the log of the error. If it is none of your own code, report it with the log."

LOG_NAMES_IT = "The log of the error names the file or the table."

KINDS: Mapping[str, tuple[str, str]] = {
    "pyiceberg.exceptions.NoSuchTableError": (
        "The catalog has no such table: {message}.",
        "Run `lake init`, which creates what is declared, or correct the name.",
    ),
    "pyiceberg.exceptions.NoSuchNamespaceError": (
        "The catalog has no such namespace: {message}.",
        "Run `lake init`, which creates what is declared, or correct the name.",
    ),
    "pyiceberg.exceptions.CommitFailedException": (
        "Another process changed the table at the same time: {message}.",
        "Run the command again: it continues with the table as it is now.",
    ),
    "pyiceberg.exceptions.CommitStateUnknownException": (
        "The catalog has not said whether it took the commit: {message}.",
        "Run the command again: it looks first at what was committed.",
    ),
    "pyiceberg.exceptions.ValidationError": (
        "The table has contents that pyiceberg cannot read or write: {message}.",
        f"{LOG_NAMES_IT} Look at it with `lake doctor`.",
    ),
    "pyiceberg.exceptions.RESTError": ("The catalog answers with an error: {message}.", "Look at the catalog's log."),
    "sqlalchemy.exc.DBAPIError": (
        "The database refuses a statement: {message}.",
        "Check the user's rights, the free space and the log of the database in the address of the catalog.",
    ),
    "sqlalchemy.exc.SQLAlchemyError": (
        "The database cannot be used: {message}.",
        "Correct the address of the catalog (LAKE_CATALOG_URI) or of the manifest.",
    ),
    "sqlite3.Error": (
        "A file of SQLite cannot be read or written: {message}.",
        "Run `lake doctor`, which says more if it is the catalog; restore it from a backup if it is damaged.",
    ),
    "requests.exceptions.RequestException": (
        "A server cannot be reached, or answers wrongly: {message}.",
        "Correct its address (of a catalog: LAKE_CATALOG_URI), or look at its log.",
    ),
    "httpx.HTTPError": (
        "A server cannot be reached, or answers wrongly: {message}.",
        "Correct its address, or look at its log.",
    ),
    "_duckdb.Error": ("DuckDB cannot read the rows: {message}.", f"{LOG_NAMES_IT} Correct it, or leave it out."),
    "pyarrow.lib.ArrowException": (
        "Values cannot be read or converted: {message}.",
        f"{LOG_NAMES_IT} Correct the values, or the type that is declared for them.",
    ),
    "grpc.RpcError": (
        "The connection to Spark failed: {message}.",
        "`lake status` shows whether it runs. When it does, run the command again.",
    ),
    "kazoo.exceptions.KazooException": (
        "ZooKeeper answers with an error: {kind}: {message}.",
        "`lake status` shows whether it runs; nodes that are lost are in a backup of the data directory.",
    ),
    "cimpl.KafkaException": ("Kafka answers with an error: {message}.", "Correct what it names, or LAKE_KAFKA__…."),
    "_internal.DeltaError": (
        "A Delta table cannot be read or written: {message}.",
        f"{LOG_NAMES_IT} `lake doctor` shows whether the lake is whole.",
    ),
    "yaml.error.YAMLError": ("A YAML file cannot be read: {message}.", "Correct the file that the log names."),
    "json.decoder.JSONDecodeError": (
        "A file or an answer is no JSON: {message}.",
        f"{LOG_NAMES_IT} Restore it from a backup if it is damaged.",
    ),
    "builtins.OverflowError": (
        "A number or a time is out of the range of its type: {message}.",
        f"{LOG_NAMES_IT} Correct the value, or leave its row out with a rule of the source.",
    ),
    "builtins.UnicodeDecodeError": (
        "A file is no UTF-8 text: {message}.",
        "Save it as UTF-8, such as by iconv -f LATIN1 -t UTF-8. The log of the error names the file.",
    ),
    "builtins.FileNotFoundError": ("There is no file {file}.", "Restore or create it, or correct its path."),
    "builtins.NotADirectoryError": ("{file} is no folder.", "Correct the path, or move the file that is there."),
    "builtins.IsADirectoryError": ("{file} is a folder and no file.", "Correct the path."),
    "builtins.FileExistsError": ("{file} exists already.", "Move it, or name another one."),
    "builtins.ConnectionError": (
        "A service ended the connection or does not listen: {message}.",
        "`lake status` shows which services run, and `lake up` starts them. Then run the command again.",
    ),
    "builtins.TimeoutError": (
        "A service did not answer in time: {message}.",
        "`lake status` shows which services run. When all do, run the command again.",
    ),
    "builtins.MemoryError": (
        "The command needs more memory than there is.",
        "End other programs, or run it on a machine with more memory.",
    ),
    "socket.gaierror": ("A host is not known: {message}.", "Correct the host in the addresses, or the name service."),
    "builtins.OSError": ("The operating system refuses an operation: {message}.", "Correct what it names."),
}
"""Class of an error, or one that it is derived from → problem and remedy: faults of data and of what the code uses.

In braces: the first line of its message, its class, and the file that it names."""


def describe(error: BaseException) -> ErrorText:
    """Return problem and remedy of an error."""
    if isinstance(error, LakeError):
        return ErrorText(error.problem, error.remedy)
    known = recognise(chain_text(error))
    if known is not None:
        return known
    refusal = find_refusal(error)
    if refusal is not None:
        found = explain(refusal)
        place = f" at {refusal.call_site}" if refusal.call_site else ""
        return ErrorText(f"{found.problem[:1].upper()}{found.problem[1:]}{place}.", found.remedy)
    message = first_line(text_of(error))
    kind = type(error).__name__
    for derived_from in type(error).__mro__:
        text = KINDS.get(f"{derived_from.__module__}.{derived_from.__qualname__}")
        if text is not None:
            values = {"message": message or kind, "kind": kind, "file": getattr(error, "filename", None) or message}
            return ErrorText(text[0].format_map(values), text[1])
    return ErrorText(f"{kind}: {message}." if message else f"{kind}.", READ_LOG)


def is_machines_fault(error: BaseException) -> bool:
    """Return whether an error is a fault of the machine or a service, which every other target meets, too."""
    if isinstance(error, LakeError):
        return isinstance(error, ServiceError)
    return recognise(chain_text(error)) is not None


def has_details(error: BaseException) -> bool:
    """Return whether the traceback of an error says more than its two lines."""
    return not isinstance(error, LakeError) or error.__cause__ is not None


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
            values = defaultdict(lambda: "a value", {name: _unquoted(value) for name, value in parameters.items()})
            values["message"] = first_sentence(message)
            return ErrorText(problem.format_map(values), remedy.format_map(values))
    return None


def first_sentence(message: str) -> str:
    """Return a message up to its first full stop. What Spark says after it is advice."""
    return re.split(r"\. (?=[A-Z])", message, maxsplit=1)[0]


def _unquoted(value: str) -> str:
    """Return a parameter without the quotation marks of its words, and without the brackets around a list."""
    return re.sub(r"[`\"]", "", value).removeprefix("[").removesuffix("]")
