"""Lines over one axis as a picture, in panels side by side. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil, floor, log10

from benchmarks.svg import picture, words
from lake_assets.pages.charts import AMBER, BLUE, TEAL

COLOURS = (BLUE, AMBER, TEAL)
"""Of the lines of a panel, in their order."""

WIDTH, HEIGHT = 220, 180
"""Of a panel without its labels."""

LEFT, RIGHT, TOP, BOTTOM = 70, 20, 84, 46
STEP = LEFT + WIDTH + RIGHT
LINE = 15
FEW_TIMES = 20
"""Values that differ by more are shown on a logarithmic scale."""

Lines = Mapping[str, Sequence[float]]
"""Name → a value for each point of the axis."""

Scale = Callable[[float], float]
"""Value → its place, from 0 to 1."""


def drawn(axis: str, points: Sequence[int], panels: Mapping[str, Lines]) -> str:
    """Return an SVG picture.

    Args:
        axis: What the points are.
        points: Places on the horizontal axis, ascending, above 0.
        panels: Title → lines. Values are 0 or more.
    """
    lines: list[str] = []
    for number, (title, values) in enumerate(panels.items()):
        lines += _panel(STEP * number + LEFT, title, axis, points, values)
    return picture(STEP * len(panels), TOP + HEIGHT + BOTTOM, lines)


def _panel(left: float, title: str, axis: str, points: Sequence[int], lines: Lines) -> Iterator[str]:
    across, _ = scale(points)
    upward, ticks = scale([value for values in lines.values() for value in values])
    yield words(left, 20, title, size=14)
    for tick in ticks:
        y = TOP + HEIGHT * (1 - upward(tick))
        yield f'<line x1="{left}" y1="{y:.1f}" x2="{left + WIDTH}" y2="{y:.1f}" stroke="#ddd"/>'
        yield words(left - 6, y + 4, short(tick), anchor="end")
    for point in points:
        x = left + WIDTH * across(point)
        yield words(x, TOP + HEIGHT + 18, short(point), anchor="middle")
    yield words(left + WIDTH / 2, TOP + HEIGHT + 36, axis, anchor="middle")
    for number, (name, values) in enumerate(lines.items()):
        yield words(left, 36 + LINE * number, name, colour=COLOURS[number])
        places = []
        for point, value in zip(points, values, strict=True):
            places.append((left + WIDTH * across(point), TOP + HEIGHT * (1 - upward(value))))
        yield from _line(places, COLOURS[number])


def _line(places: Sequence[tuple[float, float]], colour: str) -> Iterator[str]:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
    for x, y in places:
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>'


def scale(values: Sequence[float]) -> tuple[Scale, list[float]]:
    """Return a scale for values, and its ticks: from 0, or logarithmic if they differ by more than `FEW_TIMES`."""
    least, most = min(values), max(values)
    if 0 < FEW_TIMES * least < most:
        low, high = floor(log10(least)), ceil(log10(most))
        return lambda value: (log10(value) - low) / (high - low), [10.0**n for n in range(low, high + 1)]
    step = _round_up(most / 4)
    high = step * ceil(most / step)
    return lambda value: value / high, [step * n for n in range(round(high / step) + 1)]


def _round_up(value: float) -> float:
    """Return the next of 1, 2, 5, 10, 20, 50 and so on."""
    power = 10.0 ** floor(log10(value))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= value)


def short(value: float) -> str:
    """Return a number as 0.5, 30, 10k or 3M."""
    for unit, name in ((1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:g}{name}"
    return f"{value:g}"
