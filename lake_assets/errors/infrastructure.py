"""Faults of a machine and its services, recognised by the texts of their errors. Pure."""

from __future__ import annotations

import re

from lake_assets.errors.texts import ErrorText

KNOWN: tuple[tuple[str, str, str], ...] = (
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
        r"Cannot initialize FileIO implementation (?P<what>[\w.]+)",
        "Spark cannot read or write the warehouse: it has no jar for {what}.",
        "Add the jar of this file system to the folder LAKE_JARS.",
    ),
    (
        r"java\.lang\.OutOfMemoryError|GC overhead limit exceeded",
        "Spark has too little memory.",
        "Set LAKE_SPARK_MEMORY to more, such as 4g, then run the command again.",
    ),
)
"""Pattern in the texts of an error and its causes → problem and remedy. `{what}`: what the pattern has found."""

PASSING = re.compile(
    r"No Spark Connect server answers|StatusCode\.UNAVAILABLE|INVALID_HANDLE\.SESSION_|RetriesExceeded"
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
            named = [value for value in found.groupdict().values() if value]
            what = named[0] if named else NOTHING_NAMED
            return ErrorText(problem.format(what=what), remedy)
    return None


def passes_by_itself(text: str) -> bool:
    """Return whether a text reports a fault after which the same work may succeed without anybody doing anything.

    Args:
        text: Classes and messages of an error and its causes.
    """
    return PASSING.search(text) is not None
