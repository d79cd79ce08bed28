"""The demo: late data in, a correct dimension out, by itself. It lands batches; sensors in the daemon do the rest.

It works in the settings' home, alone: a home that holds tables of anybody else is refused, its own from last time is
cleared. Each scene ends by checking what it promised; the end compares every target with one full rebuild.
"""

from __future__ import annotations

import os
import shutil
import time
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import httpx
from pyiceberg.expressions import StartsWith
from rich.console import Console
from rich.markup import escape

from lake_assets.engagement.kafka import KafkaTopic
from lake_assets.errors import LakeError, ServiceError, UsageError
from lake_assets.incremental import tables, verify
from lake_assets.incremental.engine import LOOKBACK_HOURS
from lake_assets.incremental.hours import hour_key, hour_start, parse_hour, spell
from lake_assets.incremental.partitions import rows_between
from lake_assets.incremental.session import SessionPlan, Waiting
from lake_assets.landing.messages import feed_of
from lake_assets.landing.progress import BATCH_PREFIX
from lake_assets.landing.schema import ALL_VERDICTS
from lake_assets.landing.sharding import parse_shard
from lake_assets.landing.station import Station, run_once
from lake_assets.local import services
from lake_assets.local.platform import open_engine
from lake_assets.local.simulating import close_files, send_landing
from lake_assets.local.spark import open_spark
from lake_assets.local.state import kafka_address, required
from lake_assets.membership.simulator import bad_batch, dirty_batch, land, repair, worked_example
from lake_assets.settings import settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake_assets.incremental.engine import Engine
    from lake_assets.incremental.sessions import SessionRecord
    from lake_assets.landing.loading import Loaded
    from lake_assets.membership.simulator import Landing
    from lake_assets.settings import Settings

START, END = "2026-01-01-00:00", "2026-01-02-00:00"
MARKER = "demo"
PARTITIONS = 2
OWN = ("catalog_uri", "warehouse", "kafka", "landing", "landing_manifest_uri", "landing_prefix")
"""Settings that would let it work in somebody else's tables, topics or files."""

PATIENCE_SECONDS = 240
"""How long a scene may take before the demo gives up and points at the logs."""

console = Console(highlight=False, soft_wrap=True)


class Surprise(LakeError):
    """The demo saw something else than it promised."""


def run(*, keep_up: bool) -> bool:
    """Play all scenes; whether all came out as promised. keep_up: leave the services running at the end."""
    began = time.monotonic()
    home = prepare_home()
    fine = False
    try:
        services.up(home, report=_say)
        fine = _play(home)
        memory = sum(s.memory_mb for s in services.status(home))
        console.print(f"\n{time.monotonic() - began:.0f} s in all; the services hold {memory / 1024:.1f} GB.")
    finally:
        if not (fine and keep_up):
            services.down(home, report=_say)
    if fine and keep_up:
        console.print(f"Look around: [bold]{services.ui_address(home)}[/]   ([bold]make down[/] stops it)")
    return fine


def _play(home: Settings) -> bool:
    spark = open_spark(home)
    try:
        stage = _Stage(home, open_engine(home), spark)
        stage.engine.create_tables()
        stage.open_topics()
        for scene in (_first_load, _late_data, _the_rest, _dirty_rows, _stopped_by_an_audit, _backfill, _landed):
            scene(stage)
        return _verdict(stage)
    finally:
        spark.stop()


def _say(line: str) -> None:
    console.print(f"[dim]{escape(line)}[/]")


@dataclass
class _Stage:
    """Where the scenes play. seen: newest session revision that was printed, per target. sent: to Kafka."""

    home: Settings
    engine: Engine
    spark: SparkSession
    seen: dict[str, int] = field(default_factory=dict)
    played: dict[str, list[SessionRecord]] = field(default_factory=dict)
    sent: list[Landing] = field(default_factory=list)

    @cached_property
    def station(self) -> Station:
        servers = required(kafka_address(self.home), "Kafka")
        return Station(self.home, servers, self.engine.catalog, self.engine.pipeline, self.engine.clock)

    def open_topics(self) -> None:
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
        for name, rows in landing.rows.items():
            through = landing.complete_through[name]
            late = f", {landing.late[name]} of them late" if landing.late.get(name) else ""
            promise = f"; complete through {hour_start(through):%H:%M}" if through is not None else ""
            console.print(f"  [cyan]→[/] {name}: {rows.num_rows} rows{late}{promise}")


