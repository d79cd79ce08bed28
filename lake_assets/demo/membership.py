"""The demo: late data in, a correct dimension out, by itself. It sends batches; sensors in the daemon do the rest.

Each scene ends by checking what it promised; the end compares every target with one full rebuild.
"""

from __future__ import annotations

import time
import zlib
from collections import Counter
from typing import TYPE_CHECKING

from pyiceberg.expressions import StartsWith
from rich.markup import escape

from lake_assets.base.hours import hour_key, parse_hour
from lake_assets.connections.spark import open_spark
from lake_assets.demo.home import START, prepare_home
from lake_assets.demo.membership_simulator import bad_batch, dirty_batch, repair, worked_example
from lake_assets.demo.stage import (
    Stage,
    built,
    console,
    ended,
    graphql,
    headline,
    materialized,
    promise,
    until_quiet,
)
from lake_assets.incremental.from_settings import open_engine
from lake_assets.incremental.metadata import tables
from lake_assets.incremental.monitoring import verify
from lake_assets.incremental.planning.session import NoSession
from lake_assets.landing.loading.progress import BATCH_PREFIX
from lake_assets.landing.manifest.schema import ALL_VERDICTS
from lake_assets.services import lifecycle

if TYPE_CHECKING:
    from lake_assets.settings import Settings


def run(*, keep_up: bool) -> bool:
    """Play all scenes; whether all came out as promised. keep_up: leave the services running at the end."""
    began = time.monotonic()
    home = prepare_home()
    fine = False
    try:
        lifecycle.up(home, report=_say)
        fine = _play(home)
        memory = sum(s.memory_mb for s in lifecycle.status(home))
        console.print(f"\n{time.monotonic() - began:.0f} s in all; the services hold {memory / 1024:.1f} GB.")
    finally:
        if not (fine and keep_up):
            lifecycle.down(home, report=_say)
    if fine and keep_up:
        console.print(f"Look around: [bold]{lifecycle.ui_address(home)}[/]   ([bold]make down[/] stops it)")
    return fine


def _play(home: Settings) -> bool:
    spark = open_spark(home)
    try:
        stage = Stage(home, open_engine(home), spark)
        stage.engine.create_tables()
        stage.open_topics()
        for scene in (_first_load, _late_data, _the_rest, _dirty_rows, _stopped_by_an_audit, _backfill, _landed):
            scene(stage)
        return _verdict(stage)
    finally:
        spark.stop()


def _say(line: str) -> None:
    console.print(f"[dim]{escape(line)}[/]")


def _first_load(stage: Stage) -> None:
    headline(
        "Hours 0 to 5 land",
        "From Kafka, through two zones that check each other. Sensors see the new snapshots in the tables' metadata.",
    )
    stage.send(worked_example()[0])
    until_quiet(stage)
    promise("the dimension has hours 0..5", built(stage, "account_state_dim"), [range(6)])


def _late_data(stage: Stage) -> None:
    headline(
        "Late data",
        "Signups and plan changes of hours 2 and 3 come late, with those of hour 6; cancels of hour 5, with 6 and 7.",
    )
    stage.send(worked_example()[1])
    until_quiet(stage)
    promise("signup_fact: hours 2, 3, 6 and no other", built(stage, "signup_fact"), [(2, 3, 6)])
    promise("plan_fact: hours 2, 3, 6 and no other", built(stage, "plan_fact"), [(2, 3, 6)])
    promise("cancel_fact: hours 5..7", built(stage, "cancel_fact"), [(5, 6, 7)])
    promise("account_state_dim: hours 2..6, in one session", built(stage, "account_state_dim"), [range(2, 7)])
    pending = stage.engine.store.state("core.account_state_dim").committed.pending
    promise("account_state_dim: hour 7 is pending", sorted(pending), [parse_hour(START) + 7])
    for name, hours in (("signup_fact", 7), ("cancel_fact", 8), ("account_state_dim", 7)):
        marked = materialized(stage, name)
        promise(f"Dagster shows {name}: hours 0..{hours - 1} materialized", marked, list(range(hours)))


def _the_rest(stage: Stage) -> None:
    headline("Signups and plan changes reach hour 7", "Cancels do not change: the pending hour is built all the same.")
    stage.send(worked_example()[2])
    until_quiet(stage)
    promise("account_state_dim: hour 7", built(stage, "account_state_dim"), [(7,)])
    waiting = stage.engine.decide(stage.engine.pipeline.target("account_state_daily"))
    promise("account_state_daily: the day waits for its last hour", isinstance(waiting, NoSession), True)
    console.print(f"      [dim]{escape(waiting.reason)}[/]")


def _dirty_rows(stage: Stage) -> None:
    headline(
        "Rows that make no sense",
        "No time: a dead letter of the zones. Null keys, absurd times, negative prices, unknown plans: quarantine.",
    )
    stage.send(dirty_batch(hour=8))
    until_quiet(stage)
    letters = stage.dead_letters()
    for topic, reason in letters["a"]:
        console.print(f"  [yellow]dead letter[/] of {topic}: {reason}")
    promise("both zones keep the same dead letters", letters["b"], letters["a"])
    rows = tables.load(stage.engine.catalog, "etl.quarantine").scan().to_arrow().to_pylist()
    for reason in sorted({r["reason"] for r in rows}):
        console.print(f"  [yellow]quarantined[/] {reason}: {sum(r['reason'] == reason for r in rows)}")
    promise("quarantine holds rows", bool(rows), True)


