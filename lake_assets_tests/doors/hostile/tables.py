"""What a hostile table is: its columns, rows, partitions and life, all drawn from a seed. Pure.

Moments are microseconds since 1970, because some of them are outside of what `datetime` holds; dates are days since
then.
"""

from __future__ import annotations

import math
import random
import struct
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

HOUR = 3_600_000_000
YEAR_57971 = 1_767_225_600_000_000_000
"""The milliseconds of the year 2026, taken for seconds."""
DAY = 24 * HOUR
LAST_HOUR = 253_402_297_200_000_000
"""The start of the last hour of the year 9999, from which on a row may be left out."""

Row = dict[str, Any]
"""Column → value: moments, dates and times as whole numbers, uuids as bytes."""


def moment_of(hour: str) -> int:
    """Return the moment at which an hour begins: `1970-01-01-01:00` → 3600000000."""
    found = datetime.strptime(hour, "%Y-%m-%d-%H:%M").replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return found // timedelta(microseconds=1)


STARTS = {
    "now": "2026-01-01-00:00",
    "epoch": "1969-12-30-00:00",
    "calendar": "1582-10-01-00:00",
    "end": "9989-12-01-00:00",
    "old": "1001-01-01-00:00",
}
"""Era → the first hour of the pipeline."""

PLAIN_NAMES = ["amount", "note", "city", "v", "kind", "weight", "color", "total", "state", "level"]
# fmt: off
OWN_NAMES = [
    "_time", "_key", "_hour", "_reason", "_row_hash", "_delivery", "_landed", "batch_id", "landed_at", "landing_date",
    "landing_hour",
    "source", "row", "reason", "row_hash", "hour", "session_id", "_LAKE_is_valid", "Landed_At",
    "session_hours", "previous",
]
ODD_NAMES = [
    "Upper", "a space", "a.b", "a`tick", 'a"quote', "it's", "\u00e9", "e\u0301", "select", "order", "group", "from",
    "table", "null",
    "timestamp", "1st", "a-b", "semi;colon", "{brace}", "100%", "--", "日本", "tab\there", "_file", "_pos",
    "true", "a,b", "a/b", "a=b", " ",
]
IDENTIFIERS = [
    "_time",
    "_key",
    "_hour",
    "_reason",
    "batch_id",
    "source",
    "row",
    "Id",
    "order",
    "select",
    "hour",
    "landed_at",
    "event_TS",
]
"""Odd names that a key or a time column may have: a declaration takes letters, digits and `_` there."""

KEYWORDS = ["select", "order", "row", "source", "reason", "hour", "timestamp", "null"]

TEXTS = [
    "", " ", "x ", "'", '"', "`", "\n", "a,b", "\u00e9", "e\u0301", "\\", "\\N", "NULL", "null", "NaN", "{2}", "-- no",
    "/*", "💥", "%s", "${x}",
    "2026-01-01", "0", "-1", "true", "\t", "\r\n", "\ufeff", "ß", "İ", "a/b", "..", "__HIVE_DEFAULT_PARTITION__",
]
MEGABYTE = "\u00e9" * 500_000


def float32(value: float) -> float:
    result: float = struct.unpack("f", struct.pack("f", value))[0]
    return result


FLOATS = [0.0, -0.0, float("nan"), float("inf"), float("-inf"), 1.5, -2.25]
MOMENTS = [
    -62_135_596_800_000_000, -12_219_292_800_000_001, -HOUR - 1, -1_500_000, -1, 0, 1, 1_767_225_599_999_999,
    253_402_300_799_999_999,
]
# fmt: on

EDGES: dict[str, list[Any]] = {
    "boolean": [True, False],
    "int": [0, -1, 7, 2**31 - 1, -(2**31)],
    "long": [0, -1, 7, 2**63 - 1, -(2**63), 2**53 + 1],
    "float": [*FLOATS, float32(3.4028234e38), float32(1e-45), float32(0.1)],
    "double": [*FLOATS, 1.7976931348623157e308, 5e-324, 0.1],
    "decimal(9, 2)": [
        Decimal("0.00"),
        Decimal("-0.01"),
        Decimal("9999999.99"),
        Decimal("-9999999.99"),
        Decimal("1.10"),
    ],
    "decimal(38, 10)": [
        Decimal("0E-10"),
        Decimal("1E-10"),
        Decimal("9" * 28 + "." + "9" * 10),
        Decimal("-1.5000000000"),
    ],
    "date": [-719_162, -141_428, -1, 0, 20_454, 2_932_896],
    "time": [0, 1, 86_399_999_999],
    "timestamp": MOMENTS,
    "timestamptz": MOMENTS,
    "string": TEXTS,
    "uuid": [uuid.UUID(int=0).bytes, uuid.UUID(int=2**128 - 1).bytes, uuid.UUID(int=7).bytes],
    "fixed[4]": [b"\0\0\0\0", b"\xff\xfe\xfd\xfc", b"abcd"],
    "binary": [b"", b"\0", b"\xff\xfe", b"abc"],
    "struct": [{"a b": 1, "Sel`ect": "x"}, {"a b": None, "Sel`ect": ""}],
    "list": [[], ["a"], ["", "e\u0301", "|"]],
    "map": [{}, {"k": 1}, {"": 2, "k": -1}],
}
"""Type → values at its edges."""

