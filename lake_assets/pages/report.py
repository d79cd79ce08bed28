"""The report as one HTML page: figures and tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lake_assets.base.hours import format_hours, hour_key
from lake_assets.incremental.monitoring.overview import Overview
from lake_assets.pages import charts
from lake_assets.pages import page as pages
from lake_assets.pages.charts import Figure
from lake_assets.pages.data_path.stages import DataPath

TEMPLATE = "report.html"
MOST_AUDITS = 100
"""Failed audits that are listed, the newest: `lake report --json` has them all."""


@dataclass(frozen=True)
class Chart:
    """One chart with its heading. figure: None when there is nothing to show; `instead` says so."""

    title: str
    figure: Figure | None
    note: str = ""
    instead: str = "No rows yet."


@dataclass(frozen=True)
class Card:
    """One figure of the page's head, and what it means."""

    value: str
    label: str
    bad: bool = False


def write(overview: Overview, file: Path, path: DataPath | None = None) -> Path:
    """Write the page; its absolute path. Its folder is made when missing; an older page is replaced."""
    return pages.write(page(overview, path), file)


def page(overview: Overview, path: DataPath | None = None) -> str:
    """The whole page. path: shown on top of it, if it is known."""
    sections = list(_sections(overview))
    failed = sorted(_failed_audits(overview), key=lambda audit: str(audit["at"]), reverse=True)
    return pages.render(
        TEMPLATE,
        _FILTERS,
        overview=overview,
        path=path,
        cards=list(_cards(overview)),
        sections=sections,
        failed=failed[:MOST_AUDITS],
        failed_before=len(failed[MOST_AUDITS:]),
        newest=max((s.complete_through for s in overview.standings if s.complete_through is not None), default=None),
        figures=[c.figure for _, _, found in sections for c in found if c.figure],
    )


def _sections(overview: Overview) -> Iterator[tuple[str, str, list[Chart]]]:
    """Title, explanation and charts of each part."""
    hours = overview.lookback_hours
    yield (
        "When rows arrive",
        "Each cell: rows of one event hour that landed in one hour. On time is the diagonal; what is above it is late.",
        [Chart(a.table, charts.heat_map(a) if a.cells else None, _came(a.rows, a.unplaced)) for a in overview.arrivals],
    )
    yield (
        "How late they are",
        "From a row's own time to its landing, by landing hour. Percentiles are right to within 1/128.",
        [Chart(a.table, charts.lateness(a) if a.cells else None) for a in overview.arrivals],
    )
    built, none = any(t.saving.sessions for t in overview.targets), "No session has built an hour yet."
    any_session = any(t.sessions for t in overview.targets)
    yield (
        "Sessions",
        "From planning to the end, one line for each target. Very short ones are drawn wider than they were.",
        [
            Chart(
                "Sessions over time",
                charts.sessions(overview.targets, overview.made_at) if any_session else None,
                instead="No session yet.",
            )
        ],
    )
    yield (
        "What catching up cost, and what it saved",
        f"Against a lookback that, at each session, reprocesses the last {hours} hours and all that are new. "
        "Its rows are those that the target has now. Rebuilds that a person asked for are left out.",
        [
            Chart("Hours", charts.saved_hours(overview.targets, hours) if built else None, instead=none),
            Chart("Rows", charts.saved_rows(overview.targets, hours) if built else None, instead=none),
        ],
    )


def _cards(overview: Overview) -> Iterator[Card]:
    savings = [t.saving for t in overview.targets]
    beyond = sum(a.rows_beyond_lookback for a in overview.arrivals)
    failed = [a for t in overview.targets for s in t.sessions for a in s.failed_audits]
    blocking, aside = sum(a.blocking for a in failed), sum(q.rows for t in overview.targets for q in t.quarantine)
    yield Card(f"{sum(a.rows for a in overview.arrivals):,}", "rows landed")
    yield Card(f"{beyond:,}", f"rows beyond a {overview.lookback_hours}-hour lookback", bad=beyond > 0)
    yield Card(f"{sum(s.hours_rebuilt for s in savings):,}", "hours rebuilt")
    yield Card(f"{sum(s.hours_saved for s in savings):,}", f"hours saved of {sum(s.lookback_hours for s in savings):,}")
    yield Card(f"{sum(s.missed_hours for s in savings):,}", "late hours that a lookback would have missed")
    yield Card(charts.duration(sum(s.seconds for s in savings)), "in sessions")
    yield Card(f"{blocking:,}", f"times an audit blocked; {len(failed) - blocking:,} warnings", bad=blocking > 0)
    yield Card(f"{aside:,}", "rows in quarantine", bad=aside > 0)


def _failed_audits(overview: Overview) -> Iterator[dict[str, object]]:
    for target in overview.targets:
        for session in target.sessions:
            for audit in session.failed_audits:
                yield {
                    "table": target.table,
                    "session": session.session_id,
                    "at": session.started_at,
                    "audit": audit.name,
                    "verdict": _effect(session.state) if audit.blocking else "warning",
                    "counts": _counted(audit.counts.items()),
                    "sample": ", ".join(audit.sample),
                }


def _effect(state: str) -> str:
    """What a blocking audit that failed did to a session."""
    return "blocked it" if state == "blocked" else "held hours back"


def _counted(counts: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts)


def _came(rows: int, unplaced: int) -> str:
    return f"{rows:,} rows" + (f"; {unplaced:,} without a usable time are left out" if unplaced else "")


def _hour(hour: int | None) -> str:
    return "–" if hour is None else hour_key(hour)


def _hours(hours: Iterable[int]) -> str:
    return format_hours(hours) or "–"


_FILTERS: dict[str, Callable[..., str]] = {"hour": _hour, "hours": _hours, "duration": charts.duration}
