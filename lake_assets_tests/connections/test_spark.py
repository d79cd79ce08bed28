"""One Spark for Iceberg, Delta and Kafka: its jars and its configuration get along."""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from lake_assets.connections.spark import jvm_conf, open_spark

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from lake_assets.settings import Settings

COMPILER = "org.apache.spark.sql.catalyst.expressions.codegen.CodeGenerator"
COMPILED = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "CODEGEN_ONLY"}


def test_a_delta_table_is_written_merged_and_read_back(spark: SparkSession, tmp_path: Path) -> None:
    table = f"delta.`{tmp_path}/people`"
    spark.sql(f"CREATE TABLE {table} (id INT, name STRING) USING delta")
    spark.sql(f"INSERT INTO {table} VALUES (1, 'a'), (2, 'b')")
    spark.sql(
        f"MERGE INTO {table} t USING (SELECT 2 AS id, 'c' AS name) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET *"
    )
    assert [tuple(row) for row in spark.table(table).orderBy("id").collect()] == [(1, "a"), (2, "c")]


def test_records_of_a_topic_are_rows(spark: SparkSession, kafka: str) -> None:
    admin, producer = AdminClient({"bootstrap.servers": kafka}), Producer({"bootstrap.servers": kafka})
    admin.create_topics([NewTopic("rows", 1)])["rows"].result(20)
    producer.produce("rows", b"one")
    assert producer.flush(20) == 0
    found = spark.read.format("kafka").option("kafka.bootstrap.servers", kafka).option("subscribe", "rows").load()
    assert [bytes(row.value) for row in found.collect()] == [b"one"]


def test_y2_a_forgotten_session_does_not_close_the_threads_that_others_use(home: Settings, spark: SparkSession) -> None:
    forgotten = open_spark(home)
    forgotten.stop()
    assert spark.range(3).count() == 3
    from pyspark.sql.connect.client.reattach import ExecutePlanResponseReattachableIterator as Released

    shared = Released._release_thread_pool_instance
    assert shared is not None
    del forgotten
    gc.collect()
    assert Released._release_thread_pool_instance is shared


def test_a_session_uses_the_queries_that_an_ended_one_has_compiled(home: Settings, spark: SparkSession) -> None:
    compiled: list[int] = []
    for _ in range(2):
        session = open_spark(home)
        for name, value in COMPILED.items():  # the Spark of the tests interprets: it has few rows
            session.conf.set(name, value)
        before = nanoseconds_of_compiling(session)
        session.range(100).selectExpr("id % 7919 AS k").groupBy("k").count().where("count < 7907").collect()
        compiled.append(nanoseconds_of_compiling(session) - before)
        session.stop()
    assert compiled[0] > 0
    assert compiled[1] == 0


def nanoseconds_of_compiling(session: SparkSession) -> int:
    """What the server's JVM has spent on it so far, with this query itself."""
    (row,) = session.sql(f"SELECT reflect('{COMPILER}', 'compileTime') AS spent").collect()
    return int(row.spent)


def test_calls_of_the_api_do_not_search_for_a_module_that_is_not_installed(
    home: Settings, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = open_spark(home)
    searched: list[str] = []

    class Finder:
        def find_spec(self, name: str, *_: object) -> None:
            searched.append(name)

    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    rows = session.range(3).selectExpr("id + 1 AS id")
    assert rows.where(rows["id"] > 1).count() == 2
    session.stop()
    assert "IPython" not in searched


def test_what_is_right_for_two_cores_is_left_out_on_a_cluster(bare_home: Settings) -> None:
    local = jvm_conf(bare_home)
    assert (local["spark.master"], local["spark.sql.adaptive.enabled"]) == ("local[2]", "false")
    given = {"spark.master": "spark://master:7077", "spark.executor.memory": "8g", "spark.driver.memory": "4g"}
    cluster = jvm_conf(bare_home.model_copy(update={"spark_properties": given}))
    assert given.items() <= cluster.items()
    assert cluster["spark.sql.adaptive.enabled"] == cluster["spark.dynamicAllocation.enabled"] == "true"
    assert not {"spark.sql.shuffle.partitions", "spark.driver.host"} & cluster.keys()
    assert cluster["spark.sql.extensions"] == local["spark.sql.extensions"]
