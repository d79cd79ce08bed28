"""Windows in which streams write: their overlaps and conflicts, and a chart of them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from lake_assets.coordination import ANY
from lake_assets.engagement.lake import STREAMS, StreamName
from lake_assets.engagement.turn_order import PREDECESSORS
from lake_assets.pages.charts import AMBER, BLUE, RED, TEAL, VIOLET

COLOURS: Mapping[StreamName, str] = {"ingestion": BLUE, "mutation": TEAL, "retention": VIOLET}
SHADE = {"fillcolor": AMBER, "opacity": 0.2, "line_width": 0, "layer": "below"}
SIZE = (1200, 560)
"""Of the picture, in pixels."""


@dataclass(frozen=True)
class Window:
    """One turn of a stream, from when it may write to its end.

    Attributes:
        stream: The stream.
        began: Start in seconds, inclusive.
        ended: End in seconds, exclusive.
        conflict: Delta's error class if another commit stopped it; otherwise None.
        rows: Number of rows that its data commit changed.
        predecessor: The stream that ran last, from the coordinator; None if none did, or without a coordinator.
    """

    stream: StreamName
    began: float
    ended: float
    conflict: str | None = None
    rows: int = 0
    predecessor: str | None = None


def overlaps(windows: Sequence[Window]) -> list[tuple[float, float]]:
    """Return the period of each overlap: one for each pair of overlapping windows of two streams, by start."""
    ordered = sorted(windows, key=lambda window: window.began)
    found = []
    for one, other in combinations(ordered, 2):
        overlaps_in_time = other.began < one.ended
        if overlaps_in_time and one.stream != other.stream:
            found.append((other.began, min(one.ended, other.ended)))
    return found


def disorders(windows: Sequence[Window]) -> int:
    """Return the number of windows whose predecessor is another stream than the turn order requires."""
    count = 0
    for window in windows:
        required = PREDECESSORS[window.stream]
        if required != ANY and window.predecessor not in (None, required):
            count += 1
    return count


def conflicts(windows: Sequence[Window]) -> int:
    """Return the number of windows that another commit stopped."""
    return sum(window.conflict is not None for window in windows)


def drawn(sides: Mapping[str, Sequence[Window]]) -> go.Figure:
    """Return a chart with a line for each stream of each side, in seconds since its first window.

    Overlaps are shaded. A cross marks the end of a window that a conflict stopped.
    """
    titles = [f"{side}: {summary(windows)}" for side, windows in sides.items()]
    figure = make_subplots(rows=len(sides), subplot_titles=titles, vertical_spacing=0.2)
    for row, windows in enumerate(sides.values(), start=1):
        _add_side(figure, windows, row, is_last=row == len(sides))
    width, height = SIZE
    figure.update_layout(width=width, height=height, barmode="overlay", template="plotly_white", bargap=0.25)
    figure.update_yaxes(categoryorder="array", categoryarray=STREAMS[::-1])
    figure.update_xaxes(title_text="seconds", row=len(sides), col=1)
    return figure


def summary(windows: Sequence[Window]) -> str:
    """Return the counts of a side in one line."""
    rows = sum(window.rows for window in windows)
    counts = (
        f"{len(windows)} windows",
        f"{len(overlaps(windows))} overlaps",
        f"{disorders(windows)} out of order",
        f"{conflicts(windows)} conflicting commits",
        f"{rows:,} rows written",
    )
    return ", ".join(counts)


def _add_side(figure: go.Figure, windows: Sequence[Window], row: int, *, is_last: bool) -> None:
    zero = min((window.began for window in windows), default=0.0)
    for stream in STREAMS:
        own = [window for window in windows if window.stream == stream]
        figure.add_trace(_bars(stream, own, zero, shown=row == 1), row, 1)
    stopped = [window for window in windows if window.conflict]
    figure.add_trace(_crosses(stopped, zero, shown=is_last), row, 1)
    # plotly drops shapes of a plot without traces, so these come last.
    for begin, end in overlaps(windows):
        figure.add_vrect(begin - zero, end - zero, row=row, col=1, **SHADE)


def _bars(stream: StreamName, windows: Sequence[Window], zero: float, *, shown: bool) -> go.Bar:
    return go.Bar(
        y=[stream] * len(windows),
        base=[window.began - zero for window in windows],
        x=[window.ended - window.began for window in windows],
        customdata=[f"{window.rows:,} rows" for window in windows],
        hovertemplate="%{base:.1f} s, %{x:.1f} s long<br>%{customdata}",
        orientation="h",
        name=stream,
        legendgroup=stream,
        showlegend=shown,
        marker={"color": COLOURS[stream], "line": {"width": 0.5, "color": "white"}},
    )


def _crosses(windows: Sequence[Window], zero: float, *, shown: bool) -> go.Scatter:
    return go.Scatter(
        x=[window.ended - zero for window in windows],
        y=[window.stream for window in windows],
        mode="markers",
        name="conflict",
        showlegend=shown,
        marker={"symbol": "x", "size": 9, "color": RED},
        hovertext=[window.conflict for window in windows],
    )
