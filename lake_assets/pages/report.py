"""`lake report` as one HTML page: the data path, figures, charts and tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from lake_assets.base.hours import format_hours, hour_key
from lake_assets.incremental.engine.arrivals import Arrivals
from lake_assets.incremental.engine.model import AuditResult
from lake_assets.incremental.operations.overview import Overview, SessionSummary, TargetOverview
from lake_assets.pages import charts
from lake_assets.pages import page as pages
from lake_assets.pages.charts import Figure
from lake_assets.pages.completeness import completeness
from lake_assets.pages.data_path.stages import DataPath
from lake_assets.pages.verdict import Verdict

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
        tuple(_lateness(overview)),
    )
    yield Section(
        "Sessions",
        "Each bar is a session from its planning to its end, one line for each target. "
        "Very short sessions are drawn wider than they were.",
        (_sessions(overview),),
    )


def _charted(overview: Overview) -> list[Arrivals]:
    """Return the raw tables with charts of their own, in the order of the overview."""
    latest_first = sorted(overview.arrivals, key=lambda source: (-source.rows_beyond_lookback, -source.rows))
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


def _lateness(overview: Overview) -> Iterator[Chart]:
    for source in _charted(overview):
        yield Chart(source.table, charts.lateness(source) if source.cells else None)


def _sessions(overview: Overview) -> Chart:
    figure = None
    if any(target.sessions for target in overview.targets):
        figure = charts.sessions(overview.targets, overview.made_at)
    return Chart("Sessions over time", figure, instead="No session yet.")


def _cards(overview: Overview) -> Iterator[Card]:
    yield from _arrival_cards(overview)
    sessions = [session for target in overview.targets for session in target.sessions]
    yield Card(f"{sum(len(session.built) for session in sessions):,}", "hours rebuilt")
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


def _arrival_cards(overview: Overview) -> Iterator[Card]:
    rows = sum(source.rows for source in overview.arrivals)
    beyond = sum(source.rows_beyond_lookback for source in overview.arrivals)
    yield Card(f"{rows:,}", "rows landed")
    yield Card(f"{beyond:,}", f"rows later than a {overview.lookback_hours}-hour lookback")


def _failed_audits(overview: Overview) -> Iterator[FailedAudit]:
    for target in overview.targets:
        for session in target.sessions:
            for audit in session.failed_audits:
                yield _failed_audit(target, session, audit)


def _failed_audit(target: TargetOverview, session: SessionSummary, audit: AuditResult) -> FailedAudit:
    verdict = WARNING
    if audit.blocking:
        verdict = "stopped the session" if session.state == "blocked" else "held hours back"
    return FailedAudit(
        table=target.table,
        session=session.session_id,
        at=session.started_at,
        audit=audit.name,
        verdict=verdict,
        counts=", ".join(f"{count:,} {name}" for name, count in audit.counts.items()),
        sample=", ".join(audit.sample),
    )


def _hour(hour: int | None) -> str:
    return "–" if hour is None else hour_key(hour)


def _hours(hours: Iterable[int]) -> str:
    return format_hours(hours) or "–"


_FILTERS: dict[str, Callable[..., str]] = {
    "hour": _hour,
    "hours": _hours,
    "duration": charts.duration,
    "marked": pages.marked,
}
