"""Lists, maps and structs of messages and files: columns of these types, of which queries read the parts."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from uuid import uuid4

import pyarrow as pa
from confluent_kafka import Producer
from pyarrow import parquet

from lake_assets_tests.doors.lake_door import LakeDoor

TIME = "2026-01-01T10:00:00Z"
ADDRESS = "struct<city: string, zip: int, seen: list<timestamptz>>"
WIDER = "struct<city: string, zip: long, seen: list<timestamptz>, lines: list<struct<text: string>>>"


def declared(topic: str, address: str) -> dict[str, object]:
    columns = {
        "order_id": "string",
        "customer_id": "string",
        "address": address,
        "tags": "list<string>",
        "prices": "map<string, decimal(9, 2)>",
        "ordered_at": "timestamptz",
    }
    source = {"table": "raw.orders", "columns": columns, "time_column": "ordered_at", "key": "order_id"}
    return {
        "table": "prod.orders",
        "mode": "stateless",
        "sources": [{**source, "feed": {"id_column": "customer_id", "name": topic}}],
        "sql": "SELECT order_id, address.city, size(tags) AS tags, prices['a'] AS price, ordered_at FROM orders",
        "key": "order_id",
        "time_column": "ordered_at",
        "subjects": {"customer": ["customer_id"]},
        "start": "2026-01-01-00:00",
    }


def test_nested_fields_are_columns_of_these_types(lake: LakeDoor, kafka: str) -> None:
    topic = f"orders-{uuid4().hex}"
    lake.environment |= {"LAKE_KAFKA": kafka, "LAKE_LANDING_FILE_MESSAGES": "1"}
    lake.declare(declared(topic, ADDRESS))
    lake("check")
    lake("init")
    lake("landing", "init", "--partitions", "1")
    producer = Producer({"bootstrap.servers": kafka})

    def send(order: str, **values: object) -> None:
        message = {"order_id": order, "customer_id": f"c{order}", "ordered_at": TIME, **values}
        producer.produce(topic, json.dumps(message).encode(), partition=0)

    ulm = {"city": "Ulm", "zip": 89073, "seen": [TIME, None], "more": 1}
    send("1", address=ulm, tags=["x", None], prices={"a": 1.5})
    send("2", address={}, tags=[], prices={})
    send("3")
    for order, value in (("4", {"zip": "89073"}), ("5", {"seen": ["soon"]}), ("6", ["Ulm"])):
        send(order, address=value)
    send("7", prices={"a": 1.005})
    send("8", tags={"x": 1})
    assert producer.flush(60) == 0
    assert lake.run("landing", "run", "--once").code == 0
    letters = lake.json("landing", "dead-letters", topic)["newest"]
    assert sorted(letter["reason"] for letter in letters) == [
        *("bad list tags", "bad map prices", "bad struct address", "bad struct address", "bad struct address"),
    ]
    lake("catch-up")
    assert {row["order_id"]: (row["city"], row["tags"], row["price"]) for row in lake.rows("prod.orders")} == {
        "1": ("Ulm", 2, Decimal("1.50")),
        "2": (None, 0, None),
        "3": (None, None, None),
    }

    # A struct gets a field, and another one of its fields a wider type.
    lake.declare(declared(topic, WIDER))
    lake("check")
    assert "lake migrate raw.orders --apply" in lake.refused("catch-up")
    lake("migrate", "raw.orders", "--apply")
    assert lake("migrate", "raw.orders") == "All columns are as declared.\n"
    send("9", address={"lines": [{"text": "a"}], "zip": 2**40})
    assert producer.flush(60) == 0
    assert lake.run("landing", "run", "--once").code == 0

    line = {"order_id": "10", "customer_id": "c10", "ordered_at": TIME, "tags": ["x"], "prices": {"a": "x"}}
    wrong = lake.write("rows.jsonl", json.dumps({**line, "address": {"town": "Bonn"}}))
    message = lake.refused("land", "raw.orders", wrong)
    assert "address is {'town': 'Bonn'}, which has the field 'town', which the struct lacks." in message
    assert "prices is {'a': 'x'}, which has at 'a' 'x', which is no number." in message
    assert "only a file in JSON or Parquet" in lake.refused("land", "raw.orders", lake.write("a.csv", "tags\n"))
    lake("land", "raw.orders", lake.write("rows.jsonl", json.dumps({**line, "address": {"zip": 1}, "prices": None})))
    row = {**line, "order_id": "11", "address": {"city": "Bern"}, "prices": [("a", Decimal(2))]}
    at = datetime(2026, 1, 1, 11, tzinfo=UTC)
    kinds = {"address": pa.struct([("city", pa.string())]), "prices": pa.map_(pa.string(), pa.decimal128(5, 2))}
    kinds |= {"tags": pa.list_(pa.string()), "ordered_at": pa.timestamp("us", "UTC")}
    schema = pa.schema([(name, kinds.get(name, pa.string())) for name in row])
    parquet.write_table(pa.Table.from_pylist([{**row, "ordered_at": at}], schema), lake.folder / "rows.parquet")
    lake("land", "raw.orders", lake.folder / "rows.parquet")

    # To erase a row, files are written again: null stays null, also for readers other than pyiceberg.
    lake("erase", "customer", "c1")
    empty = dict.fromkeys(("city", "zip", "seen", "lines"))
    files = [task.file.file_path.removeprefix("file://") for task in lake.table("raw.orders").scan().plan_files()]
    rows = [row for file in files for row in parquet.read_table(file).to_pylist()]
    found = {row["order_id"]: (row["address"] and empty | row["address"], row["tags"], row["prices"]) for row in rows}
    assert found == {
        "2": (empty, [], []),
        "3": (None, None, None),
        "9": ({**empty, "zip": 2**40, "lines": [{"text": "a"}]}, None, None),
        "10": ({**empty, "zip": 1}, ["x"], None),
        "11": ({**empty, "city": "Bern"}, ["x"], [("a", Decimal(2))]),
    }
