"""Facts and dimensions: how far they are complete, what is wrong with them, and what their next sessions do."""

from __future__ import annotations

from collections.abc import Iterator

from lake_assets.base.hours import format_hours
from lake_assets.incremental.engine.engine import Engine
from lake_assets.incremental.engine.model import Decision, SessionPlan
from lake_assets.incremental.operations.health import health
from lake_assets.incremental.operations.overview import Overview
from lake_assets.pages.data_path.stages import Fact, complete_through


def target_facts(engine: Engine, overview: Overview) -> Iterator[Fact]:
    """Yield the state of each target."""
    standings = {standing.table: standing for standing in overview.standings}
    for target in engine.pipeline.in_order():
        found = health(engine, target)
        pending = [_next_session(found.decision), *(problem.what for problem in found.problems)]
        remedies = [problem.remedy for problem in found.problems if problem.level == "error"]
        yield Fact(
            target.table,
            complete_through(standings[target.table].complete_through),
            "; ".join(dict.fromkeys(reason.removesuffix(".") for reason in pending if reason)),
            bad=bool(remedies),
            remedy=next(iter(remedies), ""),
        )


def _next_session(decision: Decision | None) -> str:
    """Return what the next session does, or why there is none; empty if there is nothing to do."""
    if isinstance(decision, SessionPlan):
        hours = format_hours(decision.hour_numbers) or "no hours"
        reasons = [planned.reason for planned in decision.hours] or ["complete-through moves"]
        return f"{decision.session_id}: {decision.load} {hours}, {reasons[0]}"
    return "" if decision is None or decision.kind == "idle" else decision.reason
