"""One Spark for Iceberg, Delta and Kafka: its jars and its configuration get along."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from uuid import uuid4

import grpc
import psutil
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.errors.exceptions.connect import SparkConnectGrpcException

from lake_assets.connections.spark import MAX_RETRIES, SHARED_CODE, jvm_conf, open_spark, share_compiled_code

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake_assets.settings import Settings

COMPILER = "org.apache.spark.sql.catalyst.expressions.codegen.CodeGenerator"
COMPILED = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "CODEGEN_ONLY"}


class Refused(grpc.RpcError):  # type: ignore[misc]
    """A server, or a proxy before it, does not know a call."""


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
    """Other tests use the server meanwhile, and its counter: one session of several meets a moment without them."""
    compiled: list[int] = []
    never_before = uuid4().int % 10**9
    for _ in range(4):
        session = open_spark(home)
        for name, value in COMPILED.items():  # the Spark of the tests interprets: it has few rows
            session.conf.set(name, value)
        before = nanoseconds_of_compiling(session)
        session.range(100).selectExpr(f"id % {never_before} AS k").groupBy("k").count().where("count < 7907").collect()
        compiled.append(nanoseconds_of_compiling(session) - before)
        session.stop()
    assert compiled[0] > 0
    assert min(compiled[1:]) == 0


@pytest.mark.parametrize("refusal", [Refused(), SparkConnectGrpcException("broken")], ids=["call", "server"])
def test_a_server_that_can_not_clone_keeps_the_session_as_it_is(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, refusal: Exception
) -> None:
    def clone() -> None:
        raise refusal

    connected: Any = spark
    monkeypatch.setattr(connected.client, "clone", clone)
    assert not share_compiled_code(spark)
    assert spark.range(3).count() == 3


def test_jars_of_others_are_not_shared_on_a_server_that_is_not_our_own(spark: SparkSession) -> None:
    connected: Any = spark
    own = connected.client
    spark.conf.set(SHARED_CODE, "false")
    assert not share_compiled_code(spark)
    assert connected.client is own
    spark.conf.set(SHARED_CODE, "true")
    assert share_compiled_code(spark)
    assert connected.client is not own
    assert own.is_closed
    assert spark.range(3).count() == 3


def test_a_session_gives_up_soon_when_its_server_is_gone(spark: SparkSession) -> None:
    connected: Any = spark
    assert [policy.max_retries for policy in connected.client.get_retry_policies()] == [MAX_RETRIES]


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


def test_a_session_starts_no_process_for_the_files_that_it_writes(spark: SparkSession) -> None:
    """Other tests use the server meanwhile, and may: one write of several meets a moment without them."""
    identity = spark.sql("SELECT reflect('java.lang.ProcessHandle', 'current') AS pid").collect()[0].pid
    server = psutil.Process(int(identity))
    table = f"lake.files_{uuid4().hex}.written"
    spark.sql(f"CREATE NAMESPACE {table.rpartition('.')[0]}")
    spark.sql(f"CREATE TABLE {table} (hour BIGINT) USING iceberg PARTITIONED BY (hour)")
    rows = spark.range(0, 30, 1, 1).withColumnRenamed("id", "hour")
    of_children: list[float] = []
    while len(of_children) < 10 and 0 not in of_children:
        before = seconds_of_children(server)
        rows.writeTo(table).option("distribution-mode", "none").append()
        of_children.append(seconds_of_children(server) - before)
    assert 0 in of_children
    (where,) = spark.sql(f"SELECT file_path FROM {table}.files LIMIT 1").collect()
    written = Path(urlsplit(where.file_path).path)
    other = written.with_name("other")
    other.touch()
    assert written.stat().st_mode == other.stat().st_mode


def seconds_of_children(process: psutil.Process) -> float:
    """Processor time of the processes that a process has started, and that have ended."""
    times = process.cpu_times()
    return float(times.children_user + times.children_system)


def test_files_are_written_as_before_without_the_jar_or_with_another_class_path(bare_home: Settings) -> None:
    assert jvm_conf(bare_home)["spark.hadoop.fs.file.impl"].endswith("BareLocalFileSystem")
    own = bare_home.model_copy(update={"spark_properties": {"spark.driver.extraClassPath": "own.jar"}})
    assert "spark.hadoop.fs.file.impl" not in jvm_conf(own)
    jars = bare_home.home / "jars"
    jars.mkdir(parents=True)
    (jars / "of-an-older-version.jar").touch()
    older = jvm_conf(bare_home.model_copy(update={"jars": jars}))
    assert not {"spark.driver.extraClassPath", "spark.hadoop.fs.file.impl"} & older.keys()


def test_what_is_right_for_two_cores_is_left_out_on_a_cluster(bare_home: Settings) -> None:
    local = jvm_conf(bare_home)
    assert (local["spark.master"], local["spark.sql.adaptive.enabled"]) == ("local[2]", "false")
    given = {"spark.master": "spark://master:7077", "spark.executor.memory": "8g", "spark.driver.memory": "4g"}
    cluster = jvm_conf(bare_home.model_copy(update={"spark_properties": given}))
    assert given.items() <= cluster.items()
    assert cluster["spark.sql.adaptive.enabled"] == cluster["spark.dynamicAllocation.enabled"] == "true"
    only_local = {"spark.sql.shuffle.partitions", "spark.driver.host", "spark.hadoop.fs.file.impl"}
    assert only_local <= local.keys()
    assert not only_local & cluster.keys()
    assert cluster["spark.sql.extensions"] == local["spark.sql.extensions"]
