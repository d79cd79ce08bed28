"""Joining any number of conditions, or of DataFrames, which may be as many as the data has hours, ids or columns.

A chain that is joined from the left nests as deep as it is long, and each reader of it has a limit: Spark Connect's
messages nest 100 deep, the JVM's stack holds a few hundred conditions, and Python's recursion ends at a thousand.
Joined in pairs, 5,000 conditions nest 13 deep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyspark.sql import Column, DataFrame

Part = TypeVar("Part")


def joined_in_pairs(parts: Iterable[Part], join: Callable[[Part, Part], Part]) -> Part | None:
    """Return all parts in their order, joined by an associative function; None without any part.

    The result nests as deep as the logarithm of their number.
    """
    level = list(parts)
    while len(level) > 1:
        pairs = [join(level[place], level[place + 1]) for place in range(0, len(level) - 1, 2)]
        level = pairs + level[len(pairs) * 2 :]
    return level[0] if level else None


def any_of(conditions: Iterable[Column]) -> Column:
    """Return the condition that any of the conditions holds; without any, none does."""
    from pyspark.sql import functions as F

    found = joined_in_pairs(conditions, lambda left, right: left | right)
    return F.lit(False) if found is None else found


def any_of_filters(conditions: Iterable[BooleanExpression]) -> BooleanExpression:
    """Return pyiceberg's filter on rows for which any of the filters holds; without any, none does."""
    from pyiceberg.expressions import AlwaysFalse, Or

    found = joined_in_pairs(conditions, Or)
    return AlwaysFalse() if found is None else found


def union_by_name(first: DataFrame, *others: DataFrame) -> DataFrame:
    """Return the rows of all DataFrames, which have the same columns, in any order."""
    from pyspark.sql import DataFrame

    found = joined_in_pairs([first, *others], DataFrame.unionByName)
    assert found is not None
    return found
