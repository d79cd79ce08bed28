"""The report of a lake as one page: the verdict, how far tables are complete, the data path, sessions and audits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Literal

from lake_assets.base.findings import Finding
from lake_assets.base.hours import format_hours, hour_key
from lake_assets.errors import ErrorText
from lake_assets.incremental.engine.arrivals import Arrivals
from lake_assets.incremental.engine.model import AuditResult
from lake_assets.incremental.engine.session_log import SessionRecord
from lake_assets.incremental.operations.overview import Overview, TableProgress, TargetOverview
from lake_assets.pages import charts
from lake_assets.pages import page as pages
from lake_assets.pages.charts import Figure
from lake_assets.pages.data_path import DataPath

State = Literal["well", "attention", "wrong"]

LEADS: Mapping[State, str] = {"well": "All is well", "attention": "Well, with warnings", "wrong": "Not well"}
SEE_BELOW = "The report has the details."


@dataclass(frozen=True)
class Verdict:
    """Whether all is well.

    Attributes:
        wrong: What is wrong: the errors of `lake doctor`, then what needs attention on the data path.
        warnings: The warnings of `lake doctor`.
        pending: How many parts of the data path have something pending, which is no fault.
    """

    wrong: tuple[ErrorText, ...] = ()
    warnings: tuple[ErrorText, ...] = ()
    pending: int = 0

    @property
    def state(self) -> State:
        """How bad it is."""
        if self.wrong:
            return "wrong"
        return "attention" if self.warnings else "well"

    @property
    def lead(self) -> str:
        """The state in a few words."""
        return LEADS[self.state]

    @property
    def first(self) -> ErrorText | None:
        """What to look at first; None if all is well."""
        return next(iter((*self.wrong, *self.warnings)), None)

    @property
    def others(self) -> tuple[ErrorText, ...]:
        """What else is wrong, the errors first."""
        return (*self.wrong, *self.warnings)[1:]

    @property
    def line(self) -> str:
        """The verdict as one line."""
        if self.first is None:
            return f"{self.lead}: {self._pending_text}."
        more = f" And {len(self.others)} more." if self.others else ""
        return f"{self.lead}: {self.first.problem} → {self.first.remedy}{more}"

    @property
    def _pending_text(self) -> str:
        if not self.pending:
            return "nothing is wrong, and nothing is pending"
        parts = "1 part has" if self.pending == 1 else f"{self.pending} parts have"
        return f"nothing is wrong; {parts} something pending"


def verdict(findings: Sequence[Finding], path: DataPath) -> Verdict:
    """Return the verdict on a data directory.

    Args:
        findings: Of `lake doctor`.
        path: The data path. What a finding says already is not said again.
    """
    errors = tuple(_of_findings(findings, "error"))
    said = [error.problem.removesuffix(".") for error in errors]
    from_path = [found for found in _of_path(path) if not any(text in found.problem for text in said)]
    return Verdict(
        wrong=(*errors, *dict.fromkeys(from_path)),
        warnings=tuple(_of_findings(findings, "warning")),
        pending=sum(bool(fact.pending) and not fact.bad for stage in path.stages for fact in stage.facts),
    )


def _of_findings(findings: Iterable[Finding], level: str) -> Iterator[ErrorText]:
    for found in findings:
        if found.level == level:
            yield ErrorText(found.text, found.remedy or SEE_BELOW)


def _of_path(path: DataPath) -> Iterator[ErrorText]:
    for stage in path.stages:
        if stage.broken:
            yield ErrorText(f"{stage.name}: {stage.instead}", stage.remedy or SEE_BELOW)
        for fact in stage.facts:
            if fact.bad:
                named = fact.what in fact.pending
                problem = fact.pending if named else f"{fact.what}: {fact.pending}"
                yield ErrorText(problem, fact.remedy or SEE_BELOW)


Completion = Literal["held", "skipped", "pending", "complete", "missing"]

SHOWN_HOURS = 48
"""The maximum number of hours of a strip."""


@dataclass(frozen=True)
class Run:
    """Neighbouring hours of the same state.

    Attributes:
        state: held: an audit holds them back. skipped: beyond the catch-up threshold. pending: changed, to be rebuilt.
        first: Their first hour.
        last: Their last hour, inclusive.
    """

    state: Completion
    first: int
    last: int

    @property
    def hours(self) -> int:
        return self.last - self.first + 1

    @property
    def label(self) -> str:
        """The hours and their state, for a hover."""
        last = f" to {hour_key(self.last)}" if self.last > self.first else ""
        return f"{hour_key(self.first)}{last}: {self.state}"


@dataclass(frozen=True)
class Strip:
    """The hours of one table."""

    table: str
    runs: tuple[Run, ...]


@dataclass(frozen=True)
class Completeness:
    """The strips of all tables.

    Attributes:
        first: The first hour shown.
        last: The newest hour for which any table is complete.
        strips: One for each table, in the order of the overview.
    """

    first: int
    last: int
    strips: tuple[Strip, ...]

    @property
    def states(self) -> list[Completion]:
        """The states that occur, for the legend."""
        found = {run.state for strip in self.strips for run in strip.runs}
        order: Sequence[Completion] = ("complete", "pending", "skipped", "held", "missing")
        return [state for state in order if state in found]


def completeness(overview: Overview) -> Completeness | None:
    """Return the strips; None if no table is complete through any hour."""
    known = [found.complete_through for found in overview.standings if found.complete_through is not None]
    if not known:
        return None
    last = max(known)
    first = max(_first_hour(overview, known), last - SHOWN_HOURS + 1)
    targets = {target.table: target for target in overview.targets}
    strips = []
    for standing in overview.standings:
        strips.append(Strip(standing.table, _runs(standing, targets.get(standing.table), range(first, last + 1))))
    return Completeness(first, last, tuple(strips))


def _first_hour(overview: Overview, known: Iterable[int]) -> int:
    """Return the first hour that anything is known of."""
    hours = [*known]
    for target in overview.targets:
        for session in target.sessions:
            hours += session.published
    for source in overview.arrivals:
        hours += [cell.event_hour for cell in source.cells]
    return min(hours)


def _runs(standing: TableProgress, target: TargetOverview | None, hours: Collection[int]) -> tuple[Run, ...]:
    marked: dict[int, Completion] = {}
    if target is not None:
        marked |= dict.fromkeys(target.pending, "pending")
        marked |= dict.fromkeys(target.skipped, "skipped")
        marked |= dict.fromkeys([held.hour for held in target.held], "held")

    def state_of(hour: int) -> Completion:
        through = standing.complete_through
        is_complete = through is not None and hour <= through
        return marked.get(hour, "complete" if is_complete else "missing")

    runs = []
    for state, group in groupby(hours, state_of):
        found = list(group)
        runs.append(Run(state, found[0], found[-1]))
    return tuple(runs)


TEMPLATE = "report.html"
MOST_AUDITS = 100
"""The maximum number of failed audits on the page; the newest are shown. `lake report --json` has all of them."""

MOST_CHARTED = 30
"""The maximum number of raw tables with charts: those with most late rows. `lake report --json` has all of them."""

WARNING = "warning"
MEANINGS = {
    "complete": "complete",
    "pending": "changed, to be rebuilt",
    "skipped": "skipped: beyond the catch-up threshold",
    "held": "held back by an audit",
    "missing": "not complete yet",
}
"""What the colours of a strip of hours mean."""


@dataclass(frozen=True)
class Chart:
    """A chart with its heading.

    Args:
        title: The heading.
        figure: None if there is nothing to show.
        note: A line above the chart.
        instead: The text to show if there is no figure.
    """

    title: str
    figure: Figure | None
    note: str = ""
    instead: str = "No rows yet."


@dataclass(frozen=True)
class Section:
    """A part of the page with charts."""

    title: str
    explanation: str
    charts: tuple[Chart, ...]


@dataclass(frozen=True)
class Card:
    """One number at the top of the page, and its meaning."""

    value: str
    label: str
    bad: bool = False


@dataclass(frozen=True)
class FailedAudit:
    """One audit that failed in a session, as text. at: when the session was planned."""

    table: str
    session: str
    at: datetime
    audit: str
    verdict: str
    counts: str
    sample: str


def page(overview: Overview, path: DataPath | None = None, verdict: Verdict | None = None) -> str:
    """Return the whole page.

    Args:
        overview: What the tables show.
        path: The data path; None leaves it out.
        verdict: The line that the page begins with; None leaves it out.
    """
    sections = list(_sections(overview))
    figures = []
    for section in sections:
        figures += [chart.figure for chart in section.charts if chart.figure]
    failed = sorted(_failed_audits(overview), key=lambda audit: audit.at, reverse=True)
    return pages.render(
        TEMPLATE,
        _FILTERS,
        overview=overview,
        path=path,
        verdict=verdict,
        completeness=completeness(overview),
        meanings=MEANINGS,
        not_timed=_not_timed(overview),
        cards=list(_cards(overview)),
        sections=sections,
        failed=failed[:MOST_AUDITS],
        failed_before=len(failed[MOST_AUDITS:]),
        figures=figures,
    )


def _not_timed(overview: Overview) -> list[str]:
    """Return the raw tables whose lateness is not known, although they can be read."""
    timed = {source.table for source in overview.arrivals}
    found = []
    for standing in overview.standings:
        if standing.kind == "raw" and standing.problem is None and standing.table not in timed:
            found.append(standing.table)
    return found


def _sections(overview: Overview) -> Iterator[Section]:
    yield Section(
        "When rows arrive",
        "Each cell counts the rows of one event hour (across) that landed in one hour (up). Rows on the diagonal are "
        "on time, rows above it are late." + _not_charted(overview),
        tuple(_heat_maps(overview)),
    )
    yield Section(
        "How late they are",
        "Lateness is the time from a row's event time to its landing, shown by landing hour. "
        "Percentiles have an error of at most 1/128." + _not_charted(overview),
        tuple(Chart(source.table, charts.lateness(source) if source.cells else None) for source in _charted(overview)),
    )
    yield Section(
        "Sessions",
        "Each bar is a session from its planning to its end, one line for each target. "
        "Very short sessions are drawn wider than they were.",
        (_sessions(overview),),
    )


def _charted(overview: Overview) -> list[Arrivals]:
    """Return the raw tables with charts of their own, those of the latest rows, in the order of the overview."""
    p95 = {source.table: source.overall.p95_seconds for source in overview.arrivals if source.overall}
    latest_first = sorted(overview.arrivals, key=lambda source: (-p95.get(source.table, 0), -source.rows))
    charted = {source.table for source in latest_first[:MOST_CHARTED]}
    return [source for source in overview.arrivals if source.table in charted]


def _not_charted(overview: Overview) -> str:
    left_out = len(overview.arrivals) - MOST_CHARTED
    if left_out <= 0:
        return ""
    return f" Shown are the {MOST_CHARTED} raw tables with most late rows; `lake report --json` has {left_out} more."


def _heat_maps(overview: Overview) -> Iterator[Chart]:
    for source in _charted(overview):
        note = f"{source.rows:,} rows"
        if source.unplaced:
            note += f"; {source.unplaced:,} without a usable time are not shown"
        yield Chart(source.table, charts.heat_map(source) if source.cells else None, note)


def _sessions(overview: Overview) -> Chart:
    figure = None
    if any(target.sessions for target in overview.targets):
        figure = charts.sessions(overview.targets, overview.made_at)
    return Chart("Sessions over time", figure, instead="No session yet.")


def _cards(overview: Overview) -> Iterator[Card]:
    yield Card(f"{sum(source.rows for source in overview.arrivals):,}", "rows landed")
    sessions = [session for target in overview.targets for session in target.sessions]
    yield Card(f"{sum(len(session.published) for session in sessions):,}", "hours rebuilt")
    yield Card(charts.duration(sum(session.seconds or 0.0 for session in sessions)), "in sessions")
    failed = list(_failed_audits(overview))
    warnings = sum(audit.verdict == WARNING for audit in failed)
    blocked = len(failed) - warnings
    yield Card(f"{blocked:,}", f"failed blocking audits; {warnings:,} warnings", bad=blocked > 0)
    suspect = sum(target.problem is not None for target in overview.targets)
    yield Card(f"{suspect:,}", "targets that others have changed, replaced or dropped", bad=suspect > 0)
    quarantined = 0
    for target in overview.targets:
        quarantined += sum(found.rows for found in target.quarantine)
    yield Card(f"{quarantined:,}", "rows in quarantine", bad=quarantined > 0)


def _failed_audits(overview: Overview) -> Iterator[FailedAudit]:
    for target in overview.targets:
        for session in target.sessions:
            for audit in session.failed_audits:
                yield _failed_audit(target, session, audit)


def _failed_audit(target: TargetOverview, session: SessionRecord, audit: AuditResult) -> FailedAudit:
    verdict = WARNING
    if audit.blocking:
        verdict = "stopped the session" if session.state == "blocked" else "held hours back"
    return FailedAudit(
        table=target.table,
        session=session.plan.session_id,
        at=session.started_at,
        audit=audit.name,
        verdict=verdict,
        counts=", ".join(f"{count:,} {name}" for name, count in audit.counts.items()),
        sample=", ".join(audit.sample),
    )


_FILTERS: dict[str, Callable[..., str]] = {
    "hour": lambda hour: "–" if hour is None else hour_key(hour),
    "hours": lambda hours: format_hours(hours) or "–",
    "duration": charts.duration,
    "marked": pages.marked,
}
