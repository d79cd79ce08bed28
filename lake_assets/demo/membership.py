"""The membership demo: it sends batches with late rows, and the sensors of Dagster's daemon do the rest.

Each scene ends with checks of its results. At the end every target is compared with what an oracle makes of all rows
that were sent. The oracle is plain Python and shares no code with the pipeline. Neither the raw tables nor the engine
are asked what the rows should be, so a row that was lost on any part of the way is missing here.
"""

from __future__ import annotations

import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from pyiceberg.expressions import StartsWith
from rich.markup import escape

from lake_assets.base.hours import format_hours, hour_key, hour_start, parse_hour
from lake_assets.connections.catalog import watched_files
from lake_assets.connections.spark import open_spark
from lake_assets.demo import home as services
from lake_assets.demo import membership_oracle
from lake_assets.demo.home import END, START, check, console, headline, play_on_services, prepare_home
from lake_assets.demo.membership_oracle import Row
from lake_assets.demo.membership_simulator import bad_batch, dirty_batch, repair, worked_example
from lake_assets.demo.stage import Stage, launch_backfill, materialized_hours, wait_for_backfill
from lake_assets.incremental.declaration import LANDED
from lake_assets.incremental.engine import iceberg
from lake_assets.incremental.engine.model import NoSession, SessionPlan
from lake_assets.incremental.from_settings import open_engine
from lake_assets.incremental.operations import verify
from lake_assets.landing.loading import BATCH_PREFIX
from lake_assets.landing.manifest import ALL_VERDICTS

if TYPE_CHECKING:
    from lake_assets.demo.membership_simulator import Landing
    from lake_assets.incremental.engine.session_log import SessionRecord
    from lake_assets.incremental.engine.state import State
    from lake_assets.landing.messages import Feed
    from lake_assets.settings import Settings

DAY_PREFIX = f"{START[:10]}-"
"""Start of every hour key of the demo's only day."""

NEWEST_SESSIONS = 50
"""Sessions of a target that are looked at in one look."""

POLL_SECONDS_ON_SERVERS = 3
"""Seconds between two looks if the catalog is a server: each look reads metadata of all targets through it."""


def wait_until_idle(stage: Stage) -> None:
    """Wait until no target has anything to do. Print each session when it ends.

    Raises:
        ServiceError: There is still work after the time limit of a scene, `settle_seconds`.
    """
    stage.played.clear()
    is_server = watched_files(stage.home) is None
    services.wait_until_idle(
        stage.home,
        partial(_busy_targets, stage),
        partial(_print_new_sessions, stage),
        poll_seconds=POLL_SECONDS_ON_SERVERS if is_server else services.POLL_SECONDS,
    )


def state_of(stage: Stage, name: str) -> State:
    """Return the present state of a target."""
    return stage.engine.state(stage.engine.pipeline.target(name))


def built_hours(stage: Stage, name: str) -> list[list[int]]:
    """Return the hours that each session of this scene built, counted from the start.

    Sessions without rows are left out.

    Args:
        stage: The stage.
        name: Name of the target, without its namespace.
    """
    start = parse_hour(START)
    found = []
    for record in stage.played.get(f"core.{name}", []):
        if record.built:
            found.append([hour - start for hour in record.built])
    return found


def _busy_targets(stage: Stage) -> list[str]:
    """Return the targets that have a session to run, or one whose process has not written its row of the log yet."""
    engine, found = stage.engine, []
    for target in engine.pipeline.in_order():
        unfinished = any(record.ended_at is None for record in engine.history(target, newest=1))
        if unfinished or isinstance(engine.decide(target), SessionPlan):
            found.append(target.table)
    return found


def _print_new_sessions(stage: Stage) -> None:
    for target in stage.engine.pipeline.in_order():
        printed = stage.printed.get(target.table, 0)
        for record in stage.engine.history(target, newest=NEWEST_SESSIONS):  # ascending by revision
            if _place(record) > printed and record.ended_at:
                stage.printed[target.table] = _place(record)
                stage.played.setdefault(target.table, []).append(record)
                _print_session(record)


