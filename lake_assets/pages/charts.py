"""The charts of the pages: values in, plotly figures and drawings out. The page sets colours of text and background.

All text goes through `text`, because plotly reads a subset of HTML in labels and hovers, and values may hold anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from html import escape
from math import log10
from typing import Any

import plotly.graph_objects as go

from lake_assets.base.hours import format_hours, hour_start
from lake_assets.incremental.engine.arrivals import Arrivals
from lake_assets.incremental.engine.session_log import SessionRecord
from lake_assets.incremental.operations.overview import TargetOverview

WIDTH = 72
"""The number of characters of a line, in addition to its name."""

TAKEN, FREE = "█", "·"


@dataclass(frozen=True)
class TakenTurn:
    """A turn. began, ended: in seconds, by one clock; the end is exclusive."""

    stream: str
    began: float
    ended: float


def turn_lines(turns: Sequence[TakenTurn], names: Sequence[str]) -> list[str]:
    """Return a line for each stream, in which a block stands for the time of its turns, and one with the scale.

    A turn has at least one block, so a short one may seem to touch its neighbours.

    Args:
        turns: At least one.
        names: The streams, in the order of their lines.
    """
    start = min(turn.began for turn in turns)
    length = max(turn.ended for turn in turns) - start
    indent = max(len(name) for name in names)
    lines = []
    for name in names:
        cells = [FREE] * WIDTH
        for turn in turns:
            if turn.stream == name:
                first = _cell(turn.began - start, length)
                last = max(first, _cell(turn.ended - start, length) - 1)
                cells[first : last + 1] = TAKEN * (last + 1 - first)
        lines.append(f"{name:<{indent}} {''.join(cells)}")
    return [*lines, f"{'':<{indent}} 0 s{f'{length:.0f} s':>{WIDTH - 3}}"]


def _cell(seconds: float, length: float) -> int:
    if not length:
        return 0
    return min(int(seconds / length * WIDTH), WIDTH - 1) if seconds < length else WIDTH


Figure = dict[str, Any]
"""A plotly figure as JSON: `data` and `layout`."""

MOST_BINS = 200
"""The maximum number of bins on an axis of a heat map. The size of the page grows with its square."""

BIN_HOURS = (1, 2, 3, 6, 12, 24, 48, 168, 720)
"""The widths of the bins of a heat map."""

MOST_CHARACTERS = 300
"""The maximum length of a label or of a hover line."""

BLUE = "#4c8fd6"
TEAL = "#2fa39a"
AMBER = "#dd9a33"
RED = "#dc5a49"
GREY = "#8b93a0"
VIOLET = "#8d7bd8"
STATES = {
    "committed": TEAL,
    "published": BLUE,
    "staged": VIOLET,
    "planned": AMBER,
    "blocked": RED,
    "abandoned": GREY,
}
PERCENTILES = (("max", RED), ("p95", AMBER), ("p50", BLUE))

LEAST_WIDTH = 0.004
"""The minimum width of a bar as a share of the time shown: a session may take a second of a week."""

LEAST_BAR = timedelta(milliseconds=100)
MILLISECONDS = 1000

_MINUTE = 60
_HOUR = 60 * _MINUTE
_DAY = 24 * _HOUR
_LATENESS_TICKS = {
    1: "1 s",
    10: "10 s",
    _MINUTE: "1 min",
    5 * _MINUTE: "5 min",
    20 * _MINUTE: "20 min",
    _HOUR: "1 h",
    3 * _HOUR: "3 h",
    8 * _HOUR: "8 h",
    _DAY: "1 d",
    7 * _DAY: "7 d",
    30 * _DAY: "30 d",
    100 * _DAY: "100 d",
    365 * _DAY: "1 y",
    3 * 365 * _DAY: "3 y",
    10 * 365 * _DAY: "10 y",
    50 * 365 * _DAY: "50 y",
}

LEAST_BINS = 12
"""The minimum length of an axis of hours, in bins: plotly would show a single hour in microseconds."""


@dataclass(frozen=True)
class _Bar:
    table: str
    session: SessionRecord
    end: datetime


def text(value: object) -> str:
    """Return a value for plotly: escaped, and cut if it is long."""
    words = str(value)
    if len(words) > MOST_CHARACTERS:
        words = f"{words[:MOST_CHARACTERS]}…"
    return escape(words)


def duration(seconds: float | None) -> str:
    """Return seconds as text: `42 s`, `1 h 05 min`, `3 d 4 h`; a dash for None."""
    if seconds is None:
        return "–"
    sign = "-" if seconds < 0 else ""
    size = abs(seconds)
    if size < _MINUTE:
        return f"{sign}{size:.3g} s"
    minutes = int(size // _MINUTE)
    if size < _HOUR:
        return f"{sign}{minutes} min"
    if size < _DAY:
        return f"{sign}{minutes // 60} h {minutes % 60:02} min"
    return f"{sign}{int(size // _DAY)} d {int(size % _DAY // _HOUR)} h"


def heat_map(arrivals: Arrivals) -> Figure:
    """Draw rows by event hour (horizontal) and landing hour (vertical) on a logarithmic scale, in bins of hours."""
    event_hours = [cell.event_hour for cell in arrivals.cells]
    landed_hours = [cell.landed_hour for cell in arrivals.cells]
    width = bin_hours(max(_span(event_hours), _span(landed_hours)))
    bins: Counter[tuple[int, int]] = Counter()  # landed bin and event bin → rows
    for cell in arrivals.cells:
        bins[cell.landed_hour // width, cell.event_hour // width] += cell.rows
    across, up = _bins(event_hours, width), _bins(landed_hours, width)
    rows = []
    for landed_bin in up:
        rows.append([bins.get((landed_bin, event_bin)) for event_bin in across])
    trace = go.Heatmap(
        x0=_moment(hour_start(across.start * width)),
        dx=width * _HOUR * MILLISECONDS,
        y0=_moment(hour_start(up.start * width)),
        dy=width * _HOUR * MILLISECONDS,
        z=[[None if count is None else log10(count) for count in line] for line in rows],
        customdata=rows,
        hovertemplate="happened %{x|%b %d %H:%M}<br>landed %{y|%b %d %H:%M}<br>"
        "<b>%{customdata:,} rows</b><extra></extra>",
        colorbar=_row_scale(max(bins.values())),
        hoverongaps=False,
        xgap=0.5,
        ygap=0.5,
    )
    unit = "" if width == 1 else f", in bins of {width} hours"
    figure = _figure([trace], x=f"event hour{unit}", y="", height=330)
    figure["layout"]["xaxis"] |= _hour_axis(across, width)
    figure["layout"]["yaxis"] |= _hour_axis(up, width)
    return figure


def bin_hours(span: int) -> int:
    """Return the width of a bin, in hours, of a heat map that shows `span` hours."""
    for width in BIN_HOURS:
        if span <= width * MOST_BINS:
            return width
    return -(-span // MOST_BINS)


def lateness(arrivals: Arrivals) -> Figure:
    """Draw p50, p95 and maximum by landing hour on a logarithmic scale. An hour without rows is a gap."""
    by_hour = {found.landed_hour: found.lateness for found in arrivals.by_landed_hour}
    hours = range(min(by_hour), max(by_hour) + 1)
    traces = []
    for name, colour in PERCENTILES:
        values: list[float | None] = []
        labels: list[str | None] = []
        for hour in hours:
            known = by_hour.get(hour)
            seconds = getattr(known, f"{name}_seconds") if known else None
            values.append(None if seconds is None else max(seconds, 1))
            labels.append(f"{duration(seconds)} ({known.rows:,} rows)" if known else None)
        trace = go.Scatter(
            x=[_moment(hour_start(hour)) for hour in hours],
            y=values,
            name=name,
            mode="lines+markers" if len(hours) <= MOST_BINS else "lines",
            line={"color": colour, "width": 2},
            marker={"size": 4 if len(hours) > LEAST_BINS else 7},
            customdata=labels,
            hovertemplate="%{customdata}",
        )
        traces.append(trace)
    figure = _figure(traces, x="landing hour", y="", height=300)
    drawn = [value for trace in traces for value in trace.y if value is not None]
    least, most = log10(min(drawn, default=1)), log10(max(drawn, default=1))
    figure["layout"]["xaxis"] |= _hour_axis(hours)
    figure["layout"]["yaxis"] |= {
        "type": "log",
        "range": [least - 0.5, most + 0.5],  # at least one decade, so that a label is in it
        "tickvals": list(_LATENESS_TICKS),
        "ticktext": list(_LATENESS_TICKS.values()),
    }
    figure["layout"]["hovermode"] = "x unified"
    return figure


def sessions(targets: Sequence[TargetOverview], now: datetime) -> Figure:
    """Draw each session as a bar from its planning to its end, one line for each target.

    Args:
        targets: At least one of them has a session.
        now: The end of the bars of open sessions.
    """
    bars = _bars(targets, now)
    first = min(bar.session.started_at for bar in bars)
    last = max(bar.end for bar in bars)
    least = max((last - first) * LEAST_WIDTH, LEAST_BAR)
    traces = []
    for state in STATES:
        of_state = [bar for bar in bars if bar.session.state == state]
        if of_state:
            traces.append(_session_bars(state, of_state, least))
    figure = _figure(traces, x="time", y="", height=110 + 42 * len(targets))
    figure["layout"]["yaxis"] |= {
        "categoryorder": "array",
        "categoryarray": [text(target.table) for target in targets],
        "autorange": "reversed",
    }
    figure["layout"]["xaxis"] |= {"type": "date"}
    figure["layout"] |= {"barmode": "overlay", "bargap": 0.35, "showlegend": True}
    return figure


def _bars(targets: Iterable[TargetOverview], now: datetime) -> list[_Bar]:
    bars = []
    for target in targets:
        for session in target.sessions:
            bars.append(_Bar(target.table, session, session.ended_at or now))
    return bars


def _session_bars(state: str, bars: Sequence[_Bar], least: timedelta) -> go.Bar:
    widths = [max(bar.end - bar.session.started_at, least) for bar in bars]
    return go.Bar(
        y=[text(bar.table) for bar in bars],
        base=[_moment(bar.session.started_at) for bar in bars],
        x=[width.total_seconds() * MILLISECONDS for width in widths],
        customdata=[_session_label(bar.session) for bar in bars],
        hovertemplate="%{customdata}<extra></extra>",
        orientation="h",
        name=state,
        marker={"color": STATES[state], "line": {"width": 0.5, "color": "rgba(128,128,128,.5)"}},
    )


def _session_label(session: SessionRecord) -> str:
    plan = session.plan
    hours = format_hours(session.published or plan.hour_numbers) or "no hours"
    lines = [
        f"<b>{text(plan.session_id)}</b>: {text(session.state)}",
        f"{text(plan.load)} {text(hours)}",
        f"{session.rows_read:,} rows read, {session.rows_written:,} written, {duration(session.seconds)}",
    ]
    for audit in session.failed_audits:
        lines.append(f"failed: {text(audit.name)}")
    lines.append(f"because of {text(plan.reason)}")
    return "<br>".join(lines)


def _row_scale(most: int) -> dict[str, Any]:
    powers = range(len(str(most)))
    return {
        "title": {"text": "rows"},
        "thickness": 12,
        "outlinewidth": 0,
        "tickvals": list(powers),
        "ticktext": [f"{10**power:,}" for power in powers],
    }


def _figure(traces: Sequence[Any], *, x: str, y: str, height: int) -> Figure:
    layout = {
        "height": height,
        "margin": {"l": 10, "r": 10, "t": 30, "b": 10},
        "xaxis": {"automargin": True, "title": {"text": x}},
        "yaxis": {"automargin": True, "title": {"text": y}},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
    }
    return {"data": [trace.to_plotly_json() for trace in traces], "layout": layout}


def _span(hours: Sequence[int]) -> int:
    return max(hours) - min(hours) + 1


def _bins(hours: Sequence[int], width: int) -> range:
    return range(min(hours) // width, max(hours) // width + 1)


def _hour_axis(bins: range, width: int = 1) -> Figure:
    """Return the attributes of an axis that shows these bins of `width` hours, and some beside them if they are few."""
    more = max(0, LEAST_BINS - len(bins))
    # Half a bin at each end, because a value is drawn in the middle of its bin.
    edges = ((bins.start - more // 2) * width - width / 2, (bins.stop + (more + 1) // 2) * width - width / 2)
    return {"type": "date", "range": [_moment(hour_start(0) + timedelta(hours=edge)) for edge in edges]}


def _moment(time: datetime) -> str:
    return time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
