"""The tables of a new lake, as a copy of some that were created before: nothing in a Delta table names its place.

The statements that create them take Spark seconds, and a test wants what they leave.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake_assets.engagement.tables import LakeTables

_created: dict[str, TemporaryDirectory[str]] = {}
"""The fields of a lake → the folder of lakes in which its tables were created; gone with this process."""


def create_tables(tables: LakeTables, spark: SparkSession) -> None:
    """As `LakeTables.create` does, of a lake that has no tables yet; by statements, the first time in this process."""
    fields = repr((sorted(tables.lake.fields.items()), tables.lake.metrics, tables.lake.ids))
    made = replace(tables.lake, name="made")
    if fields not in _created:
        _created[fields] = TemporaryDirectory(prefix="lake-tables-")
        replace(tables, lake=made, root=f"file://{_created[fields].name}").create(spark)
    shutil.copytree(Path(_created[fields].name) / made.name, Path(urlsplit(tables.root).path) / tables.lake.name)
