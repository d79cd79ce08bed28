"""The public coordinator in anybody's program: its properties, and what it does for streams that share a table."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from benchmarks.timeline import Window, conflicts, overlaps
from lake_assets import JobCoordinator
from lake_assets.connections.spark import LOCAL_CONF, STATIC_CONF, jars, spark_environment
from lake_assets.connections.zookeeper import zookeeper_client
from lake_assets.engagement.lake import STREAMS
from lake_assets.errors import ConfigurationError, LockLost, LockNotFree, TurnRefused
from lake_assets.settings import PROJECT, settings
from lake_assets_tests.coordination.conftest import Connect
from lake_assets_tests.coordination.lossy import lossy_line

LOCK, NAME, PREDECESSOR = "job.coordinator.lock.name", "job.coordinator.name", "job.coordinator.predecessor"
RIGHT = {LOCK: "sales", NAME: "mutation", PREDECESSOR: "ingestion"}
PREDECESSORS = {"ingestion": "any", "mutation": "ingestion", "retention": "mutation, retention"}
NOWHERE = "127.0.0.1:1"
FILE = r"""
# the stream's place
spark.job.coordinator.lock.name   {lock}
job.coordinator.name: muta\
    tion
! and whom it follows
job.coordinator.predecessor = ingestion, \u0072etention
spark.app.name=other
"""


@pytest.mark.parametrize("source", ["mapping", "file", "Spark"])
def test_properties_say_where_a_stream_belongs(source: str, connect: Connect, lock_name: str, tmp_path: Path) -> None:
    from pyspark import SparkConf

    (tmp_path / "job.properties").write_text(FILE.format(lock=lock_name))
    values = {LOCK: lock_name, NAME: "mutation", PREDECESSOR: "ingestion,retention"}
    of_spark = SparkConf(loadDefaults=False)
    of_spark.setAll([(f"spark.{key}", value) for key, value in values.items()])
    sources = {"mapping": values, "file": tmp_path / "job.properties", "Spark": of_spark}
    mutation = JobCoordinator.from_properties(sources[source], zookeeper=connect())  # type: ignore[arg-type]
    retention = JobCoordinator.from_properties({**values, NAME: "retention", PREDECESSOR: "any"}, zookeeper=connect())
    assert mutation.lock()
    with pytest.raises(TurnRefused, match="no stream has run yet"):
        mutation.register()
    with retention.turn(max_wait=30) as nobody:
        assert nobody is None
    with mutation.turn(max_wait=30) as predecessor:
        assert predecessor == "retention"
    assert retention.lock()
    assert retention.register() == "mutation"
    assert retention.unlock()


@pytest.mark.parametrize(
    ("change", "problem", "remedy"),
    [
        ({LOCK: None}, f"The property {LOCK} is missing.", f"Set {LOCK}: the name of what the streams share."),
        ({NAME: " "}, f"The property {NAME} is empty.", f"Set {NAME}: the name of this stream."),
        ({PREDECESSOR: ""}, f"The property {PREDECESSOR} is empty.", f"Set {PREDECESSOR}: the stream after which"),
        ({"job.coordinator.nme": "a"}, "The property job.coordinator.nme is unknown.", f"Name {LOCK}, {NAME}, "),
        (
            {"spark.job.coordinator.x": "a"},
            "The property spark.job.coordinator.x is unknown.",
            f"Name {LOCK}, {NAME}, ",
        ),
        ({LOCK: "../sales"}, f"The property {LOCK} is '../sales', and '../sales' is not a valid name", "It must match"),
        ({PREDECESSOR: "a,,b"}, f"The property {PREDECESSOR} is 'a,,b', and '' is not a valid name", "It must match"),
        ({PREDECESSOR: 7}, f"The property {PREDECESSOR} is 7, which is no text.", "Write the stream after which"),
        ({f"spark.{NAME}": "b"}, f"The property {NAME} is 'mutation' and, with or without spark., 'b'.", "Remove one"),
    ],
)
def test_a_wrong_property_is_named(change: dict[str, str | None], problem: str, remedy: str, tmp_path: Path) -> None:
    values = {key: value for key, value in {**RIGHT, **change}.items() if value is not None}
    with pytest.raises(ConfigurationError) as error:
        JobCoordinator.from_properties(values, zookeeper=NOWHERE)
    assert error.value.problem.startswith(problem)
    assert error.value.remedy.startswith(remedy)
    file = tmp_path / "job.properties"
    file.write_text("\n".join(f"{key}={value}" for key, value in values.items()))
    if all(isinstance(value, str) for value in values.values()):
        with pytest.raises(ConfigurationError, match=re.escape(f"{file}: {problem}")):
            JobCoordinator.from_properties(str(file), zookeeper=NOWHERE)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        JobCoordinator.from_properties(tmp_path / "job.properties", zookeeper=NOWHERE)


def place(lock_name: str, stream: str) -> dict[str, str]:
    return {LOCK: lock_name, NAME: stream, PREDECESSOR: PREDECESSORS[stream]}


def test_closing_frees_the_lock_and_leaves_the_turn_to_its_stream(zookeeper: str, lock_name: str) -> None:
    with JobCoordinator.from_properties(place(lock_name, "ingestion"), zookeeper=zookeeper) as ingestion:
        assert ingestion.lock()
        assert ingestion.lock()
        assert ingestion.register() is None
    assert not ingestion.unlock()
    ingestion.close()
    with JobCoordinator.from_properties(place(lock_name, "mutation"), zookeeper=zookeeper, timeout=5) as mutation:
        assert mutation.lock()
        with pytest.raises(TurnRefused, match="the last turn, of ingestion, is not done"):
            mutation.register()


def test_without_zookeeper_nobody_gets_the_lock_and_its_holder_learns_of_it_before_it_commits(
    zookeeper: str, lock_name: str
) -> None:
    with lossy_line(zookeeper) as line, zookeeper_client(line.address, session_seconds=2) as zk:
        holder = JobCoordinator.from_properties(place(lock_name, "ingestion"), zookeeper=zk, timeout=1)
        committed = []

        def work() -> None:
            with holder.turn(max_wait=9):
                line.cut()
                holder.confirm()
                committed.append("late")

        with pytest.raises(LockLost, match="its session has expired, or had no connection"):
            work()
        assert committed == []
        assert not holder.unlock()
        begun = time.monotonic()
        assert not holder.lock()
        unanswered = "ingestion waits, and ZooKeeper does not answer"
        with pytest.raises(LockNotFree, match=unanswered), holder.turn(max_wait=1):
            pass
        assert time.monotonic() - begun < 60
    with JobCoordinator.from_properties(place(lock_name, "mutation"), zookeeper=zookeeper) as other:
        assert other.lock()
        with pytest.raises(TurnRefused, match="the last turn, of ingestion, is not done"):
            other.register()


def test_threads_take_their_turns_one_after_the_other(zookeeper: str, lock_name: str) -> None:
    inside, most = [0], [0]
    with JobCoordinator.from_properties(place(lock_name, "ingestion"), zookeeper=zookeeper) as coordinator:

        def work() -> None:
            for _ in range(3):
                with coordinator.turn(max_wait=60):
                    inside[0] += 1
                    most[0] = max(most[0], inside[0])
                    time.sleep(0.01)
                    inside[0] -= 1

        together([work] * 3)
        with coordinator.turn(max_wait=30), pytest.raises(LockNotFree), coordinator.turn(max_wait=0.1):
            pass
    assert most == [1]


def together(work: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=each) for each in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()


@pytest.mark.parametrize("coordinated", [True, False], ids=["with", "without"])
def test_streams_that_change_one_table_overlap_and_conflict_without_the_coordinator_alone(
    coordinated: bool, zookeeper: str, lock_name: str, tmp_path: Path
) -> None:
    """Each of three streams adds 1 to all rows, again and again; a change that another one preceded is refused."""
    write_deltalake(tmp_path, pa.table({"changes": [0]}))
    windows: list[Window] = []

    def work(stream: str) -> None:
        with JobCoordinator.from_properties(
            {**place(lock_name, stream), PREDECESSOR: "any"}, zookeeper=zookeeper
        ) as coordinator:
            for _ in range(5):
                turn = coordinator.turn(max_wait=60) if coordinated else nullcontext()
                with turn:
                    windows.append(change(tmp_path, stream))

    together([lambda stream=stream: work(stream) for stream in STREAMS])  # type: ignore[misc]
    assert len(windows) == 15
    assert DeltaTable(tmp_path).to_pyarrow_table()["changes"].to_pylist() == [15 - conflicts(windows)]
    assert (overlaps(windows) == [], conflicts(windows) == 0) == (coordinated, coordinated)


def change(table: Path, stream: str) -> Window:
    began, conflict = time.monotonic(), None
    found = DeltaTable(table)
    time.sleep(0.05)  # it computes
    try:
        found.update(updates={"changes": "changes + 1"}, commit_properties=CommitProperties(max_commit_retries=0))
    except (CommitFailedError, DeltaError) as error:
        conflict = type(error).__name__
    return Window(stream, began, time.monotonic(), conflict)  # type: ignore[arg-type]


def programs() -> list[str]:
    page = (PROJECT / "docs" / "coordination.md").read_text()
    return [str(found) for found in re.findall(r"^```python\n(.*?)^```$", page, re.S | re.M)]


@contextmanager
def running_program(
    code: str, folder: Path, words: list[str], properties: dict[str, str], zookeeper: str
) -> Iterator[None]:
    """A program in a process of its own, with Spark's properties as `spark-submit` gives them."""
    lines = {**STATIC_CONF, **LOCAL_CONF, "spark.jars": ",".join(map(str, jars(settings()))), **properties}
    (folder / "spark-defaults.conf").write_text("\n".join(f"{key} {value}" for key, value in lines.items()))
    (folder / "append.py").write_text(code)
    log = folder / "log"
    with log.open("w") as output:
        # Tests that have used Spark Connect in this process leave variables that would make the program do so, too.
        others = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
        environment = {**others, **spark_environment(), "SPARK_CONF_DIR": str(folder)}
        environment["LAKE_ZOOKEEPER"] = zookeeper
        process = subprocess.Popen(
            [sys.executable, "append.py", *words], cwd=folder, env=environment, stdout=output, stderr=output
        )
        try:
            yield
            assert process.poll() is None, log.read_text()
        finally:
            process.kill()  # its Java ends with it
            process.wait()


