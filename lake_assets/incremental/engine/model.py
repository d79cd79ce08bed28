"""The values that planning, sessions and their log share, and the texts for people about hours that wait. Pure.

First what waits and what is committed, then the input of planning, then the plan, then the results of audits and the
hours that they hold back, then the outcome of a session. What waits is one map, hour → `Waiting`, in the state, in what
a session plans, and after it; `HeldHour` and `DeferredHour` are what readers are shown of it. `SessionPlan` and
`AuditResult`, with all values in them, are stored as JSON in `etl.session`; `HeldHour`, `DeferredHour` and `Totals` in
`etl.high_watermark`. Their field names stay: stored sessions must remain readable.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from functools import cached_property
from itertools import groupby, takewhile
from math import inf
from operator import attrgetter
from typing import Any, Literal, TypeVar

from lake_assets.base.hours import HOUR, Grain, format_hours, from_milliseconds, hour_key, parse_hour
from lake_assets.errors import ConfigurationError
from lake_assets.incremental.declaration import Defer, Mode, Sequential, Stateful, Stateless
from lake_assets.incremental.engine.source_changes import SourceChanges, Totals, Watermark

MAX_HOURS = 10_000
"""Most hours that a session of any mode builds, in whole partitions. Each hour is a data file with its statistics, a
record of the session and an event of Dagster, so a session costs by its hours even if they have a row each."""

Number = TypeVar("Number", int, float)

Load = Literal["append", "overwrite", "none"]
"""How a session writes its rows."""

SAMPLE = 10
"""The most keys of offending rows that an audit's result names."""

REASON_SEPARATOR = "; "
"""Between the reasons of a held hour."""

MAX_REASONS = 3
"""Number of reasons in a message about held hours. Hours with other reasons are only counted."""

Kind = Literal["changed", "follows", "late", "retry", "held", "skipped"]
"""Why an hour waits. `changed`: its rows have changed. `follows`: an hour before it has changed. `late`: its late rows
wait by the declared policy. `held`: an audit holds it back; `retry`: so it does, and the hour has changed since.
`skipped`: it lies beyond the catch-up threshold."""

PENDING: frozenset[Kind] = frozenset({"changed", "follows", "late", "retry"})
HELD: frozenset[Kind] = frozenset({"held", "retry"})


@dataclass(frozen=True)
class Waiting:
    """Why an hour waits, and since when.

    Attributes:
        kind: Which of the kinds.
        why: The reason, for people: which snapshot of which source, or which audit.
        since_ms: Commit time of the snapshot that made it wait, milliseconds since 1970; 0 if it is not known.
        session_id: The session that found it; of a held hour, the one that held it back last. Empty in a plan.
        code_version: Of a held hour: the code version of that session.
        rows: Of a `late` hour: the rows that wait, by metadata, at most so many.
        after: Of a `late` hour: the snapshot of the source up to which the target has the rows of the hour.
    """

    kind: Kind
    why: str = ""
    since_ms: int = 0
    session_id: str = ""
    code_version: str = ""
    rows: int = 0
    after: int | None = None


def hours_of(waiting: Mapping[int, Waiting], kinds: Collection[Kind]) -> tuple[int, ...]:
    """Return the hours that wait for any of some kinds; ascending."""
    return tuple(sorted(hour for hour, waits in waiting.items() if waits.kind in kinds))


@dataclass(frozen=True)
class HeldHour:
    """An event hour that audits hold back while other hours are published. It keeps the rows that it has.

    It is built in a session of its own when a source touches it or the code changes. Until then the target's
    complete-through stays below it, unless it was above it before.

    Attributes:
        hour: The hour.
        why: Which audits failed in it and how, for people.
        session_id: The session that held it back last.
        code_version: The code version of that session.
    """

    hour: int
    why: str
    session_id: str
    code_version: str = ""


