"""Two lines for any error: of the project, of the machine, of Spark, or of anything else.

At the end: what Spark refuses about a query, from the parts of its error. Imports no Spark.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from lake_assets.errors import ErrorText, LakeError, ServiceError, chain, chain_text, first_line, text_of

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
            quoted = re.search(r"'([^']+)'", message)  # as Arrow names the file that it cannot open
            file = getattr(error, "filename", None) or (quoted[1] if quoted else message)
            values = {"message": message or kind, "kind": kind, "file": file}
            return ErrorText(text[0].format_map(values), text[1])
    return ErrorText(f"{kind}: {message}." if message else f"{kind}.", READ_LOG)


def is_machines_fault(error: BaseException) -> bool:
    """Return whether an error is a fault of the machine or a service, which every other target meets, too."""
    if isinstance(error, LakeError):
        return isinstance(error, ServiceError)
    return recognise(chain_text(error)) is not None


def failure_of(table: str, error: Exception) -> ErrorText:
    """Return problem and remedy of an error that concerns one table of several. The problem names the table."""
    text = describe(error)
    if table in text.problem or is_machines_fault(error):
        return text
    return ErrorText(f"{table}: {text.problem}", text.remedy)


@contextmanager
def kept_failure(failures: list[ErrorText], table: str, *, alone: bool = False) -> Iterator[None]:
    """Add the failure of a table to a list, so that the other tables go on.

    Args:
        alone: Whether there is no other: its failure is raised. So is a fault of the machine, which all would meet.
    """
    try:
        yield
    except Exception as error:  # also of the user's code
        if alone or is_machines_fault(error):
            raise
        failures.append(failure_of(table, error))


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


Fault = tuple[str, str, str]
"""Pattern in the texts of an error and its causes → problem and remedy. In braces: what the pattern's groups found."""

AGAIN = "run the command again: it continues what was interrupted."
START = "Start it with `lake up`, or correct"

SPARK: tuple[Fault, ...] = (
    (
        r"java\.lang\.OutOfMemoryError|Java heap space|GC overhead limit exceeded",
        "Spark has too little memory.",
        "Set LAKE_SPARK_MEMORY to more, such as 4g, and restart Spark (`lake down`, then `lake up`). Then " + AGAIN,
    ),
    (
        r"INVALID_HANDLE\.(?P<what>SESSION_\w+)|INVALID_HANDLE\.(?P<operation>OPERATION_\w+)"
        r"|\[(?P<none>NO_ACTIVE_SESSION)\]",
        "Spark has ended the session of this command ({what}): it was restarted, or the session was idle for long.",
        "If Spark was restarted because it had too little memory, set LAKE_SPARK_MEMORY to more. Then " + AGAIN,
    ),
    (
        r"StatusCode\.UNAUTHENTICATED|StatusCode\.PERMISSION_DENIED",
        "Spark refuses the token of LAKE_SPARK_REMOTE.",
        "Correct the token in the address, sc://host:port/;token=…; the server's administrator has it.",
    ),
    (
        r"StatusCode\.UNIMPLEMENTED|Trying to connect an http1\.x server",
        "The server of LAKE_SPARK_REMOTE is no Spark Connect server.",
        "Correct the host and the port; Spark Connect listens at 15002 unless it is configured otherwise.",
    ),
    (
        r"StatusCode\.UNAVAILABLE|RetriesExceeded|StatusCode\.CANCELLED|Cannot invoke RPC on closed channel",
        "The connection to Spark was lost: Spark ended, or it cannot be reached any more.",
        "`lake status` shows whether it runs, and logs/spark.log in the data directory why it ended; with too little "
        "memory, set LAKE_SPARK_MEMORY to more. Then " + AGAIN,
    ),
    (
        r"py4j\.protocol\.Py4J(?:Network)?Error\b|Answer from Java side is empty|Error while sending or receiving"
        r"|An error occurred while calling \w+\.\w+\.?(?!\n:)(?:\n|\Z)"
        r"|SparkContext was shut ?down|stopped SparkContext",
        "The Java process of Spark ended, or cannot be reached any more.",
        "Read logs/spark-in-process.log in the data directory. If it had too little memory, set LAKE_SPARK_MEMORY to "
        "more. Then " + AGAIN,
    ),
    (
        r"of RPC that terminated with:\s+status = StatusCode\.(?P<what>\w+)\s+details = \"(?P<why>[^\"\n]*)",
        "Spark failed to answer a request ({what}: {why}).",
        "Read logs/spark.log in the data directory; with too little memory, set LAKE_SPARK_MEMORY to more and restart "
        "Spark (`lake down`, then `lake up`). Then " + AGAIN,
    ),
    (
        r"CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND|ExecutorLostFailure|FetchFailedException",
        "Spark lost an executor, with rows that it held.",
        "If executors end for too little memory, give them more by LAKE_SPARK_PROPERTIES. Then " + AGAIN,
    ),
)

