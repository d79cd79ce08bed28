"""Windows in which streams wrote: whether they met, what conflicted, and all of it as a picture. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from lake_assets.coordination import ANY
from lake_assets.engagement.model.lake import STREAMS, StreamName
from lake_assets.engagement.model.turn_order import PREDECESSORS
from lake_assets.pages.charts import AMBER, BLUE, RED, TEAL, VIOLET

COLOURS: Mapping[StreamName, str] = {"ingestion": BLUE, "mutation": TEAL, "retention": VIOLET}
SHADE = {"fillcolor": AMBER, "opacity": 0.2, "line_width": 0, "layer": "below"}
SIZE = (1200, 560)
"""Of the picture, in pixels."""


@dataclass(frozen=True)
class Window:
    """One turn of a stream, from when it may write to its end. began, ended: seconds; ended is exclusive.

    conflict: the error class of Delta that stopped it; None if nothing did. rows: what its data commit changed.
    predecessor: who ran last, as the coordinator told; None if nobody had, and without a coordinator.
    """

    stream: StreamName
    began: float
    ended: float
    conflict: str | None = None
    rows: int = 0
    predecessor: str | None = None


def overlaps(windows: Sequence[Window]) -> list[tuple[float, float]]:
    """The times in which windows of two streams met, one for each pair of windows, by when they begin."""
    ordered = sorted(windows, key=lambda window: window.began)
    met = []
    for one, other in combinations(ordered, 2):
        if other.began >= one.ended:
            continue
        if one.stream != other.stream:
            met.append((other.began, min(one.ended, other.ended)))
    return met


def disorders(windows: Sequence[Window]) -> int:
    """How many followed a turn that their stream may not follow."""
    bound = ((w.predecessor, PREDECESSORS[w.stream]) for w in windows)
    return sum(before not in (None, rule) for before, rule in bound if rule != ANY)


def conflicts(windows: Sequence[Window]) -> int:
    """How many were stopped by another's commit."""
    return sum(window.conflict is not None for window in windows)


def drawn(sides: Mapping[str, Sequence[Window]]) -> go.Figure:
    """A line for each stream of each side, in seconds since it began: shaded where windows met, × where one failed."""
    titles = [f"{side}: {summary(windows)}" for side, windows in sides.items()]
    figure = make_subplots(rows=len(sides), subplot_titles=titles, vertical_spacing=0.2)
    for row, windows in enumerate(sides.values(), start=1):
        zero = min((window.began for window in windows), default=0.0)
        for stream in STREAMS:
            own = [window for window in windows if window.stream == stream]
            figure.add_trace(_bars(stream, own, zero, shown=row == 1), row, 1)
        figure.add_trace(_crosses([w for w in windows if w.conflict], zero, shown=row == len(sides)), row, 1)
        for begin, end in overlaps(windows):  # plotly leaves out what is added to a plot without traces
            figure.add_vrect(begin - zero, end - zero, row=row, col=1, **SHADE)
    figure.update_layout(width=SIZE[0], height=SIZE[1], barmode="overlay", template="plotly_white", bargap=0.25)
    figure.update_yaxes(categoryorder="array", categoryarray=STREAMS[::-1])
    figure.update_xaxes(title_text="seconds", row=len(sides), col=1)
    return figure


def summary(windows: Sequence[Window]) -> str:
    """What a side comes to, in a line."""
    rows = sum(window.rows for window in windows)
    counted = f"{len(windows)} windows, {len(overlaps(windows))} overlaps, {disorders(windows)} out of order"
    return f"{counted}, {conflicts(windows)} conflicting commits, {rows:,} rows written"


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
