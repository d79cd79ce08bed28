"""The charts of the report: values in, plotly figures out. No colour of text or ground: the page knows its theme.

All text goes through `text`: plotly reads a subset of HTML in labels and hovers, and values may hold anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from html import escape
from math import log10
from typing import Any

import plotly.graph_objects as go

from lake_assets.base.hours import format_hours, hour_start
from lake_assets.incremental.monitoring.overview import TargetOverview
from lake_assets.incremental.monitoring.session_costs import SessionCost
from lake_assets.incremental.planning.lateness import Arrivals

Figure = dict[str, Any]
"""A plotly figure as JSON has it: `data` and `layout`."""

MOST_BINS = 200
"""Of one axis of a heat map: more cannot be told apart, and the page would grow with their square."""

BIN_HOURS = (1, 2, 3, 6, 12, 24, 48, 168, 720)
MOST_WORDS = 300
"""Characters of one hover line."""

BLUE, TEAL, AMBER, RED, GREY, VIOLET = "#4c8fd6", "#2fa39a", "#dd9a33", "#dc5a49", "#8b93a0", "#8d7bd8"
STATES = {
    "committed": TEAL,
    "published": BLUE,
    "staged": VIOLET,
    "planned": AMBER,
    "blocked": RED,
    "abandoned": GREY,
}
LEAST_WIDTH = 0.004
"""Of a bar, as a share of all the time shown: a session takes a second of a week."""

_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_LATENESS_TICKS = {1: "1 s", 10: "10 s", _MINUTE: "1 min", 5 * _MINUTE: "5 min", 20 * _MINUTE: "20 min"}
_LATENESS_TICKS |= {_HOUR: "1 h", 3 * _HOUR: "3 h", 8 * _HOUR: "8 h", _DAY: "1 d", 7 * _DAY: "7 d", 30 * _DAY: "30 d"}


def text(value: object) -> str:
    """A value for plotly, cut to a line's length and escaped."""
    words = str(value)
    return escape(words if len(words) <= MOST_WORDS else f"{words[:MOST_WORDS]}…")


