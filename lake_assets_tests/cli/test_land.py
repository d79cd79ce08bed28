"""`lake land` appends whole files or nothing, with the landing columns and complete-through in the same commit."""

from __future__ import annotations

import gzip
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyiceberg.catalog import Catalog

from lake_assets.base.hours import parse_hour
from lake_assets.cli.land import land_files
from lake_assets.errors import UsageError
from lake_assets.incremental.declaration import Pipeline, RawTable
from lake_assets.incremental.engine.iceberg import create_raw, load

PAYMENTS = RawTable(
    "raw.payments", {"payment_id": "string", "amount": "decimal(9, 2)", "paid_at": "timestamptz"}, time_column="paid_at"
)
PIPELINE = Pipeline(raw=(PAYMENTS, RawTable("prod.existing", time_column="at")), targets=(), start="2026-01-01-00:00")
NOW = datetime(2026, 1, 1, 3, 4, 5, tzinfo=UTC)
FIRST = {"payment_id": "p1", "amount": Decimal("10.00"), "paid_at": datetime(2026, 1, 1, 0, 5, tzinfo=UTC)}
SECOND = {"payment_id": "p2", "amount": None, "paid_at": datetime(2026, 1, 1, 2, 6, tzinfo=UTC)}
LANDING = {
    "landed_at": NOW,
    "landing_date": date(2026, 1, 1),
    "landing_hour": 3,
    "batch_id": "20260101T030405000000",
}


def land(
    catalog: Catalog,
    *files: Path,
    through: str | None = None,
    table: str = "raw.payments",
    now: datetime = NOW,
    force: bool = False,
) -> int:
    hour = parse_hour(through) if through else None
    return land_files(catalog, PIPELINE, table, files, now=now, through=hour, force=force)


def test_files_become_rows_of_one_commit(catalog: Catalog, tmp_path: Path) -> None:
    create_raw(catalog, PAYMENTS)
    text, binary = tmp_path / "one.csv", tmp_path / "two.parquet"
    text.write_text("paid_at,payment_id,amount\n2026-01-01T01:05:00+01:00,p1,10.00\n")
    parquet.write_table(pa.Table.from_pylist([{**SECOND, "amount": None}]), binary)
    assert land(catalog, text, binary, through="2026-01-01-02:00") == 2

    table = load(catalog, "raw.payments")
    rows = sorted(table.scan().to_arrow().to_pylist(), key=lambda row: str(row["payment_id"]))
    assert rows == [{**FIRST, **LANDING}, {**SECOND, **LANDING}]
    assert table.properties["lake.complete-through"] == "2026-01-01-02:00"
    assert len(table.snapshots()) == 1

    assert land(catalog, text) == 1
    assert load(catalog, "raw.payments").properties["lake.complete-through"] == "2026-01-01-02:00"


def test_the_later_complete_through_of_two_landings_at_once_stays(catalog: Catalog, tmp_path: Path) -> None:
    create_raw(catalog, PAYMENTS)
    file = tmp_path / "one.csv"
    file.write_text(GOOD)
    land(catalog, file, through="2026-01-01-00:00")

    def in_between(_: str) -> None:
        if load(catalog, "raw.payments").scan().count() == 1:
            land(catalog, file, through="2026-01-01-02:00")

    hour = parse_hour("2026-01-01-01:00")
    land_files(catalog, PIPELINE, "raw.payments", [file], now=NOW, through=hour, describe=in_between)
    table = load(catalog, "raw.payments")
    assert table.properties["lake.complete-through"] == "2026-01-01-02:00"
    assert table.scan().count() == 3


HEADER = "payment_id,amount,paid_at\n"
GOOD = f"{HEADER}p1,1.00,2026-01-01T00:05:00Z\n"


