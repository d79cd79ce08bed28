"""One catalog, two sides: what pyiceberg makes Spark sees and changes, and the other way round, also all at once."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from lake_assets.connections.catalog import open_catalog, spark_catalog_conf
from lake_assets.connections.spark import open_spark
from lake_assets.errors import ConfigurationError, ServiceError
from lake_assets.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

NUMBERS = pa.schema([("number", pa.int64())])

APPEND = """
import sys
import pyarrow as pa
from pathlib import Path
from lake_assets.connections.catalog import open_catalog
from lake_assets.settings import Settings

for number in range(int(sys.argv[3])):
    rows = pa.table({"number": [number]}, schema=pa.schema([("number", pa.int64())]))
    open_catalog(Settings(home=Path(sys.argv[1]))).load_table(sys.argv[2]).append(rows)
"""


def appender(home: Path, table: str, times: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", APPEND, str(home), table, str(times)])


def namespaces(settings: Settings) -> list[Any]:
    session = open_spark(settings)
    try:
        return session.sql("SHOW NAMESPACES IN lake").collect()
    finally:
        session.stop()


def count(catalog: Catalog, table: str) -> int:
    return catalog.load_table(table).scan().to_arrow().num_rows


def test_each_side_reads_and_changes_the_tables_of_the_other(spark: SparkSession, catalog: Catalog) -> None:
    catalog.create_namespace("a")
    spark.sql("CREATE NAMESPACE lake.b")
    catalog.create_table("b.from_python", schema=NUMBERS).append(pa.table({"number": [1]}, schema=NUMBERS))
    spark.sql("CREATE TABLE lake.a.from_spark (number bigint) USING iceberg")

    spark.sql("INSERT INTO lake.b.from_python VALUES (2)")
    spark.sql("INSERT INTO lake.a.from_spark VALUES (1)")
    catalog.load_table("a.from_spark").append(pa.table({"number": [2]}, schema=NUMBERS))

    assert {row.tableName for row in spark.sql("SHOW TABLES IN lake.b").collect()} == {"from_python"}
    assert catalog.list_tables("a") == [("a", "from_spark")]
    for table in ("a.from_spark", "b.from_python"):
        assert count(catalog, table) == spark.table(f"lake.{table}").count() == 2


def test_a_table_dropped_by_one_side_is_gone_for_the_other(spark: SparkSession, catalog: Catalog) -> None:
    catalog.create_namespace("a")
    catalog.create_table("a.one", schema=NUMBERS)
    assert spark.table("lake.a.one").count() == 0
    spark.sql("DROP TABLE lake.a.one")
    assert not catalog.table_exists("a.one")


USES_SPARK_IN_PROCESS = """
import signal, sys
from pathlib import Path
from lake_assets.cli.main import app, main
from lake_assets.connections.spark import open_spark
from lake_assets.settings import Settings

@app.command()
def wait() -> None:
    spark = open_spark(Settings(home=Path(home)))
    spark.sql("INSERT INTO lake.a.one VALUES (1)")
    spark.sql("CALL lake.system.rewrite_manifests('a.one')")
    print(spark.conf.get("spark.sql.session.timeZone"), spark.table("lake.a.one").count())
    sleeps = spark.sql("SELECT java_method('java.lang.Thread', 'sleep', 300L)")
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    for _ in range(30):  # until py4j raises an error of its own, which it often does
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        try:
            sleeps.collect()
        except KeyboardInterrupt:
            pass
    raise KeyboardInterrupt