DATABASES: tuple[Fault, ...] = (
    (
        r"could not (?:extend|write to) file [^\n]*No space left on device|psycopg2\.errors\.DiskFull[^\n]*",
        "The disk of the PostgreSQL server is full.",
        "Free some space there. Then " + AGAIN,
    ),
    (
        r"database (?P<what>\"[^\"\n]+\") does not exist",
        "PostgreSQL has no database {what}.",
        "Create it, or correct its name in the address of the catalog (LAKE_CATALOG_URI) or of the manifest.",
    ),
    (
        r"FATAL:\s+(?P<what>(?:role \"|no pg_hba\.conf entry|[^\n]*authentication failed)[^\n]*)",
        "PostgreSQL refuses the login: {what}.",
        "Correct the user and the password in the address of the catalog (LAKE_CATALOG_URI) or of the manifest.",
    ),
    (
        r"InsufficientPrivilege\) (?P<what>[^\n]+)|PSQLException: ERROR: (?P<java>permission denied[^\n]+)",
        "PostgreSQL refuses access: {what}.",
        "Grant the user of the address the rights to read and write the tables of its database.",
    ),
    (
        r"cannot execute (?P<what>[A-Z ]+) in a read-only transaction",
        "PostgreSQL takes no changes: it is read-only and refuses {what}.",
        "Name the primary server in the address, or end its read-only mode. Then " + AGAIN,
    ),
    (
        r"LockNotAvailable|canceling statement due to (?P<what>lock timeout|statement timeout)|deadlock detected",
        "PostgreSQL gave up a statement that waited for another one.",
        "If it happens again, look for a long transaction in pg_stat_activity. Then " + AGAIN,
    ),
    (
        r"received invalid response to (?P<what>[^\n]+)|expected authentication request from server[^\n]*",
        "The server in the address of the database is no PostgreSQL server.",
        "Correct the host and the port in LAKE_CATALOG_URI, or in the address of the manifest.",
    ),
    (
        r"FATAL:\s+(?P<what>(?:sorry, )?too many (?:clients|connections)[^\n]*|remaining connection slots[^\n]*)",
        "PostgreSQL has no connection left: {what}.",
        "End programs that keep connections open, or raise the limit: max_connections of the server, or the CONNECTION "
        "LIMIT of the role or the database. Then " + AGAIN,
    ),
    (
        r"server closed the connection unexpectedly|terminating connection due to (?P<what>[^\n]+)"
        r"|the database system is (?P<state>starting up|shutting down|in recovery mode)|SSL SYSCALL error"
        r"|PSQLException: (?:An I/O error occurred while sending|This connection has been closed)",
        "PostgreSQL ended the connection.",
        "It was stopped or restarted. When it runs again, " + AGAIN,
    ),
    (
        r"(?:connection to server [^\n]* failed: |PSQLException: )FATAL:\s+(?P<what>[^\n]+)",
        "PostgreSQL refuses the connection: {what}.",
        "Correct what it names; the log of the server says more. Then " + AGAIN,
    ),
    (
        r"connection to server (?:at|on socket) (?P<what>\"[^\n]*?) failed: (?P<why>[^\n]+)"
        r"|PSQLException: (?P<java>Connection to \S+ refused)",
        "PostgreSQL cannot be reached at {what}: {why}.",
        "Start it, or correct the host and the port in LAKE_CATALOG_URI, or in the address of the manifest.",
    ),
    (
        r"database is locked|SQLITE_BUSY",
        "Another process has kept the SQLite file of the catalog or of the manifest locked for a minute.",
        "Wait until that command ends, or end the process that hangs; then " + AGAIN,
    ),
    (
        r"(?P<what>file is not a database|database disk image is malformed)|SQLITE_(?P<java>CORRUPT|NOTADB)",
        "The SQLite file of the catalog or of the manifest is damaged: {what}.",
        "Run `lake doctor`, which names it; restore it from a backup with `lake restore`.",
    ),
    (
        r"unable to open database file|SQLITE_CANTOPEN",
        "The SQLite file of the catalog or of the manifest cannot be opened.",
        "Check that the path in its address is a file that you may read and write.",
    ),
)

