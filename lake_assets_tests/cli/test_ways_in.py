"""A value means the same on each way in: a cell of CSV, a line of JSON, a column of Parquet, a message of Kafka."""

from __future__ import annotations

import json
import re
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField

from lake_assets.cli.read_files import Wanted, open_file
from lake_assets.errors import UsageError
from lake_assets.incremental.declaration import RawTable
from lake_assets.landing.messages import Feed

REFUSED = object()
NEW_YEAR = datetime(2026, 1, 1, 0, 5, tzinfo=UTC)
LAST_MOMENT = datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC)


def same(kind: str, text: str, in_parquet: pa.Array, expected: object) -> tuple[str, str, str, pa.Array, object]:
    """A value that CSV and JSON write alike."""
    return (kind, text, text, in_parquet, expected)


def text(kind: str, value: str, expected: object) -> tuple[str, str, str, pa.Array, object]:
    """A value that is text in JSON and Parquet."""
    return (kind, f'"{value}"', json.dumps(value), pa.array([value]), expected)


def times(number: int, unit: str, zone: str | None) -> pa.Array:
    return pa.array([number], pa.int64()).cast(pa.timestamp(unit, zone))


CASES = [
    # type, cell of CSV, value of JSON, column of Parquet, what it is
    *[
        (kind, "", "null", pa.nulls(1), None)
        for kind in ("string", "int", "long", "double", "boolean", "date", "timestamptz", "decimal(9, 2)")
    ],
    text("string", "", ""),
    text("string", "NULL", "NULL"),
    text("string", "nan", "nan"),
    text("string", "é\n1, 2", "é\n1, 2"),
    ("string", None, "7", pa.array([7]), REFUSED),
    ("string", None, "true", pa.array([True]), REFUSED),
    same("int", "7", pa.array([7], pa.int8()), 7),
    same("int", "-2147483648", pa.array([-(2**31)]), -(2**31)),
    same("int", "2147483648", pa.array([2**31]), REFUSED),
    same("int", "7.0", pa.array([7.0]), 7),
    same("int", "7.5", pa.array([7.5]), REFUSED),
    same("int", "true", pa.array([True]), REFUSED),
    text("int", "1_000", REFUSED),
    text("int", "７", REFUSED),
    text("int", "", REFUSED),
    same("long", "9223372036854775807", pa.array([2**63 - 1]), 2**63 - 1),
    same("long", "9223372036854775808", pa.array([2**63], pa.uint64()), REFUSED),
    same("long", "1e400", None, REFUSED),
    same("double", "0.1", pa.array([0.1]), 0.1),
    same("double", "2", pa.array([2]), 2.0),
    same("double", "1e400", pa.array([float("inf")]), REFUSED),
    ("double", "NaN", "NaN", pa.array([float("nan")]), REFUSED),
    ("double", "Infinity", "Infinity", pa.array([float("-inf")]), REFUSED),
    text("double", "0,5", REFUSED),
    same("float", "0.5", pa.array([0.5], pa.float32()), 0.5),
    same("float", "1e39", pa.array([1e39]), REFUSED),
    same("boolean", "true", pa.array([True]), True),
    same("boolean", "1", pa.array([1]), REFUSED),
    text("boolean", "yes", REFUSED),
    same("decimal(9, 2)", "10.25", pa.array([10.25]), Decimal("10.25")),
    same("decimal(9, 2)", "10.2500", pa.array([Decimal("10.2500")]), Decimal("10.25")),
    same("decimal(9, 2)", "7", pa.array([7]), Decimal("7.00")),
    same("decimal(9, 2)", "1.005", pa.array([1.005]), REFUSED),
    same("decimal(9, 2)", "0.30000000000000004", pa.array([0.1 + 0.2]), REFUSED),
    same("decimal(9, 2)", "9999999.99", pa.array([Decimal("9999999.99")]), Decimal("9999999.99")),
    same("decimal(9, 2)", "10000000", pa.array([10_000_000]), REFUSED),
    same("decimal(9, 2)", "1e400", pa.array([float("inf")]), REFUSED),
    same("decimal(9, 2)", "1e99999999999999999999", None, REFUSED),
    text("decimal(9, 2)", "7.99", Decimal("7.99")),
    text("decimal(9, 2)", "1_000.00", REFUSED),
    text("decimal(9, 2)", "７.99", REFUSED),
    text("decimal(9, 2)", "NaN", REFUSED),
    same("decimal(38, 10)", "1" * 28 + ".0123456789", None, Decimal("1" * 28 + ".0123456789")),
    text("timestamptz", "2026-01-01T00:05:00Z", NEW_YEAR),
    text("timestamptz", "2026-01-01 01:05+01", NEW_YEAR),
    text("timestamptz", "2026-01-01 00:05:00.000000000 UTC", NEW_YEAR),
    text("timestamptz", "9999-12-31T23:59:59.999999Z", LAST_MOMENT),
    text("timestamptz", "2026-01-01T00:05:00", REFUSED),
    text("timestamptz", "2026-01-01", REFUSED),
    text("timestamptz", "2026-01-01T00:05:00.0000001Z", REFUSED),
    text("timestamptz", "0001-01-01T00:00:00+05:00", REFUSED),
    text("timestamptz", "2026-01-01T24:00:00Z", REFUSED),
    text("timestamptz", "２０２６-01-01T00:05:00Z", REFUSED),
    text("timestamptz", "infinity", REFUSED),
    same("timestamptz", "1767225900000", pa.array([1767225900000]), REFUSED),
    ("timestamptz", None, None, times(1767225900, "s", "UTC"), NEW_YEAR),
    ("timestamptz", None, None, times(1767225900000, "ms", "America/New_York"), NEW_YEAR),
    ("timestamptz", None, None, times(1767225900000000000, "ns", "UTC"), NEW_YEAR),
    ("timestamptz", None, None, times(1767225900000000001, "ns", "UTC"), REFUSED),
    ("timestamptz", None, None, times(1767225900000, "ms", None), REFUSED),
    ("timestamptz", None, None, times(1767225900000, "s", "UTC"), REFUSED),  # the year 57971
    ("timestamptz", None, None, pa.array([date(2026, 1, 1)]), REFUSED),
    text("timestamp", "2026-01-01T00:05:00", NEW_YEAR.replace(tzinfo=None)),
    text("timestamp", "2026-01-01T00:05:00Z", REFUSED),
    text("date", "2026-01-31", date(2026, 1, 31)),
    text("date", "20260131", REFUSED),
    text("date", "2026-02-30", REFUSED),
    text("date", "2026-01-31T00:00:00Z", REFUSED),
    ("date", None, None, pa.array([date(2026, 1, 31)], pa.date64()), date(2026, 1, 31)),
    ("date", None, None, times(1767225900000, "ms", "UTC"), REFUSED),
    ("date", None, None, pa.array([5_000_000], pa.int32()).cast(pa.date32()), REFUSED),  # the year 15659
]


