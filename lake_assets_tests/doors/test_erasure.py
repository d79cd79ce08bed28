"""An id is one thing: what an erasure deletes is what the certificate looks for, whatever other ids there are."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet as pq
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, StringType, TimestamptzType

from lake_assets_tests.doors.hostile.equality_deletes import delete_by_values
from lake_assets_tests.doors.lake_door import LakeDoor

TABLES = """
from lake_assets import Pipeline, RawTable, Rule, Source, Stateless, Subject, audits, incremental_asset

COLUMNS = {
    "visit_id": "string", "account_id": "string", "member_no": "long", "cart_no": "decimal(12, 2)", "note": "string",
    "amount": "long", "seen_at": "timestamptz",
}
RAW = RawTable("raw.visits", COLUMNS, time_column="seen_at", feed=False)
SOURCE = Source("raw.visits", time_column="seen_at", key="visit_id", rules=[Rule("negative", "amount < 0")])


@incremental_asset(mode=Stateless(), sources=[SOURCE], key="visit_id", time_column="seen_at", columns=COLUMNS)
def visit_fact(session, visits):
    return visits.select(*COLUMNS)


PIPELINE = Pipeline(
    raw=(RAW,),
    targets=(visit_fact,),
    start="2026-01-01-00:00",
    subjects=(
        Subject("account", ("account_id",)), Subject("member", ("member_no",)), Subject("cart", ("cart_no",)),
    ),
)
"""

HEADER = "visit_id,account_id,member_no,cart_no,note,amount,seen_at"
ALIKE = ("u7", "u7 ", " u7", "u7x", "U7", "u70", "call u7 now", "u7/8", '{""account_id"": ""u7 ""}')
"""As cells of CSV."""


def visits(*accounts: str, amount: int = 1, numbers: tuple[int, ...] = (), hour: int = 0, note: str = "") -> str:
    lines = [HEADER]
    for n, account in enumerate(accounts):
        number = numbers[n] if numbers else 1000 + n
        lines.append(f'v{hour}-{n},"{account}",{number},{number}.50,{note},{amount},2026-01-01T{hour:02}:05:00.{n:03}Z')
    return "\n".join([*lines, ""])


@pytest.fixture
def shop(lake: LakeDoor) -> LakeDoor:
    lake.declare_in_python(TABLES)
    lake("init")
    return lake


def accounts(lake: LakeDoor, table: str = "core.visit_fact") -> set[str]:
    return set(lake.values(table, "account_id"))


def certified(lake: LakeDoor, subject: str, value: str) -> list[dict[str, Any]]:
    """What the certificate finds. Its exit code is 1 if that is anything."""
    done = lake.run("erasure", "certify", subject, value, "--json")
    found: dict[str, Any] = json.loads(done.out)
    assert done.code == int(bool(found["findings"])), done.text
    assert value not in done.text or subject != "account" or len(value) < 4, "no id is printed"
    findings: list[dict[str, Any]] = found["findings"]
    return findings


def test_ids_that_are_alike_are_others_wherever_they_are(shop: LakeDoor) -> None:
    shop.land("raw.visits", visits(*ALIKE))
    shop.land("raw.visits", visits(*ALIKE, amount=-1, hour=1), through="2026-01-01-01:00")
    shop("catch-up")
    left = accounts(shop) - {"u7"}
    assert len(left) == len(ALIKE) - 1
    (first, *_) = [each for each in certified(shop, "account", "u7") if each["kind"] == "data"]
    assert (first["table"], first["column"], first["text"]) == ("core.visit_fact", "account_id", "")

    done = shop.json("erase", "account", "u7")
    assert (done["rows"], done["quarantined"]) == ({"raw.visits": 2}, 1)
    assert accounts(shop) == accounts(shop, "raw.visits") == left
    assert len(shop.rows("etl.quarantine")) == len(ALIKE) - 1
    assert certified(shop, "account", "u7") == []
    assert certified(shop, "account", "u70") != []
    assert shop.json("erase", "account", "u7")["found"] is False, "the same again finds nothing"

    # It lands again, and is deleted before a session reads it; a blank is refused, or is a part of the id.
    shop.land("raw.visits", visits("u7", "u7 ", hour=2), through="2026-01-01-02:00")
    shop("catch-up")
    assert accounts(shop) == left
    shop("erase", "--sweep")
    assert certified(shop, "account", "u7") == []
    assert "LAKE_BLANK_IDS" in shop.refused("erase", "account", "u7 ")
    shop.environment["LAKE_BLANK_IDS"] = "true"
    shop("erase", "account", "u7 ")
    assert accounts(shop) == left - {"u7 "}
    assert [each["table"] for each in certified(shop, "account", "u7 ")] == []


def test_a_number_is_an_id_and_no_part_of_another(shop: LakeDoor) -> None:
    numbers = (7, 70, 700, 17, 2026, 1)
    shop.land("raw.visits", visits(*"abcdef", numbers=numbers, note="7 of 70"), through="2026-01-01-00:00")
    shop("catch-up")
    for number in (7, 1):
        assert certified(shop, "member", str(number)) != []
        shop("erase", "member", str(number))
        assert certified(shop, "member", str(number)) == []
    assert set(shop.values("core.visit_fact", "member_no")) == {17, 2026, 70, 700}
    assert certified(shop, "cart", "70.50") != [], "whatever its zeros"
    shop("erase", "cart", "70.500")
    assert certified(shop, "cart", "70.5") == []
    assert set(shop.values("core.visit_fact", "cart_no")) == {Decimal(f"{n}.50") for n in (17, 700, 2026)}
    for subject, value in (("member", "u7"), ("member", "07"), ("member", "1" * 30), ("cart", "1.005")):
        assert "can hold such an id" in shop.refused("erase", subject, value)
        assert "can hold such an id" in shop.refused("erasure", "certify", subject, value)


def test_the_ids_of_a_file_are_erased_at_once_and_a_text_that_names_one_is_shown(shop: LakeDoor) -> None:
    names = [f"person-{n:04}" for n in range(1000)]
    shop.land("raw.visits", visits(*names, "kept", "person-00001"), through="2026-01-01-00:00")
    shop.land("raw.visits", visits("kept", hour=1, note="thanks to person-0007"), through="2026-01-01-01:00")
    shop("catch-up")
    listed = "\r\n".join(["", *names, "  ", names[3], ""])
    file = shop.write("ids.txt", b"\xef\xbb\xbf" + listed.encode())
    done = shop.json("erase", "account", "--from", file)
    assert (done["ids"], done["rows"]) == (1000, {"raw.visits": 1000})
    assert accounts(shop) == {"kept", "person-00001"}
    assert certified(shop, "account", "person-0000") == []
    found = certified(shop, "account", "person-0007")
    data = [each for each in found if each["kind"] == "data"]
    assert {(each["column"], each["text"]) for each in data} == {("note", "thanks to (id)")}
    assert "Change or delete this text" in shop.run("erasure", "certify", "account", "person-0007").out

    for wrong, why in (("undefined", "nobody's id"), (" NULL", "nobody's id"), ("", "is empty"), ("a ", "blank")):
        assert why in shop.refused("erase", "account", wrong)
    assert "line 2" in shop.refused("erase", "account", "--from", shop.write("ids.txt", "a\nanonymous\n"))
    assert "has no id" in shop.refused("erase", "account", "--from", shop.write("ids.txt", "\n\n"))
    assert "--from FILE" in shop.refused("erase", "account")
    shop("erase", "account", "undefined", LAKE_NO_IDS="nobody")


ADDED = """
from lake_assets import Pipeline, RawTable, Source, Stateless, Subject, incremental_asset

