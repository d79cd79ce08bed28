"""What a target has to be: a plain replay of the rows that its source holds. Slow, and obvious."""

from __future__ import annotations

import math
import struct
import uuid
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from lake_assets_tests.doors.hostile.tables import HOUR, LAST_HOUR, Column, Hostile, Row

Out = tuple[Any, ...]


def selected(table: Hostile) -> list[tuple[str, str, str, Column]]:
    """Return the columns of a stateless or corrected target: name, SQL, Iceberg type, column of the source."""
    found = []
    for column in table.columns:
        if not column.used:
            continue
        quoted = "`" + column.name.replace("`", "``") + "`"
        kind = {"uuid": "string", "fixed[4]": "binary"}.get(column.kind, column.kind)
        if column is table.time:
            kind = "timestamptz"
            if column.kind == "timestamp" and table.language == "yaml":
                quoted = f"CAST({quoted} AS timestamp)"
        if kind == "struct":
            quoted, kind = f"{quoted}.`a b`", "int"
        elif kind == "list":
            quoted, kind = f"array_join({quoted}, '|')", "string"
        elif kind == "map":
            quoted, kind = f"try_element_at({quoted}, 'k')", "int"
        found.append((column.shown, quoted, kind, column))
    return found


def expected(table: Hostile) -> tuple[Counter[Out], list[set[Out]]]:
    """Return the rows that a target must have, and groups of which it must have exactly one, with None for none."""
    if table.mode == "stateful":
        return Counter(_counts(table)), []
    if table.mode == "sequential":
        return Counter(_running(table)), []
    standing = _standing_versions(table) if table.mode == "corrected" else _standing(table)
    groups = []
    for rows in standing:
        group: set[Out] = set()
        for row in rows:
            group.add(() if row is None else projected(table, row))
        groups.append(group)
    return Counter(), groups


def difference(table: Hostile, found: Counter[Out]) -> str | None:
    """Return how the rows of a target differ from what they have to be; None if they do not."""
    rows, groups = expected(table)
    left = Counter(found)
    missing: list[Any] = []
    for row, number in rows.items():
        taken = min(number, left[row])
        left[row] -= taken
        missing += [row] * (number - taken)
    for group in sorted(groups, key=len):
        there = next((row for row in group if left[row]), None)
        if there is not None:
            left[there] -= 1
        elif () not in group:
            missing.append(sorted(group, key=repr)[0])
    extra = list((+left).elements())
    if not missing and not extra:
        return None
    return f"{len(missing)} rows missing {_short(missing)}, {len(extra)} too many {_short(extra)}"


def _short(rows: list[Any]) -> str:
    return " ".join(repr(row)[:200] for row in rows[:2])


def is_valid(table: Hostile, row: Row) -> bool:
    """Return whether a row may stand in a target. From the last hour of the year 9999 on, it may be left out."""
    moment, key = row[table.time.name], row[table.key.name]
    if moment is None or key is None or moment < table.start:
        return False
    if table.origin == "raw" and moment > table.landed + HOUR:
        return False
    return not (table.rule and row["n"] % 7 == 3)


def _groups(table: Hostile) -> dict[Any, list[Row]]:
    groups: dict[Any, list[Row]] = {}
    for row in table.rows:
        if is_valid(table, row):
            groups.setdefault((row[table.key.name], row[table.time.name]), []).append(row)
    return groups


def _standing(table: Hostile) -> Iterable[list[Row | None]]:
    """Yield the deliveries of each row, of which one counts."""
    for (_, moment), rows in _groups(table).items():
        if table.origin == "raw":
            yield [rows[0]]
        elif moment >= LAST_HOUR:
            yield [*rows, None]
        else:
            yield [*rows]


def _standing_versions(table: Hostile) -> Iterable[list[Row | None]]:
    """Yield the version of each key that counts, unless it deletes the key."""
    versions: dict[Any, list[Row]] = {}
    for row in table.rows:
        key = row[table.key.name]
        if key is not None and (row["op"] == "D" or is_valid(table, row)):
            versions.setdefault(key, []).append(row)
    for rows in versions.values():
        last = max(rows, key=lambda row: row["version"])
        if last["op"] != "D":
            yield [last]


def _counts(table: Hostile) -> Iterable[Out]:
    """Yield (hour, number of rows, number of keys) of each complete hour."""
    hours: dict[int, list[Any]] = {}
    for key, moment in _groups(table):
        hours.setdefault(moment // HOUR * HOUR, []).append(key)
    for hour, keys in hours.items():
        if table.complete_through is not None and hour <= table.complete_through:
            yield hour, len(keys), len(set(keys))


def _running(table: Hostile) -> Iterable[Out]:
    """Yield (hour, number of rows up to its end) of each hour from the first row on."""
    moments = sorted(moment for _, moment in _groups(table))
    if not moments or table.complete_through is None:
        return
    for hour in range(moments[0] // HOUR * HOUR, table.complete_through + 1, HOUR):
        yield hour, sum(moment < hour + HOUR for moment in moments)


def projected(table: Hostile, row: Row) -> Out:
    """Return a row of the source as the target shows it."""
    return tuple(comparable(_shown(column, row[column.name])) for _, _, _, column in selected(table))


def _shown(column: Column, value: Any) -> Any:
    if value is None:
        return None
    if column.kind == "uuid":
        return str(uuid.UUID(bytes=value))
    if column.kind == "struct":
        return value["a b"]
    if column.kind == "list":
        return "|".join(value)
    if column.kind == "map":
        return value.get("k")
    return value


def comparable(value: Any) -> Any:
    """Return a value as one that equals itself alone: every NaN is one value, and −0.0 is not 0.0."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else struct.pack(">d", value)
    return value


def target_rows(table: Hostile, found: pa.Table) -> Counter[Out]:
    """Return the rows of a target in the order of columns that `expected` has them in."""
    if table.mode == "stateful":
        names = ["hour_", "n", "keys"]
    elif table.mode == "sequential":
        names = ["hour_", "total"]
    else:
        names = [name for name, _, _, _ in selected(table)]
    columns = [[comparable(value) for value in _plain(found[name])] for name in names]
    return Counter(zip(*columns, strict=True))


def _plain(column: pa.ChunkedArray) -> list[Any]:
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()).to_pylist()
    if pa.types.is_date32(column.type):
        return column.cast(pa.int32()).to_pylist()
    values = column.to_pylist()
    return [bytes(value) if isinstance(value, (bytearray, memoryview)) else value for value in values]
