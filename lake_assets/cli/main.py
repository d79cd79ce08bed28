"""`lake`: the command line. Thin: it reads arguments, calls the engines and the stages, and prints what they return.

What is slow to import (pyspark, pyiceberg, Dagster) is imported inside the commands: `lake --help` is instant.
"""

from __future__ import annotations

import json
import signal
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from pydantic import ValidationError

from lake_assets.cli.engagement import engagement
from lake_assets.cli.landing import landing
from lake_assets.cli.serving import serving
from lake_assets.errors import LakeError
from lake_assets.settings import settings

if TYPE_CHECKING:
    from lake_assets.incremental.execution.engine import Engine
    from lake_assets.landing.erasure.erase import LandedErasure

app = typer.Typer(
    help="Tables that stay right while their data comes late.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
erasure = typer.Typer(help="What is left of those who were erased.", no_args_is_help=True)
app.add_typer(erasure, name="erasure")
app.add_typer(engagement, name="engagement")
app.add_typer(landing, name="landing")
app.add_typer(serving, name="serving")
Name = Annotated[str, typer.Argument(metavar="TARGET", help="a target, such as account_state_dim")]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]


@app.command()
def up() -> None:
    """Start the services of this machine: Spark, ZooKeeper, Kafka, and those of Dagster. Creates missing tables."""
    from lake_assets.services import lifecycle

    _engine().create_tables()
    lifecycle.up(settings(), report=typer.echo)


@app.command()
def down() -> None:
    """Stop the services, and whatever is left of them."""
    from lake_assets.services import lifecycle

    lifecycle.down(settings(), report=typer.echo)


@app.command()
def status(as_json: AsJson = False) -> None:
    """Show each service: its state, process, port, memory and log."""
    from lake_assets.services import lifecycle

    found = lifecycle.status(settings())
    if as_json:
        typer.echo(json.dumps([asdict(s) for s in found], indent=1))
        return
    for s in found:
        place = f"pid {s.pid or '-':<8} port {s.port or '-':<6} {s.memory_mb or '-':>5} MB"
        typer.echo(f"{s.name:<10} {s.state:<9} {place}  {s.log}  {s.detail}".rstrip())


@app.command()
def init() -> None:
    """Create all namespaces and tables that are not there yet. Safe to repeat."""
    created = _engine().create_tables()
    for name in created:
        typer.echo(f"created {name}")
    typer.echo("Nothing to create." if not created else f"{len(created)} tables created.")


@app.command()
def plan(target: Name, as_json: AsJson = False) -> None:
    """Show what the next session of TARGET would do, hour by hour, with reasons and cost. Changes nothing."""
    from lake_assets.pages import terminal

    engine = _engine()
    decision = engine.decide(engine.pipeline.target(target))
    typer.echo(terminal.as_json(decision)) if as_json else terminal.decision(decision)


@app.command("catch-up")
def catch_up(
    targets: Annotated[list[str] | None, typer.Argument(help="default: all")] = None,
    again: Annotated[bool, typer.Option("--again", help="also sessions that an audit stopped")] = False,
    as_json: AsJson = False,
) -> None:
    """Do, in this process, what the sensors would request, until nothing is left. For cron and other schedulers."""
    from lake_assets.incremental.execution.catch_up import catch_up
    from lake_assets.pages import terminal

    engine = _engine()
    engine.create_tables()
    wanted = [engine.pipeline.target(name) for name in targets] if targets else engine.pipeline.in_order()
    outcomes = catch_up(engine, wanted, report=None if as_json else terminal.outcome, again=again)
    if as_json:
        typer.echo(terminal.as_json(outcomes))
    if any(o.failure for o in outcomes):
        sys.exit(1)


@app.command()
def rebuild(
    target: Name,
    first: Annotated[str, typer.Argument(metavar="FROM", help="first hour, such as 2026-01-01-05:00")],
    last: Annotated[str, typer.Argument(metavar="TO", help="last hour, inclusive")],
    reset: Annotated[bool, typer.Option(help="read the sources as they are now and start the watermark anew")] = False,
    as_json: AsJson = False,
) -> None:
    """Rebuild the hours FROM..TO of TARGET from its sources as of the watermark, which stays: a backfill."""
    from lake_assets.base.hours import parse_hour
    from lake_assets.errors import UsageError
    from lake_assets.incremental.planning.session import SessionReport
    from lake_assets.pages import terminal

    engine = _engine()
    span = range(parse_hour(first, where="FROM"), parse_hour(last, where="TO") + 1)
    if not span:
        raise UsageError(f"FROM {first} lies after TO {last}.", remedy="Name the earlier hour first.")
    engine.create_tables()
    report = engine.rebuild(
        engine.pipeline.target(target), span, run_id=f"lake-{datetime.now(UTC):%Y%m%d%H%M%S%f}", reset=reset
    )
    typer.echo(terminal.as_json(report)) if as_json else terminal.report(report)
    if isinstance(report, SessionReport) and report.held:
        sys.exit(1)


session = typer.Typer(no_args_is_help=True, help="For jobs of any language: plan, audits and watermark are ours.")
app.add_typer(session, name="session")


