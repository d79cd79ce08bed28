"""A session's commit without its rows: what a session would leave in a target, without Spark."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from lake_assets.incremental.engine.engine import Engine
from lake_assets.incremental.engine.model import Committed, SessionPlan
from lake_assets.incremental.engine.planning import committed_after
from lake_assets.incremental.engine.session_log import record_of
from lake_assets.incremental.engine.state import BLOCKED, State, after_session, carrying_plan, commit_state

if TYPE_CHECKING:
    from lake_assets.incremental.declaration import Target


def commit(
    engine: Engine, target: Target, committed: Committed | None = None, *, plan: SessionPlan | None = None
) -> State:
    """Commit the next session of a target as if it had built its hours.

    committed: what it leaves behind; plan: the session; None for those of the next one, which must be due.
    """
    state = engine.state(target)
    decision = plan or engine.decide(target)
    assert isinstance(decision, SessionPlan), decision
    if committed is None:
        committed = committed_after(target.mode, state.committed, decision, decision.hour_numbers)
    return _commit(engine, target, state, decision, committed)


def block(engine: Engine, target: Target, failed: Mapping[str, str]) -> SessionPlan:
    """An audit stops the next session of a target in run-7. failed: audit → counts."""
    state, plan = engine.state(target), engine.decide(target)
    assert state.table is not None
    assert isinstance(plan, SessionPlan), plan
    blocked = {"session_id": plan.session_id, "code_version": plan.code_version, "failed": failed, "run_id": "run-7"}
    with state.table.transaction() as transaction:
        transaction.set_properties({BLOCKED: json.dumps({**blocked, "n": state.highest + 1})})
    return plan


def carry(engine: Engine, target: Target, *, complete_through: int) -> State:
    """Commit that all rows of a target are its sessions', and complete through an hour; nothing more is read."""
    before = engine.state(target)
    committed = replace(before.committed, complete_through=complete_through)
    return _commit(engine, target, before, carrying_plan(before, "published"), committed)


def _commit(engine: Engine, target: Target, state: State, decision: SessionPlan, committed: Committed) -> State:
    assert state.table is not None
    engine.log.complete(state)
    pattern_id = target.mode.pattern_id
    after = after_session(state, decision, committed, pattern_id=pattern_id, run_id="run", started_at=engine.clock())
    stored = commit_state(engine.catalog, state.table, after, None)
    engine.log.add(record_of(stored), stored)
    return stored
