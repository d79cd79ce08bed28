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
from lake_assets.incremental.engine.engine import MAX_OVERTAKEN, OVERTAKEN, OVERTAKEN_SECONDS, Engine
from lake_assets.incremental.engine.model import NoSession, SessionReport, verdicts_in_words
from lake_assets.incremental.engine.planner import present_heads

if TYPE_CHECKING:
    from lake_assets.incremental.declaration import Target

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
    wanted = {target.table for target in targets}
    in_order = [target for target in engine.pipeline.in_order() if target.table in wanted]
    run = partial(engine.run, again=again, force=force, deferred=deferred, run_id=run_id)
    outcomes: list[Outcome] = []
    with engine.log.batch():
        for outcome, error in _run_due_sessions(engine, in_order, run):
            outcomes.append(outcome)
            if report is not None:
                report(outcome)
            if error is not None and on_error is not None:
                on_error(error)
    return outcomes


def _run_due_sessions(
    engine: Engine, targets: Sequence[Target], run: Callable[..., SessionReport | NoSession]
) -> Iterator[tuple[Outcome, Exception | None]]:
    """Yield each outcome, with the error that it comes from."""
    derived = {target.table for target in engine.pipeline.targets}
    names = {source.table for target in targets for source in target.sources}
    raw_heads = present_heads(engine.catalog, engine.pipeline, sorted(names - derived))
    for target in targets:
        name, sources = target.table, [source.table for source in target.sources]
        try:
            heads = raw_heads | present_heads(
                engine.catalog, engine.pipeline, [each for each in sources if each in derived]
            )
            up_to = {each: heads[each] for each in sources if each in heads}
            overtaken = 0
            result: SessionReport | NoSession | None = None
            while not isinstance(result, NoSession):
                try:
                    result = run(target, up_to=up_to)
                except OVERTAKEN as error:
                    overtaken += 1
                    if overtaken > MAX_OVERTAKEN:
                        raise
                    problem = error.problem if isinstance(error, LakeError) else str(error)
                    yield Outcome(name, overtaken=f"another process was faster: {problem}"), None
                    time.sleep(OVERTAKEN_SECONDS * overtaken)
                    continue
                overtaken = 0
                failure = None
                if isinstance(result, SessionReport):
                    if result.held:
                        failure = str(HoursHeld(name, verdicts_in_words(result.held)))
                    yield Outcome(name, report=result, failure=failure), None
                else:
                    if result.kind in REMEDIES:
                        failure = str(ErrorText(f"{name}: {result.reason}.", REMEDIES[result.kind]))
                    yield Outcome(name, waiting=result, failure=failure), None
        except Exception as error:  # also of Spark and of libraries: the other targets go on
            is_machines = is_machines_fault(error)
            found = describe(error)
            if name not in found.problem and not is_machines:
                found = ErrorText(f"{name}: {found.problem}", found.remedy)
            yield Outcome(name, failure=str(found)), error
            if is_machines:
                return
