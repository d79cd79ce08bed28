"""Idempotent Delta writes of a batch: Delta skips a batch id that is not greater than the last one of the same app id.

The app id (`txnAppId`) names lake, stream and commit; `txnVersion` is the batch id. A table's history does not contain
them, so the commit also stores them as its user metadata.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from deltalake import CommitProperties, Transaction

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CONF = "spark.databricks.delta."


def mark(app_id: str, batch_id: int) -> str:
    """Return the user metadata of a batch's commit."""
    return f"{app_id}:{batch_id}"


def parse_mark(mark: str | None) -> tuple[str, int]:
    """Return the app id and the batch id of a commit's user metadata; ("", 0) if it is not a `mark`."""
    app_id, _, batch_id = (mark or "").rpartition(":")
    if not batch_id.isdecimal():
        return "", 0
    return app_id, int(batch_id)


def write_options(app_id: str, batch_id: int) -> dict[str, str]:
    """Return the options of a DataFrame write. They apply to that write only."""
    return {
        "txnAppId": app_id,
        "txnVersion": str(batch_id),
        "userMetadata": mark(app_id, batch_id),
    }


def commit_properties(app_id: str, batch_id: int) -> CommitProperties:
    """Return the properties of a commit that delta-rs makes. It does not skip a repeated id as Spark does."""
    return CommitProperties(
        custom_metadata={"userMetadata": mark(app_id, batch_id)},
        app_transactions=[Transaction(app_id, batch_id)],
    )


@contextmanager
def batch_statement(spark: SparkSession, app_id: str, batch_id: int) -> Iterator[None]:
    """Run one SQL statement as a commit of the batch.

    The ids stand in the session's configuration, and would make Delta skip the next statement. So they are always
    removed on exit.
    """
    conf = {
        f"{_CONF}write.txnAppId": app_id,
        f"{_CONF}write.txnVersion": str(batch_id),
        f"{_CONF}commitInfo.userMetadata": mark(app_id, batch_id),
    }
    try:
        for name, value in conf.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name in conf:
            spark.conf.unset(name)
