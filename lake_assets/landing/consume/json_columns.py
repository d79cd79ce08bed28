"""Conversion of JSON values to the values of a raw table's columns. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from typing import Any

from lake_assets.errors import ConfigurationError
from lake_assets.incremental.declaration import RawTable

DECIMAL = re.compile(r"decimal\((\d+), ?(\d+)\)")
INT_BITS = {"int": 32, "long": 64}

ColumnReader = Callable[[Any], Any]
"""Converts a JSON value; raises `ValueError`, `TypeError` or `ArithmeticError` if the column cannot hold it."""


def column_readers(raw: RawTable) -> dict[str, ColumnReader]:
    """Return, for each column of a raw table, the function that converts its values.

    Raises:
        ConfigurationError: A column has a type that no message can hold.
    """
    return {column: _reader(raw, column) for column in raw.columns}


def _reader(raw: RawTable, column: str) -> ColumnReader:
    kind = raw.columns[column]
    decimal = DECIMAL.fullmatch(kind)
    if decimal:
        return partial(_decimal, precision=int(decimal[1]), scale=int(decimal[2]))
    if kind in INT_BITS:
        return partial(_integer, bits=INT_BITS[kind])
    if kind not in _PLAIN:
        possible = [*_PLAIN, *INT_BITS]
        raise ConfigurationError(
            f"{raw.table} has the column {column} of type {kind}, which no message can hold.",
            remedy=f"Use one of: {', '.join(possible)}, decimal(p, s).",
        )
    return _PLAIN[kind]


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    value.encode()  # raises ValueError for half of a surrogate pair
    return value


def utc_moment(value: Any) -> datetime:
    """Return the moment of an ISO 8601 text, in UTC; a text without a time zone is in UTC."""
    moment = datetime.fromisoformat(_text(value))
    if moment.tzinfo is None:
        return moment.replace(tzinfo=UTC)
    return moment.astimezone(UTC)


def _decimal(value: Any, *, precision: int, scale: int) -> Decimal:
    """Return the exact value; nothing is rounded."""
    if isinstance(value, bool) or not isinstance(value, str | int | Decimal):
        raise TypeError(value)
    found = Decimal(value)
    if not found.is_finite() or found.adjusted() >= precision - scale or found != round(found, scale):
        raise ValueError(value)
    return found


def _integer(value: Any, *, bits: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(value)
    limit = 1 << (bits - 1)
    if not -limit <= value < limit:
        raise ValueError(value)
    return value


def _double(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise TypeError(value)
    return float(value)


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(value)
    return value


def _date(value: Any) -> date:
    return date.fromisoformat(_text(value))


_PLAIN: Mapping[str, ColumnReader] = {
    "string": _text,
    "timestamptz": utc_moment,
    "date": _date,
    "double": _double,
    "boolean": _boolean,
}