def _place(record: SessionRecord) -> int:
    """Return a number that grows from session to session. One that an audit has stopped is run again as the same."""
    return 2 * record.revision + (record.state == "committed")


def _print_session(record: SessionRecord) -> None:
    target = record.plan.process
    if record.state == "blocked":
        for audit in record.audits:
            if audit.blocking and not audit.passed:
                sample = f": {', '.join(audit.sample)}" if audit.sample else ""
                line = f"{target}: blocked by audit {audit.name}, {dict(audit.counts)}{escape(sample)}"
                console.print(f"  [red]■[/] {line}")
        return
    if record.unchanged:
        console.print(f"  [dim]· {target}: {_format_hours(record.unchanged)} came out equal; nothing was written[/]")
    elif not record.built:
        console.print(f"  [dim]· {target}: no rows; complete-through advances[/]")
    if record.built:
        _print_built(record)


def _print_built(record: SessionRecord) -> None:
    plan = record.plan
    passed = sum(audit.passed for audit in record.audits)
    hours = _format_hours(record.built)
    counts = f"{record.rows_written} rows; audits {passed}/{len(record.audits)}"
    console.print(f"  [green]■[/] {plan.process}: {plan.load} {hours} ({counts})")
    reasons = {planned.reason: None for planned in plan.hours if planned.hour in record.built}
    for reason in reasons:
        console.print(f"      [dim]{escape(reason)}[/]")


def _format_hours(hours: Sequence[int]) -> str:
    """Return hours without the day: `02:00..03:00, 06:00`."""
    return format_hours(tuple(hours)).replace(DAY_PREFIX, "")


def expected_rows(sent: Sequence[Landing], *, start: int) -> dict[str, list[Row]]:
    """Return target → the rows that it should have after all batches.

    Args:
        sent: All batches, with their rows as they are now if a producer has repaired some.
        start: First hour of the pipeline.
    """
    rows: dict[str, list[Row]] = {table: [] for table in membership_oracle.KEY}
    through = {table: hour_start(start - 1) for table in membership_oracle.KEY}
    for landing in sent:
        for table, found in landing.rows.items():
            rows[table] += found.to_pylist()
        for table, hour in landing.complete_through.items():
            if hour is not None:
                through[table] = max(through[table], hour_start(hour))
    return membership_oracle.expected(rows, start=hour_start(start), through=through)


def compare(columns: Iterable[str], found: Iterable[Row], expected: Iterable[Row]) -> tuple[int, int]:
    """Compare a target's rows with the expected ones, without the time when a row landed: the zones decide it.

    Returns:
        The numbers of rows that should be there and are not, and that are there and should not be.
    """
    compared = [column for column in columns if column != LANDED]
    there, wanted = _counted(found, compared), _counted(expected, compared)
    return (wanted - there).total(), (there - wanted).total()


def _counted(rows: Iterable[Row], columns: Sequence[str]) -> Counter[tuple[object, ...]]:
    return Counter(tuple(_plain(row[column]) for column in columns) for row in rows)


def _plain(value: object) -> object:
    """Return a value that is equal for equal moments, whatever time zone they are given in."""
    return value.timestamp() if isinstance(value, datetime) else value


SIGNUP_FACT = "core.signup_fact"
DIMENSION = "core.account_state_dim"

BACKFILLED_HOURS = (3, 4)
DELETED_HOUR = 2
DIRTY_HOUR = 8
BAD_HOUR = 9


Scene = Callable[[Stage], None]


def run(*, keep_up: bool, on_servers: bool = False, scenes: int | None = None, further: Sequence[Scene] = ()) -> None:
    """Play the scenes in the data directory of the settings, then compare all targets.

    Args:
        keep_up: If every check holds, leave the services running at the end.
        on_servers: Whether the settings name a catalog, topics and folders, all of them made for this demo.
        scenes: Number of scenes to play; None: all.
        further: Scenes to play after them.

    Raises:
        LakeError: A scene had another result than it expects, or a target has other rows than follow from what was
            sent.
        ServiceError: A service did not start, or a scene took too long.
        UsageError: The data directory is not the demo's own.
    """
    home = prepare_home(on_servers=on_servers)
    played = (*SCENES[:scenes], *further)
    play_on_services(home, partial(_play, scenes=played), keep_up=keep_up)


