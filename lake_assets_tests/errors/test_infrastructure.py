"""Faults of a machine are recognised by the texts that its libraries really print. Pure."""

from __future__ import annotations

import pytest

from lake_assets.errors import ServiceError, UsageError
from lake_assets.errors.described import describe, has_details, is_machines_fault
from lake_assets.errors.texts import chain_text, first_line

JDBC = """py4j.protocol.Py4JJavaError: An error occurred while calling o81.table.
: org.apache.iceberg.jdbc.UncheckedSQLException: Failed to connect: jdbc:sqlite:/home/u/.lake/catalog.db
\tat org.apache.iceberg.jdbc.JdbcClientPool.newClient(JdbcClientPool.java:150)
Caused by: java.sql.SQLException: No suitable driver found for jdbc:sqlite:/home/u/.lake/catalog.db
\t... 20 more"""

S3_OF_PYARROW = """When getting information for key 'w/etl/session/metadata/00000-808.metadata.json' \
in bucket 'bucket': AWS Error NETWORK_CONNECTION during HeadObject operation: curlCode: 7, Could not connect to server\
; Details: Failed to connect to 127.0.0.1:9 after 0 ms: Could not connect to server"""

S3_OF_JAVA = """An error occurred while calling o79.sql.
: org.apache.iceberg.exceptions.RuntimeIOException: Failed to get file system for path: \
s3://bucket/w/a/b/metadata/00000-91e.metadata.json
\tat org.apache.iceberg.hadoop.Util.getFs(Util.java:57)"""

READ_ONLY = """[Errno 30] Failed to open local file '/home/u/.lake/warehouse/raw/obs/metadata/00001-202.metadata.json'\
. Detail: [errno 30] Read-only file system"""

FULL = "(sqlite3.OperationalError) database or disk is full\n[SQL: CREATE TABLE iceberg_tables (...)]"

FREE = (
    "Free some space on the disks of LAKE_HOME and of the temporary folder, then run the command again: "
    "it continues what was interrupted."
)
WRITABLE = "Set LAKE_HOME to a folder that you may write, or change the permissions of this one."

FAULTS: dict[str, tuple[Exception, str, str]] = {
    "no JDBC driver": (
        RuntimeError(JDBC),
        "Spark has no JDBC driver for jdbc:sqlite, which it needs for the catalog.",
        "Add the driver's jar to the folder LAKE_JARS, or run `lake setup`, which downloads it.",
    ),
    "S3 unreachable": (
        OSError(S3_OF_PYARROW),
        "The object store of LAKE_WAREHOUSE cannot be reached.",
        "Check LAKE_WAREHOUSE, the network, and the variables AWS_REGION, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.",
    ),
    "S3 without its jar": (
        RuntimeError(S3_OF_JAVA),
        "Spark has no jar that reads and writes s3://bucket.",
        "Add one to the folder LAKE_JARS (for S3 iceberg-aws-bundle or hadoop-aws), or correct LAKE_WAREHOUSE.",
    ),
    "a read-only folder": (
        OSError(30, "Read-only file system", "/home/u/.lake"),
        "/home/u/.lake cannot be written.",
        WRITABLE,
    ),
    "a read-only warehouse": (
        OSError(READ_ONLY),
        "/home/u/.lake/warehouse/raw/obs/metadata/00001-202.metadata.json cannot be written.",
        WRITABLE,
    ),
    "a read-only catalog": (
        RuntimeError("(sqlite3.OperationalError) attempt to write a readonly database"),
        "The data directory cannot be written.",
        WRITABLE,
    ),
    "a full disk": (OSError(28, "No space left on device"), "The disk is full.", FREE),
    "a full disk, of the catalog": (RuntimeError(FULL), "The disk is full.", FREE),
    "a full disk, of Spark": (
        RuntimeError(
            "org.apache.spark.SparkException: Job aborted\nCaused by: java.io.IOException: No space left on device"
        ),
        "The disk is full.",
        FREE,
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_machine_is_two_lines(fault: str) -> None:
    error, problem, remedy = FAULTS[fault]
    assert str(describe(error)).splitlines() == [problem, f"  → {remedy}"]
    assert is_machines_fault(error)
    assert has_details(error)


def test_a_fault_is_recognised_by_the_cause_of_an_error() -> None:
    cause = OSError(28, "No space left on device")
    error = ValueError("The file is not complete")
    error.__cause__ = cause
    cause.__context__ = error  # a circle ends
    assert describe(error).problem == "The disk is full."
    assert chain_text(error).splitlines() == [
        "builtins.ValueError: The file is not complete",
        "builtins.OSError: [Errno 28] No space left on device",
    ]


def test_any_other_error_is_two_lines_as_well() -> None:
    found = describe(KeyError("place"))
    assert str(found).splitlines() == [
        "KeyError: 'place'.",
        "  → Read the log of the error. If it is none of your own code, report it with the log.",
    ]
    assert not is_machines_fault(KeyError("place"))
    assert first_line("\n \nx" + "y" * 400) == "x" + "y" * 299 + "…"


def test_an_error_of_the_project_keeps_its_lines() -> None:
    error = UsageError("No id.", remedy="Name one.")
    assert str(describe(error)) == str(error)
    assert not has_details(error)
    assert not is_machines_fault(error)
    assert is_machines_fault(ServiceError("No Spark.", remedy="Start one."))