@dataclass(frozen=True)
class DeferredHour:
    """An event hour whose late rows wait for a later session.

    Attributes:
        hour: The hour.
        since_ms: Commit time of the first raw snapshot that brought rows which wait, milliseconds since 1970.
        rows: The rows that wait, by metadata: at most so many. The rows of a data file whose rows by hour are unknown
            all count in the first of its hours that waits.
        after: The snapshot of the raw table up to which the target has the rows of the hour: all later ones wait, and
            all of them were appended.
    """

    hour: int
    since_ms: int
    rows: int
    after: int | None = None

    @property
    def since(self) -> datetime:
        """When the first of the rows was committed."""
        return from_milliseconds(self.since_ms)


def deferred_of(waiting: Mapping[int, Waiting]) -> tuple[DeferredHour, ...]:
    """Return the hours that wait by the policy for late rows, ascending."""
    late = ((hour, waits) for hour, waits in sorted(waiting.items()) if waits.kind == "late")
    return tuple(DeferredHour(hour, waits.since_ms, waits.rows, waits.after) for hour, waits in late)


@dataclass(frozen=True)
class LateRows:
    """Rows of some hours that were appended to the driving source, and that earlier sessions left out.

    Attributes:
        from_snapshot_id: The rows came after this snapshot of the source.
        to_snapshot_id: They came up to and with this one.
        hours: The hours, ascending.
    """

    from_snapshot_id: int
    to_snapshot_id: int
    hours: tuple[int, ...]


OlderCode = tuple[int, int, str]
"""First hour, last hour (both inclusive), and the code version that built them."""


@dataclass(frozen=True)
class Committed:
    """What a target has committed, apart from its watermarks.

    Attributes:
        waiting: Hour → why it waits to be built.
        last_built: The last hour built, of a sequential or stateful target; None before the first.
        complete_through: The target's complete-through; None if no hour is complete.
        code_version: Code version of the last session that built hours.
        older: Which hours other code has built; ascending, without overlaps.
        span: The first and the last hour that a session has built; None before the first.
        chunk_hours: Of a sequential target: the number of hours, built before, of the last session if its last hour
            came out changed; otherwise 0. The next chunk is twice as long.
    """

    waiting: Mapping[int, Waiting] = field(default_factory=dict)
    last_built: int | None = None
    complete_through: int | None = None
    code_version: str = ""
    older: tuple[OlderCode, ...] = ()
    span: tuple[int, int] | None = None
    chunk_hours: int = 0

    @cached_property
    def pending(self) -> frozenset[int]:
        """The hours that have changed and are not rebuilt yet."""
        return frozenset(hours_of(self.waiting, PENDING))

    @cached_property
    def skipped(self) -> frozenset[int]:
        """Late hours beyond the catch-up threshold."""
        return frozenset(hours_of(self.waiting, {"skipped"}))

    @cached_property
    def following(self) -> frozenset[int]:
        """Pending hours without changed rows of their own. They stay as published if the hour before them does."""
        return frozenset(hours_of(self.waiting, {"follows"}))

    @cached_property
    def held_hours(self) -> frozenset[int]:
        """The hours that are held back. If one is also pending, it has changed since."""
        return frozenset(hours_of(self.waiting, HELD))

    @cached_property
    def held(self) -> tuple[HeldHour, ...]:
        """The hours that are held back, ascending."""
        held = ((hour, waits) for hour, waits in sorted(self.waiting.items()) if waits.kind in HELD)
        return tuple(HeldHour(hour, waits.why, waits.session_id, waits.code_version) for hour, waits in held)

    @cached_property
    def deferred(self) -> tuple[DeferredHour, ...]:
        """Those of the pending hours that wait by the policy for late rows, ascending."""
        return deferred_of(self.waiting)

    @property
    def built_by(self) -> tuple[OlderCode, ...]:
        """Which code has built which hours; ascending. That of `code_version` has built all of the span but `older`."""
        if self.span is None:
            return self.older
        of_older = [range(first, last + 1) for first, last, _ in self.older]
        return tuple(sorted([*self.older, *((*part, self.code_version) for part in cut(self.span, of_older))]))

    def with_changed(self, hours: Mapping[int, str]) -> Committed:
        """Return the same, with some hours (hour → reason) changed. A held hour stays held, and is tried again."""
        if not hours:
            return self
        waiting = dict(self.waiting)
        for hour, why in hours.items():
            before = waiting.get(hour)
            if before is not None and before.kind in HELD:
                waiting[hour] = replace(before, kind="retry")
            elif before is None or before.kind != "changed":
                waiting[hour] = Waiting("changed", why)
        return replace(self, waiting=waiting)


