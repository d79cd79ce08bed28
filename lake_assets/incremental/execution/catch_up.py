"""Running every session that is due, in one process: what the sensors would request, without a daemon.

Targets run in topological order, so no target has to wait until the targets upstream of it have settled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lake_assets.errors import HoursHeld
from lake_assets.errors.described import describe, is_machines_fault
from lake_assets.errors.texts import ErrorText
from lake_assets.incremental.planning.session import NoSession, SessionReport
from lake_assets.incremental.planning.verdicts import in_words

if TYPE_CHECKING:
    from lake_assets.incremental.declaration import Target
    from lake_assets.incremental.execution.engine import Engine


REPAIR = "Repair the source or the declaration. To repeat the session as it is, run `lake catch-up --again`."


@dataclass(frozen=True)
class Outcome:
    """The outcome of one decision on a target: a session (report), no session (waiting), or an error (failure).

    A session that published some hours and holds others back has both a report and a failure.
    """

    table: str
    report: SessionReport | None = None
    waiting: NoSession | None = None
    failure: str | None = None


Step = tuple[Outcome, Exception | None]
"""An outcome, and the error that it comes from."""


def catch_up(
    engine: Engine,
    targets: Iterable[Target],
    *,
    report: Callable[[Outcome], None] | None = None,
    on_error: Callable[[Exception], None] | None = None,
    run_id: str = "catch-up",
    again: bool = False,
) -> list[Outcome]:
    """Run every due session of the targets. An error of one target does not stop the others.

    A fault of the machine or of a service stops all: the other targets would fail with the same error.

    Args:
        report: Called with each outcome as soon as it is known.
        on_error: Called with each error; its outcome has only the text.
        run_id: Recorded with each session.
        again: Also run sessions that an audit has stopped.
    """
    outcomes: list[Outcome] = []
    wanted = {target.table for target in targets}
    in_order = [target for target in engine.pipeline.in_order() if target.table in wanted]
    for outcome, error in _steps(engine, in_order, run_id, again=again):
        outcomes.append(outcome)
        if report is not None:
            report(outcome)
        if error is not None and on_error is not None:
            on_error(error)
    return outcomes


def _steps(engine: Engine, targets: Iterable[Target], run_id: str, *, again: bool) -> Iterator[Step]:
    for target in targets:
        for outcome, error in _run_due_sessions(engine, target, run_id, again=again):
            yield outcome, error
            if error is not None and is_machines_fault(error):
                return


def _run_due_sessions(engine: Engine, target: Target, run_id: str, *, again: bool) -> Iterator[Step]:
    while True:
        try:
            result = engine.run(target, again=again, run_id=run_id)
        except Exception as error:  # also of Spark and of libraries: the other targets go on
            yield Outcome(target.table, failure=_failure_of(target, error)), error
            return
        if isinstance(result, NoSession):
            failure = None
            if result.kind == "blocked":
                failure = str(ErrorText(f"{target.table}: {result.reason}.", REPAIR))
            yield Outcome(target.table, waiting=result, failure=failure), None
            return
        yield _outcome_of(target, result), None


def _failure_of(target: Target, error: Exception) -> str:
    """Return the two lines of an error. They name the target, unless the fault is one of the machine."""
    found = describe(error)
    if target.table in found.problem or is_machines_fault(error):
        return str(found)
    return str(ErrorText(f"{target.table}: {found.problem}", found.remedy))


def _outcome_of(target: Target, report: SessionReport) -> Outcome:
    failure = None
    if report.held:
        failure = str(HoursHeld(target.table, in_words(report.held)))
    return Outcome(target.table, report=report, failure=failure)
