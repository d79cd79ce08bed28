"""Tables and columns of other people on Spark: their names may be any. And the engine's own names beside them.

A column that the engine adds to rows, or a name that it gives within a query over them, begins with `PREFIX`. Such a
name is refused in tables and declarations, so no name of a user meets one of the engine. The four landing columns of
raw tables are no such names: they are declared.

Nothing but this module makes an expression from the name of a user's column or table. Imports no Spark until it is
used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from lake_assets.base.hours import hour_sql

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructField, StructType

CATALOG = "lake"
"""The catalog's name in Spark."""

_PLAIN = re.compile(r"[a-z][a-z0-9_]*")

PREFIX = "_lake_"
"""What the engine's own names begin with, in any case: Spark does not tell cases apart."""

HASH = "_lake_row_hash"
"""SHA-256 of a row's content."""
REASON = "_lake_reason"
"""Why a row belongs in quarantine."""
DELIVERY = "_lake_delivery"
"""The number of a delivery of a row."""
HOUR = "_lake_hour"
"""The event hour of a row (long)."""
VALID = "_lake_is_valid"
"""Whether a row does not belong in quarantine."""
KEY = "_lake_key"
"""The key of another row, beside a row."""
TIME = "_lake_time"
"""The time of another row, beside a row."""
LANDED = "_lake_landed"
"""When a row landed, beside the columns of a table that does not tell it."""
ENTITY = "_lake_entity"
"""The id of an entity."""
SIGN = "_lake_sign"
"""Whether a row was added (1) or removed (-1)."""
SIDE = "_lake_side"
"""Which of two sets of rows a row is of."""
ROWS = "_lake_rows"
"""A number of rows."""
SUM_FORWARD = "_lake_sum_forward"
SUM_BACKWARD = "_lake_sum_backward"
"""The sums of two hashes of rows."""
NEWEST = "_lake_newest"
"""The row that counts, of several."""
SAME = "_lake_same_"
"""What several rows have in common; a number follows."""
TIED = "_lake_tied"
"""Whether only its hash puts a row before another one."""
CUT = "_lake_cut"
"""When the last deletion of a key that has no order landed."""
REMAINS = "_lake_remains"
"""Whether a row is a version after such a deletion (2), the deletion (1), or one that it removed (0)."""
BESIDE = "_lake_beside"
"""Whether a version landed together with such a deletion."""
ELEMENT = "_lake_element"
"""An element of a list within a query; its depth follows."""


def is_own(name: str) -> bool:
    """Whether a name is one of the engine's own, or may become one."""
    return name.casefold().startswith(PREFIX)


def quoted(name: str) -> str:
    """Return the name of a column as SQL has it, whatever it contains."""
    return "`" + name.replace("`", "``") + "`"


def table_in_sql(name: str) -> str:
    """Return a table of the catalog as Spark names it: `lake.raw.payments`. Parts with other signs are quoted."""
    return ".".join([CATALOG, *(part if _PLAIN.fullmatch(part) else quoted(part) for part in name.split("."))])


def column(name: str) -> Column:
    """Return a column by its name, whatever it contains: `functions.col` reads dots, backticks and `*`."""
    from pyspark.sql import functions as F

    return F.col(quoted(name))


def columns(names: Iterable[str]) -> list[Column]:
    """Return columns by their names."""
    return [column(name) for name in names]


def hour_of(name: str) -> Column:
    """Return the event hour (long) of the rows by their time column; null without a time."""
    from pyspark.sql import functions as F

    return F.expr(hour_sql(quoted(name)))


def hash_sql(schema: StructType) -> str:
    """Return the SQL expression of the SHA-256 of a row (hexadecimal).

    Rows have one hash only if all their values are equal: a text has its bytes, a time its microseconds, a number all
    its digits. -0.0 is not 0.0, and all NaN are equal. A null counts as little as a column that does not exist, so a
    new column changes no hash; nor does the order of columns, or of the entries of a map.

    Args:
        schema: The columns of the rows.
    """
    return f"sha2({_fields_sql('', schema.fields, 0)}, 256)"


def _value_sql(value: str, kind: DataType, depth: int) -> str:
    """Return the expression of a value's text: in parentheses, within which all parentheses are pairs; - for null."""
    return f"coalesce(concat('(', {_content_sql(value, kind, depth)}, ')'), '-')"


def _content_sql(value: str, kind: DataType, depth: int) -> str:
    from pyspark.sql import types

    element = f"{ELEMENT}{depth}"
    if isinstance(kind, types.StructType):
        return f"if({value} is null, null, {_fields_sql(f'{value}.', kind.fields, depth)})"
    if isinstance(kind, types.ArrayType):
        return f"array_join(transform({value}, {element} -> {_value_sql(element, kind.elementType, depth + 1)}), '')"
    if isinstance(kind, types.MapType):
        key = _value_sql(f"{element}.key", kind.keyType, depth + 1)
        entry = f"concat({key}, {_value_sql(f'{element}.value', kind.valueType, depth + 1)})"
        return f"array_join(array_sort(transform(map_entries({value}), {element} -> {entry})), '')"
    if isinstance(kind, types.VariantType):
        return f"hex(to_json({value}))"
    if isinstance(kind, types.StringType | types.BinaryType):
        return f"hex({value})"
    if isinstance(kind, types.TimestampType):
        return f"cast(unix_micros({value}) as string)"
    return f"cast({value} as string)"


def _fields_sql(prefix: str, fields: Iterable[StructField], depth: int) -> str:
    """Return the expression of the texts of all fields that are not null, each after its name."""
    parts = []
    for field in sorted(fields, key=lambda each: each.name):
        content = _content_sql(f"{prefix}{quoted(field.name)}", field.dataType, depth)
        parts.append(f"coalesce(concat('{field.name.encode().hex()}(', {content}, ')'), '')")
    return f"concat({', '.join(parts)})" if parts else "''"


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
