"""One look at a target: the run that is due, or why there is none, and what Dagster does not show yet of the target.

A look changes nothing. The sensor returns its results to Dagster.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import dagster as dg

from lake_assets.base.failpoints import reach
from lake_assets.incremental.dagster.check_history import last_evaluation, of_no_materialization, shown_evaluation
from lake_assets.incremental.dagster.checks import audit_evaluation, check_specs, pending_hours_evaluation
from lake_assets.incremental.dagster.materializations import (
    COMPLETE_THROUGH,
    completed,
    completeness,
    materializations,
    rows_of_session,
)
from lake_assets.incremental.dagster.paused_targets import pause_of
from lake_assets.incremental.dagster.session_runs import (
    Attempt,
    busy_run,
    describe_attempts,
    ended_attempts,
    rest_seconds,
    retry_remedy,
    run_request,
)
from lake_assets.incremental.engine.model import Committed, Decision, NoSession, SessionPlan
from lake_assets.incremental.engine.planning import pending_hours
from lake_assets.incremental.engine.session_log import SessionRecord

if TYPE_CHECKING:
    from lake_assets.incremental.declaration import Target
    from lake_assets.incremental.engine.engine import Engine

SESSIONS_PER_LOOK = 20
"""How many of a target's newest sessions are compared with Dagster's materializations."""

MATERIALIZATIONS_PER_PARTITION = 20
"""How many of a partition's newest materializations are searched for a session."""

PAUSE_SECONDS = 30
"""Time between two looks at whether a target is still paused: no table says so."""

PARTITIONS_PER_LOOK = 200
"""Complete partitions that a look reports although no session has built them: the daemon stores them one by one."""

SensorEvent = dg.AssetMaterialization | dg.AssetObservation | dg.AssetCheckEvaluation


