"""What is wrong with targets. `lake status`, `lake doctor`, the report, the check `intact` and alerts say just this.

It is read from metadata alone, without Spark and while nothing runs. A session that is due is no problem, and neither
is a target that waits for its sources, unless it is later than its `max_delay`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Literal

from pyiceberg.catalog import Catalog

from lake_assets.base.described import failure_of, is_machines_fault
from lake_assets.base.findings import Level
from lake_assets.base.hours import format_hours, hour_key, hour_start
from lake_assets.errors import AuditFailed, hours_held
from lake_assets.incremental.declaration import Pipeline, Target
from lake_assets.incremental.engine import iceberg
from lake_assets.incremental.engine.engine import CONFIRM
from lake_assets.incremental.engine.model import Decision, HeldHour, NoSession, age_in_words, verdicts_in_words
from lake_assets.incremental.engine.planner import built_by_other_code, source_complete_through
from lake_assets.incremental.engine.state import State

if TYPE_CHECKING:
    from lake_assets.incremental.engine.engine import Engine


@dataclass(frozen=True)
class Freshness:
    """The freshness of one target.

    Attributes:
        table: The target's table.
        fresh: Whether the delay is at most `max_delay`.
        complete_through: Last complete hour, inclusive, in hours since 1970-01-01 UTC; None if no hour is complete.
        delay: Time since the end of the first hour or day that is not complete; 0 before its end.
        max_delay: Longest delay that the target declares.
        what: How late the target is, in words.
        remedy: What to do if it is not fresh.
    """

    table: str
    fresh: bool
    complete_through: int | None
    delay: timedelta
    max_delay: timedelta
    what: str
    remedy: str


def evaluate_freshness(
    target: Target,
    through: int | None,
    sources: Mapping[str, int | None],
    *,
    start: int,
    now: datetime,
) -> Freshness:
    """Return the freshness of a target that declares a `max_delay`.

    Args:
        target: The target.
        through: Its complete-through; None if no hour is complete.
        sources: Source → its complete-through.
        start: The pipeline's first hour, which becomes complete first.
        now: The present moment.
    """
    assert target.max_delay is not None, f"{target.table} declares no max_delay"
    needed = target.grain.last(start if through is None else through + 1)
    delay = max(timedelta(0), now - hour_start(needed + 1))
    so_far = "complete through no hour yet" if through is None else f"complete through {hour_key(through)}"
    behind = [name for name, complete in sources.items() if complete is None or complete < needed]
    remedy = f"Its sources are complete. See `lake plan {target.name}` and `lake sessions {target.name}`."
    if behind:
        verb = "is" if len(behind) == 1 else "are"
        remedy = (
            f"{', '.join(behind)} {verb} not complete through {hour_key(needed)}. Check what lands there; "
            "`lake complete TABLE HOUR` declares a silent raw table complete."
        )
    return Freshness(
        table=target.table,
        fresh=delay <= target.max_delay,
        complete_through=through,
        delay=delay,
        max_delay=target.max_delay,
        what=f"{target.table} is {so_far}, {age_in_words(delay)} late; allowed are {age_in_words(target.max_delay)}",
        remedy=remedy,
    )


def freshness(catalog: Catalog, pipeline: Pipeline, target: Target, now: datetime) -> Freshness:
    """Return the present freshness of a target that declares a `max_delay`. Reads metadata only.

    Raises:
        InvalidHourKey: A table's complete-through is no hour key.
        TableMissing: The target or a source is not in the catalog.
    """
    through = {}
    for name in (target.table, *target.source_tables):
        through[name] = source_complete_through(iceberg.load(catalog, name), name, pipeline)
    of_target = through.pop(target.table)
    return evaluate_freshness(target, of_target, through, start=pipeline.start_hour, now=now)


def with_max_delay(pipeline: Pipeline) -> list[Target]:
    """Return the targets that declare a `max_delay`."""
    return [target for target in pipeline.targets if target.max_delay is not None]


Kind = Literal[
    "cannot_plan",
    "audit_failed",
    "session_failed",
    "hours_held",
    "beyond_data",
    "not_fresh",
    "not_equal",
    "hours_skipped",
    "other_code",
    "zone_gone",
    "zone_behind",
    "partition_stopped",
    "files_differ",
    "not_landed",
    "dead_letters",
    "few_dead_letters",
    "wrong_timestamps",
    "push_failed",
    "batch_failed",
    "messages_lost",
    "batch_dead_letters",
    "requests_unmet",
    "turn_refused",
]

OF_LANDING = ("zone_gone", "zone_behind", "partition_stopped", "files_differ", "not_landed", "dead_letters")
"""Kinds of problems of landing, which are found by its own code, without warnings."""

OF_SERVING = ("push_failed",)
"""Kinds of problems of served tables."""

OF_LAKES = ("batch_failed", "messages_lost", "batch_dead_letters", "requests_unmet", "turn_refused")
"""Kinds of problems of engagement lakes."""

WARNINGS = ("hours_skipped", "other_code", "few_dead_letters", "wrong_timestamps")
"""Kinds that somebody may want so: by a catch-up threshold, because former hours are to stay as they are, or because
some senders always err."""


@dataclass(frozen=True)
class Problem:
    """What is wrong with a target, with landing, with a served table or with a lake. An alert is this, as JSON.

    Attributes:
        target: The target's table; the zone or the topic that is landed; the served table; the stream of a lake.
        kind: The kind of problem.
        what: The problem, as a sentence.
        remedy: What to do, as a sentence.
        session_id: The session that the problem is about; None if it is about none.
        run_id: The run that the problem is about; None if it is about none.
    """

    target: str
    kind: Kind
    what: str
    remedy: str
    session_id: str | None = None
    run_id: str | None = None

    @property
    def level(self) -> Level:
        """How bad it is. A command that finds an error ends with exit code 1."""
        return "warning" if self.kind in WARNINGS else "error"

    @property
    def key(self) -> str:
        """What tells it from other problems. The sentence may change while it lasts."""
        return f"{self.target}|{self.kind}|{self.session_id}"


@dataclass(frozen=True)
class TargetHealth:
    """Whether a target is well.

    Attributes:
        table: The target's table.
        decision: What its next session does, or why there is none; None if that cannot be planned.
        problems: What is wrong, the worst first.
    """

    table: str
    decision: Decision | None
    problems: tuple[Problem, ...]


def problems(engine: Engine) -> list[Problem]:
    """Return what is wrong with the targets of an engine's pipeline, upstream targets first."""
    found: list[Problem] = []
    for target in engine.pipeline.in_order():
        found += health(engine, target).problems
    return found


