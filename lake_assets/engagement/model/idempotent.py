"""A write of a batch, which Delta does once: it skips a batch id that it has seen, or a later one, under the same id.

The id (`txnAppId`) names lake, stream and process, the version (`txnVersion`) is the batch's. The history of a table
does not tell them, so the commit carries them as its user metadata, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CONF = "spark.databricks.delta."


def mark(app_id: str, batch_id: int) -> str:
    """The user metadata of a batch's commit."""
    return f"{app_id}:{batch_id}"


def marked(mark: str | None) -> tuple[str, int]:
    """The id and the batch that a commit's user metadata tells; an empty id if it is no `mark`."""
    app_id, _, number = (mark or "").rpartition(":")
    return (app_id, int(number)) if number.isdecimal() else ("", 0)


def options(app_id: str, batch_id: int) -> dict[str, str]:
    """For the write of a DataFrame: they hold for this write alone."""
    return {"txnAppId": app_id, "txnVersion": str(batch_id), "userMetadata": mark(app_id, batch_id)}


@contextmanager
def statement(spark: SparkSession, app_id: str, batch_id: int) -> Iterator[None]:
    """The one statement of SQL within is the batch's. Left in the session's configuration, the ids would make Delta
    skip the next statement: they are taken out again, whatever comes of it.
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
