"""`lake doctor`: is anything wrong with this home, and what can be repaired?"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from lake_assets.cli.common import AsJson
from lake_assets.cli.render import render
from lake_assets.errors import ServiceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lake_assets.base.findings import Finding
    from lake_assets.incremental.operations.health import Problem
    from lake_assets.settings import Settings

LANDING, SERVING = "landing", "serving"


def doctor(
    repair: Annotated[
        bool, typer.Option("--repair", help="Make the repairs that lose nothing, then check again.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check this home: settings, Java, disk, services, catalog, tables, sessions. Changes nothing without --repair.

    Starts no Spark. The exit code is 1 if there is an error.
    """
    from lake_assets.base import findings
    from lake_assets.cli import views

    done: list[findings.Repaired] = []
    if repair:
        done, found = findings.repair(diagnose)
    else:
        found = diagnose()
    outcome = views.Diagnosis(found, done)
    render(outcome, views.diagnosis, as_json=as_json, document=outcome.document())
    if outcome.has_errors:
        sys.exit(1)


def check_lakes(settings: Settings) -> list[Finding]:
    """Return how the streams of engagement lakes are. A Kafka that does not answer is reported as a service."""
    from lake_assets.engagement.lakes import configured_lakes

    if not configured_lakes(settings):
        return []
    from lake_assets.engagement.monitoring import stopped_streams  # reads Delta tables
    from lake_assets.incremental.engine.engine import utc_now

    try:
        return list(stopped_streams(settings, utc_now()))
    except ServiceError:
        return []


def diagnose() -> list[Finding]:
    """Run all checks. Changes nothing, and raises nothing."""
    from lake_assets.base.findings import Check, run_checks
    from lake_assets.cli import machine
    from lake_assets.cli.landing import landing_problems
    from lake_assets.cli.serving import failed_pushes
    from lake_assets.incremental.engine.engine import utc_now
    from lake_assets.incremental.operations.doctor import diagnose_lake
    from lake_assets.settings import home_directory

    checks = [
        Check(machine.SETTINGS, machine.check_settings),
        Check(machine.JAVA, machine.check_java_version),
        Check(machine.DISK, lambda: machine.check_disk(home_directory())),
    ]
    found = run_checks(checks)
    settings = machine.valid_settings()
    if settings is None:  # every other check would read another home than the one that is meant
        return found
    newer = run_checks([Check(machine.VERSION, lambda: machine.check_version(settings.home))])
    if newer:  # this version cannot tell what is right there, and its repairs may not touch it
        return found + newer
    found += run_checks([Check(machine.SERVICES, lambda: machine.check_services(settings))])
    found += run_checks([Check("engagement lakes", lambda: check_lakes(settings))])
    pipeline = machine.loaded_pipeline(settings)
    found += diagnose_lake(settings, pipeline, clock=utc_now)
    checks = [
        Check(LANDING, lambda: _findings(LANDING, landing_problems())),
        Check(SERVING, lambda: _findings(SERVING, failed_pushes())),
    ]
    return found + run_checks(checks)


def _findings(check: str, problems: Iterable[Problem]) -> Iterator[Finding]:
    """Yield problems of a part as findings of a check."""
    from lake_assets.base.findings import Finding

    for problem in problems:
        yield Finding(check, problem.level, problem.what, problem.remedy)
