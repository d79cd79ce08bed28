"""Facts and dimensions: how far they are complete, and what their next sessions do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from lake_assets.base.hours import format_hours, hour_key
from lake_assets.errors import LakeError
from lake_assets.incremental.engine.engine import Engine
from lake_assets.incremental.engine.model import Decision, SessionPlan
from lake_assets.incremental.operations.freshness import freshness
from lake_assets.incremental.operations.overview import Overview, TargetOverview
from lake_assets.pages.data_path.stages import Fact, complete_through


@dataclass
class _Pending:
    reasons: list[str] = field(default_factory=list)
    remedies: list[str] = field(default_factory=list)

    def add(self, reason: str, *, remedy: str | None = None) -> None:
        """Add a reason. remedy: what to do, if the reason needs attention."""
        self.reasons.append(reason)
        if remedy is not None:
            self.remedies.append(remedy)

    @property
    def text(self) -> str:
        """All reasons, each once, as one sentence."""
        return "; ".join(dict.fromkeys(reason.removesuffix(".") for reason in self.reasons))


def target_facts(engine: Engine, overview: Overview) -> Iterator[Fact]:
    """Yield the state of each target."""
    standings = {standing.table: standing for standing in overview.standings}
    for found in overview.targets:
        standing = standings[found.table]
        pending = _Pending()
        for problem, remedy in ((found.problem, found.remedy), (standing.problem, standing.remedy)):
            if problem:
                pending.add(problem, remedy=remedy)
        try:
            _add_pending(pending, engine, found)
        except LakeError as error:  # concerns only this target: for example, one of its sources does not exist
            pending.add(error.problem, remedy=error.remedy)
        yield Fact(
            found.table,
            complete_through(standing.complete_through),
            pending.text,
            bad=bool(pending.remedies),
            remedy=next(iter(pending.remedies), ""),
        )


def _add_pending(pending: _Pending, engine: Engine, found: TargetOverview) -> None:
    target = engine.pipeline.target(found.table)
    _add_decision(pending, engine.decide(target), target.name)
    for held in found.held:
        remedy = f"`lake sessions {target.name}` shows the audit that failed; it runs again when a source changes."
        pending.add(f"{hour_key(held.hour)} is held back: {held.why}", remedy=remedy)
    if found.skipped:
        remedy = f"They lie beyond the catch-up threshold. `lake rebuild {target.name} FROM TO` builds them."
        pending.add(f"skipped: {format_hours(found.skipped)}", remedy=remedy)
    if found.other_code:  # a person may want it so
        pending.add(found.other_code)
    if target.max_delay is not None:
        verdict = freshness(engine.catalog, engine.pipeline, target, engine.clock())
        if not verdict.fresh:
            pending.add(verdict.what, remedy=verdict.remedy)


def _add_decision(pending: _Pending, decision: Decision, name: str) -> None:
    if isinstance(decision, SessionPlan):
        hours = format_hours(decision.hour_numbers) or "no hours"
        reasons = [planned.reason for planned in decision.hours] or ["complete-through moves"]
        pending.add(f"{decision.session_id}: {decision.load} {hours}, {reasons[0]}")
    elif decision.kind == "blocked":
        remedy = f"Correct the source or the declaration; `lake catch-up {name} --again` tries again."
        pending.add(decision.reason, remedy=remedy)
    elif decision.kind != "idle":
        pending.add(decision.reason)