def _stopped_by_an_audit(stage: Stage) -> None:
    headline(
        "A batch that an audit must stop",
        "A job writes hour 9 to the raw tables itself, past the zones. Three signups have lost their account.",
    )
    bad = bad_batch(hour=9)
    before = stage.engine.store.state("core.signup_fact").published_snapshot_id
    stage.land(bad.landing)
    until_quiet(stage)
    state = stage.engine.store.state("core.signup_fact")
    promise("the session was stopped", state.session.state if state.session else None, "blocked")
    promise("nothing was published", state.published_snapshot_id, before)
    promise(
        "Dagster does not show signup_fact's hour 9 as materialized", 9 in materialized(stage, "signup_fact"), False
    )
    console.print("  [cyan]→[/] the producer repairs the three rows in raw.signups")
    repair(stage.spark, bad)
    until_quiet(stage)
    promise("signup_fact: hour 9, once repaired", built(stage, "signup_fact"), [(9,)])
    promise("account_state_dim: complete through hour 9", _through(stage), parse_hour(START) + 9)


def _backfill(stage: Stage) -> None:
    headline(
        "A backfill, launched as the UI does", "Hours 3 and 4 of signup_fact, from the source as of the watermark."
    )
    table = "core.signup_fact"
    before, rows = stage.engine.store.state(table), _rows(stage, table)
    launched = graphql(
        stage.home,
        """mutation($it: LaunchBackfillParams!) { launchPartitionBackfill(backfillParams: $it) {
          __typename ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message } } }""",
        {"it": {"assetSelection": [{"path": table.split(".")}], "partitionNames": [_key(3), _key(4)]}},
    )["launchPartitionBackfill"]
    promise("the backfill succeeds", ended(stage.home, launched.get("backfillId", "")), "COMPLETED_SUCCESS")
    until_quiet(stage)
    after = stage.engine.store.state(table)
    unchanged = [list(r.unchanged) for r in stage.played[table]]
    promise("hours 3 and 4 were rebuilt, and came out equal", unchanged, [[_hour(3), _hour(4)]])
    promise("so nothing was published", after.published_snapshot_id, before.published_snapshot_id)
    promise("its rows are the same", _rows(stage, table), rows)
    promise("its watermark is where it was", after.watermarks, before.watermarks)


def _rows(stage: Stage, table: str) -> int:
    """A checksum of a table's rows, whatever their order."""
    rows = tables.load(stage.engine.catalog, table).scan().to_arrow().to_pylist()
    return sum(zlib.crc32(repr(sorted(row.items())).encode()) for row in rows)


def _key(hour: int) -> str:
    return hour_key(_hour(hour))


def _hour(hour: int) -> int:
    return parse_hour(START) + hour


def _verdict(stage: Stage) -> bool:
    headline("The proof", "Every target against one full rebuild from raw; nothing that has landed may be left.")
    fine = True
    for target in stage.engine.pipeline.in_order():
        found = verify.compare(stage.engine, target, stage.spark)
        is_due = stage.engine.store.state(target.table).committed.complete_through is not None
        left = "; ".join(verify.left(stage.engine, target)) if is_due else ""
        fine = fine and found.equal and (found.rows > 0) == is_due and not left
        mark = "[green]equal[/]" if found.equal else f"[red]{found.missing} rows missing, {found.extra} too many[/]"
        mark += f" [red]{escape(left)}[/]" if left else ""
        mark += "" if is_due else f" [dim](no {target.grain.name} is complete yet)[/]"
        console.print(f"  {found.table:<26} {found.rows:>6} rows  {mark}")
    console.print("[bold green]All equal.[/]" if fine else "[bold red]Not equal.[/]")
    return fine


def _landed(stage: Stage) -> None:
    """Whether what was sent is in both zones, and in the raw tables, each once."""
    headline("Nothing lost, nothing twice", "What was sent to Kafka against both zones and the raw tables.")
    entries = stage.station.manifest.entries(verdicts=ALL_VERDICTS)
    verdicts = Counter(entry.verdict for entry in entries)
    promise(f"all {len(entries)} files are equal to the other zone's", dict(verdicts), {"verified": len(entries)})
    letters = Counter(topic for topic, _ in stage.dead_letters()["a"])
    for feed in stage.station.feeds:
        sent = sum(landing.rows[feed.raw.table].num_rows for landing in stage.sent)
        landed = StartsWith("batch_id", BATCH_PREFIX)  # type: ignore[call-arg, arg-type]
        scan = tables.load(stage.engine.catalog, feed.raw.table).scan(row_filter=landed)
        dead = f", {letters[feed.topic]} of them kept as dead letters" if letters[feed.topic] else ""
        promise(f"{feed.raw.table}: {sent} messages{dead}", scan.count() + letters[feed.topic], sent)


def _through(stage: Stage) -> int | None:
    return stage.engine.store.state("core.account_state_dim").committed.complete_through
