"""What the scenes of the membership demo use: Kafka, landing, the engine, Spark, and Dagster's GraphQL API."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

import httpx

from lake_assets.base.hours import hour_start, parse_hour
from lake_assets.connections.addresses import kafka_address, required
from lake_assets.demo.engagement_simulator import send
from lake_assets.demo.home import START, console, run_command
from lake_assets.demo.membership_simulator import heartbeats, land, messages
from lake_assets.engagement.topics import KafkaTopic
from lake_assets.landing.kafka import beat
from lake_assets.landing.landing_service import LandingService, run_once
from lake_assets.landing.messages import feed_of
from lake_assets.landing.records import parse_shard
from lake_assets.services import lifecycle

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake_assets.demo.membership_simulator import Landing
    from lake_assets.incremental.engine.engine import Engine
    from lake_assets.incremental.engine.session_log import SessionRecord
    from lake_assets.landing.loading import Loaded
    from lake_assets.landing.manifest import Entry
    from lake_assets.landing.zones import ZoneWriter
    from lake_assets.settings import Settings


def send_landing(servers: str, landing: Landing, settings: Settings) -> int:
    """Send the rows of a landing, then its heartbeats.

    Args:
        servers: Kafka's bootstrap servers: `host:port`, comma-separated.
        landing: The landing.
        settings: The settings with the prefix of the topics.

    Returns:
        The number of messages, without heartbeats.

    Raises:
        ServiceError: Kafka did not accept a message.
    """
    sent = send(servers, messages(landing, prefix=settings.landing_prefix))
    beat(servers, heartbeats(landing, prefix=settings.landing_prefix))
    return sent.total()


def close_files(servers: str, landing: Landing, settings: Settings) -> None:
    """Send later heartbeats, which close the files that hold the landing's own heartbeats.

    Args:
        servers: Kafka's bootstrap servers: `host:port`, comma-separated.
        landing: The landing.
        settings: The settings with the prefix of the topics and the age at which a file is closed.

    Raises:
        ServiceError: Kafka did not accept a heartbeat.
    """
    age = timedelta(seconds=settings.landing_age_seconds)
    own = heartbeats(landing, prefix=settings.landing_prefix)
    beat(servers, {topic: at + age for topic, at in own.items()})


POLL_SECONDS = 0.5
ANSWER_SECONDS = 30

PARTITIONS_QUERY = """query($key: AssetKeyInput!) {
  runsOrError(filter: {statuses: [QUEUED, STARTING, STARTED]}) { ... on Runs { results { id } } }
  assetNodeOrError(assetKey: $key) { ... on AssetNode { assetPartitionStatuses {
    ... on TimePartitionStatuses { ranges { status startKey endKey } } } } } }"""

RUNS_QUERY = "{ runsOrError { ... on Runs { results { jobName } } } }"

BACKFILL_QUERY = """query($id: String!) {
  partitionBackfillOrError(backfillId: $id) { ... on PartitionBackfill { status } } }"""

BACKFILL_MUTATION = """mutation($it: LaunchBackfillParams!) { launchPartitionBackfill(backfillParams: $it) {
  __typename ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message } } }"""

BACKFILL_RUNNING = ("REQUESTED", "COMPLETING")


def materialized_hours(home: Settings, name: str) -> list[int]:
    """Wait until no run is active, then return the materialized hours of a target, counted from the start, ascending.

    Args:
        home: The settings of the data directory.
        name: Name of the target, without its namespace.
    """
    deadline = time.monotonic() + home.settle_seconds
    key = {"path": ["core", name]}
    data = graphql(home, PARTITIONS_QUERY, {"key": key})
    while data["runsOrError"]["results"] and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
        data = graphql(home, PARTITIONS_QUERY, {"key": key})
    start = parse_hour(START)
    hours: set[int] = set()
    for span in data["assetNodeOrError"]["assetPartitionStatuses"]["ranges"]:
        if span["status"] == "MATERIALIZED":
            first = parse_hour(span["startKey"]) - start
            last = parse_hour(span["endKey"]) - start
            hours.update(range(first, last + 1))
    return sorted(hours)


def launch_backfill(home: Settings, table: str, partitions: list[str]) -> str:
    """Launch a backfill, as the UI does, and return its id; empty if Dagster refused it.

    Args:
        home: The settings of the data directory.
        table: The target.
        partitions: Keys of the hours.
    """
    selection = {"assetSelection": [{"path": table.split(".")}], "partitionNames": partitions}
    launched = graphql(home, BACKFILL_MUTATION, {"it": selection})["launchPartitionBackfill"]
    return str(launched.get("backfillId", ""))


def wait_for_backfill(home: Settings, backfill: str) -> str:
    """Wait until a backfill ends, and return its last status."""
    deadline = time.monotonic() + home.settle_seconds
    status = "REQUESTED"
    while status in BACKFILL_RUNNING and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
        found = graphql(home, BACKFILL_QUERY, {"id": backfill})["partitionBackfillOrError"]
        status = found.get("status", "UNKNOWN")
    return status


def runs_by_job(home: Settings) -> Counter[str]:
    """Return the name of each job → the number of its runs, whatever became of them."""
    data = graphql(home, RUNS_QUERY, {})
    return Counter(run["jobName"] for run in data["runsOrError"]["results"])


def graphql(home: Settings, query: str, variables: Mapping[str, Any]) -> Any:
    """Send a query or a mutation and return the data of the answer."""
    address = lifecycle.ui_address(home)
    answer = httpx.post(
        f"{address}/graphql",
        json={"query": query, "variables": variables},
        timeout=ANSWER_SECONDS,
    )
    return answer.raise_for_status().json()["data"]


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
        land(self.engine.catalog, landing)
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
