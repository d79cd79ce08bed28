"""How earlier versions have read messages that `base.values` refuses. Pure.

Files that landed by these rules hold such messages as rows: they are loaded, and erased by their ids, as they landed.
Nothing lands by these rules any more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from lake_assets.base.values import Cast


def json_object(value: bytes) -> Mapping[str, Any] | None:
    """Return the object of a message, with the last value of a key that is there twice; None if it is none."""
    try:
        found = json.loads(value.decode(), parse_float=Decimal)
    except (ValueError, ArithmeticError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def cast(kind: str) -> Cast | None:
    """Return the cast to an Iceberg type; None if it was that of `base.values`."""
    if kind.startswith("decimal"):
        return Decimal
    others: Mapping[str, Cast] = {"timestamptz": _moment, "date": date.fromisoformat, "double": float}
    return others.get(kind)


def _moment(text: str) -> datetime:
    """Return a moment that may have no zone, which was UTC, and may be finer than a microsecond, which was cut."""
    found = datetime.fromisoformat(text)
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
