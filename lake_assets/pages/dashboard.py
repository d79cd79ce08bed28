"""The metrics of an engagement lake as one HTML page: filters and charts that work in the browser, without a server.

Text from data goes through Jinja's escaping, and reaches the page as text, never as markup.
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
"""Column, and what it is called: what can be chosen beside days."""

COUNTS = ("sent", "opened", "replied", "bounced", "calls", "meaningful_contact", "not_interested", "left_voicemail")
CHARTS = (
    ("emails", "Emails"),
    ("email-rates", "Of the emails sent"),
    ("calls", "Calls by outcome"),
    ("call-rates", "Of the calls made"),
)
NOBODY = -1
"""The place of a value that is null."""


def page(metrics: pa.Table, *, lake: str, version: int) -> str:
    """The whole page. metrics: `DAY` date32, the columns of `CHOICES` string, those of `COUNTS` int64.

    version: of the engagement table that they show. Rates are computed anew for what is chosen: they do not add up.
    """
    return render(TEMPLATE, lake=lake, version=version, choices=CHOICES, charts=CHARTS, data=compact(metrics))


def compact(metrics: pa.Table) -> dict[str, Any]:
    """The metrics as the page takes them: each text once, and in the cells its place; all sorted."""
    names = (DAY, *(name for name, _ in CHOICES))
    columns = {name: metrics[name].to_pylist() for name in (*names, *COUNTS)}
    values = {name: sorted({value for value in columns[name] if value is not None}) for name in names}
    placed = {name: _places(columns[name], values[name]) for name in names}
    cells = sorted(zip(*(placed[name] for name in names), *(columns[name] for name in COUNTS), strict=True))
    days = [day.isoformat() for day in values.pop(DAY)]
    return {"columns": [*names, *COUNTS], "days": days, "values": values, "cells": [list(cell) for cell in cells]}


def _places(column: Iterable[str | date | None], values: Iterable[str | date]) -> list[int]:
    place: Mapping[str | date | None, int] = {value: at for at, value in enumerate(values)}
    return [place.get(value, NOBODY) for value in column]