_HTTP = (
    r"requests\.exceptions\.HTTPError: (?P<what>{status}) \w+ Error: (?P<why>[^\n]*?) for url: "
    r"(?P<url>\w+://[^/\s]+){path}"
)

REST_CATALOG: tuple[Fault, ...] = (
    (
        _HTTP.format(status="401|403|419", path=""),
        "The catalog {url} refuses access: {what} {why}.",
        "Correct its login: LAKE_CATALOG__TOKEN or LAKE_CATALOG__CREDENTIAL; or ask for the right to use it.",
    ),
    (
        _HTTP.format(status="400|404|405|410|501", path=r"/\S*v1/config"),
        "The server {url} is no Iceberg REST catalog: it answers {what} {why}.",
        "Correct LAKE_CATALOG_URI: the address is that to which /v1/config is added.",
    ),
    (
        r"1 validation error for ConfigResponse",
        "The server of LAKE_CATALOG_URI is no Iceberg REST catalog: its answer is no configuration of one.",
        "Correct LAKE_CATALOG_URI: the address is that to which /v1/config is added.",
    ),
    (
        _HTTP.format(status=r"429|5\d\d", path=""),
        "The catalog {url} failed to answer a request: {what} {why}.",
        "Look at the log of the catalog's server. When it works again, " + AGAIN,
    ),
    (
        r"requests\.exceptions\.(?:ConnectionError|ConnectTimeout|ReadTimeout|SSLError): HTTPS?ConnectionPool"
        r"\(host='(?P<what>[^']*)', port=(?P<port>\d+)\)(?:[^\n]*?(?P<why>Connection refused|Failed to resolve|"
        r"timed out|CERTIFICATE_VERIFY_FAILED|WRONG_VERSION_NUMBER))?",
        "The server {what}, port {port}, cannot be reached: {why}.",
        "Start it, or correct LAKE_CATALOG_URI.",
    ),
)

KAFKA_IS_SILENT = "Kafka does not answer."

KAFKA: tuple[Fault, ...] = (
    (
        r"(?:_AUTHENTICATION|SASL_AUTHENTICATION_FAILED)\b|SaslAuthenticationException: (?P<what>[^\n]+)",
        "Kafka refuses the login.",
        "Correct LAKE_KAFKA__SASL_USERNAME, LAKE_KAFKA__SASL_PASSWORD and LAKE_KAFKA__SASL_MECHANISM.",
    ),
    (
        r"(?P<what>TOPIC|GROUP|CLUSTER|TRANSACTIONAL_ID)_AUTHORIZATION_FAILED|(?P<java>\w+)AuthorizationException",
        "Kafka refuses access ({what}).",
        "Grant the user of LAKE_KAFKA__SASL_USERNAME the rights to describe, read and write its topics.",
    ),
    (
        r"KafkaError\{code=UNKNOWN_TOPIC_OR_PART|UnknownTopicOrPartitionException",
        "Kafka has no such topic or partition.",
        "Create it with `lake landing init` or `lake engagement init`, or correct its name.",
    ),
    (
        r"code=MSG_SIZE_TOO_LARGE|RecordTooLargeException",
        "Kafka refuses a message because it is too large.",
        "Raise max.message.bytes of the topic, and message.max.bytes of the clients by LAKE_KAFKA__MESSAGE_MAX_BYTES.",
    ),
    (
        r"code=_SSL|SSL handshake failed|SslAuthenticationException",
        "Kafka refuses an encrypted connection: its port expects another protocol, or its certificate is not trusted.",
        "Correct LAKE_KAFKA__SECURITY_PROTOCOL, the port in LAKE_KAFKA, and LAKE_KAFKA__SSL_CA_LOCATION.",
    ),
    (
        r"KafkaError\{code=(?P<what>_ALL_BROKERS_DOWN|_TRANSPORT|_TIMED_OUT|_RESOLVE|REQUEST_TIMED_OUT)"
        r"|org\.apache\.kafka\.common\.errors\.(?P<java>TimeoutException|DisconnectException)",
        KAFKA_IS_SILENT,
        f"{START} LAKE_KAFKA, or LAKE_KAFKA__SECURITY_PROTOCOL if its port expects another protocol.",
    ),
)

