"""The metrics of an engagement lake as one HTML page, with filters and charts that need no server.

Jinja escapes text from data, so it reaches the page as text and never as markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date
from typing import TYPE_CHECKING, Any

from lake_assets.pages.page import render

if TYPE_CHECKING:
    import pyarrow as pa

TEMPLATE = "dashboard.html"
DAY = "engagement_date"
CHOICES = (("org_id", "org"), ("rep_id", "rep"), ("cadence_id", "cadence"), ("template_id", "template"))
"""The columns with a filter, in addition to days, and their labels."""

COUNTS = ("sent", "opened", "replied", "bounced", "calls", "meaningful_contact", "not_interested", "left_voicemail")
CHARTS = (
    ("emails", "Emails"),
    ("email-rates", "Rates of emails sent"),
    ("calls", "Calls by outcome"),
    ("call-rates", "Rates of calls made"),
)
NOBODY = -1
"""The index of null."""


def page(metrics: pa.Table, *, lake: str, version: int) -> str:
    """Return the whole page.

    Args:
        metrics: `DAY` as date32, the columns of `CHOICES` as string, those of `COUNTS` as int64. The page computes
            rates from the counts of its filters, because rates cannot be added.
        lake: The name of the lake.
        version: The version of the engagement table that the metrics show.
    """
    return render(TEMPLATE, lake=lake, version=version, choices=CHOICES, charts=CHARTS, data=compact(metrics))


def compact(metrics: pa.Table) -> dict[str, Any]:
    """Return the metrics as the page reads them: each text once, and its index in the cells. All lists are sorted."""
    names = [DAY, *(name for name, _ in CHOICES)]
    values: dict[str, list[Any]] = {}
    columns: list[list[int]] = []
    for name in names:
        column = metrics[name].to_pylist()
        values[name] = sorted({value for value in column if value is not None})
        columns.append(_indexes(column, values[name]))
    for name in COUNTS:
        columns.append(metrics[name].to_pylist())
    cells = sorted(zip(*columns, strict=True))
    return {
        "columns": [*names, *COUNTS],
        "days": [day.isoformat() for day in values.pop(DAY)],
        "values": values,
        "cells": [list(cell) for cell in cells],
    }


def _indexes(column: Iterable[str | date | None], values: Iterable[str | date]) -> list[int]:
    index: Mapping[str | date | None, int] = {value: number for number, value in enumerate(values)}
    return [index.get(value, NOBODY) for value in column]
