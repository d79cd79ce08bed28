"""The parts that the scenes of the membership demo use: Kafka, landing, the engine and Spark."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from lake_assets.base.hours import hour_start
from lake_assets.connections.addresses import kafka_address, required
from lake_assets.demo.membership_simulator import land
from lake_assets.demo.output import console
from lake_assets.demo.services import run_command
from lake_assets.demo.simulate import close_files, send_landing
from lake_assets.engagement.model.kafka_topic import KafkaTopic
from lake_assets.landing.landing_service import LandingService, run_once
from lake_assets.landing.messages import feed_of
from lake_assets.landing.records import parse_shard

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake_assets.demo.membership_simulator import Landing
    from lake_assets.incremental.engine.engine import Engine
    from lake_assets.incremental.engine.session_log import SessionRecord
    from lake_assets.landing.loading import Loaded
    from lake_assets.landing.manifest import Entry
    from lake_assets.landing.zones import ZoneWriter
    from lake_assets.settings import Settings

PARTITIONS = 2

DeadLetter = tuple[str, str]
"""Topic and reason."""


@dataclass
class Stage:
    """The parts of a demo, and what has happened so far.

    Attributes:
        home: The settings of the demo's data directory.
        engine: The engine of its pipeline.
        spark: A session on its Spark.
        printed: Target → revision of the newest session that was printed.
        played: Target → sessions that ended in this scene.
        sent: Landings that were sent to Kafka.
        landed: Landings that were written directly to the raw tables, as their producer has left them.
    """

    home: Settings
    engine: Engine
    spark: SparkSession
    printed: dict[str, int] = field(default_factory=dict)
    played: dict[str, list[SessionRecord]] = field(default_factory=dict)
    sent: list[Landing] = field(default_factory=list)
    landed: list[Landing] = field(default_factory=list)

    @cached_property
    def landing_service(self) -> LandingService:
        """Landing from the Kafka of the data directory."""
        servers = required(kafka_address(self.home), "Kafka")
        return LandingService(self.home, servers, self.engine.catalog, self.engine.pipeline, self.engine.clock)

    def open_topics(self) -> None:
        """Create the topics that the zones read."""
        for feed in self.landing_service.feeds:
            KafkaTopic(self.landing_service.servers, feed.topic).create(PARTITIONS)

    def send(self, landing: Landing) -> None:
        """Send a batch to Kafka, land it in both zones and load it. Print what it holds."""
        servers = self.landing_service.servers
        send_landing(servers, landing, self.home)
        close_files(servers, landing, self.home)
        _print_landing(landing)
        self.sent.append(landing)
        loaded: list[Loaded] = []
        tailers = run_once(self.landing_service, (), on_loaded=loaded.append)
        files = " and ".join(f"{tailer.files} files in zone {tailer.zone}" for tailer in tailers)
        rows = sum(load.rows for load in loaded)
        console.print(f"      [dim]from Kafka: {files}; {rows} rows loaded[/]")

    def land(self, landing: Landing) -> None:
        """Write a batch directly to the raw tables, without Kafka and the zones. Print what it holds."""
        land(self.spark, self.engine.catalog, landing)
        _print_landing(landing)

    def command(self, *arguments: str) -> int:
        """Run a command of `lake` as a person would, print it with its output, and return its exit code."""
        return run_command(self.home, *arguments).returncode

    def dead_letters(self) -> dict[str, list[DeadLetter]]:
        """Return zone → its dead letters, sorted."""
        service = self.landing_service
        found = {}
        for writer in service.zones:
            letters: list[DeadLetter] = []
            for entry in service.manifest.entries(writer.zone.name):
                letters += self._dead_letters_of(writer, entry)
            found[writer.zone.name] = sorted(letters)
        return found

    def _dead_letters_of(self, writer: ZoneWriter, entry: Entry) -> list[DeadLetter]:
        shard = parse_shard(entry.file.shard)
        if not shard.dead_letters:
            return []
        feed = feed_of(self.landing_service.feeds, shard.topic)
        records = writer.zone.records(entry.file)
        return [(shard.topic, str(feed.flaw(record.value, record.headers))) for record in records]


def _print_landing(landing: Landing) -> None:
    for name, rows in landing.rows.items():
        line = f"  [cyan]→[/] {name}: {rows.num_rows} rows"
        late = landing.late.get(name)
        if late:
            line += f", {late} of them late"
        through = landing.complete_through[name]
        if through is not None:
            line += f"; complete through {hour_start(through):%H:%M}"
        console.print(line)
