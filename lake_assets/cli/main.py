"""`lake`: all commands in the order of `lake --help`, and the entry point."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence

import typer
from pydantic import ValidationError

from lake_assets.base.extras import missing_extra
from lake_assets.cli import columns, erasure, report, services, tables, targets
from lake_assets.cli.checks.declarations import check
from lake_assets.cli.checks.doctor import doctor
from lake_assets.cli.checks.variables import shown_value, unknown_variables
from lake_assets.cli.engagement import engagement
from lake_assets.cli.landing import landing
from lake_assets.cli.serving import serving
from lake_assets.cli.session import session
from lake_assets.cli.shell import backup
from lake_assets.cli.shell.about import PROGRAM, completion, is_completing, options, prepare_completion
from lake_assets.cli.shell.private import close_to_others
from lake_assets.cli.shell.service import service
from lake_assets.connections import remembered_tables
from lake_assets.errors.texts import ErrorText
from lake_assets.pages.terminal import failures
from lake_assets.settings import Settings, home_directory

TERMINATED = 128 + signal.SIGTERM
INTERRUPTED = 128 + signal.SIGINT
"""Exit codes of a command that a signal ended, as shells count them."""

app = typer.Typer(
    help="Fact and dimension tables that stay correct when data arrives late.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

_SERVICES = "Services"
app.command(rich_help_panel=_SERVICES)(services.setup)
app.command(rich_help_panel=_SERVICES)(services.up)
app.command(rich_help_panel=_SERVICES)(services.down)
app.command(rich_help_panel=_SERVICES)(services.status)
app.add_typer(service, name="service", rich_help_panel=_SERVICES)
app.command(rich_help_panel=_SERVICES)(doctor)
app.command(rich_help_panel=_SERVICES)(backup.backup)
app.command(rich_help_panel=_SERVICES)(backup.restore)
app.command(rich_help_panel=_SERVICES)(report.demo)

_TABLES = "Tables"
app.command(rich_help_panel=_TABLES)(tables.init)
app.command(rich_help_panel=_TABLES)(check)
app.command(rich_help_panel=_TABLES)(columns.migrate)
app.command(rich_help_panel=_TABLES)(tables.new)
app.command(rich_help_panel=_TABLES)(tables.land)
app.command(rich_help_panel=_TABLES)(tables.complete)
app.command(rich_help_panel=_TABLES)(tables.inspect)
app.command(rich_help_panel=_TABLES)(tables.maintain)
app.command(rich_help_panel=_TABLES)(report.report)

_SESSIONS = "Sessions"
app.command(rich_help_panel=_SESSIONS)(targets.plan)
app.command("catch-up", rich_help_panel=_SESSIONS)(targets.catch_up)
app.command(rich_help_panel=_SESSIONS)(targets.rebuild)
app.command(rich_help_panel=_SESSIONS)(targets.repair)
app.command(rich_help_panel=_SESSIONS)(targets.verify)
app.command(rich_help_panel=_SESSIONS)(targets.audit)
app.command(rich_help_panel=_SESSIONS)(targets.signal)
app.command(rich_help_panel=_SESSIONS)(targets.sessions)
app.command(rich_help_panel=_SESSIONS)(targets.why)
app.add_typer(session, name="session", rich_help_panel=_SESSIONS)

_ERASURE = "Erasure"
app.command(rich_help_panel=_ERASURE)(erasure.erase)
app.add_typer(erasure.erasure, name="erasure", rich_help_panel=_ERASURE)

_STAGES = "Stages"
app.add_typer(landing, name="landing", rich_help_panel=_STAGES)
app.add_typer(engagement, name="engagement", rich_help_panel=_STAGES)
app.add_typer(serving, name="serving", rich_help_panel=_STAGES)

app.callback()(options)
app.command(rich_help_panel="Shell")(completion)


def main() -> None:
    """Run a command. An error is printed as two lines; a traceback goes to the log in the data directory."""
    # A terminated command cleans up as an interrupted one does: `lake up` leaves no half-started service behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    prepare_completion()
    try:
        with failures.own_warnings():
            if not is_completing() and sys.argv[1:2] != [doctor.__name__]:  # the doctor reports them itself
                _warn_of_unknown_settings()
                _keep_others_out()
                _refuse_unusable_home(sys.argv[1:2])
            app(prog_name=PROGRAM)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:  # of any library that a command uses
        _show(error)
        sys.exit(1)


def _refuse_unusable_home(command: Sequence[str]) -> None:
    """Let no command work on a half restored data directory, or on that of a later version. command: its name, if any.

    A restore continues what was interrupted, and services can always be stopped.
    """
    if command != [backup.restore.__name__]:
        backup.refuse_half_restored(home_directory())
    if command != [services.down.__name__]:
        remembered_tables.check_version(home_directory())


def _warn_of_unknown_settings() -> None:
    for unknown in unknown_variables():
        remedy = f"Did you mean {unknown.nearest}?" if unknown.nearest else "docs/settings.md lists all settings."
        failures.show_warning(ErrorText(f"{unknown.name} is set, but there is no such setting.", remedy))


def _keep_others_out() -> None:
    text = close_to_others(home_directory())
    if text is not None:
        failures.show_warning(text)


def _show(error: Exception) -> None:
    missing = missing_extra(error) if isinstance(error, ImportError) else None
    if missing is not None:
        typer.echo(f"Error: {missing}", err=True)
    elif isinstance(error, ValidationError) and error.title == Settings.__name__:
        _show_invalid_settings(error)
    else:
        failures.show_error(error, home_directory())


def _show_invalid_settings(error: ValidationError) -> None:
    for problem in error.errors():
        name = f"LAKE_{'_'.join(map(str, problem['loc'])).upper()}"
        shown = shown_value(str(problem["loc"][0]), problem["input"])
        remedy = "Correct it in the environment or in lake.env; docs/settings.md says what it may be."
        text = ErrorText(f"{name} is {shown}: {problem['msg']}.", remedy)
        typer.echo(f"Error: {text}", err=True)


if __name__ == "__main__":
    main()
