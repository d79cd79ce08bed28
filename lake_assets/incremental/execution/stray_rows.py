"""Deleting rows that others wrote to a target in hours that no session may build: before the start, or not complete.

A rebuild cannot empty these hours. Nobody reads them from a session, so no audit is passed over.
"""

from __future__ import annotations

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import ValidationException
from pyiceberg.expressions import BooleanExpression, GreaterThanOrEqual, IsNull, LessThan

from lake_assets.base.hours import hour_start
from lake_assets.incremental.declaration import Target
from lake_assets.incremental.metadata import tables


def delete_stray_rows(catalog: Catalog, target: Target, first: int, last: int | None) -> int:
    """Delete the rows of a target outside of a range of hours, and those without a time.

    Args:
        catalog: The catalog of the target.
        target: The target.
        first: The first hour of the range.
        last: Its last hour, inclusive; None if it has no end.

    Returns:
        How many rows were deleted.
    """
    column = target.time_column
    # Rows without a time go first: pyiceberg cannot compare the partition that has none with a time.
    # The expressions are typed as their JSON form, not as their constructors.
    outside: list[BooleanExpression] = [
        IsNull(column),  # type: ignore[call-arg, arg-type]
        LessThan(column, hour_start(first).isoformat()),  # type: ignore[call-arg, arg-type]
    ]
    if last is not None:
        after = hour_start(last + 1).isoformat()
        outside.append(GreaterThanOrEqual(column, after))  # type: ignore[call-arg, arg-type]
    return sum(_delete(catalog, target.table, condition) for condition in outside)


def _delete(catalog: Catalog, name: str, condition: BooleanExpression) -> int:
    for attempt in tables.retrying(ValidationException):
        with attempt:
            table = tables.load(catalog, name)
            rows = table.scan(condition).count()
            if rows:
                table.delete(condition)
            return rows
    raise AssertionError("unreachable: the last attempt returns or raises")