@session.command("init")
def session_init(target: Name, as_json: AsJson = False) -> None:
    """Open the next session of TARGET: what to read, which hours to write, and under which WAP id."""
    from lake_assets.pages import terminal

    engine = _engine()
    opened = engine.open_session(engine.pipeline.target(target), run_id="lake session")
    typer.echo(terminal.as_json(opened)) if as_json else terminal.opened(opened)


@session.command("publish")
def session_publish(target: Name, as_json: AsJson = False) -> None:
    """Audit what was written for the open session of TARGET, and publish it."""
    from lake_assets.pages import terminal

    engine = _engine()
    report = engine.publish_session(engine.pipeline.target(target))
    typer.echo(terminal.as_json(report)) if as_json else terminal.report(report)


@session.command("commit")
def session_commit(target: Name, as_json: AsJson = False) -> None:
    """Move the watermark of TARGET past its published session. Until then, no other session is planned."""
    from lake_assets.pages import terminal

    engine = _engine()
    report = engine.commit_session(engine.pipeline.target(target))
    typer.echo(terminal.as_json(report)) if as_json else terminal.report(report)


@app.command()
def sessions(target: Name, as_json: AsJson = False) -> None:
    """List the sessions of TARGET: what each read, wrote, and why."""
    from lake_assets.pages import terminal

    engine = _engine()
    history = engine.store.history(engine.pipeline.target(target).table)
    typer.echo(terminal.as_json(history)) if as_json else terminal.sessions(history)


@app.command()
def why(
    target: Name, hour: Annotated[str, typer.Argument(help="such as 2026-01-01-05:00")], as_json: AsJson = False
) -> None:
    """Tell which session last rebuilt HOUR of TARGET, and because of what."""
    from lake_assets.base.hours import parse_hour
    from lake_assets.pages import terminal

    engine = _engine()
    number = parse_hour(hour, where="HOUR")
    history = engine.store.history(engine.pipeline.target(target).table)
    built = [r for r in history if r.state in ("published", "committed") and number in r.built]
    typer.echo(terminal.as_json(built[-1:])) if as_json else terminal.why(built, number)


@app.command()
def new(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="such as core.payment_fact; payment_fact is in core")],
    mode: Annotated[str, typer.Option(help="stateless, stateful or sequential")],
    source: Annotated[str, typer.Option(help="the raw table that it is built from, such as raw.payments")],
    time_column: Annotated[str, typer.Option(help="the source's time column")],
    key: Annotated[str, typer.Option(help="the source's key")],
    grain: Annotated[str, typer.Option(help="what one partition holds: hour or day")] = "hour",
    out: Annotated[Path, typer.Option(help="the folder to write to")] = Path(),
) -> None:
    """Write the files that TABLE starts from: its declaration and a test, which run as they are."""
    from lake_assets.cli import scaffold

    name = table if "." in table else f"core.{table}"
    wanted = scaffold.NewTable(name, mode, source, time_column, key, grain)
    for path in scaffold.write(wanted, out):
        typer.echo(f"wrote {path}")
    typer.echo(scaffold.next_steps(wanted, out))