@pytest.mark.parametrize(("kind", "cell", "in_json", "in_parquet", "expected"), CASES)
def test_a_value_is_the_same_on_each_way_in(
    tmp_path: Path, kind: str, cell: str | None, in_json: str | None, in_parquet: pa.Array | None, expected: object
) -> None:
    found: dict[str, object] = {}
    if cell is not None:
        file = tmp_path / "one.csv"
        file.write_text(f"id,value\nfirst,\na-1,{cell}\n")
        found["CSV"] = landed(file, kind)
    if in_json is not None:
        message = f'{{"id": "a-1", "at": "2026-01-01T00:05:00Z", "value": {in_json}}}'
        found["Kafka"] = sent(message, kind)
        file = tmp_path / "one.jsonl"
        file.write_text(f'{{"id": "first", "value": null}}\n{{"id": "a-1", "value": {in_json}}}\n')
        found["JSON lines"] = landed(file, kind)
    if in_parquet is not None:
        file = tmp_path / "one.parquet"
        value = pa.concat_arrays([pa.nulls(1, in_parquet.type), in_parquet])
        parquet.write_table(pa.table({"id": ["first", "a-1"], "value": value}), file)
        found["Parquet"] = landed(file, kind)
    assert found == dict.fromkeys(found, expected)
    assert {type(value) for value in found.values()} == {type(expected)}


@pytest.mark.parametrize("year", [1, 1500, 2026, 3333, 9999])
def test_a_time_of_the_type_int96_is_read_in_each_year(tmp_path: Path, year: int) -> None:
    file = tmp_path / "one.parquet"
    times = pa.array([None, datetime(year, 1, 1, 0, 5, 0, 1)], pa.timestamp("us"))  # noqa: DTZ001
    parquet.write_table(pa.table({"id": ["first", "a-1"], "value": times}), file, use_deprecated_int96_timestamps=True)
    assert landed(file, "timestamp") == times[1].as_py()
    if year == 2026:
        finer = times.cast(pa.timestamp("ns")).cast(pa.int64())
        finer = pa.array([None, finer[1].as_py() + 1], pa.timestamp("ns"))
        table = pa.table({"id": ["first", "a-1"], "value": finer})
        parquet.write_table(table, file, use_deprecated_int96_timestamps=True)
        assert landed(file, "timestamp") is REFUSED


def landed(file: Path, kind: str) -> object:
    """The value in the second row of a file, or that it is refused by name."""
    kinds = {"id": "string", "value": kind}
    fields = [NestedField(i, name, declared, required=False) for i, (name, declared) in enumerate(kinds.items(), 1)]
    schema = schema_to_pyarrow(Schema(*fields), include_field_ids=False)
    try:
        wanted = Wanted(kinds, schema)
        rows = [row for batch in open_file(file, wanted).batches() for row in batch.to_pylist()]
        wanted.mistakes.check()
    except UsageError as error:
        is_named = re.search(rf"{file.name}, row 2: (value is|has (the|a) number)", error.problem)
        return REFUSED if is_named else error
    assert [row["id"] for row in rows] == ["first", "a-1"]
    return rows[1]["value"]


def sent(message: str, kind: str) -> object:
    columns = {"id": "string", "at": "timestamptz", "value": kind}
    row: Any = Feed("t", RawTable("raw.t", columns, time_column="at"), "id").parse(message.encode())
    if isinstance(row, str):
        assert row in (f"bad {kind} value", "not a JSON object")
        return REFUSED
    return row["value"]