def _play(home: Settings, *, scenes: Sequence[Scene]) -> None:
    spark = open_spark(home)
    try:
        stage = Stage(home, open_engine(home), spark)
        stage.engine.create_tables()
        stage.open_topics()
        for scene in scenes:
            scene(stage)
        _check_landed(stage)
        _compare_with_sent(stage)
    finally:
        spark.stop()


def _play_first_load(stage: Stage) -> None:
    headline(
        "Hours 0 to 5 land",
        "Two zones land the messages from Kafka and check each other. Sensors find the new snapshots in the metadata"
        " of the raw tables.",
    )
    stage.send(worked_example()[0])
    wait_until_idle(stage)
    check("account_state_dim has hours 0..5", built_hours(stage, "account_state_dim"), [[0, 1, 2, 3, 4, 5]])


def _play_late_data(stage: Stage) -> None:
    headline(
        "Late data",
        "Signups and plan changes of hours 2 and 3 arrive late, with those of hour 6. Cancels of hour 5 arrive late,"
        " with those of hours 6 and 7.",
    )
    stage.send(worked_example()[1])
    wait_until_idle(stage)
    check("signup_fact built hours 2, 3 and 6 only", built_hours(stage, "signup_fact"), [[2, 3, 6]])
    check("plan_fact built hours 2, 3 and 6 only", built_hours(stage, "plan_fact"), [[2, 3, 6]])
    check("cancel_fact built hours 5..7", built_hours(stage, "cancel_fact"), [[5, 6, 7]])
    check(
        "account_state_dim built hours 2..6 in one session",
        built_hours(stage, "account_state_dim"),
        [[2, 3, 4, 5, 6]],
    )
    pending = state_of(stage, DIMENSION).committed.pending
    check("hour 7 of account_state_dim is pending", sorted(pending), [_hour(7)])
    for name, count in (("signup_fact", 7), ("cancel_fact", 8), ("account_state_dim", 7)):
        check(
            f"Dagster shows hours 0..{count - 1} of {name} as materialized",
            materialized_hours(stage.home, name),
            list(range(count)),
        )


def _play_remaining_rows(stage: Stage) -> None:
    headline(
        "Signups and plan changes reach hour 7",
        "No cancel arrives, but the pending hour is built: all its sources are complete now.",
    )
    stage.send(worked_example()[2])
    wait_until_idle(stage)
    check("account_state_dim built hour 7", built_hours(stage, "account_state_dim"), [[7]])
    decision = stage.engine.decide(stage.engine.pipeline.target("account_state_daily"))
    check("account_state_daily waits for the last hour of the day", isinstance(decision, NoSession), True)
    console.print(f"      [dim]{escape(decision.reason)}[/]")


def _play_dirty_rows(stage: Stage) -> None:
    headline(
        "Invalid rows",
        "A message without a time becomes a dead letter of the zones. Null keys, impossible times, negative prices and "
        "unknown plans are quarantined.",
    )
    stage.send(dirty_batch(hour=DIRTY_HOUR))
    wait_until_idle(stage)
    letters = stage.dead_letters()
    for topic, reason in letters["a"]:
        console.print(f"  [yellow]dead letter[/] of {topic}: {reason}")
    check("both zones have the same dead letters", letters["b"], letters["a"])
    rows = iceberg.load(stage.engine.catalog, "etl.quarantine").scan().to_arrow().to_pylist()
    counts = Counter(row["reason"] for row in rows)
    for reason, count in sorted(counts.items()):
        console.print(f"  [yellow]quarantined[/] {reason}: {count}")
    check("quarantine has rows", bool(rows), True)


