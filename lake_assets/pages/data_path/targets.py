"""Facts and dimensions: how far they are complete, and what their next sessions do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from lake_assets.base.hours import format_hours, hour_key
from lake_assets.errors import LakeError
from lake_assets.incremental.execution.engine import Engine
from lake_assets.incremental.monitoring.freshness import freshness
from lake_assets.incremental.monitoring.overview import Overview, TargetOverview
from lake_assets.incremental.planning.session import Decision, SessionPlan
from lake_assets.pages.data_path.stages import Fact, complete_through


@dataclass
class _Pending:
    reasons: list[str] = field(default_factory=list)
    bad: bool = False

    def add(self, reason: str, *, bad: bool) -> None:
        self.reasons.append(reason)
        self.bad = self.bad or bad


def target_facts(engine: Engine, overview: Overview) -> Iterator[Fact]:
    """Yield the state of each target."""
    through = {standing.table: standing.complete_through for standing in overview.standings}
    for found in overview.targets:
        try:
            pending = _pending(engine, found)
        except LakeError as error:  # concerns only this target: for example, one of its sources does not exist
            pending = _Pending([error.problem], bad=True)
        yield Fact(
            found.table,
            complete_through(through[found.table]),
            "; ".join(pending.reasons),
            bad=pending.bad,
        )


def _pending(engine: Engine, found: TargetOverview) -> _Pending:
    target = engine.pipeline.target(found.table)
    pending = _Pending()
    if found.problem:
        pending.add(found.problem, bad=True)
    _add_decision(pending, engine.decide(target))
    for held in found.held:
        pending.add(f"{hour_key(held.hour)} is held back: {held.why}", bad=True)
    if found.skipped:
        pending.add(f"skipped: {format_hours(found.skipped)}", bad=True)
    if target.max_delay is not None:
        verdict = freshness(engine.catalog, engine.pipeline, target, engine.clock())
        if not verdict.fresh:
            pending.add(verdict.what, bad=True)
    return pending


def _add_decision(pending: _Pending, decision: Decision) -> None:
    if isinstance(decision, SessionPlan):
        hours = format_hours(decision.hour_numbers) or "no hours"
        reasons = [planned.reason for planned in decision.hours] or ["complete-through moves"]
        pending.add(f"{decision.session_id}: {decision.load} {hours}, {reasons[0]}", bad=False)
    elif decision.kind != "idle":
        pending.add(decision.reason, bad=decision.kind == "blocked")
