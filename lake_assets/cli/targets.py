"""Commands of sessions: plan, run, rebuild, compare and show them, and `lake session` for programs that write a target
themselves.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lake_assets.base.described import has_details, kept_failure
from lake_assets.cli.common import (
    AsJson,
    Hour,
    TargetName,
    log_error,
    open_engine,
    past_hour,
    show_failures,
    show_log,
)
from lake_assets.cli.render import print_json, render, show
from lake_assets.errors import ErrorText, UsageError
from lake_assets.settings import settings

if TYPE_CHECKING:
    from lake_assets.incremental.declaration import Target
    from lake_assets.incremental.engine.engine import Engine
    from lake_assets.incremental.engine.model import NoSession, SessionReport
    from lake_assets.incremental.operations.verify import Verification

session = typer.Typer(
    help="Sessions of external jobs: lake-assets plans, audits and publishes, the job writes the rows.",
    no_args_is_help=True,
)

SessionId = Annotated[
    str | None,
    typer.Option("--psyberg-session-id", metavar="ID", help="The id of the session. Default: an id of its plan."),
]


@session.command()
def init(
    target: TargetName,
    process_name: Annotated[
        str | None, typer.Option(help="The process that writes TARGET; no other may. Default: not checked.")
    ] = None,
    src_tables: Annotated[
        str | None,
        typer.Option(
            metavar="TABLE[|COLUMN],...",
            help="The sources, each with its time column, such as 'raw_cancels|processing_ts,cancel_fact'."
            " Default: those of the declaration.",
        ),
    ] = None,
    etl_pattern_id: Annotated[
        int | None, typer.Option(help="How: 1 appends new rows, 2 overwrites hours. Default: as declared.")
    ] = None,
    psyberg_session_id: SessionId = None,
    psyberg_hwm_table: Annotated[
        str | None, typer.Option(metavar="TABLE", help="The table of watermarks; it has to be that of the settings.")
    ] = None,
    psyberg_session_table: Annotated[
        str | None, typer.Option(metavar="TABLE", help="The table of sessions; it has to be that of the settings.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Open the next session of TARGET: show what to read, which hours to write, and the WAP id."""
    from lake_assets.cli import views
    from lake_assets.incremental.engine import undeclared

    found = settings()
    _check_table("--psyberg-hwm-table", psyberg_hwm_table, found.high_watermark_table, "LAKE_HIGH_WATERMARK_TABLE")
    _check_table("--psyberg-session-table", psyberg_session_table, found.session_table, "LAKE_SESSION_TABLE")
    engine = open_engine()
    named = undeclared.Named(process_name, src_tables, etl_pattern_id)
    job = undeclared.find_target(engine.catalog, engine.pipeline, target, named)
    engine.create_tables()
    undeclared.remember(engine.catalog, engine.pipeline, job, process_name)
    opened = engine.open_session(job, run_id="lake session", session_id=psyberg_session_id)
    render(opened, views.opened, as_json=as_json)


@session.command()
def publish(target: TargetName, psyberg_session_id: SessionId = None, as_json: AsJson = False) -> None:
    """Audit the rows that were written for the open session of TARGET, then publish them."""
    from lake_assets.cli import views

    engine = open_engine()
    report = engine.publish_session(_target(engine, target), session_id=psyberg_session_id)
    render(report, views.report, as_json=as_json)


@session.command()
def commit(target: TargetName, psyberg_session_id: SessionId = None, as_json: AsJson = False) -> None:
    """Show the session of TARGET that was published last, which ended it. Fails if the open one is not published."""
    from lake_assets.cli import views

    engine = open_engine()
    report = engine.commit_session(_target(engine, target), session_id=psyberg_session_id)
    render(report, views.report, as_json=as_json)


def _target(engine: Engine, name: str) -> Target:
    from lake_assets.incremental.engine.undeclared import find_target

    return find_target(engine.catalog, engine.pipeline, name)


def _check_table(option: str, named: str | None, found: str, variable: str) -> None:
    """Check that a table of the log is the one of the settings, by which every other command reads it.

    Raises:
        UsageError: It is another one.
    """
    from lake_assets.incremental.declaration.model import is_name_of

    if named is not None and not is_name_of(named, found):
        raise UsageError(
            f"{option} is {named!r}, but the table is {found}.",
            remedy=f"Set {variable}={named} in lake.env, for all commands alike; or leave the option out.",
        )


SIGNAL_SECONDS = 5
"""Time between two looks at a target that is waited for."""

Force = Annotated[bool, typer.Option("--force", help="Also build more than a day of hours beyond the newest rows.")]


