"""Cells of the metrics, an org's day each, and few conditions that many of them fit in. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import date
from typing import NamedTuple


class Cell(NamedTuple):
    """A day of an org: the unit in which metrics are rebuilt."""

    org_id: str
    engagement_date: date


class Block(NamedTuple):
    """All of these orgs on all of these days; both sorted."""

    orgs: tuple[str, ...]
    days: tuple[date, ...]


def blocks(cells: Iterable[Cell]) -> list[Block]:
    """Blocks that hold just these cells, each once: days with the same orgs make one. In order of their orgs."""
    orgs_of: defaultdict[date, set[str]] = defaultdict(set)
    for cell in cells:
        orgs_of[cell.engagement_date].add(cell.org_id)
    days_of: defaultdict[tuple[str, ...], list[date]] = defaultdict(list)
    for day, orgs in orgs_of.items():
        days_of[tuple(sorted(orgs))].append(day)
    return [Block(orgs, tuple(sorted(days))) for orgs, days in sorted(days_of.items())]