@pytest.mark.journey
def test_the_program_of_the_page_takes_turns_with_others_as_it_stands_there(
    kafka: str, zookeeper: str, lock_name: str, tmp_path: Path
) -> None:
    """It appends nothing while another stream has its turn, and takes turns without messages, too."""
    (code,) = programs()
    topic, table = f"calls-{uuid4().hex}", tmp_path / "table"
    admin = AdminClient({"bootstrap.servers": kafka})
    admin.create_topics([NewTopic(topic, 1)])[topic].result(30)
    words = [kafka, topic, str(table), str(tmp_path / "state")]
    properties = {f"spark.{key}": value for key, value in place(lock_name, "ingestion").items()}
    send(kafka, topic, ["one", "two"])
    with (
        running_program(code, tmp_path, words, properties, zookeeper),
        JobCoordinator.from_properties(place(lock_name, "mutation"), zookeeper=zookeeper) as mutation,
    ):
        for _ in range(2):
            with mutation.turn(max_wait=200) as predecessor:
                assert predecessor == "ingestion"
                before = texts(table)
                send(kafka, topic, ["three"])
                time.sleep(3)
                assert texts(table) == before
        with mutation.turn(max_wait=60):
            assert texts(table) == ["one", "three", "three", "two"]


def send(kafka: str, topic: str, messages: list[str]) -> None:
    producer = Producer({"bootstrap.servers": kafka})
    for message in messages:
        producer.produce(topic, message)
    assert producer.flush(30) == 0


def texts(table: Path) -> list[str]:
    return sorted(DeltaTable(table).to_pyarrow_table()["text"].to_pylist())