def plan(target: TargetName, as_json: AsJson = False) -> None:
    """Show the next session of TARGET: its hours, with reasons and cost. Changes nothing."""
    from lake_assets.cli import views

    engine = open_engine()
    decision = engine.decide(engine.pipeline.target(target))
    render(decision, partial(views.decision, now=engine.clock()), as_json=as_json)


def catch_up(
    targets: Annotated[
        list[str] | None, typer.Argument(metavar="TARGET", help="The targets to update. Default: all.")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Also repeat sessions that a failed audit stopped or held back.")
    ] = False,
    force: Force = False,
    deferred: Annotated[
        bool, typer.Option("--deferred", help="Also build hours that wait by their policy for late rows.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run sessions until every target is up to date, as the sensors would. For cron and other schedulers.

    Up to date is what the raw tables hold when the command starts. Hours that are deferred wait, unless --deferred.
    Two of these commands may run at once.
    If a session failed, the other targets go on. All failures are listed at the end.
    The exit code is 1 if a session failed, if a target was rolled back or dropped, or if a declaration cannot be used.
    """
    from lake_assets.cli import views
    from lake_assets.incremental.engine.engine import Outcome, catch_up

    def report(outcome: Outcome) -> None:
        if not as_json:
            show(views.outcome(outcome))

    engine = open_engine()
    engine.create_tables()
    wanted = engine.pipeline.in_order()
    if targets:
        wanted = [engine.pipeline.target(name) for name in targets]
    log: Path | None = None

    def log_details(error: Exception) -> None:
        nonlocal log
        if has_details(error):
            log = log_error(error, settings().home)

    outcomes = catch_up(
        engine, wanted, report=report, on_error=log_details, again=again, force=force, deferred=deferred
    )
    if as_json:
        print_json(outcomes)
    texts = [outcome.failure for outcome in outcomes if outcome.failure]
    if not targets:
        texts += [str(broken.error) for broken in engine.pipeline.broken]
    if texts:
        show_failures(texts)
        show_log(log)
        sys.exit(1)


def rebuild(
    target: TargetName,
    first: Annotated[
        str | None, typer.Argument(metavar="FROM", help="The first hour, such as 2026-01-01-05:00.")
    ] = None,
    last: Annotated[str | None, typer.Argument(metavar="TO", help="The last hour, inclusive.")] = None,
    reset: Annotated[
        bool, typer.Option(help="Read the sources as they are now, and set the watermark to their heads.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Rebuild the hours FROM to TO of TARGET from its sources as of the watermark, which does not move: a backfill.

    With --reset and without hours, all hours are rebuilt; a table that was dropped is created again. More than 10,000
    hours take several sessions. If the command is interrupted, repeat it, or let `lake catch-up` build the rest.
    The exit code is 1 if a failed audit held hours back.
    """
    engine = open_engine()
    declared = engine.pipeline.target(target)
    hours = _hours_between(first, last, reset=reset)
    engine.create_tables()
    if hours is None:
        found = engine.rebuild_all(declared, run_id=_run_id(), on_session=_shown(as_json=as_json))
    else:
        on_session = _shown(as_json=as_json)
        found = engine.rebuild(declared, hours, run_id=_run_id(), reset=reset, on_session=on_session)
    _end(found, as_json=as_json)


def repair(target: TargetName, as_json: AsJson = False) -> None:
    """Go on with TARGET after a rollback: what it lacks is rebuilt from its sources.

    The exit code is 1 if a failed audit held hours back, or if TARGET is not as its sessions left it afterwards. Rows
    that others have deleted, changed or added need no repair: the next session rebuilds their hours.
    """
    engine = open_engine()
    declared = engine.pipeline.target(target)
    _end(engine.repair(declared, run_id=_run_id(), on_session=_shown(as_json=as_json)), as_json=as_json)
    problem = engine.problem(declared)
    if problem is not None:
        raise problem


def _hours_between(first: str | None, last: str | None, *, reset: bool) -> range | None:
    """Return the hours from the first to the last one, inclusive; None for all hours."""
    from lake_assets.base.hours import parse_hour

    if first is None and reset:
        return None
    if first is None:
        raise UsageError(
            "FROM and TO are missing.",
            remedy="Name the first and the last hour, or use --reset without hours to rebuild all of them.",
        )
    if last is None:
        raise UsageError(f"FROM is {first}, and TO is missing.", remedy="Name the last hour, too; it is inclusive.")
    hours = range(parse_hour(first, where="FROM"), past_hour(last, where="TO") + 1)
    if not hours:
        raise UsageError(f"FROM {first} is later than TO {last}.", remedy="Name the earlier hour first.")
    return hours


def _run_id() -> str:
    return f"lake-{datetime.now(UTC):%Y%m%d%H%M%S%f}"


def _shown(*, as_json: bool) -> Callable[[SessionReport], None]:
    """Return what shows the report of a session as soon as it has ended; nothing if JSON is shown at the end."""
    from lake_assets.cli import views

    return lambda found: None if as_json else show(views.report(found))


def _end(found: SessionReport | NoSession, *, as_json: bool) -> None:
    """Show what was not shown yet of a rebuild, and end with its exit code."""
    from lake_assets.cli import views
    from lake_assets.incremental.engine.model import SessionReport

    if as_json or not isinstance(found, SessionReport):
        render(found, views.report, as_json=as_json)
    if isinstance(found, SessionReport) and found.held:
        sys.exit(1)


def verify(
    target: Annotated[str | None, typer.Argument(metavar="TARGET", help="The target. Default: all.")] = None,
    first: Annotated[
        str | None, typer.Argument(metavar="FROM", help="The first hour. Default: the hours whose turn it is today.")
    ] = None,
    last: Annotated[str | None, typer.Argument(metavar="TO", help="The last hour, inclusive.")] = None,
    as_json: AsJson = False,
) -> None:
    """Compare hours of TARGET with a rebuild from its sources. Changes nothing.

    Without hours, it compares those whose turn it is today, at most LAKE_VERIFY_HOURS of each target. The exit code is
    1 if an hour differs.
    """
    from lake_assets.cli import views
    from lake_assets.incremental.operations.verify import verify_hours

    engine = open_engine()
    targets = engine.pipeline.in_order()
    if target is not None:
        targets = [engine.pipeline.target(target)]
    wanted = None if first is None else _hours_between(first, last, reset=False)
    day = datetime.now(UTC).date().toordinal()
    limit = settings().verify_hours
    results: list[Verification] = []
    failures: list[ErrorText] = []
    for each in targets:
        with kept_failure(failures, each.table, alone=target is not None):
            results.append(verify_hours(engine, each, day=day, limit=limit, wanted=wanted))
    render(results, views.verified, as_json=as_json)
    show_failures(failures)
    if failures or any(not found.equal for found in results):
        sys.exit(1)


def audit(
    target: TargetName,
    hours: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="HOURS",
            help="Hours, such as 2026-01-01-05:00 or 2026-01-01-05:00..2026-01-01-09:00. Default: the newest complete.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate the audits of TARGET on the rows that it has published. Changes nothing.

    The exit code is 1 if a blocking audit fails.
    """
    from lake_assets.base.hours import parse_hours
    from lake_assets.cli import views

    engine = open_engine()
    found = engine.audit(engine.pipeline.target(target), parse_hours(hours or (), where="HOURS"))
    render(found, views.published, as_json=as_json)
    if not found.passed:
        sys.exit(1)


def signal(
    target: TargetName,
    wait_for: Annotated[
        str | None, typer.Option("--wait-for", metavar="HOUR", help="Wait until this hour is complete.")
    ] = None,
    timeout: Annotated[float, typer.Option(help="Minutes to wait at most.", min=0)] = 60,
    as_json: AsJson = False,
) -> None:
    """Show through which hour TARGET is complete; with --wait-for, wait for an hour. For schedulers of others.

    The exit code is 1 if the hour is not complete in time.
    """
    from lake_assets.base.hours import hour_key, parse_hour

    engine = open_engine()
    wanted = _target(engine, target)
    hour = None if wait_for is None else parse_hour(wait_for, where="--wait-for")
    deadline = time.monotonic() + 60 * timeout
    while True:
        through = engine.state(wanted).committed.complete_through
        is_complete = hour is None or (through is not None and through >= hour)
        left = deadline - time.monotonic()
        if is_complete or left <= 0:
            break
        time.sleep(min(SIGNAL_SECONDS, left))
    key = None if through is None else hour_key(through)
    if as_json:
        print_json({"table": wanted.table, "complete_through": key, "is_complete": is_complete})
    else:
        print(f"{wanted.table} is complete through {key or 'no hour yet'}.")
    if not is_complete:
        sys.exit(1)


def sessions(
    target: TargetName,
    last: Annotated[int, typer.Option("--last", help="How many sessions to list: the newest ones.", min=1)] = 100,
    as_json: AsJson = False,
) -> None:
    """List the newest sessions of TARGET: what each one read and wrote, and why it ran."""
    from lake_assets.cli import views

    engine = open_engine()
    history = engine.history(_target(engine, target), newest=last)
    render(history, views.sessions, as_json=as_json)


def why(target: TargetName, hour: Hour, as_json: AsJson = False) -> None:
    """Show which session last rebuilt HOUR of TARGET, and the reason."""
    from lake_assets.base.hours import parse_hour
    from lake_assets.cli import views

    engine = open_engine()
    number = parse_hour(hour, where="HOUR")
    built = engine.log.builds(_target(engine, target).table, number)
    render(built, lambda records: views.why(records, number), as_json=as_json, document=built[-1:])
