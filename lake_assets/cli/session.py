"""`lake session`: sessions whose rows another program writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lake_assets.cli.common import AsJson, TargetName, open_engine
from lake_assets.errors import UsageError
from lake_assets.pages.terminal.render import render
from lake_assets.settings import settings

if TYPE_CHECKING:
    from lake_assets.incremental.declaration import Target
    from lake_assets.incremental.engine.engine import Engine

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
    from lake_assets.incremental.engine import undeclared
    from lake_assets.pages.terminal import sessions as views

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
    from lake_assets.pages.terminal import sessions as views

    engine = open_engine()
    report = engine.publish_session(_target(engine, target), session_id=psyberg_session_id)
    render(report, views.report, as_json=as_json)


@session.command()
def commit(target: TargetName, psyberg_session_id: SessionId = None, as_json: AsJson = False) -> None:
    """Show the session of TARGET that was published last, which ended it. Fails if the open one is not published."""
    from lake_assets.pages.terminal import sessions as views

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
    from lake_assets.incremental.engine.undeclared import is_name_of

    if named is not None and not is_name_of(named, found):
        raise UsageError(
            f"{option} is {named!r}, but the table is {found}.",
            remedy=f"Set {variable}={named} in lake.env, for all commands alike; or leave the option out.",
        )