def _play_blocking_audit(stage: Stage) -> None:
    headline(
        "An audit blocks a batch",
        "A job writes hour 9 directly to the raw tables, without the zones. Three signups have no account.",
    )
    bad = bad_batch(hour=BAD_HOUR)
    before = state_of(stage, SIGNUP_FACT).snapshot_id
    stage.land(bad.landing)
    wait_until_idle(stage)
    state = state_of(stage, SIGNUP_FACT)
    check("the session is blocked", state.blocked is not None, True)
    check("nothing is published", state.snapshot_id, before)
    is_shown = BAD_HOUR in materialized_hours(stage.home, "signup_fact")
    check("Dagster does not show hour 9 of signup_fact as materialized", is_shown, False)
    console.print("  [cyan]→[/] the producer repairs the three rows in raw.signups")
    repair(stage.spark, bad)
    stage.landed.append(bad.repaired)
    wait_until_idle(stage)
    check("signup_fact built hour 9 after the repair", built_hours(stage, "signup_fact"), [[BAD_HOUR]])
    through = state_of(stage, DIMENSION).committed.complete_through
    check("account_state_dim is complete through hour 9", through, _hour(BAD_HOUR))


def _play_backfill(stage: Stage) -> None:
    headline(
        "A backfill, launched as in the UI",
        "It rebuilds hours 3 and 4 of signup_fact from the sources as of the watermark.",
    )
    before = state_of(stage, SIGNUP_FACT)
    checksum = _checksum(stage, SIGNUP_FACT)
    hours = [_hour(hour) for hour in BACKFILLED_HOURS]
    backfill = launch_backfill(stage.home, SIGNUP_FACT, [hour_key(hour) for hour in hours])
    check("the backfill succeeds", wait_for_backfill(stage.home, backfill), "COMPLETED_SUCCESS")
    wait_until_idle(stage)
    after = state_of(stage, SIGNUP_FACT)
    unchanged = [list(record.unchanged) for record in stage.played[SIGNUP_FACT]]
    check("hours 3 and 4 were rebuilt and came out equal", unchanged, [hours])
    published = [record.published_snapshot_id for record in stage.played[SIGNUP_FACT]]
    check("nothing was published", published, [None])
    check("the rows are the same", _checksum(stage, SIGNUP_FACT), checksum)
    check("the watermark is the same", after.watermarks, before.watermarks)


def _play_deleted_rows(stage: Stage) -> None:
    headline(
        "Somebody deletes rows of a target",
        f"A statement deletes hour {DELETED_HOUR} of {SIGNUP_FACT}, without the engine. The metadata shows a snapshot"
        " that no session made.",
    )
    checksum = _checksum(stage, SIGNUP_FACT)
    stage.spark.sql(f"DELETE FROM lake.{SIGNUP_FACT} WHERE hour(signed_up_at) = {DELETED_HOUR}")
    check("rows are missing", _checksum(stage, SIGNUP_FACT) == checksum, False)
    wait_until_idle(stage)
    check("a session that Dagster starts rebuilds the hour from the sources", _checksum(stage, SIGNUP_FACT), checksum)


def _play_dropped_table(stage: Stage) -> None:
    headline(
        "Somebody drops a target",
        f"{DIMENSION} is dropped. The session log remembers that sessions have built it.",
    )
    checksum = _checksum(stage, DIMENSION)
    stage.engine.catalog.drop_table(DIMENSION)
    check("lake init refuses to create an empty table in its place", stage.command("init"), 1)
    check("the table is still missing", stage.engine.catalog.table_exists(DIMENSION), False)
    check("lake rebuild --reset builds all its hours", stage.command("rebuild", DIMENSION, "--reset"), 0)
    wait_until_idle(stage)
    check("all rows are there again", _checksum(stage, DIMENSION), checksum)


