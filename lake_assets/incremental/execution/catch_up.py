"""Running every session that is due, in one process: what the sensors would request, without a daemon.

Targets run in topological order, so no target has to wait until the targets upstream of it have settled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lake_assets.errors import HoursHeld, LakeError
from lake_assets.incremental.planning.session import NoSession, SessionReport
from lake_assets.incremental.planning.verdicts import in_words

if TYPE_CHECKING:
    from lake_assets.incremental.declaration import Target
    from lake_assets.incremental.execution.engine import Engine


@dataclass(frozen=True)
class Outcome:
    """The outcome of one decision on a target: a session (report), no session (waiting), or an error (failure).

    A session that published some hours and holds others back has both a report and a failure.

    Attributes:
        problem: In which way the target is not as its sessions left it, if others have changed it.
    """

    table: str
    report: SessionReport | None = None
    waiting: NoSession | None = None
    failure: str | None = None
    problem: str | None = None


def catch_up(
    engine: Engine,
    targets: Iterable[Target],
    *,
    report: Callable[[Outcome], None] | None = None,
    run_id: str = "catch-up",
    again: bool = False,
) -> list[Outcome]:
    """Run every due session of the targets. An error of one target does not stop the others.

    Args:
        report: Called with each outcome as soon as it is known.
        run_id: Recorded with each session.
        again: Also run sessions that an audit has stopped.
    """
    outcomes: list[Outcome] = []
    wanted = {target.table for target in targets}
    for target in engine.pipeline.in_order():
        if target.table not in wanted:
            continue
        for outcome in _run_due_sessions(engine, target, run_id, again=again):
            outcomes.append(outcome)
            if report is not None:
                report(outcome)
    return outcomes


def _run_due_sessions(engine: Engine, target: Target, run_id: str, *, again: bool) -> Iterator[Outcome]:
    while True:
        try:
            result = engine.run(target, again=again, run_id=run_id)
        except LakeError as error:
            yield Outcome(target.table, failure=str(error))
            return
        if isinstance(result, NoSession):
            failure = result.reason if result.kind == "blocked" else None
            problem = engine.problem(target)
            yield Outcome(
                table=target.table,
                waiting=result,
                failure=failure,
                problem=str(problem) if problem else None,
            )
            return
        yield _outcome_of(target, result)


def _outcome_of(target: Target, report: SessionReport) -> Outcome:
    failure = None
    if report.held:
        failure = str(HoursHeld(target.table, in_words(report.held)))
    return Outcome(target.table, report=report, failure=failure)
