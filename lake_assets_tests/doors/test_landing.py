"""Landing through its doors: messages sent to a real Kafka, the command line, the folders, and the raw table."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Thread
from uuid import uuid4

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from lake_assets_tests.doors.lake_door import Done, LakeDoor
from lake_assets_tests.matrices import one_now
from lake_assets_tests.object_store import KEY, KEY_ID, made_bucket
from lake_assets_tests.processes import wait_until

DECLARED = """
from lake_assets import Pipeline, RawTable, Subject, Topic

COLUMNS = {{"order_id": "string", "customer_id": "string", "note": "string", "ordered_at": "timestamptz"}}
ORDERS = RawTable("raw.orders", COLUMNS, time_column="ordered_at", feed=Topic("customer_id", name="{topic}"))
CUSTOMER = Subject("customer", columns=("customer_id",))
PIPELINE = Pipeline(raw=(ORDERS,), targets=(), subjects=(CUSTOMER,), start="2026-01-01-00:00")
"""
TIME = "2026-01-01T10:00:00Z"


@dataclass
class Shop:
    """Orders of a topic with one partition; each message is a file of its own, in each zone."""

    lake: LakeDoor
    servers: str
    topic: str = field(default_factory=lambda: f"orders-{uuid4().hex}")

    def __post_init__(self) -> None:
        self.lake.declare_in_python(DECLARED.format(topic=self.topic), "shop")
        self.lake.environment |= {"LAKE_KAFKA": self.servers, "LAKE_LANDING_FILE_MESSAGES": "1"}
        self.lake("init")
        self.lake("landing", "init", "--partitions", "1")

    def send(
        self, ids: Iterable[str], *, customer: str = "c", timestamp: int = 0, topic: str = "", **values: str
    ) -> None:
        producer = Producer({"bootstrap.servers": self.servers})
        for order in ids:
            message = {"order_id": order, "customer_id": customer, "ordered_at": TIME, **values}
            producer.produce(topic or self.topic, json.dumps(message).encode(), partition=0, timestamp=timestamp)
        assert producer.flush(60) == 0

    def land(self, *words: str) -> Done:
        return self.lake.run("landing", "run", "--once", *words)

    def take_any_time(self) -> None:
        """Let Kafka take timestamps of the far future, which it refuses by default."""
        name, longest = "message.timestamp.after.max.ms", str(2**63 - 1)
        entry = ConfigEntry(name, longest, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, self.topic, incremental_configs=[entry])
        admin = AdminClient({"bootstrap.servers": self.servers})
        for answer in admin.incremental_alter_configs([resource]).values():
            answer.result(60)

    def forget(self, before: int) -> None:
        """Let Kafka remove the messages before an offset, as its retention does."""
        admin = AdminClient({"bootstrap.servers": self.servers})
        for answer in admin.delete_records([TopicPartition(self.topic, 0, before)]).values():
            answer.result(60)

    def folder(self, zone: str) -> Path:
        return self.lake.home / "landing" / zone

    def orders(self) -> list[str]:
        return sorted(str(row["order_id"]) for row in self.lake.rows("raw.orders"))

    def complete_through(self) -> str | None:
        return self.lake.table("raw.orders").properties.get("lake.complete-through")


@pytest.fixture
def shop(lake_without_spark: LakeDoor, kafka: str) -> Shop:
    return Shop(lake_without_spark, kafka)


def test_too_many_dead_letters_are_told_and_hold_complete_through_until_they_are_landed_again(shop: Shop) -> None:
    strict = {"LAKE_LANDING_MESSAGE_BYTES": "200"}
    shop.lake.environment |= strict
    shop.send(["o1", "o2"])
    shop.send([f"long{n}" for n in range(8)], note="x" * 200)
    assert shop.land().code == 0
    assert shop.orders() == ["o1", "o2"]
    assert shop.complete_through() is None

    told = f"8 of 10 messages of {shop.topic} are dead letters: 8 too large."
    for words in (["status"], ["doctor"], ["landing", "status"], ["landing", "verify"]):
        done = shop.lake.run(*words)
        assert done.code == 1
        assert told in " ".join(done.text.split())
        assert f"lake landing dead-letters {shop.topic}" in " ".join(done.text.split())
    listed = shop.lake.json("landing", "dead-letters", shop.topic)
    assert {letter["reason"] for letter in listed["newest"]} == {"too large"}
    assert len(listed["newest"]) == 8

    shop.lake.environment["LAKE_LANDING_MESSAGE_BYTES"] = "1000"
    for _ in range(2):  # the second time, nothing is left to be loaded
        shop.lake("landing", "dead-letters", shop.topic, "--land-again")
        assert shop.orders() == sorted(["o1", "o2", *(f"long{n}" for n in range(8))])
    assert shop.complete_through() is not None
    shop.lake("landing", "verify")
    shop.lake("landing", "status")


def test_accepted_dead_letters_hold_nothing(shop: Shop) -> None:
    shop.send(["o1"])
    shop.send([f"o{n}" for n in range(2, 9)])
    shop.send(["o9", "o10"], ordered_at="soon")
    assert shop.land().code == 0
    assert shop.complete_through() is None
    shop.lake("landing", "dead-letters", shop.topic, "--accept")
    assert shop.complete_through() is not None
    shop.lake("landing", "status")
    assert shop.lake.json("landing", "dead-letters", shop.topic)["newest"] == []


def test_one_dead_letter_of_a_few_messages_is_told_and_holds_nothing(shop: Shop) -> None:
    shop.send(["o1", "o2"])
    shop.send(["o3"], ordered_at="soon")
    assert shop.land().code == 0
    assert shop.complete_through() is not None
    assert f"{shop.topic} has 1 dead letters: 1 bad timestamptz ordered_at." in shop.lake.run("status").text


WRONG_CLOCKS = {
    "microseconds where Kafka wants milliseconds": lambda now: int(now * 1e6),
    "seconds where Kafka wants milliseconds": lambda now: int(now),
    "a clock that is behind": lambda now: int(now - 86_400) * 1000,
}


@pytest.mark.parametrize("cause", one_now(WRONG_CLOCKS))
def test_a_producer_with_a_wrong_clock_makes_no_files_and_is_named(shop: Shop, cause: str) -> None:
    shop.lake.environment |= {"LAKE_LANDING_FILE_MESSAGES": "1000", "LAKE_LANDING_AGE_SECONDS": "1"}
    began = time.time()
    shop.take_any_time()
    shop.land()  # a heartbeat before all others
    for n in range(20):
        shop.send([f"right{n}"])
        shop.send([f"wrong{n}"], timestamp=WRONG_CLOCKS[cause](began))
    shop.land()
    time.sleep(1)
    assert shop.land().code == 0  # its heartbeat is a second later, and closes the file
    assert len(list(shop.folder("a").glob("*.avro"))) <= 3
    rows = shop.lake.rows("raw.orders")
    assert len(rows) == 40
    assert all(datetime.fromtimestamp(began - 60, UTC) <= row["landed_at"] <= datetime.now(UTC) for row in rows)
    done = shop.lake.run("landing", "status")
    assert done.code == 0
    assert f"20 messages of {shop.topic} have a timestamp that cannot be right" in " ".join(done.text.split())
    assert cause in " ".join(done.text.split())


def test_a_folder_or_a_manifest_that_is_gone_is_refused_and_told(shop: Shop) -> None:
    shop.send(["o1", "o2"])
    assert shop.land().code == 0
    away = shop.folder("b").with_name("away")
    shop.folder("b").rename(away)
    for made in (False, True):
        if made:
            shop.folder("b").mkdir()
        for words in (
            ["status"],
            ["doctor"],
            ["landing", "status"],
            ["landing", "verify"],
            ["landing", "run", "--once"],
        ):
            done = shop.lake.run(*words)
            assert done.code == 1
            assert "The files of zone b are gone" in " ".join(done.text.split())
    shutil.rmtree(shop.folder("b"))
    away.rename(shop.folder("b"))
    assert shop.land().code == 0

    manifest = shop.lake.home / "landing.db"
    for remove in (lambda: manifest.rename(manifest.with_name("away.db")), lambda: None):
        remove()
        for words in (["status"], ["doctor"]):
            done = shop.lake.run(*words)
            assert done.code == 1
            assert "manifest" in done.text
        for words in (["landing", "run", "--once"], ["erase", "customer", "c"]):
            done = shop.lake.run(*words)
            assert done.code == 1
            assert "is new or another one's" in " ".join(done.text.split())
    manifest.with_name("away.db").replace(manifest)
    assert shop.land().code == 0
    shop.lake("landing", "verify")


def test_a_zone_that_is_gone_is_written_again_from_the_other_one(shop: Shop) -> None:
    shop.send(["o1", "o2"])
    assert shop.land().code == 0
    shutil.rmtree(shop.folder("a"))
    shop.lake("landing", "repair")
    shop.lake("landing", "verify")
    shop.lake("landing", "status")


def test_what_kafka_has_forgotten_is_taken_from_the_other_zone(shop: Shop) -> None:
    """The last file of a zone is damaged, and given up."""
    shop.send(["o1", "o2", "o3"])
    assert shop.land().code == 0
    files = {file.name: file for file in shop.folder("a").glob("*.avro")}
    found = json.loads(shop.lake.run("landing", "status", "--json").out)
    end = max(int(offset) for shard in found for offset in shard["next"].values())
    shop.forget(end)
    last = max(files.values(), key=lambda file: file.stat().st_mtime_ns)
    last.write_bytes(b"rotten")
    shop.lake("landing", "quarantine", "discard", "a", last.name)
    assert shop.land().code == 0
    shop.lake("landing", "verify")
    assert {file.name for file in shop.folder("a").glob("*.avro")} >= files.keys()


def test_a_zone_is_verified_mended_and_decided_on_without_the_other_ones_database(shop: Shop) -> None:
    shop.send(["o1", "o2"])
    assert shop.land().code == 0
    there, before = shop.lake.home / "landing-b.db", files(shop, "a")
    there.rename(there.with_name("away"))
    there.mkdir()

    def told(*words: str) -> str:
        done = shop.lake.run("landing", *words)
        assert (done.code, "landing-b.db cannot be opened" in " ".join(done.text.split())) == (1, True), done.text
        return done.out

    rotten = min(before)
    (shop.folder("a") / rotten).write_bytes(b"rotten")
    found = json.loads(told("verify", "--json"))["findings"]
    assert {(finding["zone"], finding["name"]) for finding in found} == {("a", rotten), ("b", "the manifest")}
    assert f"a  {rotten}  it was written again with the records of the other zone" in told("repair")
    assert files(shop, "a") == before
    shop.send(["o3"])
    told("run", "--once")
    last = max(shop.folder("a").glob("*.avro"), key=lambda file: file.stat().st_mtime_ns)
    for words in (["quarantine", "discard", "b", last.name], ["accept", shop.topic]):
        told(*words)
    shop.lake("landing", "quarantine", "discard", "a", last.name)
    assert not last.exists()
    there.rmdir()
    there.with_name("away").rename(there)
    assert shop.land().code == 0
    assert shop.orders() == ["o1", "o2", "o3"]
    shop.lake("landing", "verify")


def test_a_zone_whose_disk_cannot_be_written_stops_no_other_one(shop: Shop) -> None:
    """A file in the place of its folder of open files: any disk that fails makes an error of this kind."""
    shop.send(["o1"])
    assert shop.land().code == 0
    before = files(shop, "a")
    in_the_way = shop.folder("a") / "open"
    shutil.rmtree(in_the_way, ignore_errors=True)
    in_the_way.touch()
    shop.send(["o2"])
    done = shop.land()
    assert done.code == 1
    told = " ".join(done.text.split())
    assert f"{shop.folder('a')} cannot be read or written: Not a directory." in told
    assert "it continues where it stopped" in told
    assert files(shop, "b").keys() > files(shop, "a").keys() >= before.keys()
    in_the_way.unlink()
    assert shop.land().code == 0
    assert shop.orders() == ["o1", "o2"]
    shop.lake("landing", "verify")


@pytest.mark.parametrize("what", ["storage", pytest.param("database", marks=pytest.mark.journey)])
def test_heavy_work_goes_on_in_one_zone_and_the_other_one_catches_up(shop: Shop, what: str) -> None:
    shop.send(["o1", "o2", "o3"])
    shop.send(["o4", "o5"], customer="gone")
    assert shop.land().code == 0
    there = shop.lake.home / "landing-b.db" if what == "database" else shop.folder("b")
    there.rename(there.with_name("away"))
    if what == "database":
        there.mkdir()
    told = "landing-b.db cannot be opened" if what == "database" else "The files of zone b are gone"

    def kept_on(*words: str) -> str:
        done = shop.lake.run(*words)
        assert (done.code, told in " ".join(done.text.split())) == (1, True), done.text
        return done.out

    if what == "database":  # merged files that the other zone does not have cannot be resharded yet
        kept_on("landing", "compact", "--max-files", "3")
        assert 2 <= len(list(shop.folder("a").glob("*.parquet"))) <= 4
    waits_for = "files that both zones have verified" if what == "database" else "copies of the other zone"
    assert waits_for in kept_on("landing", "reshard", shop.topic, "2")
    kept_on("landing", "compact", "--max-files", "3")
    kept_on("erase", "customer", "gone")
    assert shop.orders() == ["o1", "o2", "o3"]
    kept_on("landing", "scrub", shop.topic, "c", "--request", "r1", "--sent-through", "2020-01-01T00:00:00")

    if what == "database":
        there.rmdir()
    there.with_name("away").rename(there)
    shop.send(["o6"])
    assert shop.land().code == 0
    shop.lake("erase", "--sweep")
    shop.lake("erasure", "certify", "customer", "gone")
    assert "done" in shop.lake("landing", "reshard", shop.topic, "2")
    shop.lake("landing", "compact", "--keep-hours", "0")
    shop.lake("landing", "verify")
    names = [sorted(each.name for each in shop.folder(zone).glob("*.parquet")) for zone in "ab"]
    assert names[0] == names[1]
    assert all("-of-2-" in name for name in names[0])
    assert [row["order_id"] for row in read(shop)] == ["o1", "o2", "o3", "o6"]


def test_a_zone_that_stands_still_is_told_and_not_the_other_one(shop: Shop) -> None:
    shop.lake.environment["LAKE_LANDING_DEADLINE_SECONDS"] = "1"
    shop.send(["o1", "o2"])
    assert shop.land("--zone", "a").code == 0
    shop.send(["o3"])
    time.sleep(2)  # longer than the deadline, also on a machine that is quick
    for words in (["status"], ["doctor"], ["landing", "status"]):
        done = shop.lake.run(*words)
        text = " ".join(done.text.split())
        assert done.code == 1
        assert "Zone b has not landed" in text
        assert "lake landing run" in text
        if words != ["doctor"]:
            assert "Zone a has not landed 3" not in text


def test_findings_of_one_cause_are_summed_up(shop: Shop) -> None:
    shop.send([f"o{n}" for n in range(6)])
    assert shop.land().code == 0
    for file in list(shop.folder("a").glob("*.avro"))[1:]:
        file.unlink()
    done = shop.lake.run("landing", "verify")
    assert done.code == 1
    lines = [line for line in done.out.splitlines() if "is not where it was written" in line]
    assert len(lines) == 1
    findings = json.loads(shop.lake.run("landing", "verify", "--json").out)["findings"]
    assert f"a  {len(findings)} times: is not where it was written" in done.out


def landing_run(shop: Shop) -> subprocess.Popen[bytes]:
    """Land and load in a process of its own, as `lake up` does."""
    environment = {**os.environ, **shop.lake.environment, "LAKE_HOME": str(shop.lake.home)}
    environment["PYTHONPATH"] = os.pathsep.join([str(shop.lake.folder), environment.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "lake_assets.cli.main", "landing", "run"]
    with (shop.lake.folder / "run.log").open("w") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=shop.lake.folder)


@contextmanager
def landing(shop: Shop) -> Iterator[None]:
    process = landing_run(shop)
    try:
        yield
        assert process.poll() is None, (shop.lake.folder / "run.log").read_text()
    finally:
        process.terminate()
        process.wait(60)


@contextmanager
def sending(shop: Shop, customers: Sequence[str], *, rate: float = 15) -> Iterator[list[tuple[str, str, float]]]:
    """Send orders of customers in turn; yields what was sent: order, customer, and the time."""
    sent: list[tuple[str, str, float]] = []
    stop = Event()

    def send() -> None:
        while not stop.wait(1 / rate):
            customer = customers[len(sent) % len(customers)]
            order = f"n{len(sent):05}"
            at = time.time()
            shop.send([order], customer=customer)
            sent.append((order, customer, at))

    thread = Thread(target=send)
    thread.start()
    try:
        yield sent
    finally:
        stop.set()
        thread.join()


def test_the_second_interrupt_ends_at_once(shop: Shop) -> None:
    shop.send(["o1"])
    log = shop.lake.folder / "run.log"
    process = landing_run(shop)
    try:
        wait_until(lambda: "rows of zone" in log.read_text(), 60)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143
    finally:
        process.kill()
    assert log.read_text().splitlines()[-1] == "What has begun is ended. To end at once, interrupt again."
    assert shop.orders() == ["o1"]


def test_a_topic_that_is_gone_stops_no_other_one(shop: Shop) -> None:
    other = f"{shop.topic}-returned"
    both = DECLARED.format(topic=shop.topic).replace(
        "PIPELINE = Pipeline(raw=(ORDERS,)",
        f'RETURNED = RawTable("raw.returned", COLUMNS, "ordered_at", feed=Topic("customer_id", name="{other}"))\n'
        "PIPELINE = Pipeline(raw=(ORDERS, RETURNED)",
    )
    shop.lake.declare_in_python(both, "shop")
    shop.lake("init")
    shop.lake("landing", "init", "--partitions", "1")
    shop.send(["o1"])
    shop.send(["o1"], topic=other)
    assert shop.land().code == 0
    shop.lake.environment["LAKE_LANDING_HEARTBEAT_SECONDS"] = "1"
    admin = AdminClient({"bootstrap.servers": shop.servers})
    process = landing_run(shop)
    try:
        wait_until(lambda: "rows of zone" in (shop.lake.folder / "run.log").read_text(), 60)  # of its heartbeats
        for answer in admin.delete_topics([other]).values():
            answer.result(60)
        shop.send(["o2"])
        wait_until(lambda: shop.orders() == ["o1", "o2"], 120)
        assert process.poll() is None
    finally:
        process.kill()

    shop.send(["o3"])
    done = shop.land("--heartbeats")
    assert done.code == 1
    assert f"has no topic {other}." in done.err
    assert shop.orders() == ["o1", "o2", "o3"]
    done = shop.lake.run("status")
    assert done.code == 1
    assert f"The topic {other}, of which messages have landed, is gone from Kafka" in " ".join(done.text.split())
    assert len(shop.lake.rows("raw.returned")) == 1


def test_an_erasure_wins_while_data_arrive_and_what_is_sent_later_stays(shop: Shop) -> None:
    shop.lake.environment["LAKE_LANDING_FILE_MESSAGES"] = "10"
    with landing(shop), sending(shop, ["c0", "c1", "c2"]) as sent:
        wait_until(lambda: len(shop.orders()) > 30, 120)
        for _ in range(3):
            began = time.time()
            shop.lake("erase", "customer", "c0")
        ended = time.time()
        wait_until(lambda: sent[-1][2] > ended + 3, 120)
    shop.send((f"last{number}" for number in range(10)), customer="c9")  # closes the open file
    assert shop.land().code == 0
    orders = set(shop.orders())
    for order, customer, at in sent:
        if customer == "c0" and at < began:
            assert order not in orders
        elif customer != "c0" or at > ended:  # of an hour long before the erasure, by its own time
            assert order in orders
    shop.lake("landing", "verify")
    assert files(shop, "a") == files(shop, "b")


@pytest.mark.journey
def test_a_scrub_while_data_arrive_is_done_once(shop: Shop) -> None:
    shop.lake.environment["LAKE_LANDING_FILE_MESSAGES"] = "10"
    with landing(shop), sending(shop, ["c0", "c1"]):
        wait_until(lambda: len(shop.orders()) > 20, 120)
        for _ in range(3):
            shop.lake("landing", "scrub", shop.topic, "c0", "--request", "r1")
    assert shop.land().code == 0
    shop.lake("landing", "scrub", shop.topic, "c0", "--request", "r1")
    again = shop.lake("landing", "scrub", shop.topic, "c0", "--request", "r1")
    assert again.count(" 0 files scrubbed") == 2
    shop.lake("landing", "verify")
    assert files(shop, "a") == files(shop, "b")
    assert "another id" in shop.lake.refused("landing", "scrub", shop.topic, "c1", "--request", "r1")


def test_open_files_are_read_and_gone_on_in(shop: Shop) -> None:
    """A process lands, another one reads what it has read; the next one goes on, though a block is torn."""
    shop.lake.environment["LAKE_LANDING_FILE_MESSAGES"] = "10"
    with landing(shop):
        shop.send(["o1", "o2", "o3"])
        wait_until(lambda: len(read(shop, "--open")) == 3, 180)
        assert read(shop) == []
        shop.send(["o4"])
        wait_until(lambda: len(read(shop, "--open")) == 4, 180)
    four = [f"o{n}" for n in range(1, 5)]
    assert [(row["order_id"], row["open"]) for row in read(shop, "--open")] == [(order, True) for order in four]
    opened = shop.folder("a") / "open" / f"{shop.topic}.0"
    opened.write_bytes(opened.read_bytes()[:-7])
    assert len(read(shop, "--open")) == 4  # of the other zone
    more = [f"p{n:02}" for n in range(10)]
    shop.send(more)
    assert shop.land("--no-heartbeats").code == 0
    rows = read(shop, "--open")
    assert [row["order_id"] for row in rows] == [*four, *more]
    assert 0 < sum(not bool(row["open"]) for row in rows) < 14
    assert [row for row in rows if not row["open"]] == read(shop)
    assert files(shop, "a") == files(shop, "b")
    shop.lake("landing", "verify")


def test_an_open_file_goes_on_when_kafka_has_forgotten_what_is_in_it(shop: Shop) -> None:
    shop.lake.environment["LAKE_LANDING_FILE_MESSAGES"] = "6"
    shop.send(["o1", "o2", "o3"])
    assert shop.land("--no-heartbeats").code == 0
    shop.forget(3)
    shop.send(["o4", "o5", "o6"])
    assert shop.land("--no-heartbeats").code == 0
    assert shop.orders() == [f"o{n}" for n in range(1, 7)]
    shop.lake("landing", "verify")


def test_an_erasure_takes_rows_out_of_open_files(shop: Shop) -> None:
    shop.lake.environment["LAKE_LANDING_FILE_MESSAGES"] = "100"
    with landing(shop):
        shop.send(["o1", "o2"], customer="c1")
        shop.send(["o3"], customer="c2")
        wait_until(lambda: len(read(shop, "--open")) == 3, 180)
        for _ in range(2):  # the second one does nothing, though Kafka has what has not landed yet
            shop.lake("erase", "customer", "c1")
        assert [row["order_id"] for row in read(shop, "--open")] == ["o3"]
        for zone in "ab":
            assert b'"c1"' not in (shop.folder(zone) / "open" / f"{shop.topic}.0").read_bytes()
        with sqlite3.connect(shop.lake.home / "landing.db") as manifest:
            assert manifest.execute("SELECT count(*) FROM landing_command WHERE kind = 'deletion'").fetchone() == (1,)
    shop.send(["o4"], customer="c1")
    shop.lake("erase", "customer", "c2")
    assert shop.land().code == 0
    assert [row["order_id"] for row in read(shop, "--open")] == ["o4"]


def read(shop: Shop, *words: str) -> list[dict[str, object]]:
    """The rows that have landed, by the command."""
    found: list[dict[str, object]] = shop.lake.json("landing", "read", shop.topic, *words)
    return found


def files(shop: Shop, zone: str) -> dict[str, bytes]:
    """The landed files of a zone."""
    return {file.name: file.read_bytes() for file in shop.folder(zone).glob("*.avro")}


@dataclass
class Store:
    """The bucket `lake` on a server of S3; zones of a shop have URLs in it."""

    shop: Shop
    address: str

    def __post_init__(self) -> None:
        self.bucket = made_bucket(self.address)
        self.shop.lake.environment |= {
            "LAKE_CATALOG__S3__ACCESS_KEY_ID": KEY_ID,
            "LAKE_CATALOG__S3__SECRET_ACCESS_KEY": KEY,
            "LAKE_LANDING_DEADLINE_SECONDS": "1",
        }

    def url(self, prefix: str, address: str | None = None) -> str:
        return f"s3://lake/{prefix}?endpoint={address or self.address}"

    def files(self, prefix: str) -> dict[str, bytes]:
        """The objects below a prefix by what follows it; pyarrow keeps empty ones for folders."""
        found = self.bucket.list_objects_v2(Bucket="lake", Prefix=f"{prefix}/").get("Contents", [])
        keys = [entry["Key"] for entry in found if entry["Size"]]
        return {key.removeprefix(f"{prefix}/"): self.read(key) for key in keys}

    def read(self, key: str) -> bytes:
        content: bytes = self.bucket.get_object(Bucket="lake", Key=key)["Body"].read()
        return content

    def put(self, key: str, content: bytes) -> None:
        self.bucket.put_object(Bucket="lake", Key=key, Body=content)


def test_one_zone_in_a_folder_and_the_other_in_an_object_store(shop: Shop, s3: str) -> None:
    store = Store(shop, s3)
    for zones, told in (({"c": "elsewhere"}, "should be 'a' or 'b'"), ({"b": "s4://lake/b"}, "s4://lake/b cannot be")):
        assert told in shop.lake.refused("landing", "status", LAKE_LANDING_ZONES=json.dumps(zones))
    shop.lake.environment["LAKE_LANDING_ZONES"] = json.dumps({"b": store.url("zones/b")})
    shop.send(f"o{n}" for n in range(4))
    assert shop.land().code == 0

    def landed() -> dict[str, bytes]:
        return {name: content for name, content in store.files("zones/b").items() if re.fullmatch(r"[^/]*\.avro", name)}

    assert len(landed()) >= 4
    assert landed() == files(shop, "a")
    assert not list((shop.lake.home / "landing" / "b").glob("*"))
    rotten, deleted, *_ = sorted(landed())
    store.put(f"zones/b/{rotten}", landed()[rotten][:-1])
    store.bucket.delete_object(Bucket="lake", Key=f"zones/b/{deleted}")
    store.put("zones/b/" + (stray := f"{shop.topic}-0-of-1-{'0' * 32}.avro"), b"of nobody")

    def findings() -> dict[str, str]:
        found = json.loads(shop.lake.run("landing", "verify", "--json").out)["findings"]
        return {finding["name"]: finding["problem"] for finding in found}

    expected = {
        rotten: "has other bytes than were written",
        deleted: "is not where it was written",
        stray: "is not in the manifest",
    }
    wait_until(lambda: findings() == expected, 120)  # the stray one once it is older than the deadline
    assert len(read(shop)) == 4
    shop.lake("landing", "repair")
    shop.lake("landing", "verify")
    assert landed() == files(shop, "a")
    assert store.files("zones/b/quarantine") == {stray: b"of nobody"}

    away = {"LAKE_LANDING_ZONES": json.dumps({"b": store.url("zones/b", "http://127.0.0.1:1")})}
    shop.send(["o4", "o5"])
    told = "The object store of s3://lake/zones/b does not answer"
    for words in (
        ["landing", "run", "--once"],
        ["landing", "status"],
        ["landing", "verify"],
        ["landing", "repair"],
    ):
        done = shop.lake.run(*words, **away)
        assert done.code == 1
        assert told in " ".join(done.text.split())
    assert len(files(shop, "a")) >= 6
    assert len(json.loads(shop.lake("landing", "read", shop.topic, "--open", "--json", **away))) == 6
    assert shop.orders() == [f"o{n}" for n in range(4)]
    assert shop.land().code == 0
    assert shop.orders() == [f"o{n}" for n in range(6)]
    assert landed() == files(shop, "a")
    shop.lake("landing", "verify")
    shop.lake("landing", "status")


@pytest.mark.journey
def test_both_zones_in_an_object_store(shop: Shop, s3: str) -> None:
    store = Store(shop, s3)
    shop.lake.environment |= {"LAKE_LANDING": store.url("landing"), "LAKE_LANDING_FILE_MESSAGES": "10"}
    shop.lake.environment["LAKE_LANDING_HEARTBEAT_SECONDS"] = "3600"  # one alone, however long this takes

    def records() -> list[str]:
        return sorted(str(row["order_id"]) for row in read(shop, "--open"))

    with landing(shop):
        shop.send(["o1", "o2", "o3"], customer="gone")
        wait_until(lambda: len(records()) == 3, 120)
        shop.send(["o4"])
        wait_until(lambda: len(records()) == 4, 120)
    assert store.files(f"landing/b/open/{shop.topic}.0")
    last = max(store.files(f"landing/a/open/{shop.topic}.0"))
    store.put(f"landing/a/open/{shop.topic}.0/{last}", b"rotten")
    assert records() == ["o1", "o2", "o3", "o4"]  # of the other zone
    shop.send([f"p{n}" for n in range(16)])
    assert shop.land("--no-heartbeats").code == 0
    assert len(records()) == 20
    assert 10 <= len(read(shop)) <= 20
    shop.lake("landing", "verify")
    shop.lake("landing", "compact")
    shop.lake("landing", "reshard", shop.topic, "2")
    assert shop.land().code == 0
    shop.lake("erase", "customer", "gone")
    assert len(records()) == 17
    assert shop.orders() == sorted(str(row["order_id"]) for row in read(shop))
    shop.lake("erasure", "certify", "customer", "gone")
    shop.lake("landing", "compact", "--keep-hours", "0")
    shop.lake("landing", "verify")
    shop.lake("landing", "page")
    names = [
        {name for name in store.files(f"landing/{zone}") if "/" not in name and name != "zone.json"} for zone in "ab"
    ]
    assert names[0] == names[1]
    assert all(name.endswith(".parquet") for name in names[0])
    assert sorted(path.name for path in (shop.lake.home / "landing").rglob("*") if path.is_file()) == [
        "a.lock",
        "b.lock",
        "commands.jsonl",
    ]
