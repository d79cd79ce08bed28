"""Batches under which something breaks: Kafka is restarted, grows, loses messages; Spark dies; the disk is full."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psutil
from confluent_kafka import TopicPartition
from confluent_kafka.admin import NewPartitions

from lake_assets.base.failpoints import PAUSE
from lake_assets.connections.addresses import process_of
from lake_assets.engagement.tables import ENGAGEMENT
from lake_assets.errors import MessagesLost
from lake_assets.services.servers import kafka as kafka_service
from lake_assets.services.servers import spark as spark_service
from lake_assets.services.service import Service, free_port, running
from lake_assets.settings import Settings
from lake_assets_tests.engagement.interrupted import ANEW, arrive, go_on, left, settle
from lake_assets_tests.engagement.scenario import PARTITIONS, Traffic
from lake_assets_tests.engagement.world import SEEN, World
from lake_assets_tests.outcomes import Outcomes


def kafka_breaks(world: World) -> dict[str, Outcomes]:
    """What happens to a broker and its topic, on a broker of its own."""
    with tempfile.TemporaryDirectory(prefix="lake-kafka-") as folder, ExitStack() as restarted:
        broker = kafka_service(Settings(home=Path(folder)), free_port(), free_port())
        restarted.enter_context(running(broker))

        def restart() -> None:
            killed(broker)
            restarted.enter_context(running(broker))

        mail = world.mail("kafka", kafka=f"127.0.0.1:{broker.port}")
        arrive(mail, "ingestion")
        mail.die("written-data")
        restart()
        found = {"Kafka is killed, and started again, in a batch": goes_on(mail)}
        restart()
        found["the same, after a batch"] = goes_on(mail)
        found["a partition is added in a batch"] = partition_added(mail)
        settle(mail)
        found["the topic is truncated in a batch"] = truncated(mail)
    return {SEEN: found}


def partition_added(mail: Traffic) -> str:
    """Messages of the new partition come with the next batch, from the first on."""
    arrive(mail, "ingestion")
    mail.die("after-intent")
    mail.partitions = PARTITIONS + 1
    mail.admin.create_partitions([NewPartitions(mail.topic, mail.partitions)])[mail.topic].result(20)
    said = goes_on(mail)
    report = mail.run()
    return f"{said}; the next one has the partition from offset {report.batch.messages.start[PARTITIONS]}"


def truncated(mail: Traffic) -> str:
    """Messages of the open batch are deleted before it has read them. It is withdrawn, and the stream stops."""
    arrive(mail, "ingestion")
    mail.die("after-intent")
    rows = mail.rows(ENGAGEMENT)
    ends = mail.stream().topic().end
    for done in mail.admin.delete_records([TopicPartition(mail.topic, p, end) for p, end in ends.items()]).values():
        done.result(20)
    try:
        mail.run()
    except MessagesLost as error:
        assert (left(mail, "ingestion"), mail.rows(ENGAGEMENT)) == (ANEW, rows)
        return f"stops, and is withdrawn without a row: {type(error).__name__}"
    raise AssertionError("a batch whose messages are gone went on")


def spark_breaks(world: World) -> dict[str, Outcomes]:
    """What happens to the Spark server that writes: one of its own, after which the shared one goes on."""
    mail = world.mail("spark")
    with (
        tempfile.TemporaryDirectory(prefix="lake-spark-") as folder,
        running(spark_service(Settings(home=Path(folder)), free_port())) as server,
    ):
        found = {
            "the disk is full as the intent is written": full_disk(mail, server, "before-intent"),
            "the disk is full as data is written": full_disk(mail, server, "before-data"),
            "Spark is killed in the commit of data": killed_in_commit(mail, server),
        }
    settle(mail)
    return {SEEN: found}


def full_disk(mail: Traffic, server: Service, point: str) -> str:
    """From a point on, neither the attempt nor its Spark can write a byte to a file; later they can."""
    arrive(mail, "ingestion")
    attempt = mail.start(PAUSE + point, remote=address(server))
    attempt.stopped()
    with no_bytes(attempt.process), no_bytes(process(server)):
        attempt.go_on()
        said = attempt.said()
    return f"stops: {said}; {goes_on(mail)}"


@contextmanager
def no_bytes(process: psutil.Process) -> Iterator[None]:
    """Files can not grow, whoever may write them: the limit of the process's own file sizes is 0."""
    before = process.rlimit(psutil.RLIMIT_FSIZE)
    process.rlimit(psutil.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        if process.is_running():
            process.rlimit(psutil.RLIMIT_FSIZE, before)


def killed_in_commit(mail: Traffic, server: Service) -> str:
    """The server is killed (`kill -9`) once a file of data is there, before the commit that would name it."""
    arrive(mail, "ingestion")
    folder, version = Path(urlsplit(mail.tables.location(ENGAGEMENT)).path), mail.tables.version(ENGAGEMENT)
    before = set(folder.rglob("*.parquet"))
    attempt = mail.start(remote=address(server))
    while set(folder.rglob("*.parquet")) == before:
        assert attempt.runs
        time.sleep(0.002)
    killed(server)
    attempt.kill()
    assert mail.tables.version(ENGAGEMENT) == version, "the commit came before the kill"
    return goes_on(mail)


def goes_on(mail: Traffic) -> str:
    """The next attempt, after more messages: what it does."""
    todo = left(mail, "ingestion")
    arrive(mail, "ingestion")
    go_on(mail, "ingestion")
    return f"the next does: {todo}"


def address(server: Service) -> str:
    return f"sc://127.0.0.1:{server.port}"


def process(service: Service) -> psutil.Process:
    found = process_of(service.home, service.name)
    assert found is not None
    return found


def killed(service: Service) -> None:
    """`kill -9`, and it is gone."""
    running = process(service)
    running.kill()
    psutil.wait_procs([running], timeout=8)
