"""What a value may be, for each declared type. The same on each way in: CSV, JSON lines, Parquet and Kafka. Pure.

`docs/files.md` has the rules as one table. A cast returns the value, or raises `Refused`; it never rounds, guesses a
time zone, or takes a number for a time. A cell of CSV is text whatever it means; a value of JSON or Parquet has a type
of its own, so there a text is no int, no double and no boolean.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

KINDS = (
    *("string", "int", "long", "float", "double", "boolean", "date", "timestamp", "timestamptz", "decimal(p, s)"),
    *("list<T>", "map<K, V>", "struct<name: T, ...>"),
)
"""The Iceberg types that have a rule. T, K and V are any of them; K is no nested one."""

NO_ZONE = "has no time zone"
ZONE_REMEDY = "Write times with their zone, such as 2026-01-01T00:05:00Z."

_DECIMAL = re.compile(r"decimal\((\d+),\s*(\d+)\)")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME = re.compile(
    r"(?P<day>[0-9]{4}-[0-9]{2}-[0-9]{2})[Tt ](?P<clock>[0-9]{2}:[0-9]{2}(?::[0-9]{2})?)(?:\.(?P<fraction>[0-9]+))?"
    r" ?(?P<zone>[Zz]|UTC|[+-](?:[01][0-9]|2[0-3])(?::?[0-5][0-9])?)?"
)
_INT_BITS = {"int": 32, "long": 64}
_GREATEST_FLOAT = (2 - 2**-23) * 2.0**127
_EXACT = Context(prec=60)  # more than the 38 digits of the longest decimal
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001  the zone is the column's
_NANOSECONDS = {"days": 86_400_000_000_000, "s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}

Cast = Callable[[Any], Any]
"""Returns the value that a column stores. Raises `Refused`. It is never called with None, which is null for each type.

