"""Streams that run on in a driver of their own, as `lake engagement run` starts it; turns of others come between."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psutil
import pytest
import yaml

from lake_assets.base.failpoints import EXIT_CODE
from lake_assets.engagement.lake import STREAMS, StreamName
from lake_assets.engagement.turn import TurnReport
from lake_assets_tests.engagement.scenario import Traffic, coordinated_turn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake_assets.settings import Settings

SELDOM, OFTEN = 3600, 1
"""Seconds between two turns of a stream."""

LONGEST = 300.0
"""Seconds for what comes in the end; a machine may be busy."""


@dataclass
class Driver:
    """The process of `lake engagement run`, and what it has printed."""

    process: subprocess.Popen[bytes]
    folder: Path

    def turns(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "out").read_text().splitlines() if line.startswith("{")]

    def streams(self) -> list[str]:
        return [turn["stream"] for turn in self.turns()]

    def text(self) -> str:
        return (self.folder / "out").read_text() + (self.folder / "err").read_text()

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something that it does."""
        end = time.monotonic() + LONGEST
        while not condition():
            assert self.process.poll() is None, self.text()
            assert time.monotonic() < end, self.text()
            time.sleep(0.2)

    def interrupt(self) -> None:
        """As Ctrl-C; it ends by itself, and nothing of it runs on."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        assert children
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(60) == 0, self.text()
        assert psutil.wait_procs(children, timeout=30)[1] == []
        assert "Traceback" not in self.text(), self.text()


@dataclass
class Mail:
    """A lake whose file says how often its streams take turns."""

    traffic: Traffic
    folder: Path

    @contextmanager
    def driver(self, seconds: Mapping[StreamName, int], *streams: StreamName, **variables: str) -> Iterator[Driver]:
        """The driver of streams, or of all; killed at the end unless it has ended."""
        lake = self.traffic.lake
        values = {
            "name": lake.name,
            "fields": dict(lake.fields),
            "metrics": {"emails": {"kinds": {"sent": "sent"}}},
            "topics": {stream: lake.topic(stream) for stream in STREAMS},
            "seconds": dict(seconds),
            "max_records": 10,
        }
        file = self.folder / "lake.yaml"
        file.write_text(yaml.safe_dump(values))
        home = self.traffic.home
        environment = {
            **os.environ,
            "LAKE_HOME": str(home.home),
            "LAKE_LAKES": str(file),
            "LAKE_KAFKA": self.traffic.servers,
            "LAKE_ZOOKEEPER": str(home.zookeeper),
            "LAKE_SPARK_MEMORY": "700m",
            **variables,
        }
        command = [sys.executable, "-m", "lake_assets.cli.main", "engagement", "run", lake.name, *streams, "--json"]
        with (self.folder / "out").open("wb") as out, (self.folder / "err").open("wb") as err:
            process = subprocess.Popen(command, env=environment, stdout=out, stderr=err)
        try:
            yield Driver(process, self.folder)
        finally:
            process.kill()
            process.wait()

    def turn(self, stream: StreamName) -> TurnReport:
        """A turn as Dagster takes it: another process, on another Spark."""
        return coordinated_turn(self.traffic.stream(stream), self.traffic.spark, str(self.traffic.home.zookeeper))

    def ends(self, stream: StreamName) -> Mapping[int, int]:
        """Where the lake's checkpoint stands."""
        last = self.traffic.tables.checkpoints.read(self.traffic.lake.app_name(stream))
        return last.batch.messages.end if last and last.finished else {}

    def has_all(self, stream: StreamName) -> bool:
        return self.ends(stream) == self.traffic.stream(stream).topic().end


@pytest.fixture
def mail(home: Settings, spark: SparkSession, kafka: str, zookeeper: str, tmp_path: Path) -> Mail:
    there = home.model_copy(update={"zookeeper": zookeeper})
    return Mail(Traffic(there, spark, kafka, name=f"mail_{uuid4().hex}"), tmp_path)


@pytest.mark.journey
@pytest.mark.timeout(1200)
def test_streams_run_on_and_turns_may_come_between_also_after_a_death(mail: Mail) -> None:
    """A turn finishes the batch of a driver that died, and a driver that of a turn. Ingestion comes seldom: without
    messages it takes the turns that mutation waits for.
    """
    traffic = mail.traffic
    traffic.send(range(8))
    with mail.driver({"ingestion": OFTEN}, "ingestion", LAKE_FAILPOINT="written-data") as driver:
        assert driver.process.wait(LONGEST) == EXIT_CODE, driver.text()
    resumed = mail.turn("ingestion").batch
    assert resumed is not None
    assert resumed.resumed
    traffic.assert_true()

    traffic.send(range(8, 12))
    traffic.die("recorded-data")
    traffic.send(range(12, 30), [b"{"])
    with mail.driver({"ingestion": SELDOM, "mutation": OFTEN, "retention": SELDOM}) as driver:
        driver.until(lambda: mail.has_all("ingestion"))
        traffic.assert_true()
        traffic.ask("acme", "convert", "lead 0", "lead 1")
        driver.until(lambda: mail.has_all("mutation"))
        traffic.assert_true()
        traffic.send(range(30, 35))
        mail.turn("ingestion")
        traffic.ask("globex", "convert", "lead 3", "lead 4")
        driver.until(lambda: mail.has_all("mutation"))
        traffic.assert_true()
        traffic.tables.set_paused("2026-01-01T08:00:00Z")
        traffic.send([61, 62])  # no request names their ids
        driver.until(lambda: "mutation: The lake" in driver.text())
        traffic.tables.set_paused(None)
        driver.until(lambda: mail.has_all("ingestion"))
        traffic.assert_true()
        assert max(driver.text().count(f"{name}: The lake") for name in STREAMS) == 1
        driver.interrupt()
    turns = driver.turns()
    first = [(turn["stream"], turn["batch"]["resumed"]) for turn in turns if turn["batch"]][:3]
    assert first == [("ingestion", True), ("ingestion", False), ("ingestion", False)], "of 10 messages at most"
    for turn in turns:
        assert turn["predecessor"] == "ingestion" or turn["stream"] != "mutation"

    rmtree(traffic.home.home / "streams")
    traffic.send(range(35, 45))
    with mail.driver({"ingestion": OFTEN}, "ingestion") as driver:
        driver.until(lambda: mail.has_all("ingestion"))
        traffic.send(range(45, 50))
        driver.until(lambda: mail.has_all("ingestion"))
        assert set(driver.streams()) == {"ingestion"}
        driver.interrupt()
    mail.turn("mutation")  # what came late under an id goes where the requests lead
    traffic.assert_true()
