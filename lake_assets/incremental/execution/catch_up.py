"""Everything that is due, in one process, target by target: what the sensors would request, without a daemon.

Topological order makes settling needless: when a target's turn comes, all it is built from is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
    """What one look at a target came to: a session (report), nothing to do (waiting), or an error (failure).

    A session that published some hours and holds others back has both a report and a failure.
    """

    table: str
    report: SessionReport | None = None
    waiting: NoSession | None = None
    failure: str | None = None


def catch_up(
    engine: Engine,
    targets: Iterable[Target],
    *,
    report: Callable[[Outcome], None] | None = None,
    run_id: str = "catch-up",
    again: bool = False,
) -> list[Outcome]:
    """Run every due session of the targets; `report` hears of each. What fails in one does not stop the others.

    again: also those that an audit has stopped.
    """
    outcomes: list[Outcome] = []
    wanted = {t.table for t in targets}
    for target in engine.pipeline.in_order():
        if target.table not in wanted:
            continue
        for outcome in _sessions(engine, target, run_id, again=again):
            outcomes.append(outcome)
            if report:
                report(outcome)
    return outcomes


def _sessions(engine: Engine, target: Target, run_id: str, *, again: bool) -> Iterable[Outcome]:
    while True:
        try:
            result = engine.run(target, again=again, run_id=run_id)
        except LakeError as error:
            yield Outcome(target.table, failure=str(error))
            return
        if isinstance(result, NoSession):
            yield Outcome(target.table, waiting=result, failure=result.reason if result.kind == "blocked" else None)
            return
        failure = str(HoursHeld(target.table, in_words(result.held))) if result.held else None
        yield Outcome(target.table, report=result, failure=failure)