@dataclass(frozen=True)
class Seen:
    """The result of one look at a target.

    Attributes:
        reason: Why no run is requested; empty if one is.
        request: The run that is due.
        events: What Dagster does not show yet.
        again_at: The moment from which on another look may have another result although nothing has moved, in seconds
            since 1970-01-01 UTC; None for none.
        waiting_since: Since when the target waits for upstream to settle, in the same unit; None if it does not wait.
        shown_revision: Revision of the newest session if Dagster shows all sessions; None if it does not, or if that
            was not looked at.
        shown_through: Complete-through up to which Dagster shows all partitions; None if that was not looked at.
    """

    reason: str = ""
    request: dg.RunRequest | None = None
    events: tuple[SensorEvent, ...] = ()
    again_at: float | None = None
    waiting_since: float | None = None
    shown_revision: int | None = None
    shown_through: int | None = None

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to request and nothing to report."""
        return self.request is None and not self.events


@dataclass(frozen=True)
class TargetLook:
    """A look at one target.

    Attributes:
        engine: Decides.
        instance: Has the runs and what Dagster shows.
        target: The target.
        partitions: The partitions of its asset.
        key: The key of its asset.
        settle_seconds: Longest time that it waits for the targets upstream of it.
        waiting_since: Since when it waits for them, in seconds since 1970-01-01 UTC; None if it does not wait.
        shown_revision: Revision of the newest session that an earlier look has returned; None if none has.
        shown_through: Complete-through that an earlier look has returned; None if none has.
    """

    engine: Engine
    instance: dg.DagsterInstance
    target: Target
    partitions: dg.TimeWindowPartitionsDefinition
    key: dg.AssetKey
    settle_seconds: float
    waiting_since: float | None
    shown_revision: int | None = None
    shown_through: int | None = None

    def see(self) -> Seen:
        """Return what is due and what is to be reported."""
        active = busy_run(self.instance, self.key)
        if active:
            return Seen(active)
        decision = self.engine.decide(self.target)
        reach("tick-decided")
        if isinstance(decision, NoSession):
            return self._state(decision)
        paused = pause_of(self.instance, self.target)
        if paused:
            return Seen(paused, again_at=self._now() + PAUSE_SECONDS)
        attempts = ended_attempts(self.instance, decision.session_id)
        if attempts:
            return self._retry(decision, attempts)
        unsettled = self.engine.unsettled(self.target)
        if unsettled:
            return self._wait_until_settled(decision, unsettled)
        # An upstream target may have committed since the first decision. An idle target is spared this second one.
        settled = self.engine.decide(self.target)
        if isinstance(settled, NoSession):
            return Seen(settled.reason, again_at=self._now())
        return self._request(settled, attempt=1)

    def _request(self, plan: SessionPlan, *, attempt: int) -> Seen:
        run = run_request(self.key, self.partitions, self.target, plan, attempt=attempt)
        return Seen(request=run)

    def _retry(self, plan: SessionPlan, attempts: Sequence[Attempt]) -> Seen:
        now = self._now()
        rest = rest_seconds(attempts, self.target.code_version, now)
        so_far = describe_attempts(plan, attempts)
        if rest is None:
            reason = f"{so_far}. There are no more attempts. {retry_remedy(self.target)}"
            return Seen(reason, events=self._pending_events(plan, stuck=reason))
        if rest > 0:
            events = self._pending_events(plan, stuck=f"{so_far}; it is tried again")
            reason = f"{so_far}. The next attempt starts in {rest:.0f} s."
            return Seen(reason, events=events, again_at=now + rest)
        return self._request(plan, attempt=len(attempts) + 1)

    def _wait_until_settled(self, plan: SessionPlan, reason: str) -> Seen:
        """Wait from the first look on that found upstream unsettled.

        The wait continues when the plan changes; otherwise busy sources would delay the target forever.
        """
        now = self._now()
        since = now if self.waiting_since is None else self.waiting_since
        remaining = self.settle_seconds - (now - since)
        if remaining <= 0:
            return self._request(plan, attempt=1)
        text = f"{plan} waits for upstream to settle, {remaining:.0f} s at most: {reason}"
        return Seen(text, again_at=now + remaining, waiting_since=since)

    def _state(self, decision: NoSession) -> Seen:
        """Report what Dagster does not show yet: pending hours, sessions without a run, and what is complete."""
        revision = self.engine.state(self.target).highest
        unmarked = [] if revision in (0, self.shown_revision) else self._unmarked_sessions()
        events: list[SensorEvent] = [event for record in unmarked for event in self._session_events(record)]
        marked = {event.partition for event in events if isinstance(event, dg.AssetMaterialization)}
        missing = self._unmarked_partitions(marked)
        events[:0] = completed(self.engine.catalog, self.target, missing[:PARTITIONS_PER_LOOK], self._committed)
        pending = self._pending_events(decision)
        if events:
            found = (event for event in [*events, *pending] if isinstance(event, dg.AssetCheckEvaluation))
            events += self._repeated_evaluations({event.check_name for event in found})
        else:
            events += self._completeness_events()
        events += pending
        if len(missing) > PARTITIONS_PER_LOOK:
            return Seen(decision.reason, events=tuple(events), again_at=self._now())
        return Seen(
            decision.reason,
            events=tuple(events),
            again_at=_moment(decision),
            shown_revision=None if unmarked else revision,
            shown_through=self._committed.complete_through,
        )

    @property
    def _committed(self) -> Committed:
        return self.engine.state(self.target).committed

    def _unmarked_partitions(self, marked: Collection[str | None]) -> list[int]:
        """Return the first hour of each complete partition that is not waiting and that Dagster does not show.

        marked: keys of partitions that this look reports.
        """
        committed, grain = self._committed, self.target.grain
        through, last_key = committed.complete_through, self.partitions.get_last_partition_key()
        if through is None or last_key is None or through == self.shown_through:
            return []
        after = self.engine.pipeline.start_hour if self.shown_through is None else self.shown_through + 1
        found = set(grain.firsts(range(after, grain.complete(through) + 1))).difference(grain.firsts(committed.waiting))
        if not found:
            return []
        shown = {*marked, *self.instance.get_materialized_partitions(self.key)}
        return [hour for hour in sorted(found) if (key := grain.key(hour)) <= last_key and key not in shown]

    def _repeated_evaluations(self, evaluated: Collection[str]) -> Iterator[SensorEvent]:
        """Yield the last evaluation of each other check: Dagster shows none that came before a materialization."""
        for spec in check_specs(self.key, self.target):
            last = None if spec.name in evaluated else last_evaluation(self.instance, spec.key)
            if last is not None:
                yield of_no_materialization(last)

    def _completeness_events(self) -> Iterator[SensorEvent]:
        """Yield an observation of complete-through if it has moved alone."""
        through = completeness(self._committed.complete_through)
        if not through or self._committed.complete_through == self.shown_through:
            return
        newest = [
            *self.instance.fetch_materializations(self.key, limit=1).records,
            *self.instance.fetch_observations(self.key, limit=1).records,
        ]
        for record in newest:
            event = record.asset_materialization or record.asset_observation
            value = event.metadata.get(COMPLETE_THROUGH) if event else None
            if value is not None and value.value == through[COMPLETE_THROUGH]:
                return
        yield dg.AssetObservation(self.key, metadata=through)

    def _pending_events(self, decision: Decision, *, stuck: str = "") -> tuple[dg.AssetCheckEvaluation, ...]:
        """Return the evaluation of pending hours, if it differs from the one that Dagster shows."""
        pending = pending_hours(self._committed, decision, stuck=stuck)
        found = pending_hours_evaluation(self.key, self.target.grain, pending)
        shown = shown_evaluation(self.instance, found.asset_check_key)
        if shown is not None and shown.passed == found.passed and shown.metadata == found.metadata:
            return ()
        return (found,)

    def _unmarked_sessions(self) -> list[SessionRecord]:
        """Return the newest committed sessions that Dagster has no materialization of, oldest first."""
        newest = self.engine.history(self.target, newest=SESSIONS_PER_LOOK)
        built = [record for record in newest if record.state == "committed" and record.built]
        return [record for record in built if not self._is_marked(record)]

    def _session_events(self, record: SessionRecord) -> Iterator[SensorEvent]:
        """Yield the materializations of a session, then its evaluations of the asset."""
        report = record.report()
        rows = rows_of_session(self.engine.catalog, self.target, report, record.built)
        through = self._committed.complete_through
        yield from materializations(self.target, report, record.built, rows, complete_through=through)
        held = self._committed.held
        for audit in report.audits:
            yield audit_evaluation(self.key, audit, held)

    def _is_marked(self, record: SessionRecord) -> bool:
        """Return whether the first partition of a session has a materialization of that session."""
        partition = self.target.grain.key(record.built[0])
        of_partition = dg.AssetRecordsFilter(self.key, asset_partitions=[partition])
        found = self.instance.fetch_materializations(of_partition, limit=MATERIALIZATIONS_PER_PARTITION)
        for stored in found.records:
            event = stored.asset_materialization
            session = event.metadata.get("session") if event else None
            if session is not None and session.value == record.plan.session_id:
                return True
        return False

    def _now(self) -> float:
        return self.engine.clock().timestamp()


def _moment(decision: NoSession) -> float | None:
    """Return the moment that a decision names at which it may be another one by time alone; None if it names none."""
    moment: datetime | None = getattr(decision, "look_again_at", None)
    return None if moment is None else moment.timestamp()