It takes what JSON and Parquet have: str, bool, int, Decimal, float, bytes, date, datetime, list and dict. Of a map it
returns the pairs of its entries.
"""

_NESTED = re.compile(r"\s*(list|map|struct)\s*<(.*)>\s*", re.DOTALL)
_FIELD = re.compile(r"\s*([^:,<>()`]*[^:,<>()`\s])\s*:(.*)", re.DOTALL)
"""A field of a struct."""


def parts_of(kind: str) -> tuple[str, Mapping[str, str]] | None:
    """Return `list`, `map` or `struct`, and the types of its parts; None for another type, or one that is malformed.

    The parts are `element`; `key` and `value`; the fields.
    """
    found = _NESTED.fullmatch(kind)
    if found is None:
        return None
    texts = [""]
    depth = 0
    for sign in found[2]:
        depth += (sign in "<(") - (sign in ">)")
        if sign == "," and not depth:
            texts.append("")
        else:
            texts[-1] += sign
    if found[1] == "struct":
        fields = [_FIELD.fullmatch(text) for text in texts]
        parts = {field[1]: field[2].strip() for field in fields if field}
    else:
        names = ("element",) if found[1] == "list" else ("key", "value")
        parts = dict(zip(names, map(str.strip, texts), strict=False))
        fields = [*names]
    is_whole = len(parts) == len(texts) == len(fields) and not depth and all(parts.values())
    return (found[1], parts) if is_whole else None


class Refused(ValueError):
    """A column cannot hold a value.

    Args:
        reason: Continues the sentence "amount is '1_000.00', which ...".
        remedy: What to do, as a sentence.
    """

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy


def cast(kind: str, *, text_only: bool = False, zone: ZoneInfo | None = None, whole: bool = False) -> Cast | None:
    """Return the cast to an Iceberg type; None for a type that has no rule, such as binary.

    Args:
        kind: One of `KINDS`.
        text_only: Each value is a text, as in CSV, also numbers and booleans. Nested types have no rule then.
        zone: The zone of times that name none, and of dates, which are their midnight. Without it both are refused.
        whole: Whether a field that its struct lacks is refused. It is ignored otherwise.
    """
    nested = parts_of(kind)
    if nested:
        return None if text_only else _nested(*nested, partial(cast, zone=zone, whole=whole), whole=whole)
    decimal = _DECIMAL.fullmatch(kind)
    if decimal:
        precision, scale = int(decimal[1]), int(decimal[2])
        return lambda value: _decimal(_number(value, kind, may_be_text=True), precision, scale)
    if kind in _INT_BITS:
        limit = 1 << (_INT_BITS[kind] - 1)
        return lambda value: _integer(_number(value, kind, may_be_text=text_only), kind, limit)
    plain: Mapping[str, Cast] = {
        "string": _string,
        "float": lambda value: _double(_number(value, kind, may_be_text=text_only), _GREATEST_FLOAT),
        "double": lambda value: _double(_number(value, kind, may_be_text=text_only), math.inf),
        "boolean": _boolean_of_text if text_only else _boolean,
        "date": _date,
        "timestamp": _local_time,
        "timestamptz": lambda value: moment_of(value, zone),
    }
    return plain.get(kind)


class KeyTwice(Refused):
    """An object of a JSON text has a key twice, and nobody knows which value counts."""


def json_object(text: str) -> Mapping[str, Any]:
    """Return the object of a JSON text, whose numbers are int or Decimal, as exact as they are written.

    Raises:
        KeyTwice: An object in it has a key twice.
        Refused: It is no JSON object.
    """
    try:
        found = _DECODER.decode(text)
    except Refused:
        raise
    except ArithmeticError:  # of Decimal, for an exponent of nineteen digits
        raise Refused("has a number that no column can hold", "Correct it.") from None
    except (ValueError, RecursionError):
        raise Refused("is no JSON object", "Write one JSON object for each row.") from None
    if not isinstance(found, dict):
        raise Refused("is no JSON object", "Write one JSON object for each row.")
    return found


def time_of(number: int, unit: str, zone: str | None) -> datetime:
    """Return a time of Arrow: with UTC if its column has a zone, else with none.

    Args:
        number: Since 1970, in the unit.
        unit: `days`, `s`, `ms`, `us` or `ns`.
        zone: Of the column.

    Raises:
        Refused: It is finer than a microsecond, or not in the years 1 to 9999.
    """
    microseconds, finer = divmod(number * _NANOSECONDS[unit], 1000)
    if finer:
        raise too_fine()
    try:
        found = _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        year = 1970 + microseconds // 31_556_952_000_000
        raise Refused(
            f"is about the year {year:,}: times are in the years 1 to 9999",
            "Check the unit of the column: seconds may have been written as milliseconds.",
        ) from None
    return found if zone is None else found.replace(tzinfo=UTC)


def too_fine() -> Refused:
    """Return why a time of nanoseconds is refused."""
    return Refused("is finer than a microsecond, which no table can hold", "Cut or round it where it is made.")


def time_text(number: int, unit: str) -> str:
    """Return a time of Arrow as text, also one that `time_of` refuses."""
    whole, finer = divmod(number * _NANOSECONDS[unit], 1_000_000_000)
    try:
        text = (_EPOCH + timedelta(seconds=whole)).isoformat(" ")
    except OverflowError:
        return f"{number} {unit} since 1970"
    return f"{text}.{finer:09}" if finer else text


def shown(value: object) -> str:
    """Return a value as a message shows it: at most 60 characters of a text."""
    if isinstance(value, str):
        return repr(value if len(value) <= 60 else f"{value[:60]}…")
    if isinstance(value, datetime):
        return value.isoformat(" ")
    text = str(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _nested(form: str, parts: Mapping[str, str], cast_to: Callable[..., Cast | None], *, whole: bool) -> Cast | None:
    """Return the cast to a nested type; None if a part has no rule. `cast_to` is `cast`, with its options."""
    # A key of JSON is a text whatever it means.
    casts = {name: cast_to(kind, text_only=form == "map" and name == "key") for name, kind in parts.items()}
    if None in casts.values():
        return None

    def part(name: str, shown_as: str, value: Any) -> Any:
        read = casts[name]
        try:
            return None if value is None or read is None else read(value)
        except Refused as refused:
            raise Refused(f"has {shown_as} {shown(value)}, which {refused.reason}", refused.remedy) from None

    def of_list(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise Refused("is no list", "Write a list, such as [1, 2].")
        return [part("element", "the element", each) for each in value]

    def of_map(value: Any) -> list[tuple[Any, Any]]:
        pairs = [*value.items()] if isinstance(value, dict) else value
        if not isinstance(pairs, list) or not all(isinstance(each, tuple) for each in pairs):
            raise Refused("is no map", 'Write an object with a field for each key, such as {"a": 1}.')
        read = [(part("key", "the key", key), part("value", f"at {shown(key)}", each)) for key, each in pairs]
        if len({key for key, _ in read} - {None}) < len(read):
            raise Refused("has a key twice, or one that is null", "Rename or remove it.")
        return read

    def of_struct(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise Refused("is no struct", f"Write an object with the fields {', '.join(parts)}.")
        unknown = [name for name in value if name not in parts]
        if whole and unknown:
            raise Refused(f"has the field {unknown[0]!r}, which the struct lacks", "Declare it, or leave it out.")
        return {name: part(name, f"in {name}", value.get(name)) for name in parts}

    return {"list": of_list, "map": of_map, "struct": of_struct}[form]


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise Refused("is no text", "Write it as text, or declare the column with the type of the values.")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Refused("has half of a surrogate pair, which is no character", "Correct the text.") from None
    return value


def _number(value: Any, kind: str, *, may_be_text: bool) -> int | float | Decimal:
    """Return a finite number: a float as it is, every other one exactly."""
    if isinstance(value, str) and may_be_text:
        stripped = value.strip(" ")
        if not _NUMBER.fullmatch(stripped):
            raise Refused("is no number", "Write digits 0 to 9 with a point, such as 1000.00.")
        try:
            return Decimal(stripped)
        except ArithmeticError:
            raise _out_of_range(kind) from None
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise Refused("is no number", f"Write a number, or declare the column with another type than {kind}.")
    if not math.isfinite(value) if isinstance(value, float) else isinstance(value, Decimal) and not value.is_finite():
        raise Refused("is no finite number", "Write null for a number that is not known.")
    return value


def _out_of_range(kind: str) -> Refused:
    return Refused(f"is out of the range of {kind}", "Correct it, or declare a wider type.")


def _exact(number: int | float | Decimal) -> Decimal:
    return Decimal(repr(number)) if isinstance(number, float) else Decimal(number)


def _decimal(number: int | float | Decimal, precision: int, scale: int) -> Decimal:
    found = _exact(number)
    if not found:
        return Decimal(0).scaleb(-scale)
    if found.adjusted() >= precision - scale:
        raise _out_of_range(f"decimal({precision}, {scale})")
    fitting = found.quantize(Decimal(1).scaleb(-scale), context=_EXACT)
    if fitting != found:
        raise Refused(
            f"has more than {scale} decimals: a decimal is never rounded",
            f"Round it where it is made, or declare a decimal with more than {scale} decimals.",
        )
    return fitting


def _integer(number: int | float | Decimal, kind: str, limit: int) -> int:
    if not isinstance(number, int):
        exact = _exact(number)
        if exact and exact.adjusted() > 20:
            raise _out_of_range(kind)
        if exact != exact.to_integral_value():
            raise Refused("is no whole number", "Correct it, or declare the column as double or decimal(p, s).")
        number = int(exact)
    if not -limit <= number < limit:
        raise _out_of_range(kind)
    return number


def _double(number: int | float | Decimal, greatest: float) -> float:
    try:
        found = float(number)
    except OverflowError:
        found = math.inf
    if math.isinf(found) or abs(found) > greatest:
        raise _out_of_range("float" if math.isfinite(greatest) else "double")
    return found


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise Refused("is neither true nor false", "Write true or false, or declare the column with another type.")
    return value


def _boolean_of_text(value: Any) -> bool:
    found = {"true": True, "false": False}.get(str(value).strip(" ").lower())
    if found is None:
        raise Refused("is neither true nor false", "Write true or false.")
    return found


def _date(value: Any) -> date:
    if isinstance(value, date) and not isinstance(value, datetime):
        return value
    text = value.strip(" ") if isinstance(value, str) else ""
    if not _DATE.fullmatch(text):
        raise Refused("is no date", "Write dates such as 2026-01-31.")
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise Refused("is a date that does not exist", "Correct the date.") from None


def moment_of(value: Any, zone: ZoneInfo | None = None) -> datetime:
    """Return the moment of a timestamptz, in UTC. Raises `Refused`."""
    found = _time(_midnight(value) if zone else value)
    if found.tzinfo is None:
        if zone is None:
            raise Refused(NO_ZONE, ZONE_REMEDY)
        found = _in_zone(found, zone)
    try:
        return found.astimezone(UTC)
    except OverflowError:
        raise Refused("is not in the years 1 to 9999 of UTC", "Correct the time, or write null.") from None


def _midnight(value: Any) -> Any:
    """Return the midnight of a date, and everything else as it is."""
    if isinstance(value, date) and not isinstance(value, datetime):
        return datetime(value.year, value.month, value.day)  # noqa: DTZ001  the zone comes next
    if isinstance(value, str) and _DATE.fullmatch(value.strip(" ")):
        return f"{value.strip(' ')}T00:00"
    return value


def _in_zone(local: datetime, zone: ZoneInfo) -> datetime:
    """Return a local time in its zone; refuse those that clocks show twice or never when they are changed."""
    found = local.replace(tzinfo=zone)
    if zone.utcoffset(found) != zone.utcoffset(found.replace(fold=1)):
        raise Refused(f"is shown twice or never by the clocks of {zone.key}", ZONE_REMEDY)
    return found


def _local_time(value: Any) -> datetime:
    found = _time(value)
    if found.tzinfo is not None:
        raise Refused("has a time zone, but the column is a timestamp without", "Declare the column as timestamptz.")
    return found


def _time(value: Any) -> datetime:
    if isinstance(value, datetime):
        if getattr(value, "nanosecond", 0):  # of a timestamp in a nested column of Parquet
            raise too_fine()
        return value
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        raise Refused("is a number, and no time", f"Convert it where it is made: its unit is not known. {ZONE_REMEDY}")
    text = value.strip(" ") if isinstance(value, str) else ""
    found = _TIME.fullmatch(text)
    if found is None:
        raise Refused("is no time", ZONE_REMEDY)
    fraction = found["fraction"] or ""
    if fraction[6:].strip("0"):
        raise too_fine()
    zone = {"Z": "+00:00", "UTC": "+00:00"}.get((found["zone"] or "").upper(), found["zone"] or "")
    micros = f".{fraction[:6]:0<6}" if fraction else ""
    clock = found["clock"] if len(found["clock"]) == 8 else f"{found['clock']}:00"
    try:
        return datetime.fromisoformat(f"{found['day']}T{clock}{micros}{zone}")
    except ValueError:
        raise Refused("is a time that does not exist", "Correct the time.") from None


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise KeyTwice(f"has the key {shown(twice)} twice", "Rename or remove one.")
    return found


def _refuse_constant(constant: str) -> Any:
    raise Refused(f"has the number {constant}, which is not JSON", "Write null for a number that is not known.")


_DECODER = json.JSONDecoder(parse_float=Decimal, parse_constant=_refuse_constant, object_pairs_hook=_unique)
