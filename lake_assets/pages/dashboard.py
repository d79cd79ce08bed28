"""The metrics of an engagement lake as one HTML page, with filters and charts that need no server.

Jinja escapes text from data, so it reaches the page as text and never as markup.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any

from lake_assets.engagement.lake import EMAILS_AND_CALLS, MetricGroup, count_columns
from lake_assets.pages.page import render

if TYPE_CHECKING:
    import pyarrow as pa

    from lake_assets.engagement.tables import LakeTables

TEMPLATE = "dashboard.html"
DAY = "engagement_date"
CHOICES = (("org_id", "org"), ("rep_id", "rep"), ("cadence_id", "cadence"), ("template_id", "template"))
"""The columns with a filter, in addition to days, and their labels."""

NOBODY = -1
"""The index of null."""


def page(metrics: pa.Table, *, lake: str, version: int, groups: Sequence[MetricGroup] = EMAILS_AND_CALLS) -> str:
    """Return the whole page.

    Args:
        metrics: `DAY` as date32, the columns of `CHOICES` as string, those of all counts as int64. The page computes
            rates from the counts of its filters, because rates cannot be added.
        lake: The name of the lake.
        version: The version of the engagement table that the metrics show.
        groups: What the lake counts.
    """
    counts = count_columns(groups)
    data = {**compact(metrics, counts), "groups": [_shown(group) for group in groups]}
    return render(TEMPLATE, lake=lake, version=version, choices=CHOICES, charts=_charts(groups), data=data)


def page_of_lake(tables: LakeTables, orgs: Collection[str] = ()) -> str:
    """Return the page of the present metrics of a lake. Needs no Spark.

    Args:
        orgs: Orgs to show; empty for all orgs.

    Raises:
        UsageError: The lake declares other metrics than its table shows.
    """
    from lake_assets.engagement.metrics import metrics_cursor, read_metrics

    version = metrics_cursor(tables)
    return page(read_metrics(tables, orgs), lake=tables.lake.name, version=version, groups=tables.lake.metrics)


def compact(metrics: pa.Table, counts: Sequence[str]) -> dict[str, Any]:
    """Return the metrics as the page reads them: each text once, and its index in the cells. All lists are sorted.

    Args:
        metrics: As for `page`.
        counts: The columns of counts.
    """
    names = [DAY, *(name for name, _ in CHOICES)]
    values: dict[str, list[Any]] = {}
    columns: list[list[int]] = []
    for name in names:
        column = metrics[name].to_pylist()
        values[name] = sorted({value for value in column if value is not None})
        columns.append(_indexes(column, values[name]))
    for name in counts:
        columns.append(metrics[name].to_pylist())
    cells = sorted(zip(*columns, strict=True))
    return {
        "columns": [*names, *counts],
        "days": [day.isoformat() for day in values.pop(DAY)],
        "values": values,
        "cells": [list(cell) for cell in cells],
    }


def _shown(group: MetricGroup) -> dict[str, Any]:
    """Return a group as the page's script reads it."""
    return {
        "name": group.name,
        "kinds": list(group.kinds),
        "outcomes": list(group.outcomes),
        "parts": list(group.rates.values()),
        "whole": group.whole,
    }


def _charts(groups: Sequence[MetricGroup]) -> list[tuple[str, str]]:
    """Return the id and the title of each chart."""
    charts = []
    for number, group in enumerate(groups):
        by_outcome = " by outcome" if group.outcomes else ""
        charts.append((f"counts-{number}", f"{group.name.capitalize()}{by_outcome}"))
        if group.rates:
            charts.append((f"rates-{number}", f"{group.name.capitalize()}: rates of {group.whole}"))
    return charts


def _indexes(column: Iterable[str | date | None], values: Iterable[str | date]) -> list[int]:
    index: Mapping[str | date | None, int] = {value: number for number, value in enumerate(values)}
    return [index.get(value, NOBODY) for value in column]
