"""What only Spark does to a table, read from its metadata: compaction, row-level deletes and updates, expiry, rollback.

One scenario on two tables, step by step: each step says what the snapshots since the step before touched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyiceberg.transforms import HourTransform

from lake_assets.base.hours import hour_start, parse_hour
from lake_assets.incremental.declaration import Source
from lake_assets.incremental.engine import iceberg
from lake_assets.incremental.engine.model import SourceRange
from lake_assets.incremental.engine.source_changes import SourceChanges, Watermark, changes
from lake_assets.incremental.engine.stage import read_appended

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import DataFrame, SparkSession

START = parse_hour("2026-01-01-00:00")
PLAIN = Source("raw.plain", time_column="at", key="id")
"""Not partitioned by time, so that bounds must tell the hours."""

FACT = Source("core.fact", time_column="at")
"""Partitioned by the hour of its time."""


class Tables:
    """Both tables, and how far each was read."""

    def __init__(self, catalog: Catalog, spark: SparkSession) -> None:
        self.catalog, self.spark = catalog, spark
        self.marks: dict[str, Watermark] = {}
        for source in (PLAIN, FACT):
            by: iceberg.Partitions = {"at": HourTransform()} if source is FACT else {}
            iceberg.create(catalog, source.table, {"id": "string", "at": "timestamptz", "v": "int"}, by, {})

    def sql(self, statement: str) -> None:
        self.spark.sql(statement)

    def insert(self, source: Source, *hours: int) -> None:
        for hour in hours:
            self.sql(f"INSERT INTO lake.{source.table} VALUES ('e{hour}', {moment(hour)}, 1)")

    def new(self, source: Source) -> SourceChanges:
        """What is new since this was asked last."""
        table = iceberg.load(self.catalog, source.table)
        found = changes(table, source, self.marks.get(source.table), start=START)
        self.marks[source.table] = found.head
        return found


def moment(hour: int) -> str:
    return f"TIMESTAMP '{hour_start(START + hour):%Y-%m-%d %H:%M:%S}Z'"


def touched(found: SourceChanges) -> list[int]:
    return sorted({h - START for s in found.effective for a, b in s.hours for h in range(a, b + 1)})


def seen(found: SourceChanges) -> tuple[str, list[str], list[int]]:
    return found.how, [s.effect for s in found.snapshots], touched(found)


def test_what_spark_does_to_a_table(catalog: Catalog, spark: SparkSession) -> None:
    lake = Tables(catalog, spark)
    for source in (PLAIN, FACT):
        lake.insert(source, 1, 3, 5)
        assert seen(lake.new(source)) == ("initial", ["append"], [1, 3, 5])

        lake.insert(source, 7)
        assert seen(lake.new(source)) == ("history", ["append"], [7])

        lake.sql(
            f"CALL lake.system.rewrite_data_files(table => '{source.table}', options => map('rewrite-all', 'true'))"
        )
        assert seen(lake.new(source)) == ("history", ["none"], []), "compaction changes no row"

    copied = "'write.delete.mode'='copy-on-write', 'write.update.mode'='copy-on-write'"
    merged = "'write.delete.mode'='merge-on-read', 'write.update.mode'='merge-on-read'"

    # The plain table is one file of the hours 1 to 7 now.
    lake.sql(f"ALTER TABLE lake.raw.plain SET TBLPROPERTIES ({copied})")
    lake.sql("DELETE FROM lake.raw.plain WHERE id = 'e3'")
    assert seen(lake.new(PLAIN)) == ("history", ["rewrite"], [1, 2, 3, 4, 5, 6, 7])
    lake.insert(PLAIN, 9)
    lake.new(PLAIN)
    lake.sql(f"UPDATE lake.raw.plain SET at = {moment(12)} WHERE id = 'e9'")
    assert seen(lake.new(PLAIN)) == ("history", ["rewrite"], [9, 12]), "the hour before, and the hour after"

    lake.sql(f"ALTER TABLE lake.raw.plain SET TBLPROPERTIES ({merged})")
    lake.insert(PLAIN, 14)
    lake.insert(PLAIN, 15)
    lake.new(PLAIN)
    lake.sql("DELETE FROM lake.raw.plain WHERE id = 'e5'")
    assert seen(lake.new(PLAIN)) == ("history", ["rewrite"], [1, 2, 3, 4, 5, 6, 7]), (
        "the file that the delete refers to"
    )
    lake.sql(f"UPDATE lake.raw.plain SET at = {moment(20)} WHERE id = 'e1'")
    found = lake.new(PLAIN)
    assert {1, 20} <= set(touched(found))
    assert not {12, 14, 15} & set(touched(found))

    lake.sql(f"ALTER TABLE lake.core.fact SET TBLPROPERTIES ({merged})")
    lake.sql("DELETE FROM lake.core.fact WHERE id = 'e3' AND v = 1")
    assert seen(lake.new(FACT)) == ("history", ["rewrite"], [3])
    lake.sql("UPDATE lake.core.fact SET v = 2 WHERE id = 'e5'")
    assert seen(lake.new(FACT)) == ("history", ["rewrite"], [5])
    lake.sql(f"DELETE FROM lake.core.fact WHERE at >= {moment(7)} AND at < {moment(8)}")
    assert seen(lake.new(FACT)) == ("history", ["rewrite"], [7]), "a partition that goes, by metadata alone"

    # A watermark that expires: what came since is told by sequence numbers.
    lake.insert(FACT, 8)
    since = lake.new(FACT).head
    lake.insert(FACT, 10, 11)
    lake.sql(f"CALL lake.system.expire_snapshots(table => 'core.fact', older_than => {later()}, retain_last => 1)")
    assert seen(lake.new(FACT)) == ("expired", ["rewrite"], [10, 11])
    assert since.snapshot_id not in {s.snapshot_id for s in iceberg.load(catalog, "core.fact").metadata.snapshots}

    # One that expires while every snapshot after it stays: read on, and Iceberg reads on as well.
    lake.sql("UPDATE lake.core.fact SET v = 3 WHERE id = 'e10'")
    lake.sql(f"CALL lake.system.expire_snapshots(table => 'core.fact', older_than => {later()}, retain_last => 1)")
    assert seen(lake.new(FACT)) == ("history", ["rewrite"], [10])
    lake.insert(FACT, 9)
    lake.sql(f"CALL lake.system.expire_snapshots(table => 'core.fact', older_than => {later()}, retain_last => 1)")
    found = lake.new(FACT)
    assert (seen(found), found.since_expired) == (("history", ["append"], [9]), True)
    assert [row["id"] for row in appended(spark, catalog, found).collect()] == ["e9"]

    # Compacted and expired before anybody looked: old rows in new files, and files that are gone.
    lake.sql("CALL lake.system.rewrite_data_files(table => 'core.fact', options => map('rewrite-all', 'true'))")
    lake.insert(FACT, 11)
    lake.sql(f"CALL lake.system.expire_snapshots(table => 'core.fact', older_than => {later()}, retain_last => 1)")
    how, _, hours = seen(lake.new(FACT))
    assert (how, hours) == ("expired", list(range(12))), "all hours that it ever held"

    # A rollback, with new rows on top.
    lake.insert(FACT, 12)
    kept = lake.new(FACT).head
    lake.insert(FACT, 13)
    lake.new(FACT)
    lake.sql(f"CALL lake.system.rollback_to_snapshot('core.fact', {kept.snapshot_id})")
    lake.insert(FACT, 14)
    assert seen(lake.new(FACT)) == ("rewound", ["rewrite"], [13, 14])

    # The table's contents replaced as a whole: its old snapshots are there, and no ancestors any more.
    lake.sql("CREATE OR REPLACE TABLE lake.raw.plain USING iceberg AS SELECT * FROM lake.core.fact WHERE id = 'e14'")
    how, _, hours = seen(lake.new(PLAIN))
    assert (how, {12, 14, 15} <= set(hours)) == ("rewound", True)

    # Metrics that are off: the rows of the new file are read.
    lake.sql("ALTER TABLE lake.raw.plain SET TBLPROPERTIES ('write.metadata.metrics.default'='none')")
    lake.insert(PLAIN, 2)
    found = lake.new(PLAIN)
    assert found.snapshots[0].hours == ((START + 2, START + 2),)


def appended(spark: SparkSession, catalog: Catalog, found: SourceChanges) -> DataFrame:
    assert found.since
    head = found.head
    source = SourceRange(
        found.source, head.table_uuid, found.since.snapshot_id, head.snapshot_id, head.sequence_number, 0, None
    )
    return read_appended(spark, catalog, source)


def later() -> str:
    return "TIMESTAMP '2100-01-01 00:00:00Z'"
