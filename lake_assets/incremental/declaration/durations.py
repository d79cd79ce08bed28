"""Durations as text, such as `30 minutes`. Pure."""

from __future__ import annotations

import re
from datetime import timedelta

from lake_assets.errors import ConfigurationError

_PATTERN = re.compile(r"(?P<number>\d{1,6})\s*(?P<unit>[a-z]+)", re.ASCII)

_UNITS = {
    "second": timedelta(seconds=1),
    "minute": timedelta(minutes=1),
    "hour": timedelta(hours=1),
    "day": timedelta(days=1),
}


def parse_duration(text: object, *, where: str) -> timedelta:
    """Return the duration of a text: a whole number, and seconds, minutes, hours or days.

    Args:
        text: `30 minutes`, `1 hour`.
        where: The origin of the text, for the error.

    Raises:
        ConfigurationError: It is no such text.
    """
    found = _PATTERN.fullmatch(text.strip()) if isinstance(text, str) else None
    unit = _UNITS.get(found["unit"].removesuffix("s")) if found else None
    if found is None or unit is None:
        raise ConfigurationError(
            f"{where} is {text!r}, which is no duration.",
            remedy="Write a whole number and a unit, such as '30 minutes', '2 hours' or '1 day'.",
        )
    return int(found["number"]) * unit
