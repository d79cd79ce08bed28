"""Faults of a machine are recognised by the texts that its libraries really print. Pure."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
import yaml
from deltalake import DeltaTable
from py4j.protocol import Py4JNetworkError
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog

from lake_assets.base.described import describe, has_details, is_machines_fault
from lake_assets.errors import ServiceError, UsageError, chain_text, first_line

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

NO_CLIENT = """Cannot initialize FileIO implementation org.apache.iceberg.aws.s3.S3FileIO: Cannot find constructor for \
interface org.apache.iceberg.io.FileIO
\tMissing org.apache.iceberg.aws.s3.S3FileIO [java.lang.NoClassDefFoundError: \
software/amazon/awssdk/services/s3/model/S3Exception]"""

UNREACHABLE_OF_JAVA = """An error occurred while calling o97.sql.
: software.amazon.awssdk.core.exception.SdkClientException: Unable to execute HTTP request: Connect to \
http://127.0.0.1:9 failed: Connection refused (SDK Attempt Count: 4)
\tat software.amazon.awssdk.core.exception.SdkClientException$BuilderImpl.build(SdkClientException.java:130)"""

NO_BUCKET = """When initiating multiple part upload for key 'w/etl/session/metadata/00000-e95.metadata.json' in bucket \
'nobucket': AWS Error NO_SUCH_BUCKET during CreateMultipartUpload operation: The specified bucket does not exist"""

NO_SERVER = """When uploading object with key 'w/etl/session/metadata/00000-e95.metadata.json' in bucket 'nobucket': \
AWS Error RESOURCE_NOT_FOUND during PutObject operation: No response body."""

NO_BUCKET_OF_JAVA = """An error occurred while calling o97.sql.
: software.amazon.awssdk.services.s3.model.NoSuchBucketException: The specified bucket does not exist \
(Service: S3, Status Code: 404, Request ID: abc) (SDK Attempt Count: 1)"""

S3_JAR = "Run `lake setup --with s3`. If `lake up` runs, restart it: `lake down`, then `lake up`."
S3_VARIABLES = (
    "Check LAKE_WAREHOUSE, the network, and LAKE_CATALOG__S3__ENDPOINT, LAKE_CATALOG__S3__REGION and the keys, "
    "or AWS_REGION, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."
)
S3_ACCESS = (
    "Check the bucket of LAKE_WAREHOUSE, LAKE_CATALOG__S3__ACCESS_KEY_ID and LAKE_CATALOG__S3__SECRET_ACCESS_KEY, "
    "or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."
)

READ_ONLY = """[Errno 30] Failed to open local file '/home/u/.lake/warehouse/raw/obs/metadata/00001-202.metadata.json'\
. Detail: [errno 30] Read-only file system"""

FULL = "(sqlite3.OperationalError) database or disk is full\n[SQL: CREATE TABLE iceberg_tables (...)]"

FREE = (
    "Free some space on the disks of LAKE_HOME and of the temporary folder, then run the command again: "
    "it continues what was interrupted."
)
MEMORY = (
    "Set LAKE_SPARK_MEMORY to more, such as 4g, and restart Spark (`lake down`, then `lake up`). Then run the command "
    "again: it continues what was interrupted."
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
        S3_VARIABLES,
    ),
    "S3 without its jar": (
        RuntimeError(S3_OF_JAVA),
        "Spark has no jar that reads and writes S3.",
        S3_JAR,
    ),
    "S3 without its jar, as Iceberg says it": (
        RuntimeError(NO_CLIENT),
        "Spark has no jar that reads and writes S3.",
        S3_JAR,
    ),
    "another store without its jar": (
        RuntimeError(S3_OF_JAVA.replace("s3://", "abfs://")),
        "Spark has no jar that reads and writes abfs://bucket.",
        "Add one to the folder LAKE_JARS (for s3a:// hadoop-aws), or correct LAKE_WAREHOUSE.",
    ),
    "S3 unreachable from Java": (
        RuntimeError(UNREACHABLE_OF_JAVA),
        "The object store of LAKE_WAREHOUSE cannot be reached.",
        S3_VARIABLES,
    ),
    "no bucket": (
        OSError(NO_BUCKET),
        "The object store of LAKE_WAREHOUSE refuses access: NO_SUCH_BUCKET.",
        S3_ACCESS,
    ),
    "no server of S3": (
        OSError(NO_BUCKET.replace("NO_SUCH_BUCKET", "RESOURCE_NOT_FOUND")),
        "The object store of LAKE_WAREHOUSE refuses access: RESOURCE_NOT_FOUND.",
        S3_ACCESS,
    ),
    "no server of S3 for a small file": (
        OSError(NO_SERVER),
        "The object store of LAKE_WAREHOUSE refuses access: RESOURCE_NOT_FOUND.",
        S3_ACCESS,
    ),
    "no bucket for Java": (
        RuntimeError(NO_BUCKET_OF_JAVA),
        "The object store of LAKE_WAREHOUSE refuses access: The specified bucket does not exist.",
        S3_ACCESS,
    ),
    "no driver of PostgreSQL": (
        RuntimeError(JDBC.replace("jdbc:sqlite:/home/u/.lake/catalog.db", "jdbc:postgresql://db:5432/lake")),
        "Spark has no JDBC driver for PostgreSQL, which it needs for the catalog.",
        "Run `lake setup --with postgresql`. If `lake up` runs, restart it: `lake down`, then `lake up`.",
    ),
    "a Spark server without memory": (
        RuntimeError(
            "<_MultiThreadedRendezvous of RPC that terminated with:\n\tstatus = StatusCode.UNKNOWN\n\tdetails = "
            '"Java heap space"'
        ),
        "Spark has too little memory.",
        MEMORY,
    ),
    "a Spark server that fails": (
        RuntimeError(
            "<_InactiveRpcError of RPC that terminated with:\n\tstatus = StatusCode.INTERNAL\n\tdetails = "
            '"RST_STREAM closed stream"'
        ),
        "Spark failed to answer a request (INTERNAL: RST_STREAM closed stream).",
        "Read logs/spark.log in the data directory; with too little memory, set LAKE_SPARK_MEMORY to more and restart "
        "Spark (`lake down`, then `lake up`). Then run the command again: it continues what was interrupted.",
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


WHAT_RAISES: dict[str, tuple[Callable[[], object], str]] = {
    "a table that does not exist": (lambda: _catalog().load_table("raw.none"), "The catalog has no such table: "),
    "a text that is no UTF-8": (lambda: b"\xff".decode(), "A file is no UTF-8 text: "),
    "no file": (lambda: Path("/none/such").read_text(), "There is no file /none/such."),
    "no folder": (lambda: Path("/etc/passwd/x").read_text(), "/etc/passwd/x is no folder."),
    "a folder": (lambda: Path("/").read_text(), "/ is a folder and no file."),
    "values of another type": (lambda: pa.array(["x"]).cast("int64"), "Values cannot be read or converted: "),
    "a file that is no Parquet": (lambda: duckdb.sql("from read_csv('/none')"), "DuckDB cannot read the rows: "),
    "no YAML": (lambda: yaml.safe_load("a: [b"), "A YAML file cannot be read: "),
    "no JSON": (lambda: json.loads("{"), "A file or an answer is no JSON: "),
    "a number that is too large": (lambda: (1 << 70).to_bytes(8, "big"), "A number or a time is out of the range "),
    "no listener": (lambda: socket.create_connection(("127.0.0.1", 1)), "A service ended the connection or does not "),
    "no such host": (lambda: socket.getaddrinfo("none.invalid", 1), "A host is not known: "),
    "no Delta table": (lambda: DeltaTable("/none/such"), "A Delta table cannot be read or written: "),
}


def _catalog() -> Catalog:
    catalog = SqlCatalog("any", uri="sqlite:///:memory:", warehouse="/none")
    catalog.create_tables()
    return catalog


@pytest.mark.parametrize("fault", WHAT_RAISES)
def test_faults_of_data_and_files_are_none_of_ours(fault: str) -> None:
    what, problem = WHAT_RAISES[fault]
    with pytest.raises(Exception) as raised:  # noqa: PT011 - of many libraries
        what()
    found = describe(raised.value)
    assert found.problem.startswith(problem)
    assert "report it" not in found.remedy
    assert not is_machines_fault(raised.value)


class _AsksTheJvm(Exception):
    def __str__(self) -> str:
        raise Py4JNetworkError("An error occurred while trying to connect to the Java server")


def test_an_error_whose_text_raises_is_two_lines() -> None:
    error = ValueError("outer")
    error.__cause__ = _AsksTheJvm()
    assert describe(error).problem == "The Java process of Spark ended, or cannot be reached any more."
    assert is_machines_fault(error)