COLUMNS = {"visit_id": "string", "account_id": "string", "seen_at": "timestamptz"}


@incremental_asset(mode=Stateless(), sources=[Source("prod.visits", time_column="seen_at", key="visit_id")],
    key="visit_id", time_column="seen_at", columns=COLUMNS)
def visit_fact(session, visits):
    return visits.select(*COLUMNS)


PIPELINE = Pipeline(
    raw=(RawTable("prod.visits", time_column="seen_at", complete_after="0 minutes"),),
    targets=(visit_fact,),
    start="2026-01-01-00:00",
    subjects=(Subject("account", ("account_id",)),),
)
"""


def test_files_that_were_added_from_outside_of_a_table_are_searched_and_named(lake: LakeDoor) -> None:
    lake.declare_in_python(ADDED)
    (lake.home / "warehouse").mkdir(parents=True)
    catalog = lake.catalog
    catalog.create_namespace("prod")
    kinds = {"visit_id": StringType(), "account_id": StringType(), "seen_at": TimestamptzType()}
    fields = [NestedField(number, name, kind) for number, (name, kind) in enumerate(kinds.items(), start=1)]
    table = catalog.create_table("prod.visits", Schema(*fields))
    times = pa.array([datetime(2026, 1, 1, hour, tzinfo=UTC) for hour in range(2)], pa.timestamp("us", "UTC"))
    files = []
    for number, people in enumerate((["u7", "u8"], ["u9", "u70"])):
        files.append(lake.folder / f"{number}.parquet")
        visits = [f"v{number}{account}" for account in people]
        pq.write_table(pa.table({"visit_id": visits, "account_id": people, "seen_at": times}), files[-1])
    table.add_files([f"file://{file}" for file in files])
    lake("init")
    lake("catch-up")
    found = {each["path"]: each for each in certified(lake, "account", "u7")}
    assert (found[str(files[0])]["table"], found[str(files[0])]["referenced"]) == ("prod.visits", "main")

    # The rows are gone from the tables, but the file is not the table's own: it is named until somebody has deleted it.
    for _ in range(2):
        assert str(files[0]) in lake.refused("erase", "account", "u7")
        assert accounts(lake) == accounts(lake, "prod.visits") == {"u8", "u9", "u70"}
    (left,) = [each for each in certified(lake, "account", "u7") if each["path"].startswith(str(files[0]))]
    assert (left["table"], left["referenced"]) == ("prod.visits", "history")
    files[0].unlink()
    lake("erase", "account", "u7")
    assert certified(lake, "account", "u7") == []
    assert files[1].exists()


OF_OTHERS = """
from pyspark.sql import functions as F