WIDENED = {"decimal(12, 2)": "decimal(9, 2)"}
"""Type of a column that was widened → the type whose edges its new rows take."""

KEYS: dict[str, Callable[[int], Any]] = {
    "string": lambda n: f"k{n}{TEXTS[n % len(TEXTS)]}",
    "int": lambda n: n - 3,
    "long": lambda n: 2**53 + n,
    "uuid": lambda n: uuid.UUID(int=n * 2**100 + n).bytes,
    "decimal(38, 10)": lambda n: Decimal(f"{'9' * 27}{n % 10}.{n:010}"),
    "decimal(9, 2)": lambda n: Decimal(n).scaleb(-2),
    "date": lambda n: n * 400 - 20_000,
    "timestamptz": lambda n: n * DAY - 1,
    "binary": lambda n: b"\0" + n.to_bytes(3, "big"),
    "fixed[4]": lambda n: n.to_bytes(4, "little"),
    "boolean": lambda n: n % 2 == 0,
}
"""Type of a key → the key with a number."""


@dataclass
class Column:
    """A column of the source, and what a target takes of it.

    Attributes:
        name: As it is called now.
        kind: Its Iceberg type; `struct`, `list` or `map` for those of `writing.iceberg_type`.
        used: Whether the target selects it.
    """

    name: str
    kind: str
    used: bool = True
    shown: str = ""
    """Its name in the target."""


@dataclass
class Hostile:
    """A table of another program, and the target that reads it.

    Attributes:
        label: The seed and number that make it again.
        name: Of the table, and part of the target's name.
        origin: `foreign`, or `raw` for a table that `lake land` fills.
        mode: `stateless`, `stateful`, `sequential` or `corrected`.
        language: `yaml` or `python`.
        key: Column, as `time`.
        partition: Transform, and the column that it is of; None for none.
        writer: `spark`, `pyiceberg` or the kind of added files: `us`, `ms`, `int96`.
        life: The operations of each step after the first one.
        is_finite: Whether its numbers are finite, as `lake land` wants them.
        landed: The moment of the last `lake land`; the rows of an hour later than that are quarantined.
    """

    label: str
    name: str
    rng: random.Random
    era: str
    origin: str
    mode: str
    language: str
    columns: list[Column]
    key: Column
    time: Column
    partition: tuple[str, str] | None
    version: int
    writer: str
    shape: str
    hours: int
    life: list[list[str]]
    rule: bool
    is_finite: bool
    landed: int = 0
    rows: list[Row] = field(default_factory=list)
    added: int = 0
    complete_through: int | None = None
    """Moment at which the last complete hour begins."""
    done: list[str] = field(default_factory=list)
    """The operations so far."""
    ended: str | None = None
    """Why the table is played no further: the message that refused it."""

    @property
    def table(self) -> str:
        return f"{'raw' if self.origin == 'raw' else 'prod'}.{self.name}"

    @property
    def target(self) -> str:
        return f"core.{self.name}_t"

    @property
    def reach(self) -> int:
        """The hours that most rows are in. A sequential target takes a session for each few."""
        return 8 if self.mode == "sequential" else 40

    @property
    def start(self) -> int:
        return moment_of(STARTS[self.era])

    def column(self, name: str) -> Column:
        return next(column for column in self.columns if column.name == name)

    def __str__(self) -> str:
        kinds = ", ".join(f"{column.name!r} {column.kind}" for column in self.columns)
        return (
            f"{self.label} {self.table} era={self.era} {self.mode} {self.language} key={self.key.name!r}"
            f" {self.key.kind} time={self.time.name!r} {self.time.kind} partition={self.partition} v{self.version}"
            f" writer={self.writer} shape={self.shape} life={','.join(map('+'.join, self.life))} columns: {kinds}"
        )


# fmt: off
OPERATIONS = [
    "append", "append", "append", "delete", "delete", "overwrite", "update", "compact", "replace", "add column",
    "rename unused", "rename used", "widen", "expire", "nothing", "drop unused",
]
# fmt: on