def _first_load(stage: _Stage) -> None:
    _headline(
        "Hours 0 to 5 land",
        "From Kafka, through two zones that check each other. Sensors see the new snapshots in the tables' metadata.",
    )
    stage.send(worked_example()[0])
    _until_quiet(stage)
    _promise("the dimension has hours 0..5", _built(stage, "account_state_dim"), [range(6)])


def _late_data(stage: _Stage) -> None:
    _headline(
        "Late data",
        "Signups and plan changes of hours 2 and 3 come late, with those of hour 6; cancels of hour 5, with 6 and 7.",
    )
    stage.send(worked_example()[1])
    _until_quiet(stage)
    _promise("signup_fact: hours 2, 3, 6 and no other", _built(stage, "signup_fact"), [(2, 3, 6)])
    _promise("plan_fact: hours 2, 3, 6 and no other", _built(stage, "plan_fact"), [(2, 3, 6)])
    _promise("cancel_fact: hours 5..7", _built(stage, "cancel_fact"), [(5, 6, 7)])
    _promise("account_state_dim: hours 2..6, in one session", _built(stage, "account_state_dim"), [range(2, 7)])
    pending = stage.engine.store.state("core.account_state_dim").committed.pending
    _promise("account_state_dim: hour 7 is pending", sorted(pending), [parse_hour(START) + 7])
    for name, hours in (("signup_fact", 7), ("cancel_fact", 8), ("account_state_dim", 7)):
        marked = _materialized(stage, name)
        _promise(f"Dagster shows {name}: hours 0..{hours - 1} materialized", marked, list(range(hours)))


def _the_rest(stage: _Stage) -> None:
    _headline("Signups and plan changes reach hour 7", "Cancels do not change: the pending hour is built all the same.")
    stage.send(worked_example()[2])
    _until_quiet(stage)
    _promise("account_state_dim: hour 7", _built(stage, "account_state_dim"), [(7,)])
    waiting = stage.engine.decide(stage.engine.pipeline.target("account_state_daily"))
    _promise("account_state_daily: the day waits for its last hour", isinstance(waiting, Waiting), True)
    console.print(f"      [dim]{escape(waiting.reason)}[/]")


def _dirty_rows(stage: _Stage) -> None:
    _headline(
        "Rows that make no sense",
        "No time: a dead letter of the zones. Null keys, absurd times, negative prices, unknown plans: quarantine.",
    )
    stage.send(dirty_batch(hour=8))
    _until_quiet(stage)
    letters = stage.dead_letters()
    for topic, reason in letters["a"]:
        console.print(f"  [yellow]dead letter[/] of {topic}: {reason}")
    _promise("both zones keep the same dead letters", letters["b"], letters["a"])
    rows = tables.load(stage.engine.catalog, "etl.quarantine").scan().to_arrow().to_pylist()
    for reason in sorted({r["reason"] for r in rows}):
        console.print(f"  [yellow]quarantined[/] {reason}: {sum(r['reason'] == reason for r in rows)}")
    _promise("quarantine holds rows", bool(rows), True)


def _stopped_by_an_audit(stage: _Stage) -> None:
    _headline(
        "A batch that an audit must stop",
        "A job writes hour 9 to the raw tables itself, past the zones. Three signups have lost their account.",
    )
    bad = bad_batch(hour=9)
    before = stage.engine.store.state("core.signup_fact").published_snapshot_id
    stage.land(bad.landing)
    _until_quiet(stage)
    state = stage.engine.store.state("core.signup_fact")
    _promise("the session was stopped", state.session.state if state.session else None, "blocked")
    _promise("nothing was published", state.published_snapshot_id, before)
    _promise(
        "Dagster does not show signup_fact's hour 9 as materialized", 9 in _materialized(stage, "signup_fact"), False
    )
    console.print("  [cyan]→[/] the producer repairs the three rows in raw.signups")
    repair(stage.spark, bad)
    _until_quiet(stage)
    _promise("signup_fact: hour 9, once repaired", _built(stage, "signup_fact"), [(9,)])
    _promise("account_state_dim: complete through hour 9", _through(stage), parse_hour(START) + 9)


def _backfill(stage: _Stage) -> None:
    _headline(
        "A backfill, launched as the UI does", "Hours 3 and 4 of signup_fact, from the source as of the watermark."
    )
    table = "core.signup_fact"
    before, rows = stage.engine.store.state(table), _rows(stage, table)
    launched = _graphql(
        stage.home,
        """mutation($it: LaunchBackfillParams!) { launchPartitionBackfill(backfillParams: $it) {
          __typename ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message } } }""",
        {"it": {"assetSelection": [{"path": table.split(".")}], "partitionNames": [_key(3), _key(4)]}},
    )["launchPartitionBackfill"]
    _promise("the backfill succeeds", _ended(stage.home, launched.get("backfillId", "")), "COMPLETED_SUCCESS")
    _until_quiet(stage)
    after = stage.engine.store.state(table)
    unchanged = [_short(r.unchanged) for r in stage.played[table]]
    _promise("hours 3 and 4 were rebuilt, and came out equal", unchanged, [_short([_hour(3), _hour(4)])])
    _promise("so nothing was published", after.published_snapshot_id, before.published_snapshot_id)
    _promise("its rows are the same", _rows(stage, table), rows)
    _promise("its watermark is where it was", after.watermarks, before.watermarks)


