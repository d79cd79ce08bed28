"""What the pinned Spark and Iceberg really do, where the engine relies on it or takes care around it.

Tests are named after the hazards. If one fails after an upgrade, its hazard has gone or changed, and the code that
guards against it can be looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from lake_assets.incremental.declaration import Source
from lake_assets.incremental.engine import publish
from lake_assets.incremental.engine.source_changes import changes
from lake_assets.incremental.engine.stage import WAP_ID, read_at

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame, SparkSession

NAME = "core.t"
FIRST_HOUR, SECOND_HOUR = "timestamp'2026-01-01 00:10:00Z'", "timestamp'2026-01-01 01:10:00Z'"
IN_FIRST_HOUR = "ts < timestamp'2026-01-01 01:00:00Z'"


class Hourly:
    """A table of keys by hour that may be staged to; it has `a` and `b` in its first hour."""

    def __init__(self, catalog: Catalog, spark: SparkSession) -> None:
        self.catalog, self.spark = catalog, spark
        catalog.create_namespace_if_not_exists("core")
        self.sql(
            f"CREATE TABLE lake.{NAME} (k string, ts timestamp) USING iceberg PARTITIONED BY (hours(ts)) "
            "TBLPROPERTIES ('write.wap.enabled'='true', 'write.delete.mode'='merge-on-read')"
        )
        self.row("a", FIRST_HOUR).union(self.row("b", FIRST_HOUR)).coalesce(1).writeTo(f"lake.{NAME}").append()

    @property
    def table(self) -> Table:
        return self.catalog.load_table(NAME)

    @property
    def main(self) -> int:
        found = publish.main_id(self.table)
        assert found is not None
        return found

    def sql(self, statement: str) -> None:
        self.spark.sql(statement)

    def row(self, key: str, time: str) -> DataFrame:
        return self.spark.range(1).selectExpr(f"'{key}' AS k", f"{time} AS ts")

    def keys(self) -> list[str]:
        return sorted(row["k"] for row in self.spark.table(f"lake.{NAME}").collect())

    def append(self, key: str, time: str = SECOND_HOUR) -> None:
        self.row(key, time).writeTo(f"lake.{NAME}").append()

    def delete(self, condition: str) -> None:
        self.sql(f"DELETE FROM lake.{NAME} WHERE {condition}")

    @contextmanager
    def staging(self, wap_id: str) -> Iterator[None]:
        self.spark.conf.set(WAP_ID, wap_id)
        try:
            yield
        finally:
            self.spark.conf.unset(WAP_ID)

    def cherry_pick(self, wap_id: str) -> None:
        self.sql(f"CALL lake.system.publish_changes('{NAME}', '{wap_id}')")


@pytest.fixture
def hourly(catalog: Catalog, spark: SparkSession) -> Hourly:
    return Hourly(catalog, spark)


def test_p1_a_staged_filter_overwrite_is_not_cherry_picked_onto_a_moved_main(hourly: Hourly) -> None:
    with hourly.staging("s.1"):
        hourly.row("new", FIRST_HOUR).writeTo(f"lake.{NAME}").overwrite(F.expr(IN_FIRST_HOUR))
    hourly.append("c")
    with pytest.raises(PySparkException, match="not append, dynamic overwrite, or fast-forward"):
        hourly.cherry_pick("s.1")


def test_p3_a_cherry_pick_brings_back_a_row_deleted_merge_on_read(hourly: Hourly) -> None:
    with hourly.staging("s.1"):
        rows = hourly.row("a", FIRST_HOUR).union(hourly.row("b", FIRST_HOUR))
        rows.writeTo(f"lake.{NAME}").overwritePartitions()
    hourly.delete("k = 'a'")
    assert hourly.keys() == ["b"]
    hourly.cherry_pick("s.1")
    assert hourly.keys() == ["a", "b"]


def test_p6_publishing_by_setting_main_keeps_the_snapshot_and_its_time(hourly: Hourly) -> None:
    with hourly.staging("s.1"):
        hourly.append("c")
    staged = publish.staged_snapshot(hourly.table, "s.1")
    count = len(hourly.table.metadata.snapshots)
    publish.publish(hourly.catalog, NAME, staged.snapshot_id, parent=hourly.main, session_id="s", complete_through=None)
    published = hourly.table.current_snapshot()
    assert published == staged
    assert len(hourly.table.metadata.snapshots) == count
    assert hourly.keys() == ["a", "b", "c"]


def test_p9_two_writes_under_one_wap_id_are_never_cherry_picked(hourly: Hourly) -> None:
    for key in ("c", "d"):
        with hourly.staging("s.1"):
            hourly.append(key)
    with pytest.raises(PySparkException, match="non-unique WAP ID"):
        hourly.cherry_pick("s.1")


def test_w1_a_staged_delete_of_whole_partitions_goes_straight_to_main(hourly: Hourly) -> None:
    with hourly.staging("s.1"):
        hourly.delete(IN_FIRST_HOUR)
    assert hourly.keys() == []


def test_w2_without_write_audit_publish_a_staged_write_goes_straight_to_main(hourly: Hourly) -> None:
    hourly.sql(f"ALTER TABLE lake.{NAME} SET TBLPROPERTIES ('write.wap.enabled'='false')")
    with hourly.staging("s.1"):
        hourly.append("c")
    assert hourly.keys() == ["a", "b", "c"]


def test_w3_a_dynamic_overwrite_leaves_hours_without_rows(hourly: Hourly) -> None:
    hourly.row("c", SECOND_HOUR).writeTo(f"lake.{NAME}").overwritePartitions()
    assert hourly.keys() == ["a", "b", "c"]


def test_a_staged_overwrite_without_rows_is_a_snapshot_of_its_own(hourly: Hourly) -> None:
    before = hourly.main
    with hourly.staging("s.1"):
        hourly.row("x", FIRST_HOUR).where("false").writeTo(f"lake.{NAME}").overwrite(F.expr(IN_FIRST_HOUR))
    staged = publish.staged_snapshot(hourly.table, "s.1")
    assert (staged.parent_snapshot_id, hourly.main) == (before, before)
    assert read_at(hourly.spark, hourly.catalog, NAME, staged.snapshot_id).count() == 0


def test_r1_the_incremental_read_passes_over_overwrites_and_r7_refuses_an_empty_range(hourly: Hourly) -> None:
    first = hourly.main
    hourly.append("c")
    hourly.row("d", FIRST_HOUR).writeTo(f"lake.{NAME}").overwrite(F.expr(IN_FIRST_HOUR))

    def between(start: int, end: int) -> list[str]:
        reader = hourly.spark.read.option("start-snapshot-id", str(start)).option("end-snapshot-id", str(end))
        return [row["k"] for row in reader.format("iceberg").load(f"lake.{NAME}").collect()]

    assert hourly.keys() == ["c", "d"]
    assert between(first, hourly.main) == ["c"]
    with pytest.raises(PySparkException):
        between(first, first)


def test_r9_a_snapshot_is_read_by_version_and_no_longer_by_option(hourly: Hourly) -> None:
    with hourly.staging("s.1"):
        hourly.append("c")
    staged = publish.staged_snapshot(hourly.table, "s.1").snapshot_id
    assert sorted(row["k"] for row in read_at(hourly.spark, hourly.catalog, NAME, staged).collect()) == ["a", "b", "c"]
    with pytest.raises(PySparkException, match="snapshot-id"):
        hourly.spark.read.option("snapshot-id", str(staged)).format("iceberg").load(f"lake.{NAME}").collect()


def test_p2_a_staged_dynamic_overwrite_is_not_cherry_picked_after_a_file_was_added(hourly: Hourly) -> None:
    with hourly.staging("s.1"):
        hourly.row("new", FIRST_HOUR).writeTo(f"lake.{NAME}").overwritePartitions()
    hourly.append("c", FIRST_HOUR)
    with pytest.raises(PySparkException):
        hourly.cherry_pick("s.1")


def test_p4_a_cherry_pick_takes_one_commit_of_two(hourly: Hourly) -> None:
    hourly.sql(f"ALTER TABLE lake.{NAME} CREATE BRANCH two")
    for key in ("c", "d"):
        hourly.row(key, SECOND_HOUR).writeTo(f"lake.{NAME}.branch_two").append()
    last = hourly.table.metadata.refs["two"].snapshot_id
    hourly.append("e")  # so that it is no fast-forward
    hourly.sql(f"CALL lake.system.cherrypick_snapshot('{NAME}', {last})")
    assert hourly.keys() == ["a", "b", "d", "e"]


def test_p7_a_cherry_picked_snapshot_has_its_wap_id_under_another_name(hourly: Hourly) -> None:
    with hourly.staging("s.1"):
        hourly.append("c")
    hourly.append("d")
    hourly.cherry_pick("s.1")
    picked = hourly.table.current_snapshot()
    assert picked is not None
    assert picked.summary is not None
    assert picked.summary.additional_properties.get("published-wap-id") == "s.1"
    assert publish.WAP_ID not in picked.summary.additional_properties


def test_p8_after_expiry_a_wap_id_can_be_published_twice(hourly: Hourly) -> None:
    with hourly.staging("s.1"):
        hourly.append("c")
    staged = publish.staged_snapshot(hourly.table, "s.1").snapshot_id
    publish.publish(hourly.catalog, NAME, staged, parent=hourly.main, session_id="s", complete_through=None)
    hourly.append("d")
    old = [s.snapshot_id for s in hourly.table.metadata.snapshots if s.snapshot_id != hourly.main]
    hourly.table.maintenance.expire_snapshots().by_ids(old).commit()
    with hourly.staging("s.1"):
        hourly.append("c")
    hourly.cherry_pick("s.1")
    assert hourly.keys() == ["a", "b", "c", "c", "d"]


def test_p10_a_staged_snapshot_hangs_on_no_reference(hourly: Hourly) -> None:
    with hourly.staging("s.1"):
        hourly.append("c")
    staged = publish.staged_snapshot(hourly.table, "s.1").snapshot_id
    assert staged not in {ref.snapshot_id for ref in hourly.table.metadata.refs.values()}
    hourly.sql(f"CALL lake.system.expire_snapshots('{NAME}', TIMESTAMP '2100-01-01 00:00:00', 1)")
    assert staged not in {s.snapshot_id for s in hourly.table.metadata.snapshots}


def test_w5_a_new_column_is_there_for_staged_and_published_rows_alike(hourly: Hourly) -> None:
    with hourly.staging("s.1"):
        hourly.append("c")
    hourly.sql(f"ALTER TABLE lake.{NAME} ADD COLUMN extra string")
    assert "extra" in hourly.spark.table(f"lake.{NAME}").columns
    assert hourly.keys() == ["a", "b"]


def test_r8_staged_snapshots_are_listed_and_no_change_of_the_table(hourly: Hourly) -> None:
    source = Source(NAME, time_column="ts")
    before = changes(hourly.table, source, None, start=0).head
    with hourly.staging("s.1"):
        hourly.append("c")
    staged = publish.staged_snapshot(hourly.table, "s.1").snapshot_id
    listed = [r["snapshot_id"] for r in hourly.spark.sql(f"SELECT snapshot_id FROM lake.{NAME}.snapshots").collect()]
    assert staged in listed
    assert changes(hourly.table, source, before, start=0).snapshots == ()
    publish.publish(hourly.catalog, NAME, staged, parent=hourly.main, session_id="s", complete_through=None)
    assert [s.snapshot_id for s in changes(hourly.table, source, before, start=0).snapshots] == [staged]


def test_w4_a_staging_branch_shows_unaudited_rows_to_all_reads_and_p5_its_fast_forward_takes_any_name(
    hourly: Hourly,
) -> None:
    hourly.sql(f"ALTER TABLE lake.{NAME} CREATE BRANCH staged")
    hourly.spark.conf.set("spark.wap.branch", "staged")
    hourly.append("unaudited")
    assert hourly.keys() == ["a", "b", "unaudited"]
    hourly.spark.conf.unset("spark.wap.branch")
    assert hourly.keys() == ["a", "b"]

    hourly.append("c")
    with pytest.raises(PySparkException, match="not an ancestor"):
        hourly.sql(f"CALL lake.system.fast_forward('{NAME}', 'main', 'staged')")
    hourly.sql(f"CALL lake.system.fast_forward('{NAME}', 'mian', 'staged')")
    assert hourly.table.metadata.refs["mian"] == hourly.table.metadata.refs["staged"], "misspelt, created, no error"
    assert hourly.keys() == ["a", "b", "c"]
