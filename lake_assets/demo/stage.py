"""Where the scenes of the demo play: what is sent and landed, sessions as they end, and what Dagster's API tells."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import httpx
from rich.console import Console
from rich.markup import escape

from lake_assets.base.hours import format_hours, hour_start, parse_hour
from lake_assets.connections.addresses import kafka_address, required
from lake_assets.demo.home import PATIENCE_SECONDS, START
from lake_assets.demo.membership_simulator import land
from lake_assets.demo.simulate import close_files, send_landing
from lake_assets.engagement.model.kafka_topic import KafkaTopic
from lake_assets.errors import LakeError, ServiceError
from lake_assets.incremental.metadata import tables
from lake_assets.incremental.metadata.partitions import rows_between
from lake_assets.incremental.planning.lateness import LOOKBACK_HOURS
from lake_assets.incremental.planning.session import SessionPlan
from lake_assets.landing.consume.messages import feed_of
from lake_assets.landing.files.sharding import parse_shard
from lake_assets.landing.landing_service import LandingService, run_once
from lake_assets.services import lifecycle

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake_assets.demo.membership_simulator import Landing
    from lake_assets.incremental.execution.engine import Engine
    from lake_assets.incremental.execution.session_log import SessionRecord
    from lake_assets.landing.loading.loader import Loaded
    from lake_assets.settings import Settings

PARTITIONS = 2

console = Console(highlight=False, soft_wrap=True)


class Surprise(LakeError):
    """The demo saw something else than it promised."""


@dataclass
class Stage:
    """Where the scenes play. seen: newest session revision that was printed, per target. sent: to Kafka."""

    home: Settings
    engine: Engine
    spark: SparkSession
    seen: dict[str, int] = field(default_factory=dict)
    played: dict[str, list[SessionRecord]] = field(default_factory=dict)
    sent: list[Landing] = field(default_factory=list)

    @cached_property
    def station(self) -> LandingService:
        """Landing, on the home's own Kafka."""
        servers = required(kafka_address(self.home), "Kafka")
        return LandingService(self.home, servers, self.engine.catalog, self.engine.pipeline, self.engine.clock)

    def open_topics(self) -> None:
        """Create the topics that the zones read."""
        for feed in self.station.feeds:
            KafkaTopic(self.station.servers, feed.topic).create(PARTITIONS)

    def send(self, landing: Landing) -> None:
        """Send a batch to Kafka, land it in both zones, load it, and say what is in it."""
        send_landing(self.station.servers, landing, self.home)
        close_files(self.station.servers, landing, self.home)
        self.tell(landing)
        self.sent.append(landing)
        loaded: list[Loaded] = []
        tailers = run_once(self.station, (), told=loaded.append)
        files = " and ".join(f"{tailer.files} files in zone {tailer.zone}" for tailer in tailers)
        console.print(f"      [dim]from Kafka: {files}; {sum(one.rows for one in loaded)} rows loaded[/]")

    def dead_letters(self) -> dict[str, list[tuple[str, str]]]:
        """Zone → the dead letters that it keeps: topic and reason, sorted."""
        found: dict[str, list[tuple[str, str]]] = {}
        for writer in self.station.zones:
            letters = found.setdefault(writer.zone.name, [])
            for entry in self.station.manifest.entries(writer.zone.name):
                shard = parse_shard(entry.file.shard)
                flaw = feed_of(self.station.feeds, shard.topic).flaw
                records = writer.zone.records(entry.file) if shard.dead_letters else ()
                letters += [(shard.topic, str(flaw(record.value, record.headers))) for record in records]
            letters.sort()
        return found

    def land(self, landing: Landing) -> None:
        """Write a batch to the raw tables themselves, past Kafka and the zones, and say what is in it."""
        land(self.spark, self.engine.catalog, landing)
        self.tell(landing)

    def tell(self, landing: Landing) -> None:
        """Say what is in a batch."""
        for name, rows in landing.rows.items():
            through = landing.complete_through[name]
            late = f", {landing.late[name]} of them late" if landing.late.get(name) else ""
            complete = f"; complete through {hour_start(through):%H:%M}" if through is not None else ""
            console.print(f"  [cyan]→[/] {name}: {rows.num_rows} rows{late}{complete}")


def headline(title: str, what: str) -> None:
    """Print how a scene begins."""
    console.print(f"\n[bold]{title}[/]\n[dim]{what}[/]")


def promise(what: str, found: object, promised: object) -> None:
    """Check a promise and print it."""
    same = [list(x) for x in found] == [list(x) for x in promised] if _nested(promised) else found == promised  # type: ignore[attr-defined]
    if not same:
        raise Surprise(
            f"Promised: {what}. Found {found!r}, expected {promised!r}.", remedy="See the logs in LAKE_HOME/logs."
        )
    console.print(f"  [green]✓[/] {what}")


def _nested(promised: object) -> bool:
    return isinstance(promised, list) and any(isinstance(x, (range, tuple, list)) for x in promised)