def health(engine: Engine, target: Target) -> TargetHealth:
    """Return whether a target is well. Whatever cannot be read of it is a problem.

    A fault of the machine or of a service is raised: all other targets meet it, too.
    """
    name = target.table
    decision: Decision | None = None
    found: list[Problem] = []
    try:
        state = engine.state(target)
        if state.table is None:  # the next session creates it
            return TargetHealth(name, None, ())
        found += _left_by_sessions(state, target)
        decision = engine.decide(target)
        if isinstance(decision, NoSession) and decision.kind == "idle":  # what a session failed on is gone
            found = [each for each in found if each.kind == "hours_held"]
        if isinstance(decision, NoSession) and decision.kind == "beyond":
            found.append(Problem(name, "beyond_data", f"{name}: {decision.reason}.", CONFIRM))
        iceberg.complete_through(state.table, name)  # its readers need it
        if target.max_delay is not None:
            late = freshness(engine.catalog, engine.pipeline, target, engine.clock())
            found += [] if late.fresh else [Problem(name, "not_fresh", f"{late.what}.", late.remedy)]
        found += _wanted(state, target)
    except Exception as error:  # whatever the table of somebody else makes its reader raise concerns this target only
        if is_machines_fault(error):
            raise
        text = failure_of(name, error)
        found.insert(0, Problem(name, "cannot_plan", text.problem, text.remedy))
    return TargetHealth(name, decision, tuple(found))


def _left_by_sessions(state: State, target: Target) -> Iterator[Problem]:
    """Yield what the last session has left, or the one that was stopped after it."""
    blocked, failed = state.blocked, state.failed
    if blocked is not None:
        error = AuditFailed(target.table, blocked["failed"])
        run_id = blocked["run_id"] or None
        yield Problem(target.table, "audit_failed", error.problem, error.remedy, blocked["session_id"], run_id)
    if failed is not None and failed["code_version"] == target.code_version:
        times = "" if failed["times"] == 1 else f", {failed['times']} times"
        what = f"{target.table}: session {failed['session_id']} failed{times}: {failed['what']}."
        remedy = f"`lake catch-up {target.name}` repeats it and shows the error."
        run_id = failed["run_id"] or None
        yield Problem(target.table, "session_failed", what, remedy, failed["session_id"], run_id)
    by_session = attrgetter("session_id")
    for session_id, hours in groupby(sorted(state.committed.held, key=by_session), key=by_session):
        held: Sequence[HeldHour] = [*hours]
        of_hours = hours_held(target.table, verdicts_in_words(held, target.grain))
        yield Problem(target.table, "hours_held", of_hours.problem, of_hours.remedy, session_id)


def _wanted(state: State, target: Target) -> Iterator[Problem]:
    skipped = sorted(state.committed.skipped)
    if skipped:
        yield Problem(
            target.table,
            "hours_skipped",
            f"{target.table} was not built in hours beyond its catch-up threshold: {format_hours(skipped)}.",
            f"`lake rebuild {target.name} {hour_key(skipped[0])} {hour_key(skipped[-1])}` builds them.",
        )
    what, _, remedy = built_by_other_code(state, target).partition("; ")
    if what:
        yield Problem(target.table, "other_code", f"{target.table}: {what}.", f"{remedy[:1].upper()}{remedy[1:]}.")