def _ended(home: Settings, backfill: str) -> str:
    """The status in which a backfill ends."""
    query = "query($id: String!) { partitionBackfillOrError(backfillId: $id) { ... on PartitionBackfill { status } } }"
    deadline, status = time.monotonic() + PATIENCE_SECONDS, "REQUESTED"
    while status in ("REQUESTED", "COMPLETING") and time.monotonic() < deadline:
        time.sleep(0.5)
        status = _graphql(home, query, {"id": backfill})["partitionBackfillOrError"].get("status", "UNKNOWN")
    return status


def _rows(stage: _Stage, table: str) -> int:
    """A checksum of a table's rows, whatever their order."""
    rows = tables.load(stage.engine.catalog, table).scan().to_arrow().to_pylist()
    return sum(zlib.crc32(repr(sorted(row.items())).encode()) for row in rows)


def _key(hour: int) -> str:
    return hour_key(_hour(hour))


def _hour(hour: int) -> int:
    return parse_hour(START) + hour


def _verdict(stage: _Stage) -> bool:
    _headline("The proof", "Every target against one full rebuild from raw.")
    fine = True
    for target in stage.engine.pipeline.in_order():
        found = verify.compare(stage.engine, target, stage.spark)
        is_due = stage.engine.store.state(target.table).committed.complete_through is not None
        fine = fine and found.equal and (found.rows > 0) == is_due
        mark = "[green]equal[/]" if found.equal else f"[red]{found.missing} rows missing, {found.extra} too many[/]"
        mark += "" if is_due else f" [dim](no {target.grain.name} is complete yet)[/]"
        console.print(f"  {found.table:<26} {found.rows:>6} rows  {mark}")
    console.print("[bold green]All equal.[/]" if fine else "[bold red]Not equal.[/]")
    return fine


def _landed(stage: _Stage) -> None:
    """Whether what was sent is in both zones, and in the raw tables, each once."""
    _headline("Nothing lost, nothing twice", "What was sent to Kafka against both zones and the raw tables.")
    entries = stage.station.manifest.entries(verdicts=ALL_VERDICTS)
    verdicts = Counter(entry.verdict for entry in entries)
    _promise(f"all {len(entries)} files are equal to the other zone's", dict(verdicts), {"verified": len(entries)})
    letters = Counter(topic for topic, _ in stage.dead_letters()["a"])
    for feed in stage.station.feeds:
        sent = sum(landing.rows[feed.raw.table].num_rows for landing in stage.sent)
        landed = StartsWith("batch_id", BATCH_PREFIX)  # type: ignore[call-arg, arg-type]
        scan = tables.load(stage.engine.catalog, feed.raw.table).scan(row_filter=landed)
        dead = f", {letters[feed.topic]} of them dead letters" if letters[feed.topic] else ""
        _promise(f"{feed.raw.table}: {sent} messages{dead}", scan.count() + letters[feed.topic], sent)


def _headline(title: str, what: str) -> None:
    console.print(f"\n[bold]{title}[/]\n[dim]{what}[/]")


def _promise(what: str, found: object, promised: object) -> None:
    """Check a promise and print it."""
    same = [list(x) for x in found] == [list(x) for x in promised] if _nested(promised) else found == promised  # type: ignore[attr-defined]
    if not same:
        raise Surprise(
            f"Promised: {what}. Found {found!r}, expected {promised!r}.", remedy="See the logs in LAKE_HOME/logs."
        )
    console.print(f"  [green]✓[/] {what}")


def _nested(promised: object) -> bool:
    return isinstance(promised, list) and any(isinstance(x, (range, tuple, list)) for x in promised)


def _built(stage: _Stage, name: str) -> list[list[int]]:
    """The hours, counted from the start, that each session of this scene built; sessions without rows aside."""
    start = parse_hour(START)
    return [[h - start for h in r.built] for r in stage.played.get(f"core.{name}", []) if r.built]


def _through(stage: _Stage) -> int | None:
    return stage.engine.store.state("core.account_state_dim").committed.complete_through


