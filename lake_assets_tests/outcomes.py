"""The tables of a page that a test holds: what came of each point, scenario by scenario."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby

Outcomes = Mapping[str, str]
"""Point → what was seen."""


def table(heading: str, points: Iterable[str], found: Mapping[str, Outcomes], *, between: str | None = None) -> str:
    """Markdown: a row for each point, a column for each scenario.

    Args:
        heading: Of the points.
        points: In the order of the rows.
        found: By scenario.
        between: What joins points that follow each other and have the same outcomes, in one row; None: none are joined.
    """

    def outcomes(point: str) -> list[str]:
        return [said[point] for said in found.values()]

    joined = [[each] for each in points] if between is None else [list(alike) for _, alike in groupby(points, outcomes)]
    rows = [[heading, *found], *([(between or "").join(alike), *outcomes(alike[0])] for alike in joined)]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], f"|{' --- |' * (len(found) + 1)}", *lines[1:]])


def columns(page: str) -> dict[str, Outcomes]:
    """What the tables of a page say, column by column; points without their backticks.

    Points in one cell, each in backticks, have the same outcome.
    """
    found: dict[str, dict[str, str]] = {}
    heads: list[str] = []
    for line in page.splitlines():
        row = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if not heads or not row:
            heads = row[1:]
        elif set(row) != {"---"}:
            for head, cell in zip(heads, row[1:], strict=True):
                found.setdefault(head, {}).update({point.strip("`"): cell for point in row[0].split("`, `")})
    return dict(found)
