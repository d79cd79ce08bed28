"""Running every session that is due, in one process: what the sensors would request, without a daemon.

Targets run in topological order, so no target has to wait until the targets upstream of it have settled. The heads of
raw tables are read once for the whole call, and those of targets when the target that reads them has its turn: so the
call ends, however busy the writers are. Two calls may run side by side: where one is overtaken, it goes on from there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from lake_assets.errors import HoursHeld, LakeError
from lake_assets.errors.described import describe, is_machines_fault
from lake_assets.errors.texts import ErrorText
from lake_assets.incremental.engine.model import NoSession, SessionReport, verdicts_in_words
from lake_assets.incremental.engine.planner import present_heads
from lake_assets.incremental.engine.session import MAX_OVERTAKEN, OVERTAKEN, OVERTAKEN_SECONDS

if TYPE_CHECKING:
    from lake_assets.incremental.declaration import Target
    from lake_assets.incremental.engine.engine import Engine
    from lake_assets.incremental.engine.planner import Heads


REPAIR = "Repair the source or the declaration. To repeat the session as it is, run `lake catch-up --again`."
CONFIRM = "Correct a source that is declared complete too far, or repeat the command with --force."
REMEDIES = {"blocked": REPAIR, "beyond": CONFIRM}
"""Kind of a decision that needs a person → what to do."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of one decision on a target: a session (report), no session (waiting), or an error (failure).

    A session that published some hours and holds others back has both a report and a failure.

    Attributes:
        overtaken: How another process has overtaken the session; the next outcome is that of the next attempt.
    """

    table: str
    report: SessionReport | None = None
    waiting: NoSession | None = None
    failure: str | None = None
    overtaken: str | None = None


Run = Callable[..., SessionReport | NoSession]
"""Runs the next session of a target, up to given heads."""

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
    force: bool = False,
    deferred: bool = False,
) -> list[Outcome]:
    """Run every session of the targets that is due when the call starts. An error of one does not stop the others.

    A fault of the machine or of a service stops all: the other targets would fail with the same error.

    Args:
        report: Called with each outcome as soon as it is known.
        on_error: Called with each error; its outcome has only the text.
        run_id: Recorded with each session.
        again: Also run sessions that an audit has stopped.
        force: Also run sessions that build more than a day beyond the newest rows.
        deferred: Also build hours that wait by the policy for late rows.
    """
    outcomes: list[Outcome] = []
    wanted = {target.table for target in targets}
    in_order = [target for target in engine.pipeline.in_order() if target.table in wanted]
    run = partial(engine.run, again=again, force=force, deferred=deferred, run_id=run_id)
    with engine.log.batch():
        for outcome, error in _steps(engine, in_order, run):
            outcomes.append(outcome)
            if report is not None:
                report(outcome)
            if error is not None and on_error is not None:
                on_error(error)
    return outcomes


def _steps(engine: Engine, targets: Sequence[Target], run: Run) -> Iterator[Step]:
    raw_heads = _heads(engine, targets, derived=False)
    for target in targets:
        try:
            up_to = _up_to(engine, target, raw_heads)
            for outcome in _run_due_sessions(engine, target, up_to, run):
                yield outcome, None
        except Exception as error:  # also of Spark and of libraries: the other targets go on
            yield Outcome(target.table, failure=_failure_of(target, error)), error
            if is_machines_fault(error):
                return


def _up_to(engine: Engine, target: Target, raw_heads: Heads) -> Heads:
    """Return the heads of a target's sources to plan up to."""
    heads = {**raw_heads, **_heads(engine, [target], derived=True)}
    return {source.table: heads[source.table] for source in target.sources if source.table in heads}


def _heads(engine: Engine, targets: Iterable[Target], *, derived: bool) -> Heads:
    """Return the present heads of those sources of the targets that are targets themselves, or of all others."""
    of_pipeline = {target.table for target in engine.pipeline.targets}
    names: set[str] = set()
    for target in targets:
        names.update(source.table for source in target.sources if (source.table in of_pipeline) is derived)
    return present_heads(engine.catalog, engine.pipeline, sorted(names))


def _run_due_sessions(engine: Engine, target: Target, up_to: Heads, run: Run) -> Iterator[Outcome]:
    overtaken = 0
    while True:
        try:
            result = run(target, up_to=up_to)
        except OVERTAKEN as error:
            overtaken += 1
            if overtaken > MAX_OVERTAKEN:
                raise
            yield Outcome(target.table, overtaken=f"another process was faster: {_problem(error)}")
            time.sleep(OVERTAKEN_SECONDS * overtaken)
            continue
        overtaken = 0
        if isinstance(result, NoSession):
            yield _waiting(target, result)
            return
        yield _outcome_of(target, result)


def _waiting(target: Target, found: NoSession) -> Outcome:
    failure = None
    if found.kind in REMEDIES:
        failure = str(ErrorText(f"{target.table}: {found.reason}.", REMEDIES[found.kind]))
    return Outcome(
        table=target.table,
        waiting=found,
        failure=failure,
    )


def _failure_of(target: Target, error: Exception) -> str:
    """Return the two lines of an error. They name the target, unless the fault is one of the machine."""
    found = describe(error)
    if target.table in found.problem or is_machines_fault(error):
        return str(found)
    return str(ErrorText(f"{target.table}: {found.problem}", found.remedy))


def _problem(error: Exception) -> str:
    return error.problem if isinstance(error, LakeError) else str(error)


def _outcome_of(target: Target, report: SessionReport) -> Outcome:
    failure = None
    if report.held:
        failure = str(HoursHeld(target.table, verdicts_in_words(report.held)))
    return Outcome(target.table, report=report, failure=failure)