def cut(span: tuple[int, int], others: Collection[range]) -> Iterator[tuple[int, int]]:
    """Yield what is left of a span of hours (both ends inclusive) without others."""
    first, last = span
    for other in sorted(others, key=lambda each: each.start):
        if other.stop <= first or other.start > last:
            continue
        if other.start > first:
            yield first, other.start - 1
        first = other.stop
    if first <= last:
        yield first, last


def in_whole_partitions(committed: Committed, grain: Grain) -> Committed:
    """Return what is committed as whole local days.

    It was that when it was committed, unless the rules of the time zone were other ones then: a machine learns of a
    change of law only with its next time zone data. A day that was built in part counts as not built.
    """
    if not grain.is_local:
        return committed
    waiting: dict[int, Waiting] = {}
    for hour, waits in committed.waiting.items():
        for each in grain.whole([hour]):
            waiting.setdefault(each, waits)
    last_built = committed.last_built
    return replace(
        committed,
        waiting={**waiting, **committed.waiting},
        last_built=None if last_built is None else grain.complete(last_built),
    )


def capped(through: int | None, held: Iterable[int], before: int | None) -> int | None:
    """Return a target's complete-through, limited to the hours below each held hour.

    Args:
        through: The complete-through without held hours; None if unknown.
        held: The held hours.
        before: The target's present complete-through. Held hours up to it do not limit it.
    """
    if through is None:
        return None
    return min([through, *(hour - 1 for hour in held if before is None or hour > before)])


def due_at(deferred: Iterable[DeferredHour | Waiting], late: Defer | None) -> datetime | None:
    """Return the moment from which on the deferred hours are built; None if none waits."""
    since = [each.since_ms for each in deferred]
    if late is None or not since:
        return None
    return from_milliseconds(min(since)) + late.longest_wait


def wait_in_words(deferred: Collection[DeferredHour], late: Defer | None, grain: Grain = HOUR) -> str:
    """Return, for people, which hours wait, since when and until when. The text is the same at each look."""
    hours = [each.hour for each in deferred]
    first_seen = min(each.since for each in deferred)
    rows = sum(each.rows for each in deferred)
    since = f"{first_seen:%Y-%m-%d %H:%M} UTC"
    text = f"{_hours_in_words(hours, grain)}: up to {rows:,} late rows are deferred since {since}"
    due = due_at(deferred, late)
    if late is None or due is None:
        return text
    text = f"{text}, until {due:%Y-%m-%d %H:%M} UTC"
    return text if late.or_rows is None else f"{text} or until {late.or_rows:,} rows wait"