def until_quiet(stage: Stage) -> None:
    """Wait until no target has anything to do, printing each session as it ends."""
    stage.played.clear()
    deadline = time.monotonic() + PATIENCE_SECONDS
    began = time.monotonic()
    while True:
        for target in stage.engine.pipeline.in_order():
            _print_new_sessions(stage, target.table)
        busy = [t.table for t in stage.engine.pipeline.in_order() if isinstance(stage.engine.decide(t), SessionPlan)]
        if not busy:
            for target in stage.engine.pipeline.in_order():
                _print_new_sessions(stage, target.table)
            console.print(f"  [dim]quiet after {time.monotonic() - began:.0f} s[/]")
            return
        if time.monotonic() > deadline:
            raise ServiceError(
                f"After {PATIENCE_SECONDS} s there is still work for {', '.join(busy)}.",
                remedy=f"Look at the runs in {lifecycle.ui_address(stage.home)} and at {stage.home.home / 'logs'}.",
            )
        time.sleep(0.5)


def _print_new_sessions(stage: Stage, table: str) -> None:
    newest = stage.engine.store.state(table).session
    if newest is None or newest.is_open or newest.revision == stage.seen.get(table):
        return
    fresh = [r for r in stage.engine.store.history(table) if r.revision > stage.seen.get(table, 0) and not r.is_open]
    for record in fresh:
        stage.seen[table] = max(record.revision, stage.seen.get(table, 0))
        stage.played.setdefault(table, []).append(record)
        _print_session(stage, record)


def _print_session(stage: Stage, record: SessionRecord) -> None:
    plan = record.plan
    if record.state == "blocked":
        for audit in record.audits:
            if audit.blocking and not audit.passed:
                sample = f": {', '.join(audit.sample)}" if audit.sample else ""
                console.print(
                    f"  [red]■[/] {plan.process}: stopped by {audit.name}, {dict(audit.counts)}{escape(sample)}"
                )
        return
    if record.unchanged:
        console.print(
            f"  [dim]· {plan.process}: {_short(record.unchanged)} came out equal, and are left as they were[/]"
        )
    if not record.built:
        if not record.unchanged:
            console.print(f"  [dim]· {plan.process}: no rows; complete-through moves on[/]")
        return
    passed = sum(a.passed for a in record.audits)
    console.print(
        f"  [green]■[/] {plan.process}: {plan.load} {_short(record.built)} ({record.rows_written} rows; "
        f"audits {passed}/{len(record.audits)}){_against_lookback(stage, record)}"
    )
    for reason in dict.fromkeys(p.reason for p in plan.hours if p.hour in record.built):
        console.print(f"      [dim]{escape(reason)}[/]")


def _against_lookback(stage: Stage, record: SessionRecord) -> str:
    """What a fixed lookback would have reprocessed instead, and missed."""
    last = record.built[-1]
    first = last - LOOKBACK_HOURS + 1
    target = stage.engine.pipeline.target(record.plan.process)
    rows = rows_between(tables.load(stage.engine.catalog, target.table), target.time_column, first, last)
    missed = [h for h in record.built if h < first]
    return f"; a six-hour lookback: {rows} rows{f', without {_short(missed)}' if missed else ''}"


def _short(hours: tuple[int, ...] | list[int]) -> str:
    """Hours of the demo's one day: `02:00..03:00, 06:00`."""
    return format_hours(hours).replace(f"{START[:10]}-", "")


def built(stage: Stage, name: str) -> list[list[int]]:
    """The hours, counted from the start, that each session of this scene built; sessions without rows aside."""
    start = parse_hour(START)
    return [[h - start for h in r.built] for r in stage.played.get(f"core.{name}", []) if r.built]


def materialized(stage: Stage, name: str) -> list[int]:
    """The hours, counted from the start, that Dagster's API reports as materialized. Waits for the runs to end."""
    query = """query($key: AssetKeyInput!) {
      runsOrError(filter: {statuses: [QUEUED, STARTING, STARTED]}) { ... on Runs { results { id } } }
      assetNodeOrError(assetKey: $key) { ... on AssetNode { assetPartitionStatuses {
        ... on TimePartitionStatuses { ranges { status startKey endKey } } } } } }"""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        data = graphql(stage.home, query, {"key": {"path": ["core", name]}})
        if not data["runsOrError"]["results"] or time.monotonic() > deadline:
            break
        time.sleep(0.5)
    spans = data["assetNodeOrError"]["assetPartitionStatuses"]["ranges"]
    start = parse_hour(START)
    done = [(parse_hour(s["startKey"]), parse_hour(s["endKey"])) for s in spans if s["status"] == "MATERIALIZED"]
    return sorted({h - start for a, b in done for h in range(a, b + 1)})


def ended(home: Settings, backfill: str) -> str:
    """The status in which a backfill ends."""
    query = "query($id: String!) { partitionBackfillOrError(backfillId: $id) { ... on PartitionBackfill { status } } }"
    deadline, status = time.monotonic() + PATIENCE_SECONDS, "REQUESTED"
    while status in ("REQUESTED", "COMPLETING") and time.monotonic() < deadline:
        time.sleep(0.5)
        status = graphql(home, query, {"id": backfill})["partitionBackfillOrError"].get("status", "UNKNOWN")
    return status


def graphql(home: Settings, query: str, variables: Mapping[str, Any]) -> Any:
    """The data that Dagster's API answers with."""
    address = lifecycle.ui_address(home)
    answer = httpx.post(f"{address}/graphql", json={"query": query, "variables": variables}, timeout=30)
    return answer.raise_for_status().json()["data"]