def _until_quiet(stage: _Stage) -> None:
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
                remedy=f"Look at the runs in {services.ui_address(stage.home)} and at {stage.home.home / 'logs'}.",
            )
        time.sleep(0.5)


def _print_new_sessions(stage: _Stage, table: str) -> None:
    newest = stage.engine.store.state(table).session
    if newest is None or newest.is_open or newest.revision == stage.seen.get(table):
        return
    fresh = [r for r in stage.engine.store.history(table) if r.revision > stage.seen.get(table, 0) and not r.is_open]
    for record in fresh:
        stage.seen[table] = max(record.revision, stage.seen.get(table, 0))
        stage.played.setdefault(table, []).append(record)
        _print_session(stage, record)


def _print_session(stage: _Stage, record: SessionRecord) -> None:
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


def _against_lookback(stage: _Stage, record: SessionRecord) -> str:
    """What a fixed lookback would have reprocessed instead, and missed."""
    last = record.built[-1]
    first = last - LOOKBACK_HOURS
    target = stage.engine.pipeline.target(record.plan.process)
    rows = rows_between(tables.load(stage.engine.catalog, target.table), target.time_column, first, last)
    missed = [h for h in record.built if h < first]
    return f"; a six-hour lookback: {rows} rows{f', without {_short(missed)}' if missed else ''}"


def _short(hours: tuple[int, ...] | list[int]) -> str:
    """Hours of the demo's one day: `02:00..03:00, 06:00`."""
    return spell(hours).replace(f"{START[:10]}-", "")


def _materialized(stage: _Stage, name: str) -> list[int]:
    """The hours, counted from the start, that Dagster's API reports as materialized. Waits for the runs to end."""
    query = """query($key: AssetKeyInput!) {
      runsOrError(filter: {statuses: [QUEUED, STARTING, STARTED]}) { ... on Runs { results { id } } }
      assetNodeOrError(assetKey: $key) { ... on AssetNode { assetPartitionStatuses {
        ... on TimePartitionStatuses { ranges { status startKey endKey } } } } } }"""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        data = _graphql(stage.home, query, {"key": {"path": ["core", name]}})
        if not data["runsOrError"]["results"] or time.monotonic() > deadline:
            break
        time.sleep(0.5)
    spans = data["assetNodeOrError"]["assetPartitionStatuses"]["ranges"]
    start = parse_hour(START)
    done = [(parse_hour(s["startKey"]), parse_hour(s["endKey"])) for s in spans if s["status"] == "MATERIALIZED"]
    return sorted({h - start for a, b in done for h in range(a, b + 1)})


def _graphql(home: Settings, query: str, variables: Mapping[str, Any]) -> Any:
    address = services.ui_address(home)
    answer = httpx.post(f"{address}/graphql", json={"query": query, "variables": variables}, timeout=30)
    return answer.raise_for_status().json()["data"]


def prepare_home() -> Settings:
    """A home that is empty but for jars and settings; `UsageError` when it holds somebody's tables."""
    found = settings()
    if named := [f"LAKE_{name.upper()}" for name in OWN if getattr(found, name)]:
        raise UsageError(
            f"The demo fills a catalog, topics and folders of its own, but others are named: {', '.join(named)}.",
            remedy="Unset these for `make demo`.",
        )
    mine = (found.home / MARKER).exists()
    if not mine and (found.home / "catalog.db").exists():
        raise UsageError(
            f"{found.home} holds tables that the demo did not make.",
            remedy="Give it a folder of its own: LAKE_HOME=.lake-demo make demo",
        )
    if mine:
        services.down(found, report=lambda line: None)
        _clear(found)
    found.home.mkdir(parents=True, exist_ok=True)
    (found.home / MARKER).touch()
    # The scenes promise exact sessions, also on a machine so busy that a run takes minutes: let targets wait as long.
    fixed = {"LAKE_START": START, "LAKE_END": END, "LAKE_SETTLE_SECONDS": str(PATIENCE_SECONDS)}
    (found.home / "lake.env").write_text("".join(f"{name}={value}\n" for name, value in fixed.items()))
    for name in fixed:
        os.environ.pop(name, None)
    settings.cache_clear()
    return settings()


def _clear(found: Settings) -> None:
    for name in ("warehouse", "dagster", "logs", "spark-warehouse", "kafka", "zookeeper", "serving", "landing"):
        shutil.rmtree(found.home / name, ignore_errors=True)
    for file in (*found.home.glob("catalog.db*"), *found.home.glob("landing.db*")):
        file.unlink()


__all__ = ["Surprise", "run"]
