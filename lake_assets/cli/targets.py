"""`lake plan`, `catch-up`, `rebuild`, `sessions` and `why`: the sessions of targets."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from lake_assets.cli.common import AsJson, Hour, TargetName, open_engine
from lake_assets.errors import UsageError
from lake_assets.errors.described import has_details
from lake_assets.pages.terminal import failures
from lake_assets.pages.terminal.render import print_json, render, show
from lake_assets.settings import settings


def plan(target: TargetName, as_json: AsJson = False) -> None:
    """Show the next session of TARGET: its hours, with reasons and cost. Changes nothing."""
    from lake_assets.pages.terminal import sessions as views

    engine = open_engine()
    decision = engine.decide(engine.pipeline.target(target))
    render(decision, views.decision, as_json=as_json)


def catch_up(
    targets: Annotated[
        list[str] | None, typer.Argument(metavar="TARGET", help="The targets to update. Default: all.")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Also repeat sessions that a failed audit stopped or held back.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run sessions until every target is up to date, as the sensors would. For cron and other schedulers.

    If a session failed, the other targets go on; all failures are listed at the end, and the exit code is 1.
    """
    from lake_assets.incremental.execution.catch_up import Outcome, catch_up
    from lake_assets.pages.terminal import sessions as views

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
            log = failures.log(error, settings().home)

    outcomes = catch_up(
        engine,
        wanted,
        report=report,
        on_error=log_details,
        again=again,
    )
    if as_json:
        print_json(outcomes)
    failed = [outcome.failure for outcome in outcomes if outcome.failure]
    if failed:
        failures.show_failures(failed)
        failures.show_log(log)
        sys.exit(1)


def rebuild(
    target: TargetName,
    first: Annotated[str, typer.Argument(metavar="FROM", help="The first hour, such as 2026-01-01-05:00.")],
    last: Annotated[str, typer.Argument(metavar="TO", help="The last hour, inclusive.")],
    reset: Annotated[
        bool, typer.Option(help="Read the sources as they are now, and set the watermark to their heads.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Rebuild the hours FROM to TO of TARGET from its sources as of the watermark, which does not move: a backfill.

    The exit code is 1 if a failed audit held hours back.
    """
    from lake_assets.base.hours import parse_hour
    from lake_assets.incremental.planning.session import SessionReport
    from lake_assets.pages.terminal import sessions as views

    engine = open_engine()
    hours = range(parse_hour(first, where="FROM"), parse_hour(last, where="TO") + 1)
    if not hours:
        raise UsageError(f"FROM {first} is later than TO {last}.", remedy="Name the earlier hour first.")
    engine.create_tables()
    run_id = f"lake-{datetime.now(UTC):%Y%m%d%H%M%S%f}"
    report = engine.rebuild(engine.pipeline.target(target), hours, run_id=run_id, reset=reset)
    render(report, views.report, as_json=as_json)
    if isinstance(report, SessionReport) and report.held:
        sys.exit(1)


def sessions(target: TargetName, as_json: AsJson = False) -> None:
    """List the sessions of TARGET: what each one read and wrote, and why it ran."""
    from lake_assets.pages.terminal import sessions as views

    engine = open_engine()
    history = engine.store.history(engine.pipeline.target(target).table)
    render(history, views.sessions, as_json=as_json)


def why(target: TargetName, hour: Hour, as_json: AsJson = False) -> None:
    """Show which session last rebuilt HOUR of TARGET, and the reason."""
    from lake_assets.base.hours import parse_hour
    from lake_assets.pages.terminal import sessions as views

    engine = open_engine()
    number = parse_hour(hour, where="HOUR")
    history = engine.store.history(engine.pipeline.target(target).table)
    built = [record for record in history if record.state in ("published", "committed") and number in record.built]
    render(built, lambda records: views.why(records, number), as_json=as_json, document=built[-1:])
