"""`lake session`: sessions whose rows another program writes."""

from __future__ import annotations

import typer

from lake_assets.cli.common import AsJson, TargetName, open_engine
from lake_assets.pages.terminal.render import render

session = typer.Typer(
    help="Sessions of external jobs: lake-assets plans, audits and publishes, the job writes the rows.",
    no_args_is_help=True,
)


@session.command()
def init(target: TargetName, as_json: AsJson = False) -> None:
    """Open the next session of TARGET: show what to read, which hours to write, and the WAP id."""
    from lake_assets.pages.terminal import sessions as views

    engine = open_engine()
    opened = engine.open_session(engine.pipeline.target(target), run_id="lake session")
    render(opened, views.opened, as_json=as_json)


@session.command()
def publish(target: TargetName, as_json: AsJson = False) -> None:
    """Audit the rows that were written for the open session of TARGET, then publish them."""
    from lake_assets.pages.terminal import sessions as views

    engine = open_engine()
    report = engine.publish_session(engine.pipeline.target(target))
    render(report, views.report, as_json=as_json)


@session.command()
def commit(target: TargetName, as_json: AsJson = False) -> None:
    """Show the session of TARGET that was published last, which ended it. Fails if the open one is not published."""
    from lake_assets.pages.terminal import sessions as views

    engine = open_engine()
    report = engine.commit_session(engine.pipeline.target(target))
    render(report, views.report, as_json=as_json)