ZOOKEEPER: tuple[Fault, ...] = (
    (
        r"kazoo\.exceptions\.(?P<what>NoAuthError|AuthFailedError|InvalidACLError)",
        "ZooKeeper refuses access: its nodes belong to another login.",
        "Set LAKE_ZOOKEEPER_AUTH=name:password to the login that created them.",
    ),
    (
        r"kazoo\.exceptions\.(?P<what>ConnectionLoss|SessionExpiredError|ConnectionClosedError|OperationTimeoutError)"
        r"|KazooTimeoutError|kazoo\.retry\.RetryFailedError|kazoo\.exceptions\.(?P<other>ConnectionDropped)",
        "ZooKeeper stopped answering.",
        "`lake status` shows whether it runs. When it does, " + AGAIN,
    ),
)

KNOWN: tuple[Fault, ...] = (
    *SPARK,
    *DATABASES,
    *REST_CATALOG,
    *KAFKA,
    *ZOOKEEPER,
    (
        r"JAVA_GATEWAY_EXITED",
        "Spark did not start, because Java did not.",
        "Install Java 17 or 21, or set JAVA_HOME to one.",
    ),
    (
        r"No suitable driver found for jdbc:postgresql",
        "Spark has no JDBC driver for PostgreSQL, which it needs for the catalog.",
        "Run `lake setup --with postgresql`. If `lake up` runs, restart it: `lake down`, then `lake up`.",
    ),
    (
        r"No suitable driver found for (?P<what>jdbc:\w+)",
        "Spark has no JDBC driver for {what}, which it needs for the catalog.",
        "Add the driver's jar to the folder LAKE_JARS, or run `lake setup`, which downloads it.",
    ),
    (
        r"(?:ClassNotFoundException: |Cannot find catalog plugin class for catalog '\w+': )"
        r"(?P<what>org\.apache\.iceberg\.\S+|io\.delta\.\S+|org\.apache\.spark\.sql\.delta\.\S+)",
        "Spark has no jar with the class {what}.",
        "Run `lake setup`, which downloads the jars, or correct LAKE_JARS.",
    ),
    (
        r"\[[Ee]rrno 28\]|No space left on device|database or disk is full|ENOSPC",
        "The disk is full.",
        "Free some space on the disks of LAKE_HOME and of the temporary folder, then run the command again: "
        "it continues what was interrupted.",
    ),
    (
        r"\[Errno (?:13|30)\] (?:Permission denied:|Read-only file system:|Failed to open local file) "
        r"'(?P<what>[^']+)'"
        r"|\(Permission denied\)|\(Read-only file system\)|attempt to write a readonly database",
        "{what} cannot be written.",
        "Set LAKE_HOME to a folder that you may write, or change the permissions of this one.",
    ),
    (
        r"NoClassDefFoundError: software/amazon/awssdk|ClassNotFoundException: software\.amazon\.awssdk"
        r"|Cannot initialize FileIO implementation org\.apache\.iceberg\.aws\.s3"
        r"|Failed to get file system for path: s3://|No FileSystem for scheme \"s3\"",
        "Spark has no jar that reads and writes S3.",
        "Run `lake setup --with s3`. If `lake up` runs, restart it: `lake down`, then `lake up`.",
    ),
    (
        r"Failed to get file system for path: (?P<what>\w+://[^/\s]*)|No FileSystem for scheme \"(?P<scheme>\w+)\"",
        "Spark has no jar that reads and writes {what}.",
        "Add one to the folder LAKE_JARS (for s3a:// hadoop-aws), or correct LAKE_WAREHOUSE.",
    ),
    (
        r"AWS Error NETWORK_CONNECTION[^\n]*|software\.amazon\.awssdk[^\n]*Unable to execute HTTP request[^\n]*"
        r"|EndpointConnectionError[^\n]*|Unable to load (?:region|credentials)[^\n]*",
        "The object store of LAKE_WAREHOUSE cannot be reached.",
        "Check LAKE_WAREHOUSE, the network, and LAKE_CATALOG__S3__ENDPOINT, LAKE_CATALOG__S3__REGION and the keys, "
        "or AWS_REGION, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.",
    ),
    (
        r"AWS Error (?P<what>ACCESS_DENIED|INVALID_ACCESS_KEY_ID|SIGNATURE_DOES_NOT_MATCH|NO_SUCH_BUCKET)"
        r"|AWS Error (?P<answer>RESOURCE_NOT_FOUND) during (?:CreateMultipartUpload|PutObject)"
        r"|awssdk\.services\.s3\.model\.(?:NoSuchBucketException|S3Exception): (?P<message>[^\n(]*[^\s(])",
        "The object store of LAKE_WAREHOUSE refuses access: {what}.",
        "Check the bucket of LAKE_WAREHOUSE, LAKE_CATALOG__S3__ACCESS_KEY_ID and LAKE_CATALOG__S3__SECRET_ACCESS_KEY, "
        "or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.",
    ),
    (
        r"AWS Error (?P<what>SLOW_DOWN|SERVICE_UNAVAILABLE|INTERNAL_FAILURE|REQUEST_LIMIT_EXCEEDED"
        r"|UNKNOWN \(HTTP status 5\d\d\))"
        r"|\(Service: S3, (?P<java>Status Code: 50[03])",
        "The object store of LAKE_WAREHOUSE is overloaded, or fails: {what}.",
        "If it does not pass, look at the store's own status. Then " + AGAIN,
    ),
    (
        r"AWS Error (?P<what>[A-Z_]+[^\n]*)",
        "The object store of LAKE_WAREHOUSE answers with an error: {what}.",
        "Check the bucket of LAKE_WAREHOUSE, and LAKE_CATALOG__S3__ENDPOINT and LAKE_CATALOG__S3__REGION.",
    ),
    (
        r"Cannot initialize FileIO implementation (?P<what>[\w.]+)",
        "Spark cannot read or write the warehouse: it has no jar for {what}.",
        "Add the jar of this file system to the folder LAKE_JARS.",
    ),
)
"""Faults that other work meets, too. The first that matches is what a person reads."""