home = sys.argv.pop()
sys.argv.append("wait")
main()
"""


@pytest.mark.slow
def test_without_a_server_spark_runs_in_the_process_and_does_the_same(bare_home: Settings, catalog: Catalog) -> None:
    catalog.create_namespace("a")
    catalog.create_table("a.one", schema=NUMBERS)
    command = [sys.executable, "-c", USES_SPARK_IN_PROCESS, str(bare_home.home)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "UTC 1\n", "")
    assert count(catalog, "a.one") == 1


def test_homes_on_one_spark_server_do_not_meet(spark: SparkSession, home: Settings, tmp_path: Path) -> None:
    other = open_spark(home.model_copy(update={"home": tmp_path / "other"}))
    spark.sql("CREATE NAMESPACE lake.mine")
    assert other.sql("SHOW NAMESPACES IN lake").collect() == []
    other.stop()


@pytest.mark.slow
def test_concurrent_commits_of_both_sides_are_all_kept(spark: SparkSession, catalog: Catalog, home: Settings) -> None:
    patient = {"commit.retry.num-retries": "50", "commit.retry.total-timeout-ms": "120000"}
    catalog.create_namespace("a")
    catalog.create_table("a.shared", schema=NUMBERS, properties=patient)
    for table in ("a.p1", "a.p2", "a.s1", "a.s2"):
        catalog.create_table(table, schema=NUMBERS)

    def insert(table: str) -> None:
        for number in range(8):
            spark.sql(f"INSERT INTO lake.{table} VALUES ({number})")

    processes = [appender(home.home, table, 8) for table in ("a.p1", "a.p2", "a.shared")]
    with ThreadPoolExecutor() as threads:
        list(threads.map(insert, ["a.s1", "a.s2", "a.shared"]))
    assert [process.wait(300) for process in processes] == [0, 0, 0]

    found = {table: count(catalog, table) for table in ("a.p1", "a.p2", "a.s1", "a.s2", "a.shared")}
    assert found == {"a.p1": 8, "a.p2": 8, "a.s1": 8, "a.s2": 8, "a.shared": 16}


@pytest.mark.journey
def test_all_that_open_a_new_catalog_at_once_succeed(home: Settings) -> None:
    opens = "import sys; from pathlib import Path; from lake_assets.settings import Settings; "
    opens += "from lake_assets.connections.catalog import open_catalog; open_catalog(Settings(home=Path(sys.argv[1])))"
    processes = [subprocess.Popen([sys.executable, "-c", opens, str(home.home)]) for _ in range(4)]
    with ThreadPoolExecutor() as threads:
        assert list(threads.map(namespaces, [home, home])) == [[], []]
    assert [process.wait(300) for process in processes] == [0] * 4


@pytest.mark.journey
def test_commits_of_both_sides_wait_for_a_locked_file(spark: SparkSession, catalog: Catalog, home: Settings) -> None:
    catalog.create_namespace("a")
    catalog.create_table("a.one", schema=NUMBERS)
    lock = sqlite3.connect(home.home / "catalog.db", isolation_level=None, check_same_thread=False)
    lock.execute("BEGIN EXCLUSIVE")
    threading.Timer(7, lambda: lock.execute("ROLLBACK")).start()  # longer than the 5 s that SQLite's drivers wait
    python = appender(home.home, "a.one", 1)
    spark.sql("INSERT INTO lake.a.one VALUES (1)")
    assert python.wait(300) == 0
    assert count(catalog, "a.one") == 2


def test_other_catalogs_are_only_other_addresses(tmp_path: Path) -> None:
    rest = spark_catalog_conf(
        Settings(home=tmp_path, catalog_uri="https://catalog.example/api", warehouse="s3://bucket")
    )
    assert rest == {
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.cache-enabled": "false",
        "spark.sql.catalog.lake.type": "rest",
        "spark.sql.catalog.lake.uri": "https://catalog.example/api",
        "spark.sql.catalog.lake.warehouse": "s3://bucket",
    }
    postgres = spark_catalog_conf(Settings(home=tmp_path, catalog_uri="postgresql+psycopg2://me:s%40cret@db:5433/lake"))
    assert {k.removeprefix("spark.sql.catalog.lake."): v for k, v in postgres.items()}.items() >= {
        "type": "jdbc",
        "uri": "jdbc:postgresql://db:5433/lake",
        "jdbc.user": "me",
        "jdbc.password": "s@cret",
        "jdbc.schema-version": "V1",
    }.items()


def test_a_catalog_that_cannot_be_reached_is_named_without_its_password(tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match=r"postgresql://me:\*\*\*@127.0.0.1:1/lake cannot be opened\. .*refused"):
        open_catalog(Settings(home=tmp_path, catalog_uri="postgresql://me:secret@127.0.0.1:1/lake"))
    with pytest.raises(ConfigurationError, match="mysql"):
        open_catalog(Settings(home=tmp_path, catalog_uri="mysql://x/y"))


def test_a_spark_server_that_is_not_there_is_named_at_once(bare_home: Settings) -> None:
    with pytest.raises(ServiceError, match=r"No Spark Connect server answers at sc://127\.0\.0\.1:1:"):
        open_spark(bare_home.model_copy(update={"spark_remote": "sc://127.0.0.1:1"}))