def age_in_words(age: timedelta) -> str:
    """Return a duration for people, in hours and minutes: `2 h 05 min`."""
    minutes = max(0, int(age.total_seconds()) // 60)
    return f"{minutes // 60} h {minutes % 60:02d} min"


def verdicts_in_words(held: Sequence[HeldHour], grain: Grain = HOUR) -> str:
    """Return held hours for people: `hour 2026-01-01-09:00 is held back by audit unique_key: 3 repeated`."""
    sentences: list[str] = []
    left = 0
    for place, (reason, found) in enumerate(groupby(held, key=attrgetter("why"))):
        hours = [each.hour for each in found]
        partitions = len(grain.firsts(hours))
        if place < MAX_REASONS:
            verb = "is" if partitions == 1 else "are"
            sentences.append(f"{_hours_in_words(hours, grain)} {verb} held back by {reason}")
        else:
            left += partitions
    return "; ".join(sentences) + (f"; and {left} {grain.name}s more" if left else "")


def _hours_in_words(hours: Sequence[int], grain: Grain = HOUR) -> str:
    noun = grain.name if len(grain.firsts(hours)) == 1 else f"{grain.name}s"
    return f"{noun} {grain.format_hours(hours)}"


@dataclass(frozen=True)
class PlanningInput:
    """Everything that planning the sessions of one target needs to know.

    Attributes:
        process: The target's table, `namespace.name`.
        mode: The target's mode.
        changes: The changes of each source, in the order of the declaration.
        committed: What the target has committed.
        code_version: The target's present code version.
        revision: Revision of the watermarks. After a rollback and its reversal, the same snapshots and hours are
            planned again; the revision makes that another session.
        grain: The target's grain. All hours that are planned, pending or skipped are those of whole partitions.
        start: The pipeline's first hour. No earlier hour counts as complete.
        whole_chunks: Whether a chunk of a sequential target has its full length at once, and does not begin small.
        late: The target's policy for late rows; None if all changed hours are built now.
        now: The present moment, by which deferred hours are due; None defers none. Nothing else depends on it.
        history: If hours wait: the snapshots of the driving source up to its watermark, oldest first, without a gap.
            Empty if deferred rows are not to be appended.
        max_hours: Most hours of a session, in whole partitions.
    """

    process: str
    mode: Mode
    changes: tuple[SourceChanges, ...]
    committed: Committed
    code_version: str = ""
    revision: int = 0
    grain: Grain = HOUR
    start: int = 0
    whole_chunks: bool = False
    late: Defer | None = None
    now: datetime | None = None
    history: tuple[int, ...] = ()
    max_hours: int = MAX_HOURS


def reloads_all(mode: Mode) -> bool:
    """Whether each session of a target rebuilds the whole catch-up threshold range."""
    return isinstance(mode, Sequential) and mode.load == "all"


def hours_are_independent(mode: Mode) -> bool:
    """Whether an hour of a target depends on no other hour."""
    if isinstance(mode, Stateful):
        return mode.load == "changed"
    return isinstance(mode, Stateless)


def check_none_held(table: str, mode: Mode, held: Sequence[HeldHour], *, first: float = inf) -> None:
    """Refuse a sequential target with held hours: later hours would build on them.

    Args:
        table: The target.
        mode: Its mode.
        held: Its held hours, ascending.
        first: The first hour that is about to be built, with all later ones. Held hours from there on are allowed.

    Raises:
        ConfigurationError: There are held hours before `first`.
    """
    left = [h.hour for h in held if h.hour < first]
    if isinstance(mode, Sequential) and left:
        raise ConfigurationError(
            f"{table} is declared sequential, and audits hold back its {_hours_in_words(left)}:"
            " later hours would build on them.",
            remedy=f"Repair their rows and run `lake rebuild {table} {hour_key(left[0])} {hour_key(left[-1])}`,"
            " or declare the former mode again.",
        )


@dataclass(frozen=True)
class SourceRange:
    """The snapshots of one source that a session covers: after `from_snapshot_id`, up to and with `to_snapshot_id`.

    Attributes:
        source: The source table, `namespace.name`.
        table_uuid: The source table's UUID.
        from_snapshot_id: None in the first session, or if the table had no snapshot.
        to_snapshot_id: None if the table has no snapshot.
        to_sequence_number: Of the last snapshot.
        to_timestamp_ms: Commit time of the last snapshot, milliseconds since 1970.
        complete_through: The source's complete-through, read with its head; None if it was not set.
        totals: As in the `Watermark` that the session ends at.
        last_hour: As in the `Watermark` that the session ends at.
        appends_only: Whether an incremental append read over the range returns every change.
        from_timestamp_ms: Commit time of the first snapshot, milliseconds since 1970; None if there is none, or if the
            source is read from its beginning.
    """

    source: str
    table_uuid: str
    from_snapshot_id: int | None
    to_snapshot_id: int | None
    to_sequence_number: int
    to_timestamp_ms: int
    complete_through: int | None
    totals: Totals | None = None
    last_hour: int | None = None
    appends_only: bool = False
    from_timestamp_ms: int | None = None

    @property
    def mark(self) -> Watermark:
        """The watermark that a session over the range ends at."""
        number, at = self.to_sequence_number, self.to_timestamp_ms
        end = (self.to_snapshot_id, number, at, self.complete_through, self.totals, self.last_hour)
        return Watermark(self.source, self.table_uuid, *end)


def source_range(
    mark: Watermark, since: int | None, *, appends_only: bool = False, from_timestamp_ms: int | None = None
) -> SourceRange:
    """Return the snapshots of a source after one, up to a watermark."""
    number, at = mark.sequence_number, mark.timestamp_ms
    end = (mark.snapshot_id, number, at, mark.complete_through, mark.totals, mark.last_hour)
    return SourceRange(mark.source, mark.table_uuid, since, *end, appends_only, from_timestamp_ms)


@dataclass(frozen=True)
class PlannedHour:
    """An event hour and the reason why it is planned: which snapshot of which source, by which column's bounds."""

    hour: int
    reason: str


@dataclass(frozen=True)
class Cost:
    """What a session will read, by the sources' metadata: number of data files, their rows and bytes."""

    files: int = 0
    rows: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class SessionPlan:
    """One planned unit of work of one target. Hours are ascending, wherever they are.

    Attributes:
        process: The target's table, `namespace.name`.
        session_id: A hash of the plan.
        kind: `session` moves the watermarks; `rebuild` leaves them.
        load: `append` (the rows of new snapshots; `hours` are those of their bounds), `overwrite` (exactly `hours`), or
            `none` (no rows; only the watermarks and complete-through move).
        sources: The snapshots of each source that the session covers.
        hours: The hours to build, with reasons.
        waiting: Hour → why it waits after the session, besides hours that were skipped before. Those in `conditional`
            do so only if the last planned hour comes out changed.
        changed_through: Up to this hour, inclusive, only rows of entities that changed are recomputed, and those of
            others are taken as published. None: all rows are recomputed.
        complete_through: The target's complete-through after the session; None leaves it.
        processing_uris: Where the rows are that are new or have waited: see `planning.processing_uris`. Those that have
            waited have `waited`. Plans that an older version stored lack `source`, and name landing partitions alone.
        cost: What the session will read.
        notes: What else a person should know: compactions that were skipped, hours that were left out.
        code_version: The target's code version when the session was planned.
        starts_anew: Whether the session forgets what the target had committed, and reads its sources from the start.
        late_rows: What an append reads besides the new snapshots: rows that have waited and are due.
    """

    process: str
    session_id: str
    kind: Literal["session", "rebuild"]
    load: Load
    sources: tuple[SourceRange, ...]
    hours: tuple[PlannedHour, ...]
    waiting: Mapping[int, Waiting] = field(default_factory=dict)
    changed_through: int | None = None
    complete_through: int | None = None
    processing_uris: tuple[Mapping[str, object], ...] = ()
    cost: Cost = Cost()
    notes: tuple[str, ...] = ()
    code_version: str = ""
    starts_anew: bool = False
    late_rows: tuple[LateRows, ...] = ()

    @property
    def hour_numbers(self) -> tuple[int, ...]:
        """The planned hours, without reasons."""
        return tuple(p.hour for p in self.hours)

    @cached_property
    def conditional(self) -> frozenset[int]:
        """Hours that only follow from the last planned one: they wait if it comes out changed, and not otherwise."""
        last = self.hours[-1].hour if self.hours else inf
        after = (hour for hour in hours_of(self.waiting, PENDING) if hour > last)
        return frozenset(takewhile(lambda hour: self.waiting[hour].kind == "follows", after))

    @property
    def pending(self) -> tuple[int, ...]:
        """The hours that will be pending after the session in any case."""
        return tuple(hour for hour in hours_of(self.waiting, PENDING) if hour not in self.conditional)

    @property
    def skipped(self) -> tuple[int, ...]:
        """The hours that will be skipped because of the session."""
        return hours_of(self.waiting, {"skipped"})

    @property
    def follows(self) -> tuple[int, ...]:
        """Hours without changed rows of their own, which wait for those before them."""
        return hours_of(self.waiting, {"follows"})

    @property
    def held(self) -> tuple[int, ...]:
        """Hours that an audit holds back and that are not planned."""
        return hours_of(self.waiting, HELD)

    @property
    def deferred(self) -> tuple[DeferredHour, ...]:
        """Those of the pending hours that wait by the policy for late rows."""
        return deferred_of(self.waiting)

    def document(self) -> dict[str, Any]:
        """Return the plan for JSON: of what waits, the hours of each kind, and why."""
        lists = ("pending", "skipped", "follows", "held", "deferred")
        found = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "waiting"}
        found |= {name: getattr(self, name) for name in lists}
        waits = sorted({*self.pending, *self.skipped, *self.follows})
        return {**found, "reasons": {hour: self.waiting[hour].why for hour in waits}}

    def landings(self, *, waited: bool = True) -> list[tuple[str, int]]:
        """Return landing date and hour of each landing partition to read. waited: also of rows that have waited."""
        found = []
        for uri in self.processing_uris:
            if uri.get("landing_hour") is not None and (waited or not uri.get("waited")):
                found.append((str(uri["landing_date"]), int(str(uri["landing_hour"]))))
        return found

    @property
    def reason(self) -> str:
        """The reason of the first hour; without hours, the notes."""
        if self.hours:
            return self.hours[0].reason
        return "; ".join(self.notes) or "complete-through moved"

    @property
    def left_out(self) -> tuple[int, ...]:
        """The hours whose rows an append leaves out: those that an audit holds back, and those that are deferred."""
        return hours_of(self.waiting, {*HELD, "late"})

    @property
    def source_rows(self) -> float:
        """About how many rows the sources have, by their metadata; infinite if these do not tell."""
        read = [source.totals for source in self.sources if source.to_snapshot_id is not None]
        return sum(totals.rows if totals else inf for totals in read)

    @property
    def waits_for_next_session(self) -> frozenset[int]:
        """The pending hours but those that wait by the policy for late rows: the next session is to build them."""
        return frozenset(self.pending).difference(hours_of(self.waiting, {"late"}))

    @property
    def envelope(self) -> tuple[int, int] | None:
        """First and last planned hour, both inclusive; None without hours."""
        if not self.hours:
            return None
        return self.hours[0].hour, self.hours[-1].hour

    def without(self, hours: Collection[int]) -> SessionPlan:
        """Return the same plan, with some hours held back."""
        kept = tuple(p for p in self.hours if p.hour not in hours)
        return replace(self, hours=kept, waiting={**self.waiting, **dict.fromkeys(hours, Waiting("held"))})

    def __str__(self) -> str:
        return f"{self.process}: {self.load} {format_hours(self.hour_numbers) or 'no hours'}"