PASSING = re.compile(
    r"No Spark Connect server answers|StatusCode\.UNAVAILABLE|INVALID_HANDLE\.SESSION_|RetriesExceeded"
    r"|\[NO_ACTIVE_SESSION\]|Spark has ended the session|connection to Spark was lost|Java process of Spark ended"
    r"|Py4JNetworkError|Spark failed to answer a request"
    r"|No ZooKeeper answers|ZooKeeper[^\n]* stopped answering|Kafka at \S+ does not answer"
    r"|(?:429 Client|5\d\d Server) Error: "
    r"|\[[Ee]rrno 28\]|No space left on device|database or disk is full|database is locked"
    r"|AWS Error NETWORK_CONNECTION|Unable to execute HTTP request|EndpointConnectionError"
    r"|Connection refused|Connection reset by peer|Broken pipe|[Tt]imed out|server closed the connection"
    r"|kazoo\.exceptions\.(?:ConnectionLoss|SessionExpiredError)|KazooTimeoutError"
    r"|_ALL_BROKERS_DOWN|_TRANSPORT|Connection setup timed out"
    r"|CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND|ExecutorLostFailure|FetchFailed|SparkContext was shut ?down"
    r"|the database system is (?:starting up|shutting down|in recovery mode)|terminating connection due to"
    r"|\(Service: S3, Status Code: 50[03]|\(HTTP status 50[03]\)"
    r"|AWS Error (?:SLOW_DOWN|SERVICE_UNAVAILABLE|INTERNAL_FAILURE)"
    r"|marked as failed from outside the execution context"
    r"|code server that started the run is gone|code server does not have the run"
)
"""Faults that pass without a change of code, data or settings: a service that is restarted, a network, a full disk."""

NOTHING_NAMED = "The data directory"


def recognise(text: str) -> ErrorText | None:
    """Return the fault that a text reports.

    Args:
        text: Classes and messages of an error and its causes, as `texts.chain_text` returns them.

    Returns:
        Problem and remedy; None if the text reports none of the known faults.
    """
    for pattern, problem, remedy in KNOWN:
        found = re.search(pattern, text)
        if found:
            named = {name: value for name, value in found.groupdict().items() if value}
            what = next(iter(named.values()), NOTHING_NAMED)
            values = defaultdict(lambda: "no answer", {"what": what, **named})
            return ErrorText(problem.format_map(values), remedy)
    return None


def passes_by_itself(text: str) -> bool:
    """Return whether a text reports a fault after which the same work may succeed without anybody doing anything.

    Args:
        text: Classes and messages of an error and its causes.
    """
    return PASSING.search(text) is not None
