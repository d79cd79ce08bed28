"""Rows that the function of a target cannot compute: the error is named with the target, its hours and the line.

Spark computes rows when they are counted or written, long after the function has returned. What it reports then is the
place of the expression: in the text of a query, or in the Python code that made it. Imports no Spark.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from lake_assets.base.hours import format_hours
from lake_assets.errors import LakeError, RowsFailed
from lake_assets.errors.refusals import Refusal, explain, find_refusal
from lake_assets.incremental.declaration import Target
from lake_assets.incremental.user_code.places import users_place


@contextmanager
def naming_failed_rows(target: Target, hours: Collection[int]) -> Iterator[None]:
    """Name the target, the hours and the line if Spark fails to compute the target's rows within the block.

    Args:
        target: The target.
        hours: The hours that are built.

    Raises:
        RowsFailed: An expression of the target's function failed on a row.
    """
    try:
        yield
    except LakeError:
        raise
    except Exception as error:  # of Spark, or of whatever else the block calls
        refusal = find_refusal(error)
        place = None if refusal is None else _place_of(target, refusal)
        if refusal is None or place is None:
            raise
        found = explain(Refusal(refusal.condition, refusal.message, refusal.parameters))
        raise RowsFailed(target.table, place, format_hours(hours), found) from error


def _place_of(target: Target, refusal: Refusal) -> str | None:
    """Return `file:line` of the expression that failed; None if it is not in the function of the target."""
    place_in_query = getattr(target.transform, "place_in_query", None)
    if place_in_query is not None:
        place: str | None = place_in_query(refusal)
        return place
    return users_place(refusal.call_site)
