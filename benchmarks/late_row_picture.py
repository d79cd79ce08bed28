"""The way of a late row as a picture: when it leaves each station, for each side that was measured. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from benchmarks.svg import picture, words
from lake_assets.pages.charts import AMBER, BLUE, TEAL, VIOLET

COLOURS = (AMBER, BLUE, TEAL, VIOLET)
"""Of the sides, in their order."""

NAMES = {
    "noticed": "a tick of the sensor finds it",
    "queued": "its run is queued",
    "dequeued": "the run is taken from the queue",
    "process": "the process of the run starts",
    "step": "its step starts",
    "staged": "rows are staged",
    "published": "audited, published and recorded",
    "shown": "Dagster shows it",
    "ended": "the run ends",
}
"""Station → what happens until it is reached."""

LEFT = 250
WIDTH = 620
RIGHT = 90
BAR = 12
GAP = 10
TOP = 34


def drawn(sides: Mapping[str, Mapping[str, float]]) -> str:
    """Return an SVG picture: a row for each station, in it a bar for each side from the station before to this one.

    Args:
        sides: Side → station → milliseconds since the commit of the raw snapshot, in the order of the stations.
    """
    row = BAR * len(sides) + GAP
    height = TOP + row * len(NAMES) + GAP
    longest = max((value for stations in sides.values() for value in stations.values()), default=1.0)
    lines = [*_legend(list(sides))]
    for number, (station, name) in enumerate(NAMES.items()):
        top = TOP + row * number
        lines.append(words(LEFT - 10, top + row / 2, name, anchor="end"))
        for place, stations in enumerate(sides.values()):
            lines += _bar(stations, station, top + BAR * place, COLOURS[place], WIDTH / longest)
    return picture(LEFT + WIDTH + RIGHT, height, lines)


def _legend(sides: Sequence[str]) -> Iterator[str]:
    for place, side in enumerate(sides):
        left = LEFT + 160 * place
        yield f'<rect x="{left}" y="8" width="{BAR}" height="{BAR}" fill="{COLOURS[place]}"/>'
        yield words(left + BAR + 6, 18, side)


def _bar(stations: Mapping[str, float], station: str, top: float, colour: str, scale: float) -> Iterator[str]:
    """Yield the bar that ends at a station, and how long it is; nothing if the side has no such station."""
    for before, reached in pairwise(stations):
        if reached == station:
            begin, end = stations[before], stations[reached]
            left = LEFT + begin * scale
            width = max(1.0, (end - begin) * scale)
            yield f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{BAR - 1}" fill="{colour}"/>'
            label = f"{end / 1000:.1f} s (+{(end - begin) / 1000:.1f})"
            yield words(left + width + 4, top + BAR - 2, label, size=10)