@dataclass(frozen=True)
class OpenedSession:
    """A session that another program writes.

    Attributes:
        plan: What to write.
        table: The table to write it to, in one commit.
        wap_id: The `spark.wap.id` of that commit.
    """

    plan: SessionPlan
    table: str
    wap_id: str


@dataclass(frozen=True)
class NoSession:
    """There is no session now.

    Attributes:
        kind: `idle` (nothing new), `wait` (something is missing that will come), `blocked` (an audit stopped the
            session; it needs a change of a source or of the code, or a person), or `beyond` (it would build more than a
            day beyond the newest rows; a person has to decide).
        reason: Why, for people. It contains no age, so it is the same at each look.
        look_again_at: The earliest moment at which the decision may change although no table changes. None if only a
            change of a table can change it.
        deferred: Hours that wait by the policy for late rows, ascending.
    """

    kind: Literal["idle", "wait", "blocked", "beyond"]
    reason: str
    look_again_at: datetime | None = None
    deferred: tuple[DeferredHour, ...] = ()


Decision = SessionPlan | NoSession


@dataclass(frozen=True)
class AuditResult:
    """The result of one audit on one staged snapshot.

    Attributes:
        name: The audit's name.
        passed: Whether it passed.
        blocking: Whether a failure stops the hours, or the session.
        counts: What was counted, by name.
        sample: Keys of offending rows, for people, at most ten.
        description: What the audit checks.
        hours: Key of each hour that failed → offending rows in it. If the audit failed and this is empty, the hours of
            all offending rows are unknown or too many, and the session failed as a whole.
    """

    name: str
    passed: bool
    blocking: bool = True
    counts: Mapping[str, int] = field(default_factory=dict)
    sample: tuple[str, ...] = ()
    description: str = ""
    hours: Mapping[str, int] = field(default_factory=dict)