@pytest.mark.parametrize(
    ("content", "through", "table", "culprit"),
    [
        ("payment_id,amount\np1,1.00\n", None, "raw.payments", r"one\.csv has no column paid_at\.\n"),
        ("payment_id,amount,at,by\np1,1.00,,\n", None, "raw.payments", r"no column paid_at; it has at, by, which"),
        (f"shop,{HEADER}", None, "raw.payments", r"has the column shop, which the table lacks(.|\n)*--ignore shop"),
        (f"Payment ID,{HEADER}", None, "raw.payments", r"column payment_id \('Payment ID' and 'payment_id'\) twice"),
        (f"{HEADER}p1,much,2026-01-01T00:05:00Z\n", None, "raw.payments", r"row 1: amount is 'much'(.|\n)*--null much"),
        (f'{HEADER}p1,"",2026-01-01T00:05:00Z\n', None, "raw.payments", r"row 1: amount is ''(.|\n)*--null ''"),
        (f"{HEADER}p1,1.00,2026-01-01 00:05\n", None, "raw.payments", r"has no time zone(.|\n)*--zone UTC"),
        (f'{HEADER}p1,"1.00,2026-01-01T00:05:00Z\n', None, "raw.payments", r"line 2: a quoted cell(.|\n)*--quote ''"),
        (f"{HEADER}p1,1.00\n", None, "raw.payments", "line 2: 2 cells, but the header has 3"),
        (f"\n{HEADER}", None, "raw.payments", "begins with an empty line"),
        ("", None, "raw.payments", r"one\.csv is empty"),
        (f"{HEADER}é,1.00,2026-01-01T00:05:00Z\n".encode("latin1"), None, "raw.payments", "not UTF-8(.|\n)*iconv"),
        (
            f"{GOOD}p2,1.00,2026-01-01T00:05:00Z\r\n",
            None,
            "raw.payments",
            "line 3: ends with CR LF, but the lines before",
        ),
        (f"{GOOD}p2,1.00,2026-01-01T00:05:00Z,\n", None, "raw.payments", "line 3: 4 cells, but the header has 3"),
        (f'{GOOD}p2,1.00,"2026-01-01T00:05:00Z\n', None, "raw.payments", "line 3: a quoted cell does not end"),
        (f'{GOOD}"p\\"\\t",1.00,2026-01-01T00:05:00Z\n', None, "raw.payments", r"line 3: \\t in quotes"),
        (GOOD.encode("utf-16"), None, "raw.payments", r"one\.csv is in UTF-16"),
        (gzip.compress(GOOD.encode(), mtime=0), None, "raw.payments", r"one\.csv is packed by gzip"),
        (f"{GOOD}{'x' * (17 << 20)},1.00,2026-01-01T00:05:00Z\n", None, "raw.payments", "longer than 16 MB"),
        (b"PAR1 and no more", None, "raw.payments", "is no Parquet file, or is damaged"),
        (GOOD, "2026-01-01-04:00", "raw.payments", "is earlier"),
        (GOOD, None, "raw.clicks", r"no raw table 'raw\.clicks'"),
        (GOOD, None, "prod.existing", r"prod\.existing belongs to the program that writes it"),
        (None, None, "raw.payments", r"one\.csv cannot be read: No such file"),
    ],
)
def test_what_cannot_be_landed_is_refused_as_a_whole(
    catalog: Catalog, tmp_path: Path, content: str | bytes | None, through: str | None, table: str, culprit: str
) -> None:
    create_raw(catalog, PAYMENTS)
    with load(catalog, "raw.payments").transaction() as transaction:
        transaction.set_properties({"lake.complete-through": "2026-01-01-05:00"})
    good, bad = tmp_path / "good.csv", tmp_path / "one.csv"
    good.write_text("payment_id,amount,paid_at\np1,1.00,2026-01-01T00:05:00Z\n")
    if content is not None:
        bad.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(UsageError, match=culprit):
        land(catalog, good, bad, through=through, table=table)
    landed = load(catalog, "raw.payments")
    assert landed.current_snapshot() is None
    assert not list(Path(landed.location().removeprefix("file://")).rglob("*.parquet"))


@pytest.mark.parametrize(
    ("content", "culprit"),
    [
        ('{"payment_id": "p1", "payment_id": "p2"}', "row 1: has the key 'payment_id' twice"),
        ('{"payment_id": "p1", "amount": NaN}', "row 1: has the number NaN"),
        ('{"payment_id": "p1", "shop": 1}', "has the column shop, which the table lacks"),
        ('{"payment_id": "p1"}\n{"payment_id": "p2"}', "has no column amount, paid_at"),
        ('{"payment_id": "p1"', "is no JSON"),
        ("[1, 2]", "is no JSON"),
    ],
)
def test_json_that_cannot_be_landed_is_refused(catalog: Catalog, tmp_path: Path, content: str, culprit: str) -> None:
    create_raw(catalog, PAYMENTS)
    file = tmp_path / "one.jsonl"
    file.write_text(content)
    with pytest.raises(UsageError, match=culprit):
        land(catalog, file)
    assert load(catalog, "raw.payments").current_snapshot() is None