@app.command()
def report(
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="default: report.html in the home", dir_okay=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make one HTML page: the data path from Kafka to what is served, how late rows come, what sessions did and saved.

    Starts no Spark, changes nothing. A stage that does not run says so in its place.
    """
    from lake_assets.incremental.monitoring.overview import overview
    from lake_assets.pages import report, terminal
    from lake_assets.pages.data_path_state import data_path

    engine = _engine()
    found = overview(engine.catalog, engine.pipeline, now=engine.clock())
    path = data_path(settings(), engine, found)
    if as_json:
        typer.echo(terminal.as_json({**vars(found), "data_path": path}))
    if out or not as_json:
        file = report.write(found, out or settings().home / "report.html", path)
        typer.echo(f"The report is in {file}", err=as_json)


@app.command()
def maintain(
    names: Annotated[list[str] | None, typer.Argument(metavar="TABLE", help="default: all")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="tell what would be done, change nothing")] = False,
    as_json: AsJson = False,
) -> None:
    """Compact tables, expire snapshots that no process needs, remove files that nothing refers to. Changes no row."""
    from lake_assets.incremental.from_settings import open_maintainer
    from lake_assets.incremental.maintenance.maintainer import tables_of
    from lake_assets.pages import terminal, terminal_maintenance

    maintainer = open_maintainer(settings())
    wanted = [maintainer.table(name) for name in names or tables_of(maintainer.pipeline)]
    done = [maintainer.maintain(table, dry_run=dry_run) for table in terminal_maintenance.progress(wanted)]
    typer.echo(terminal.as_json(done)) if as_json else terminal_maintenance.table(done)


@app.command()
def complete(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="a raw table, such as raw.cancels")],
    hour: Annotated[str, typer.Argument(metavar="HOUR", help="the last complete hour, such as 2026-01-01-05:00")],
    force: Annotated[bool, typer.Option("--force", help="also if the table is complete further than that")] = False,
) -> None:
    """Declare a raw TABLE complete through HOUR, inclusive: for a source that went silent, or lands by other means."""
    from lake_assets.base.hours import hour_key, parse_hour
    from lake_assets.incremental.metadata.completeness import declare_complete

    engine = _engine()
    declared = declare_complete(engine.catalog, engine.pipeline, table, parse_hour(hour, where="HOUR"), force=force)
    before = "unknown" if declared.before is None else hour_key(declared.before)
    typer.echo(f"{declared.table} is complete through {hour_key(declared.after)} (before: {before}).")


@app.command()
def erase(
    subject: Annotated[str | None, typer.Argument(help="such as account")] = None,
    value: Annotated[str | None, typer.Argument(metavar="ID", help="the id to erase")] = None,
    late: Annotated[
        bool, typer.Option("--sweep", help="instead: drop what came late of those erased before, and its files")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Erase an id: from raw tables, targets, quarantine and the samples of audits, and from all files of the past.

    From landed files, too, and from what served tables keep to go back to; tells which tables to push anew.
    """
    from lake_assets.cli import landing as landing_cli
    from lake_assets.cli import serving as serving_cli
    from lake_assets.errors import UsageError
    from lake_assets.incremental.erasure.erase import erase, sweep
    from lake_assets.pages import terminal_erasure
    from lake_assets.pages.terminal_serving import from_before

    if late != (subject is None) or late != (value is None):
        raise UsageError(
            "Neither an id nor a sweep is asked for.", remedy="lake erase account ID, or lake erase --sweep"
        )
    engine, now = _engine(), datetime.now(UTC)
    engine.create_tables()
    say = (lambda _: None) if as_json else terminal_erasure.step
    landed: list[LandedErasure] = []
    also = landing_cli.erase_also(landed)
    if late:
        done = sweep(engine, now=now, elsewhere=also)
    else:
        done = erase(engine, str(subject), str(value), now=now, report=say, elsewhere=also)
    if as_json:
        typer.echo(terminal_erasure.as_json(done, landed=landed, served=serving_cli.forget_replaced()))
        return
    terminal_erasure.report(done)
    landing_cli.print_erased(landed)
    from_before(serving_cli.forget_replaced())


@erasure.command()
def certify(
    subject: Annotated[str, typer.Argument(help="such as account; org for an id of an org in the engagement lakes")],
    value: Annotated[str, typer.Argument(metavar="ID", help="the id to look for; the org if it is one of an org")],
    who_id: Annotated[str | None, typer.Argument(metavar="[ID]", help="of an org: the id to look for")] = None,
    as_json: AsJson = False,
) -> None:
    """Decode every file of tables, landed files and segments, and tell where an id still is, or that it is nowhere."""
    from lake_assets.cli import engagement as engagement_cli
    from lake_assets.cli import landing as landing_cli
    from lake_assets.cli import serving as serving_cli
    from lake_assets.errors import UsageError
    from lake_assets.incremental.erasure.certificate import certify
    from lake_assets.pages import terminal_erasure

    if (subject == "org") != (who_id is not None):
        raise UsageError(
            "An id has to be named, and its org if it is one of an org.",
            remedy="lake erasure certify account ID, or lake erasure certify org ORG ID",
        )
    if who_id is not None:
        sys.exit(0 if engagement_cli.certify(value, who_id, as_json=as_json) else 1)
    engine = _engine()
    engine.pipeline.subject(subject)
    with terminal_erasure.bar(shown=not as_json) as progress:
        beside = [landing_cli.searched(), *serving_cli.searched()]
        found = certify(engine.catalog, subject, value, beside=beside, progress=progress)
    typer.echo(terminal_erasure.as_json(found)) if as_json else terminal_erasure.certificate(found)
    if not found.nowhere:
        sys.exit(1)


@app.command()
def demo(
    of: Annotated[
        Literal["membership", "engagement"], typer.Argument(help="what: the whole platform, or an engagement lake")
    ] = "membership",
    keep_up: Annotated[
        bool | None, typer.Option(help="leave the UI of membership up at the end; default: only in a terminal")
    ] = None,
) -> None:
    """Late data in, correct tables out, by itself, in minutes: a simulated membership, or sales engagement."""
    if of == "engagement":
        from lake_assets.demo import engagement as engagement_demo

        fine = engagement_demo.run()
    else:
        from lake_assets.demo import membership

        fine = membership.run(keep_up=sys.stdout.isatty() if keep_up is None else keep_up)
    if not fine:
        sys.exit(1)


def _engine() -> Engine:
    from lake_assets.incremental.from_settings import open_engine

    return open_engine(settings())


def main() -> None:
    """The entry point: an error of our own tree is a message, not a traceback."""
    # A terminated command cleans up as an interrupted one does: `lake up` leaves nothing half started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        app(prog_name="lake")
    except LakeError as error:
        typer.echo(f"Error: {error}", err=True)
        sys.exit(1)
    except ValidationError as error:
        for problem in error.errors():
            name = f"LAKE_{'_'.join(map(str, problem['loc'])).upper()}"
            typer.echo(f"Error: {name} is {problem['input']!r}: {problem['msg']}.", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
