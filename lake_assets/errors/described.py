"""Two lines for any error: of the project, of the machine, of Spark, or of anything else."""

from __future__ import annotations

from collections.abc import Mapping

from lake_assets.errors.base import LakeError, ServiceError
from lake_assets.errors.infrastructure import recognise
from lake_assets.errors.refusals import explain, find_refusal
from lake_assets.errors.texts import ErrorText, chain_text, first_line, text_of

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
