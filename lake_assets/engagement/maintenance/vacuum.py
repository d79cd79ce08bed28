"""VACUUM of a table with an inventory of its files, which is listed while the lock is held.

A former lock holder cannot commit the files that it has left, because its batch was finished by another process. The
files of a later holder are not in the inventory. So orphans are removed at once, too, except those of tables that are
also written without the lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow.fs import FileInfo, FileSelector, FileSystem, FileType

from lake_assets.engagement.model.delta_log import open_table
from lake_assets.engagement.model.tables import LakeTables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NANOSECONDS_PER_MILLISECOND = 1_000_000

_INVENTORY = "lake_inventory"
_INVENTORY_SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("length", pa.int64()),
        ("isDir", pa.bool_()),
        ("modificationTime", pa.int64()),
    ]
)
_RETENTION_CHECK = "spark.databricks.delta.retentionDurationCheck.enabled"


def vacuum(tables: LakeTables, spark: SparkSession, table: str, hours: int, confirm: Callable[[], None]) -> int:
    """Remove the files of a table that no version of the last hours needs.

    Args:
        confirm: Called after the files were listed; raises if somebody else may have written meanwhile.

    Returns:
        Number of removed files.
    """
    location = tables.location(table)
    version_before = tables.version(table)
    entries = list(inventory(location))
    files = [entry for entry in entries if not entry["isDir"]]
    if len(files) == len(open_table(location).file_uris()):
        return 0  # the present version needs every file
    listed = pa.Table.from_pylist(entries, schema=_INVENTORY_SCHEMA)
    spark.createDataFrame(listed).createOrReplaceTempView(_INVENTORY)
    confirm()
    with session_conf(spark, _RETENTION_CHECK, "false"):
        source = f"(SELECT * FROM {_INVENTORY})"
        spark.sql(f"VACUUM {tables.identifier(table)} USING INVENTORY {source} RETAIN {hours:d} HOURS")
    removed = 0
    for commit in tables.history(table, since=version_before):
        if commit.operation == "VACUUM END":
            removed += int(commit.metrics["numDeletedFiles"])
    return removed


@contextmanager
def session_conf(spark: SparkSession, name: str, value: object) -> Iterator[None]:
    """Set a configuration of the Spark session, and unset it on exit."""
    spark.conf.set(name, str(value))
    try:
        yield
    finally:
        spark.conf.unset(name)


def inventory(location: str) -> Iterator[dict[str, Any]]:
    """Yield the files and folders of a table as VACUUM needs them, except its log and hidden ones.

    Files that are older than the table are left out, so VACUUM keeps them: if the log was lost and the table created
    again, they are rows of the former table.
    """
    created_at = open_table(location).metadata().created_time or 0
    store, folder = FileSystem.from_uri(location)
    root = folder.rstrip("/") + "/"
    base = location.replace("file:///", "file:/")  # Hadoop's spelling
    for info in store.get_file_info(FileSelector(folder, recursive=True)):
        path = info.path.removeprefix(root)
        is_excluded = any(part.startswith(".") or part == "_delta_log" for part in path.split("/"))
        entry = _inventory_entry(info, f"{base}/{path}")
        is_of_table = entry["isDir"] or entry["modificationTime"] >= created_at
        if is_of_table and not is_excluded:
            yield entry


def _inventory_entry(info: FileInfo, path: str) -> dict[str, Any]:
    return {
        "path": path,
        "length": info.size or 0,
        "isDir": info.type is FileType.Directory,
        "modificationTime": (info.mtime_ns or 0) // NANOSECONDS_PER_MILLISECOND,
    }