def _play_end_of_day(stage: Stage) -> None:
    headline(
        "The day ends",
        f"Nothing happens after hour {BAD_HOUR}. `lake complete` declares the raw tables complete, so the other hours"
        " are built, and with the last one the day.",
    )
    last = parse_hour(END) - 1
    tables = [raw.table for raw in stage.engine.pipeline.raw]
    declared = [stage.command("complete", table, hour_key(last)) for table in tables]
    check("the raw tables are complete through hour 23", declared, [0] * len(tables))
    stage.landed.append(replace(stage.landed[-1], rows={}, late={}, complete_through=dict.fromkeys(tables, last)))
    wait_until_idle(stage)
    for name in ("signup_fact", "cancel_request_fact", "account_state_dim"):
        shown = partial(materialized_hours, stage.home, name)
        check(f"Dagster shows all hours of {name}", poll(shown, list(range(24))), list(range(24)))


def poll(look: Callable[[], list[int]], expected: list[int]) -> list[int]:
    """Look until what is expected is there, for a minute at most: hours without rows are reported some ticks later."""
    end = time.monotonic() + 60
    while (found := look()) != expected and time.monotonic() < end:
        time.sleep(1)
    return found


def _checksum(stage: Stage, table: str) -> int:
    """Return a checksum of a table's rows that does not depend on their order."""
    total = 0
    for row in iceberg.load(stage.engine.catalog, table).scan().to_arrow().to_pylist():
        values = sorted(row.items())
        total += zlib.crc32(repr(values).encode())
    return total


def _hour(hour: int) -> int:
    """Return an hour of the demo in hours since 1970-01-01 UTC."""
    return parse_hour(START) + hour


def _check_landed(stage: Stage) -> None:
    """Check that every message is in both zones once, and in its raw table once unless it is a dead letter."""
    headline(
        "Nothing is lost or duplicated",
        "The messages that were sent to Kafka are compared with both zones and with the raw tables.",
    )
    service = stage.landing_service
    entries = service.manifest.entries(verdicts=ALL_VERDICTS)
    verdicts = Counter(entry.verdict for entry in entries)
    check(f"all {len(entries)} files are equal in both zones", dict(verdicts), {"verified": len(entries)})
    dead_letters = Counter(topic for topic, _ in stage.dead_letters()["a"])
    for feed in service.feeds:
        _check_messages(stage, feed, dead_letters[feed.topic])


def _check_messages(stage: Stage, feed: Feed, dead_letters: int) -> None:
    table = feed.raw.table
    sent = sum(landing.rows[table].num_rows for landing in stage.sent)
    landed = StartsWith("batch_id", BATCH_PREFIX)  # type: ignore[call-arg, arg-type]
    loaded = iceberg.load(stage.engine.catalog, table).scan(row_filter=landed).count()
    what = f"{table}: {sent} messages"
    if dead_letters:
        what += f", {dead_letters} of them are dead letters"
    check(what, loaded + dead_letters, sent)


def _compare_with_sent(stage: Stage) -> None:
    headline(
        "The proof",
        "Plain Python computes every target from the rows that were sent, without Kafka, Iceberg or the engine. The"
        " tables must have the same rows, and no landed row may be left unprocessed.",
    )
    expected = expected_rows([*stage.sent, *stage.landed], start=stage.engine.pipeline.start_hour)
    for target in stage.engine.pipeline.in_order():
        rows = iceberg.load(stage.engine.catalog, target.table).scan().to_arrow().to_pylist()
        is_complete = stage.engine.state(target).committed.complete_through is not None
        found = {
            "rows missing and too many": compare(target.columns, rows, expected[target.table]),
            "left": [*verify.left(stage.engine, target)] if is_complete else [],
            "has rows": bool(rows),
        }
        note = "" if is_complete else f" (no {target.grain.name} is complete yet)"
        right = {"rows missing and too many": (0, 0), "left": [], "has rows": is_complete}
        check(f"{target.table:<26} {len(rows):>6} rows, equal{note}", found, right)
    console.print("[bold green]All equal.[/]")


SCENES = (
    _play_first_load,
    _play_late_data,
    _play_remaining_rows,
    _play_dirty_rows,
    _play_blocking_audit,
    _play_backfill,
    _play_deleted_rows,
    _play_dropped_table,
    _play_end_of_day,
)
"""In the order of the story: each one goes on where the one before has ended."""