from lake_assets import Pipeline, RawTable, Source, Stateful, Stateless, Subject, incremental_asset

SOURCE = Source("prod.visits", time_column="seen_at", key="visit_id")


@incremental_asset(mode=Stateless(), sources=[SOURCE], key="visit_id", time_column="seen_at",
    columns={"visit_id": "string", "account_id": "string", "seen_at": "timestamptz"})
def visit_fact(session, visits):
    return visits.select("visit_id", F.coalesce("account_id", "guest").alias("account_id"), "seen_at")


@incremental_asset(mode=Stateful(), sources=[SOURCE], key="seen_hour", time_column="seen_hour",
    columns={"seen_hour": "timestamptz", "visits": "long"})
def visit_count(session, visits):
    hour = F.date_trunc("hour", "seen_at").alias("seen_hour")
    return session.within(visits, "seen_at").groupBy(hour).agg(F.count("*").alias("visits"))


PIPELINE = Pipeline(
    raw=(RawTable("prod.visits", time_column="seen_at", complete_after="0 minutes"),),
    targets=(visit_fact, visit_count),
    start="2026-01-01-00:00",
    subjects=(Subject("account", ("account_id",)),),
)
"""


def test_tables_whose_rows_others_delete_by_values_or_all_at_once(lake: LakeDoor) -> None:
    lake.declare_in_python(OF_OTHERS)
    (lake.home / "warehouse").mkdir(parents=True)
    lake.catalog.create_namespace("prod")
    kinds = {"visit_id": StringType(), "account_id": StringType(), "guest": StringType(), "seen_at": TimestamptzType()}
    fields = [NestedField(number, name, kind) for number, (name, kind) in enumerate(kinds.items(), start=1)]
    lake.catalog.create_table("prod.visits", Schema(*fields), properties={"format-version": "2"})

    def append(*visits: tuple[str, str | None, int], guest: str | None = None) -> None:
        rows = []
        for visit, account, hour in visits:
            seen_at = datetime(2026, 1, 1, hour, 5, tzinfo=UTC)
            rows.append({"visit_id": visit, "account_id": account, "guest": guest, "seen_at": seen_at})
        table = lake.table("prod.visits")
        table.append(pa.Table.from_pylist(rows, schema=table.schema().as_arrow()))

    def counts() -> dict[int, int]:
        return {row["seen_hour"].hour: row["visits"] for row in lake.rows("core.visit_count")}

    append(("v1", "u1", 0), ("v2", "u7", 0), ("v3", "u3", 1), ("v4", "u4", 2), ("v5", "u5", 0))
    delete_by_values(lake.table("prod.visits"), "visit_id", ["v3"])
    lake("init")
    assert "core.visit_fact, target 1 of 2" in lake("erase", "account", "u7")
    assert accounts(lake) == {"u1", "u4", "u5"}
    assert counts() == {0: 2}

    # A row of the erased account comes late, to a table that pyiceberg cannot scan.
    append(("v6", "u7", 0), ("v7", "u8", 4))
    delete_by_values(lake.table("prod.visits"), "visit_id", ["v4"])
    lake("catch-up")
    assert accounts(lake) == accounts(lake, "prod.visits") == {"u1", "u5", "u8"}
    assert counts() == {0: 2}

    # The newest row is gone, so that no hour is known to be complete any more; then all rows are.
    lake("erase", "account", "u8")
    assert certified(lake, "account", "u7") == certified(lake, "account", "u8") == []
    assert (accounts(lake), counts()) == ({"u1", "u5"}, {0: 2})
    (found,) = lake.json("verify", "visit_count")
    assert (found["rows"], found["rows_rebuilt"], found["differing"]) == (1, 1, [])
    lake.table("prod.visits").delete()
    lake("catch-up")
    assert (accounts(lake), counts()) == (set(), {})

    append(("v8", None, 0), guest="u9")
    assert "does not name prod.visits.guest" in lake.refused("erase", "account", "u9")