def duration(seconds: float | None) -> str:
    """Seconds for people: `42 s`, `1 h 05 min`, `3 d 4 h`."""
    if seconds is None:
        return "–"
    sign, size = ("-" if seconds < 0 else ""), abs(seconds)
    if size < _MINUTE:
        return f"{sign}{size:.3g} s"
    minutes = int(size // _MINUTE)
    if size < _HOUR:
        return f"{sign}{minutes} min"
    if size < _DAY:
        return f"{sign}{minutes // 60} h {minutes % 60:02} min"
    return f"{sign}{int(size // _DAY)} d {int(size % _DAY // _HOUR)} h"


def heat_map(arrivals: Arrivals) -> Figure:
    """Rows by event hour (across) and landing hour (up), on a logarithmic scale; long spans in wider bins."""
    events, landed = [c.event_hour for c in arrivals.cells], [c.landed_hour for c in arrivals.cells]
    width = bin_hours(max(max(axis) - min(axis) + 1 for axis in (events, landed)))
    bins: Counter[tuple[int, int]] = Counter()
    for cell in arrivals.cells:
        bins[cell.landed_hour // width, cell.event_hour // width] += cell.rows
    across, up = (range(min(axis) // width, max(axis) // width + 1) for axis in (events, landed))
    rows = [[bins.get((y, x)) for x in across] for y in up]
    trace = go.Heatmap(
        x=[_time(x * width) for x in across],
        y=[_time(y * width) for y in up],
        z=[[None if n is None else log10(n) for n in line] for line in rows],
        customdata=rows,
        hovertemplate="happened %{x|%b %d %H:%M}<br>landed %{y|%b %d %H:%M}<br>"
        "<b>%{customdata:,} rows</b><extra></extra>",
        colorbar=_row_scale(max(bins.values())),
        hoverongaps=False,
        xgap=0.5,
        ygap=0.5,
    )
    wide = "" if width == 1 else f", {width} hours a bin"
    return _figure([trace], x=f"event hour{wide}", y="landing hour", height=330)


def bin_hours(span: int) -> int:
    """How many hours one bin of a heat map over `span` hours holds."""
    return next((width for width in BIN_HOURS if span / width <= MOST_BINS), -(-span // MOST_BINS))


def lateness(arrivals: Arrivals) -> Figure:
    """p50, p95 and maximum by landing hour, on a logarithmic scale; an hour without rows is a gap."""
    by_hour = {h.landed_hour: h.lateness for h in arrivals.by_landed_hour}
    hours = range(min(by_hour), max(by_hour) + 1)
    traces = []
    for name, colour in (("max", RED), ("p95", AMBER), ("p50", BLUE)):
        values = {h: getattr(known, f"{name}_seconds") for h, known in by_hour.items()}
        told = {h: f"{duration(value)} ({by_hour[h].rows:,} rows)" for h, value in values.items()}
        traces.append(
            go.Scatter(
                x=[_time(h) for h in hours],
                y=[max(values[h], 1) if h in values else None for h in hours],
                name=name,
                mode="lines+markers" if len(hours) <= MOST_BINS else "lines",
                line={"color": colour, "width": 2},
                marker={"size": 4},
                customdata=[told.get(h) for h in hours],
                hovertemplate="%{customdata}",
            )
        )
    figure = _figure(traces, x="landing hour", y="lateness", height=300)
    ticks = {"type": "log", "tickvals": list(_LATENESS_TICKS), "ticktext": list(_LATENESS_TICKS.values())}
    figure["layout"]["yaxis"] |= ticks
    figure["layout"]["hovermode"] = "x unified"
    return figure


def sessions(targets: Sequence[TargetOverview], now: datetime) -> Figure:
    """Each session as a bar from its planning to its end, one line for each target; an open one reaches to now."""
    shown = [(t.table, s, s.ended_at or now) for t in targets for s in t.sessions]
    first, last = min(s.started_at for _, s, _ in shown), max(end for _, _, end in shown)
    least = max((last - first) * LEAST_WIDTH, timedelta(milliseconds=100))
    traces = []
    for state, colour in STATES.items():
        bars = [(table, s, end) for table, s, end in shown if s.state == state]
        if bars:
            trace = go.Bar(
                y=[text(table) for table, _, _ in bars],
                base=[_moment(s.started_at) for _, s, _ in bars],
                x=[max(end - s.started_at, least).total_seconds() * 1000 for _, s, end in bars],
                customdata=[_told(s) for _, s, _ in bars],
                hovertemplate="%{customdata}<extra></extra>",
                orientation="h",
                name=state,
                marker={"color": colour, "line": {"width": 0.5, "color": "rgba(128,128,128,.5)"}},
            )
            traces.append(trace)
    figure = _figure(traces, x="time", y="", height=110 + 42 * len(targets))
    order = [text(t.table) for t in targets]
    figure["layout"]["yaxis"] |= {"categoryorder": "array", "categoryarray": order, "autorange": "reversed"}
    figure["layout"]["xaxis"] |= {"type": "date"}
    figure["layout"] |= {"barmode": "overlay", "bargap": 0.35, "showlegend": True}
    return figure


def saved_hours(targets: Iterable[TargetOverview], lookback_hours: int) -> Figure:
    """Hours that the sessions of each target rebuilt, against those of a fixed lookback; and late ones it misses."""
    kinds = (
        ("rebuilt", TEAL, "hours_rebuilt"),
        (f"a {lookback_hours}-hour lookback", GREY, "lookback_hours"),
        ("late, missed by it", RED, "missed_hours"),
    )
    return _by_target([t for t in targets if t.saving.sessions], kinds, "hours")


def saved_rows(targets: Iterable[TargetOverview], lookback_hours: int) -> Figure:
    """Rows written by the sessions of each target, against those of a fixed lookback."""
    kinds = (("written", TEAL, "rows_written"), (f"a {lookback_hours}-hour lookback", GREY, "lookback_rows"))
    return _by_target([t for t in targets if t.saving.sessions], kinds, "rows")


def _by_target(targets: Sequence[TargetOverview], kinds: Iterable[tuple[str, str, str]], unit: str) -> Figure:
    traces = [
        go.Bar(
            y=[text(t.table) for t in targets],
            x=[getattr(t.saving, field) for t in targets],
            name=name,
            orientation="h",
            marker={"color": colour},
            hovertemplate=f"%{{x:,}} {unit}",
        )
        for name, colour, field in kinds
    ]
    figure = _figure(traces, x=unit, y="", height=110 + 58 * len(targets))
    figure["layout"]["yaxis"] |= {"autorange": "reversed"}
    figure["layout"] |= {"hovermode": "y unified", "bargap": 0.3}
    return figure


def _told(session: SessionCost) -> str:
    """One session for its hover."""
    hours = format_hours(session.built or session.planned) or "no hours"
    lines = [
        f"<b>{text(session.session_id)}</b>: {text(session.state)}",
        f"{text(session.load)} {text(hours)}",
        f"{session.rows_read:,} rows read, {session.rows_written:,} written, {duration(session.seconds)}",
    ]
    if session.lookback:
        lines.append(f"a lookback: {len(session.lookback)} hours, {session.lookback_rows:,} rows")
    if session.missed:
        lines.append(f"missed by it: {text(format_hours(session.missed))}")
    lines += [f"failed: {text(a.name)}" for a in session.failed_audits]
    return "<br>".join([*lines, f"because of {text(session.reason)}"])


def _row_scale(most: int) -> dict[str, Any]:
    powers = range(len(str(most)))
    ticks = {"tickvals": list(powers), "ticktext": [f"{10**p:,}" for p in powers]}
    return {"title": {"text": "rows"}, "thickness": 12, "outlinewidth": 0, **ticks}


def _figure(traces: Sequence[Any], *, x: str, y: str, height: int) -> Figure:
    axis = {"automargin": True}
    layout = {
        "height": height,
        "margin": {"l": 10, "r": 10, "t": 30, "b": 10},
        "xaxis": {**axis, "title": {"text": x}},
        "yaxis": {**axis, "title": {"text": y}},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
    }
    return {"data": [trace.to_plotly_json() for trace in traces], "layout": layout}


def _time(hour: int) -> str:
    return _moment(hour_start(hour))


def _moment(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
