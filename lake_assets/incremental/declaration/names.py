"""Names, column types, limits and durations in a declaration: each is checked by itself. They need no table."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from difflib import get_close_matches
from typing import Any

from lake_assets.base.columns import PREFIX, is_own
from lake_assets.errors import ConfigurationError
from lake_assets.settings import TABLE as TABLE

IDENTIFIER = re.compile(r"[a-z][a-z0-9_]*")
TOPIC = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")
"""The names of topics that Kafka accepts."""


def require_name(pattern: re.Pattern[str], value: str, what: str) -> None:
    """Check a name. what: what has the name, for the message. Raises `ConfigurationError`."""
    if not pattern.fullmatch(value):
        raise ConfigurationError(
            f"{what} is called {value!r}.", remedy="Use lower-case letters, digits and _; a table is namespace.name."
        )


def require_column(value: str, what: str) -> None:
    """Check the name of a column of a table that another program may have created. Raises `ConfigurationError`."""
    if not isinstance(value, str) or not value:
        raise ConfigurationError(f"{what} is {value!r}.", remedy="Name a column of the table.")
    require_free(value, what)


def require_free(value: str, what: str) -> None:
    """Check that a name is none of the engine's own. Raises `ConfigurationError`."""
    if is_own(value):
        raise ConfigurationError(
            f"{what} is called {value!r}. Names that begin with {PREFIX} belong to lake-assets, which adds such columns"
            " to rows while it works.",
            remedy=f"Give it a name that does not begin with {PREFIX}.",
        )


def require_table(value: str, what: str) -> None:
    """Check the name of a table that may belong to another program. Raises `ConfigurationError`."""
    if value.count(".") > 1:
        raise ConfigurationError(
            f"{what} is called {value!r}, which has {value.count('.')} namespaces.",
            remedy="Name a table with one namespace: namespace.name. Tables of nested namespaces cannot be read.",
        )
    require_name(TABLE, value, what)


def require_topic(value: str) -> None:
    """Check the name of a Kafka topic. Raises `ConfigurationError`."""
    if not TOPIC.fullmatch(value):
        raise ConfigurationError(
            f"The topic is called {value!r}.", remedy="Use up to 249 letters, digits, and the signs . _ and -."
        )


def require_columns(table: str, columns: Mapping[str, Any]) -> None:
    """Check the names and Iceberg types of a table's columns. Raises `ConfigurationError`."""
    from pyiceberg.exceptions import ValidationError
    from pyiceberg.types import DecimalType, NestedField

    for column, iceberg_type in columns.items():
        require_free(str(column), f"A column of {table}")
        require_name(IDENTIFIER, column, f"A column of {table}")
        try:
            found = NestedField(1, column, iceberg_type, required=False).field_type
            if isinstance(found, DecimalType) and found.scale > found.precision:
                raise ValueError(iceberg_type)
        except (ValueError, ValidationError):
            raise ConfigurationError(
                f"{table}.{column} is declared as {iceberg_type!r}, which is no Iceberg type.",
                remedy="Use a type such as string, int, long, double, boolean, date, timestamptz or decimal(9, 2).",
            ) from None


def require_described(table: str, columns: Mapping[str, Any], descriptions: Mapping[str, str]) -> None:
    """Check that every column that is described exists. Raises `ConfigurationError`."""
    unknown = sorted(descriptions.keys() - columns.keys())
    if unknown:
        raise ConfigurationError(
            f"{table} describes {', '.join(unknown)}, but has no such column.",
            remedy="Add it to columns=, or remove it from descriptions=.",
        )


def require_renamed(table: str, columns: Mapping[str, Any], former: Mapping[str, str]) -> None:
    """Check that columns have former names that no other column has. Raises `ConfigurationError`."""
    if not isinstance(former, Mapping):
        raise ConfigurationError(
            f"renamed_from of {table} is {former!r}, which is no dict.",
            remedy='Write each column with its former name: renamed_from={"distance": "metres"}.',
        )
    for column, name in former.items():
        if column not in columns:
            raise ConfigurationError(
                f"{table} has renamed_from with {column!r}, but declares no such column.",
                remedy=f"Write the new name first, then the former one: renamed_from={{{str(name)!r}: {column!r}}}.",
            )
        if not isinstance(name, str) or not name or name in columns or list(former.values()).count(name) > 1:
            raise ConfigurationError(
                f"{table} declares that {column} was renamed from {name!r}, which "
                + ("is no name." if not isinstance(name, str) or not name else "is the name of another column."),
                remedy="Name the former name of this column alone, or leave it out of renamed_from.",
            )


def require_hours(name: str, hours: int | None) -> None:
    """Check that a number of hours is at least 1; None is no limit. Raises `ConfigurationError`."""
    if hours is not None and (not isinstance(hours, int) or hours is True or hours < 1):
        raise ConfigurationError(f"The {name} is {hours!r} hours.", remedy="Use 1 or more, or None for no limit.")


def closest(name: str, known: Sequence[str]) -> str | None:
    """Return the known name that a name is probably meant to be; None if none is similar."""
    found = get_close_matches(name, known, n=1)
    return found[0] if found else None


def suggestion(name: str, known: Sequence[str]) -> str:
    """Return a remedy for an unknown name: the closest known one, or all of them."""
    near = closest(name, known)
    if near:
        return f"Did you mean {near!r}? Otherwise name one of: {', '.join(known)}."
    return f"Name one of: {', '.join(known)}."


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
