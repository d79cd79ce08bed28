"""One Spark for Iceberg, Delta and Kafka: its jars and its configuration get along."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from lake_assets.connections.spark import open_spark

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from lake_assets.settings import Settings


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