def failed_hours(audits: Iterable[AuditResult]) -> dict[int, str]:
    """Return failed hour → reason for people, without keys of rows; ascending.

    Only blocking audits that know the hours of their offending rows count. Of an audit with one count, a reason has the
    rows of the hour; otherwise the counts of the whole session. It is stored with held hours, so its form stays.
    """
    reasons: dict[int, list[str]] = {}
    for audit in audits:
        if audit.blocking and not audit.passed:
            for key, rows in audit.hours.items():
                counts = dict.fromkeys(audit.counts, rows) if len(audit.counts) == 1 else audit.counts
                text = ", ".join(f"{count} {name}" for name, count in counts.items())
                reasons.setdefault(parse_hour(key), []).append(f"audit {audit.name}: {text}")
    return {hour: REASON_SEPARATOR.join(reasons[hour]) for hour in sorted(reasons)}


def held_by_audit(held: Iterable[HeldHour], audit: str) -> tuple[HeldHour, ...]:
    """Return those of the held hours that an audit holds back, whichever session evaluated it."""
    start = f"audit {audit}: "
    return tuple(hour for hour in held if any(why.startswith(start) for why in hour.why.split(REASON_SEPARATOR)))


def hours_to_hold(
    mode: Mode,
    audits: Iterable[AuditResult],
    audited: Collection[int],
    before: Collection[int],
) -> tuple[int, ...]:
    """Return the audited hours to leave out so that the others can be published.

    Args:
        mode: The target's mode.
        audits: The audit results.
        audited: The hours that the audits looked at.
        before: Hours that are held already. A session of only these holds them again, for it delays no other hour.

    Returns:
        Hours in ascending order. Empty if the session must stop as a whole: its hours build on each other, or no other
        hour is left.
    """
    failed = failed_hours(audits).keys()
    is_alone = failed >= set(audited) and not failed <= set(before)
    if isinstance(mode, Sequential) or not failed <= set(audited) or is_alone:
        return ()
    return tuple(sorted(failed))