OPERATIONS_OF_A_STEP = 2

SHORT = 50
"""Hours of most tables that have a row in each of many."""


def draw(seed: int, number: int, era: str, *, steps: int, hours: int) -> Hostile:
    """Draw a table.

    Args:
        steps: Number of steps after the first load.
        hours: Number of hours of the shape `many`.
    """
    rng = random.Random(f"{seed}/{number}")
    origin = "raw" if rng.random() < 0.15 else "foreign"
    mode = rng.choice(["stateless", "stateless", "stateful", "sequential", "corrected"])
    language = {"corrected": "python", "sequential": "yaml"}.get(mode, rng.choice(["yaml", "python"]))
    columns = _columns(rng, origin, mode)
    key, time = columns[0], columns[1]
    for place, column in enumerate(columns):
        column.shown = {0: "key_", 1: "time_"}.get(place, f"c{place}")
    shape = rng.choice(["many", "one", "few", "few"] if mode == "sequential" else ["many", "one", "gap", "few", "few"])
    lives = random.Random(f"{seed}/{number}/life")
    life = [[lives.choice(OPERATIONS) for _ in range(OPERATIONS_OF_A_STEP)] for _ in range(steps)]
    writer = rng.choice(["spark", "pyiceberg", "us", "ms", "int96"])
    version = rng.choice([2, 2, 3])
    if origin == "raw":
        life = [["append"] for _ in life]
        writer = rng.choice(["us", "ms", "csv"])
    if hours > SHORT and lives.random() < 0.9:
        hours = SHORT
    return Hostile(
        label=f"{seed}/{number}",
        name=f"h{number}",
        rng=rng,
        era=era,
        origin=origin,
        mode=mode,
        language=language,
        columns=columns,
        key=key,
        time=time,
        partition=None if writer == "int96" else _partition(rng, columns, key, time),
        version=version,
        writer=writer,
        shape=shape,
        hours=hours,
        life=life,
        rule=rng.random() < 0.3,
        is_finite=origin == "raw" and lives.random() < 0.9,
    )


def _columns(rng: random.Random, origin: str, mode: str) -> list[Column]:
    """Draw the columns: the key, the time, a number that tells rows apart, and others."""
    raw = origin == "raw"
    names = _Names(rng)
    neat = rng.random() < 0.5 or raw
    odd = IDENTIFIERS if rng.random() < 0.5 else [*ODD_NAMES, *OWN_NAMES]
    key_kind = "string" if rng.random() < 0.4 else rng.choice([kind for kind in KEYS if kind not in _NO_KEYS[raw]])
    time_kind = "timestamptz" if raw else rng.choice(["timestamptz", "timestamptz", "timestamp"])
    key = Column(names.take(["id"] if neat else odd), key_kind)
    time = Column(names.take(["at"] if neat else odd), time_kind)
    columns = [key, time, Column("n", "int", used=False)]
    if mode == "corrected":
        columns += [Column("version", rng.choice(["int", "timestamptz", "decimal(9, 2)"])), Column("op", "string")]
    kinds = [kind for kind in EDGES if kind not in _NO_VALUES[raw]]
    if rng.random() < 0.05 and not raw:
        kinds = ["time"]
    if rng.random() < 0.03 and not raw:
        columns.append(Column(key.name.swapcase(), "string", used=False))
    for _ in range(rng.randint(1, 5)):
        chosen = rng.choice([PLAIN_NAMES, KEYWORDS] if raw else [PLAIN_NAMES, OWN_NAMES, ODD_NAMES])
        columns.append(Column(names.take(chosen), rng.choice(kinds), used=rng.random() < 0.7))
    return columns


_NO_KEYS = {False: ("boolean",), True: ("boolean", "fixed[4]", "binary", "uuid")}
_NO_VALUES = {
    False: ("time",),
    True: ("time", "struct", "list", "map", "fixed[4]", "binary", "uuid", "timestamp", "float"),
}
"""Whether a table is filled by `lake land` → types that are not drawn."""


class _Names:
    """Names of columns, each of which is taken once."""

    def __init__(self, rng: random.Random) -> None:
        self._rng, self._taken = rng, {"n", "version", "op"}

    def take(self, choices: list[str]) -> str:
        found = self._rng.choice([choice for choice in choices if choice not in self._taken])
        self._taken.add(found)
        return found