def test_a_complete_through_beyond_the_clock_or_the_rows_is_refused(catalog: Catalog, tmp_path: Path) -> None:
    create_raw(catalog, PAYMENTS)
    file = tmp_path / "one.csv"
    file.write_text("payment_id,amount,paid_at\np1,1.00,2026-01-01T00:05:00Z\n")
    for force in (False, True):
        with pytest.raises(UsageError, match=r"2026-01-01-04:00, which is in the future(.|\n)*2026-01-01-03:00 UTC"):
            land(catalog, file, through="2026-01-01-04:00", force=force)
    later = datetime(2026, 3, 1, tzinfo=UTC)
    with pytest.raises(UsageError, match=r"2026-01-02-01:00, 25 hours beyond the newest row(.|\n)*--force"):
        land(catalog, file, through="2026-01-02-01:00", now=later)
    assert load(catalog, "raw.payments").current_snapshot() is None

    assert land(catalog, file, through="2026-01-02-00:00", now=later) == 1
    assert land(catalog, file, through="2026-01-03-00:00", now=later) == 1, "a day after the former one"
    assert land(catalog, file, through="2026-02-01-00:00", now=later, force=True) == 1
    assert load(catalog, "raw.payments").properties["lake.complete-through"] == "2026-02-01-00:00"


def test_all_kinds_of_mistakes_of_all_files_are_named_at_once_each_with_its_first_rows(
    catalog: Catalog, tmp_path: Path
) -> None:
    create_raw(catalog, PAYMENTS)
    at = "2026-01-01T00:05:00Z"
    first, second, third = tmp_path / "first.csv", tmp_path / "second.jsonl", tmp_path / "third.csv"
    wrong = "".join(f"p{number},n/a,2026-01-01 00:05\n" for number in range(3, 8))
    first.write_text(f"{HEADER}p1,1.00,{at}\np2,much,{at}\n{wrong}short,1\np9,2.00,{at}\np10,0.005,{at}\n")
    second.write_text(f'{{"payment_id": 7, "amount": 1, "paid_at": "{at}"}}\n{{"a": 1, "a": 1}}\n')
    third.write_text("payment_id,amount\np1,1.5.5\n")
    with pytest.raises(UsageError) as refused:
        land(catalog, first, second, third)
    assert refused.value.problem.splitlines() == [
        f"{third} has no column paid_at.",
        f"  {first}, line 9: 2 cells, but the header has 3.",
        f"  {first}, row 2: amount is 'much', which is no number; also row 3: 'n/a', row 4: 'n/a', 3 more.",
        f"  {first}, row 10: amount is '0.005', which has more than 2 decimals: a decimal is never rounded.",
        f"  {first}, row 3: paid_at is '2026-01-01 00:05', which has no time zone; also row 4: '2026-01-01 00:05',"
        " row 5: '2026-01-01 00:05', 2 more.",
        f"  {second}, row 1: payment_id is 7, which is no text.",
        f"  {second}, row 2: has the key 'a' twice.",
        f"  {third}, row 1: amount is '1.5.5', which is no number.",
    ]
    assert "If 'much' or 'n/a' stands for null, add --null much --null n/a." in refused.value.remedy
    first.write_text(HEADER + "".join(f"p,x{number},{number}\n" for number in range(30_000)))
    with pytest.raises(UsageError) as refused:
        land(catalog, first)
    assert len(str(refused.value)) < 2_000
    assert "row 1: amount is 'x0', which is no number; also row 2: 'x1', row 3: 'x2', 29,997 more." in str(
        refused.value
    )
    assert load(catalog, "raw.payments").current_snapshot() is None


@pytest.mark.parametrize("content", ["payment_id,Gross Amount,paid_at\n", '{"payment_id": "p1", "gross_amount": 1}\n'])
def test_a_file_with_the_former_name_of_a_column_is_told_so(catalog: Catalog, tmp_path: Path, content: str) -> None:
    renamed = replace(PAYMENTS, renamed_from={"amount": "gross_amount"})
    create_raw(catalog, renamed)
    file = tmp_path / ("one.jsonl" if content.startswith("{") else "one.csv")
    file.write_text(content)
    pipeline = replace(PIPELINE, raw=(renamed,))
    with pytest.raises(
        UsageError, match=r"has amount under its former name '?[Gg]ross(.|\n)*Rename .* to amount in the"
    ):
        land_files(catalog, pipeline, "raw.payments", [file], now=NOW, through=None)