def held_by(plan: SessionPlan, audits: Iterable[AuditResult]) -> tuple[HeldHour, ...]:
    """Return the hours that a session holds back because of its audit results; ascending."""
    failed = failed_hours(audits)
    return tuple(HeldHour(hour, why, plan.session_id, plan.code_version) for hour, why in failed.items())


def settled(first: Sequence[AuditResult], again: Iterable[AuditResult]) -> tuple[AuditResult, ...]:
    """Return the final audit results of a session that held hours back.

    Args:
        first: Results on all hours. Those that caused hours to be held back are kept.
        again: Results without these hours: what was published. They replace the rest.
    """
    published = {audit.name: audit for audit in again}
    return tuple(
        audit if audit.blocking and not audit.passed and audit.hours else published.get(audit.name, audit)
        for audit in first
    )


@dataclass(frozen=True)
class RowCounts:
    """The rows of a session's driving source, by outcome.

    Attributes:
        read: All rows.
        outside: Rows in none of the planned hours, which an overwrite reads because they belong in quarantine.
        duplicates: Repeated deliveries, superseded versions and deletions; left out.
        quarantined: Rows that were quarantined.
        contested: Deliveries that may replace a row stored already.
        tied: Rows that count, although nothing but a hash puts them before another row of their key and order.
        late: Rows of hours that had been declared complete before.
        in_bounds: Rows whose time lies in the bounds of the files that are read whole, by metadata.
        hours: The event hours of the kept rows; ascending.
        lateness_p50: Median of landed_at minus event time of the kept rows, minutes; None without rows.
        lateness_p95: The 95th percentile, likewise.
        lateness_max: The maximum, likewise.
    """

    read: int = 0
    outside: int = 0
    duplicates: int = 0
    quarantined: int = 0
    contested: int = 0
    tied: int = 0
    late: int = 0
    in_bounds: int = 0
    hours: tuple[int, ...] = ()
    lateness_p50: float | None = None
    lateness_p95: float | None = None
    lateness_max: float | None = None

    @property
    def kept(self) -> int:
        """The rows that are neither repeated nor quarantined."""
        return self.read - self.duplicates - self.quarantined