def _partition(rng: random.Random, columns: list[Column], key: Column, time: Column) -> tuple[str, str] | None:
    """Draw a transform, and its column."""
    choice = rng.choice(["none", "time", "time", "bucket", "truncate", "identity"])
    if choice == "time":
        return rng.choice(["hour", "day", "month", "year", "identity"]), time.name
    if choice == "bucket" and key.kind != "boolean":
        return "bucket[4]", key.name
    if choice == "truncate" and key.kind in ("string", "int", "long", "decimal(9, 2)", "binary"):
        return "truncate[3]", key.name
    plain = [column for column in columns if column.kind in ("string", "date", "boolean", "long", "decimal(9, 2)")]
    if choice == "identity" and plain:
        return "identity", rng.choice(plain).name
    return None


def new_rows(table: Hostile, *, first: bool) -> list[Row]:
    """Draw the rows of one write: some of them repeat keys of before, some have no key or no time."""
    rng = table.rng
    moments = _moments(table, first=first)
    if first:
        moments.insert(0, table.start + table.reach * HOUR + 5)
    rows = [_row(table, key=table.added, moment=moment) for moment in moments]
    known = [row for row in table.rows if row[table.time.name] is not None and row[table.key.name] is not None]
    rows += [_again(table, row) for row in rng.sample(known, min(len(known), rng.randint(1, 3)))]
    rows += [_flawed(table, flaw) for flaw in _flaws(table) if rng.random() < 0.25]
    if table.writer == "ms":
        kinds = {column.name for column in table.columns if column.kind in ("timestamp", "timestamptz")}
        for row in rows:
            row.update({name: row[name] // 1000 * 1000 for name in kinds if row[name] is not None})
    if table.is_finite:
        for row in rows:
            row.update(
                {name: 1.5 for name, value in row.items() if isinstance(value, float) and not math.isfinite(value)}
            )
    if table.writer == "csv":
        for row in rows:
            row.update({name: "empty" for name, value in row.items() if value == ""})
    return rows


def _again(table: Hostile, row: Row) -> Row:
    """Return a row that is delivered again, or another version of it."""
    again = _row(table, key=0, moment=0)
    if table.mode != "corrected":
        return {**row, "n": again["n"]}
    again[table.key.name] = row[table.key.name]
    again[table.time.name] = table.rng.choice(
        [row[table.time.name], table.start + table.rng.randrange(table.reach) * HOUR]
    )
    return again


def _flaws(table: Hostile) -> list[str]:
    flaws = ["early"] if table.shape == "gap" else ["key", "time", "early"]
    return flaws if table.mode == "corrected" or table.origin == "raw" else [*flaws, "late"]


def _flawed(table: Hostile, flaw: str) -> Row:
    row = _row(table, key=table.added, moment=table.start + HOUR)
    rng = table.rng
    changes: dict[str, Row] = {
        "key": {table.key.name: None},
        "time": {table.time.name: None},
        "early": {table.time.name: table.start - rng.choice([1000, HOUR])},
        "late": {table.time.name: rng.choice([LAST_HOUR - 1, LAST_HOUR + HOUR - 1, LAST_HOUR + HOUR, YEAR_57971])},
    }
    return {**row, **changes[flaw]}


def _moments(table: Hostile, *, first: bool) -> list[int]:
    rng = table.rng

    def fraction() -> int:
        return rng.choice([0, 1, 999, 500_000, 59_999_999, HOUR - 1, rng.randrange(HOUR)])

    hours = table.hours if first else 3
    if table.shape == "one":
        return [table.start + 7 * HOUR + fraction() for _ in range(6)]
    if table.shape == "many":
        if table.mode == "sequential":
            hours = min(hours, table.reach)
        step = HOUR if table.mode == "sequential" or hours < 40 else 3 * HOUR
        return [table.start + n * step + fraction() for n in range(hours)]
    if table.shape == "gap":
        return [table.start + rng.choice([3, 87_660]) * HOUR + fraction() for _ in range(4)]
    return [table.start + rng.randrange(table.reach) * HOUR + fraction() for _ in range(6)]


def _row(table: Hostile, *, key: int, moment: int) -> Row:
    table.added += 1
    row = {column.name: _value(table.rng, column) for column in table.columns}
    row |= {table.key.name: KEYS[table.key.kind](key), table.time.name: moment, "n": table.added}
    if table.mode == "corrected":
        number = table.added * table.rng.choice([1, 1, -1])
        version = Decimal(number).scaleb(-2) if table.column("version").kind.startswith("decimal") else number * 1000
        row |= {"version": version, "op": table.rng.choice(["U", "U", "U", None, "D"])}
    return row


def _value(rng: random.Random, column: Column) -> Any:
    if rng.random() < 0.2:
        return None
    if column.kind == "string" and rng.random() < 0.004:
        return MEGABYTE
    return rng.choice(EDGES[WIDENED.get(column.kind, column.kind)])