@dataclass(frozen=True)
class SessionReport:
    """The outcome of one session.

    Attributes:
        plan: What was planned.
        status: `committed`; `published` (the same, of rows that another program has written); `blocked` (a blocking
            audit failed and its hours could not be held back, so nothing was published).
        hours_built: The event hours that the published snapshot wrote or emptied; ascending.
        hours_unchanged: Planned hours that came out as they were published and were not written; ascending.
        held: Planned hours that a blocking audit holds back while the others were published; ascending.
        released: Planned hours that were held back before and no longer are; ascending.
        staged_snapshot_id: The staged snapshot; None without rows.
        published_snapshot_id: The published snapshot; None without rows.
        rows_read: Rows of the driving source.
        rows_written: Rows of the staged snapshot.
        rows_duplicate: Repeated deliveries, left out.
        rows_quarantined: Rows that were quarantined.
        rows_late: Rows of hours that had been declared complete before.
        lateness_p50_minutes: Median of landed_at minus event time of the rows read; None without rows.
        lateness_p95_minutes: The 95th percentile, likewise.
        lateness_max_minutes: The maximum, likewise.
        audits: The audit results.
        seconds: Step (plan, stage, audit, publish, commit) → wall time.
        data_version: Changes if and only if the published content of the hours built may have changed.
    """

    plan: SessionPlan
    status: Literal["committed", "published", "blocked"]
    hours_built: tuple[int, ...] = ()
    hours_unchanged: tuple[int, ...] = ()
    held: tuple[HeldHour, ...] = ()
    released: tuple[int, ...] = ()
    staged_snapshot_id: int | None = None
    published_snapshot_id: int | None = None
    rows_read: int = 0
    rows_written: int = 0
    rows_duplicate: int = 0
    rows_quarantined: int = 0
    rows_late: int = 0
    lateness_p50_minutes: float | None = None
    lateness_p95_minutes: float | None = None
    lateness_max_minutes: float | None = None
    audits: tuple[AuditResult, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    data_version: str | None = None


def merged(reports: Sequence[SessionReport]) -> SessionReport:
    """Return what several sessions of one rebuild did, as one report; ids, snapshots and lateness are the last one's.

    Args:
        reports: In the order of the sessions; at least one.
    """
    last = reports[-1]
    if len(reports) == 1:
        return last
    planned = {hour.hour: hour for report in reports for hour in report.plan.hours}
    held = {hour.hour: hour for report in reports for hour in report.held}
    notes = dict.fromkeys(note for report in reports for note in report.plan.notes)
    audits: dict[str, AuditResult] = {}
    for audit in (audit for report in reports for audit in report.audits):
        before = audits.get(audit.name, AuditResult(audit.name, passed=True))
        audits[audit.name] = replace(
            audit,
            passed=before.passed and audit.passed,
            counts=_sums([before.counts, audit.counts]),
            sample=(*before.sample, *audit.sample)[:SAMPLE],
            hours=_sums([before.hours, audit.hours]),
        )
    sums: dict[str, Any] = {}
    for name in ("rows_read", "rows_written", "rows_duplicate", "rows_quarantined", "rows_late"):
        sums[name] = sum(getattr(report, name) for report in reports)
    for name in ("hours_built", "hours_unchanged", "released"):
        sums[name] = tuple(sorted({hour for report in reports for hour in getattr(report, name)}))
    return replace(
        last,
        plan=replace(last.plan, hours=tuple(planned[hour] for hour in sorted(planned)), notes=tuple(notes)),
        held=tuple(held[hour] for hour in sorted(held)),
        audits=tuple(audits.values()),
        seconds=_sums(report.seconds for report in reports),
        **sums,
    )


def _sums(counts: Iterable[Mapping[str, Number]]) -> dict[str, Number]:
    """Return the sum of each name."""
    found: dict[str, Number] = {}
    for each in counts:
        for name, number in each.items():
            found[name] = found.get(name, 0) + number
    return found
