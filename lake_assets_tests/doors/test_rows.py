"""No row is read wrong because of its time, the names of its columns, or values that a text would cut."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, LongType, NestedField, StringType, TimestamptzType

from lake_assets.base import columns  # the names of the engine are the data of a test
from lake_assets_tests.doors.lake_door import LakeDoor

LONG_AGO = """
from lake_assets import Pipeline, RawTable, Source, Stateful, Stateless, audits, incremental_asset

C = {"quake_id": "string", "magnitude": "double", "at": "timestamptz", "updated_at": "timestamptz"}
ALL = [audits.source_target_counts(), audits.no_missing_events(), audits.unique_key()]
LAST = dict(keep="last", order_by="updated_at")

def target(name, mode, checks, function, **source):
    function.__name__, function.__doc__ = name, name
    return incremental_asset(mode=mode, sources=[Source("raw.quakes", time_column="at", key="quake_id", **source)],
        key="quake_id", time_column="at", columns=C, audits=checks)(function)

def plain(session, quakes):
    return quakes.select(*C)

def built(session, quakes):
    return session.within(quakes, "at").select(*C)

PIPELINE = Pipeline(
    raw=(RawTable("raw.quakes", C, time_column="at"),),
    targets=(
        target("corrected", Stateless(), ALL, lambda s, q: plain(s, q), **LAST),
        target("stateful", Stateful(load="changed"), ALL, lambda s, q: built(s, q), **LAST),
        target("measured", Stateless(), [audits.not_null("magnitude")], lambda s, q: plain(s, q)),
    ),
    start="0001-01-01-00:00",
)
"""


def test_hours_before_1970_and_of_every_year_are_those_of_the_rows(lake: LakeDoor) -> None:
    lake.declare_in_python(LONG_AGO)
    lake("init")
    head = "quake_id,magnitude,at,updated_at\n"
    first = [
        ("q1", "9.2", "1964-03-28T03:36:16.230Z"),
        ("q2", "5.1", "1964-03-28T03:59:59.999999Z"),
        ("q3", "4.0", "1969-12-31T23:59:59.750Z"),
        ("q4", "4.2", "1970-01-01T00:00:00.250Z"),
    ]
    lake.land(
        "raw.quakes", head + "".join(f"{i},{m},{at},2026-01-01T00:00:00Z\n" for i, m, at in first), through=HOUR_0
    )
    lake("catch-up")
    lake("verify", "stateful", "1964-03-28-00:00", "1964-03-28-05:00")

    revised = [
        ("q2", "5.7", first[1][2]),
        ("q3", "4.4", first[2][2]),
        ("q5", "6.0", "0079-10-24T12:00:00.000001Z"),
        ("q6", "", "1755-11-01T09:40:00.5Z"),
        ("q7", "6.9", "1964-04-01T10:59:59.999999Z"),
    ]
    lake.land("raw.quakes", head + "".join(f"{i},{m},{at},2026-02-01T00:00:00Z\n" for i, m, at in revised))
    lake.run("catch-up")  # one hour of `measured` is held, which is its exit code
    right = {"q1": 9.2, "q2": 5.7, "q3": 4.4, "q4": 4.2, "q5": 6.0, "q6": None, "q7": 6.9}
    for name in ("corrected", "stateful"):
        assert {row["quake_id"]: row["magnitude"] for row in lake.rows(f"core.{name}")} == right, name
    measured = {row["quake_id"]: row["magnitude"] for row in lake.rows("core.measured")}
    assert measured == {"q1": 9.2, "q2": 5.1, "q3": 4.0, "q4": 4.2, "q5": 6.0, "q7": 6.9}, "a first delivery counts"
    assert "1755-11-01-09:00" in lake.run("plan", "measured").text
    lake("audit", "corrected", "1969-12-31-23:00")
    lake("rebuild", "stateful", "--reset")
    assert {row["quake_id"]: row["magnitude"] for row in lake.rows("core.stateful")} == right


HOUR_0 = "1970-01-01-06:00"

OWN = [name for names in vars(columns).values() for name in (names if isinstance(names, tuple) else [names])]
OWN = [name for name in OWN if isinstance(name, str) and name.startswith(columns.PREFIX) and name != columns.PREFIX]
"""Every name of the engine, as its module has them."""

FORMER = ["_row_hash", "_reason", "_delivery", "_hour", "_key", "_time", "_landed", "_side", "_rows", "_changed"]
FORMER += ["_sign", "_row_0", "_sum_forward", "k", "h", "i", "n", "s", "landed_at", "landing_hour", "batch_id"]
SPELLED = ["geo.lat", "note`s", "price (EUR)", "größe", "a b", "*", "select", "'", '"', "x.y`z.*", "{staged}", "%s"]
NAMES = [*dict.fromkeys([*FORMER, *(part for name in OWN for part in (name[6:], name[5:], name[1:])), *SPELLED])]
TYPES: dict[str, IcebergType] = {"_time": TimestamptzType(), "_rows": LongType(), "vers.ion": LongType()}

OWN_NAMES = r"""
from lake_assets import Pipeline, RawTable, Source, Stateful, Stateless, audits, incremental_asset

C = {"id": "string", "at": "timestamptz", "reason": "string"}
ALL = [audits.source_target_counts(), audits.no_missing_events(), audits.unique_key()]

def target(name, mode, columns, **source):
    def function(session, rows):
        rows = session.within(rows, source["time_column"]) if isinstance(mode, Stateful) else rows
        return rows.selectExpr(*("`" + column.replace("`", "``") + "` AS " + name for column, name in columns.items()))
    function.__name__ = function.__doc__ = name
    return incremental_asset(mode=mode, sources=[Source("prod." + name, **source)], key="id", time_column="at",
        columns=C, audits=ALL)(function)

lower, upper = ({case("_key"): "id", case("_time"): "at", case("_reason"): "reason"} for case in (str.lower, str.upper))
ODD = {"schlüssel`n.*": "id", "wann.genau": "at", "_reason": "reason"}
PIPELINE = Pipeline(
    raw=tuple(RawTable("prod." + name, time_column=time, complete_after="30 minutes")
              for name, time in [("lower", "_time"), ("upper", "_TIME"), ("odd", "wann.genau")]),
    targets=(
        target("lower", Stateless(), lower, time_column="_time", key="_key"),
        target("upper", Stateful(load="changed"), upper, time_column="_TIME", key="_KEY", keep="last",
               order_by="_ROWS"),
        target("odd", Stateless(), ODD, time_column="wann.genau", key="schlüssel`n.*", keep="last",
               order_by="vers.ion"),
    ),
    start="2026-01-01-00:00",
)
"""


def at(hour: int, minute: int = 5) -> datetime:
    return datetime(2026, 1, 1, hour, minute, tzinfo=UTC)


def own_rows(lake: LakeDoor, name: str, rows: list[tuple[str, datetime, int]]) -> None:
    """Append rows of key, time and version to a table, which has every name there is."""
    table = lake.table(f"prod.{name}")
    keys = {"lower": "_key _time _rows", "upper": "_KEY _TIME _ROWS", "odd": "schlüssel`n.* wann.genau vers.ion"}
    key, time, version = keys[name].split(" ")
    rest = {field.name: "x" for field in table.schema().fields if isinstance(field.field_type, StringType)}
    made = [{**rest, key: i, time: moment, version: number} for i, moment, number in rows]
    table.append(pa.Table.from_pylist(made, schema=table.schema().as_arrow()))


def create(lake: LakeDoor, name: str, types: dict[str, IcebergType]) -> None:
    lake.home.mkdir(exist_ok=True)
    lake.catalog.create_namespace_if_not_exists("prod")
    fields = [NestedField(number, column, kind) for number, (column, kind) in enumerate(types.items(), 1)]
    lake.catalog.create_table(f"prod.{name}", Schema(*fields))


def test_a_table_may_have_every_name_of_the_engine_without_its_prefix_in_every_case(lake: LakeDoor) -> None:
    names: dict[str, IcebergType] = {name: TYPES.get(name, StringType()) for name in NAMES}
    create(lake, "lower", names)
    create(lake, "upper", {name.upper(): kind for name, kind in names.items()})
    create(
        lake, "odd", {**names, "schlüssel`n.*": StringType(), "wann.genau": TimestamptzType(), "vers.ion": LongType()}
    )
    lake.declare_in_python(OWN_NAMES)
    lake("init")
    for name in ("lower", "upper", "odd"):
        own_rows(lake, name, [("k1", at(0), 1), ("k2", at(1), 1), ("k3", at(2), 1)])
    lake("catch-up")
    for name in ("lower", "upper", "odd"):  # a row once more or as a new version, a late one, and new hours
        own_rows(lake, name, [("k1", at(0), 2), ("k4", at(1, 7), 1), ("k5", at(3), 1), ("k6", at(4), 1)])
    lake("catch-up")
    right = [(f"k{number}", at(hour, minute)) for number, hour, minute in RIGHT]
    complete = right[:4]  # a stateful target has complete hours alone
    for name, rows in (("lower", right), ("upper", complete), ("odd", right)):
        assert [(row["id"], row["at"]) for row in lake.rows(f"core.{name}")] == rows, name
        assert set(lake.values(f"core.{name}", "reason")) == {"x"}
    verified = json.loads(lake("verify", "--json", LAKE_VERIFY_HOURS="1000000"))  # all hours are one chunk, on each day
    assert [(len(one["compared"]), one["differing"]) for one in verified] == [(5, []), (3, []), (5, [])]
    for name in ("upper", "odd"):
        lake("audit", name, "2026-01-01-00:00")
    lake("rebuild", "upper", "2026-01-01-00:00", "2026-01-01-01:00")
    assert [(row["id"], row["at"]) for row in lake.rows("core.upper")] == complete
    assert lake.rows("etl.quarantine") == []


RIGHT = [(1, 0, 5), (2, 1, 5), (3, 2, 5), (4, 1, 7), (5, 3, 5), (6, 4, 5)]

DOSES = {
    "table": "core.dose_fact",
    "mode": "stateless",
    "sources": [{"table": "raw.doses", "time_column": "given_at", "key": "dose_id"}],
    "key": "dose_id",
    "time_column": "given_at",
    "sql": "SELECT dose_id, given_at FROM doses",
}
FOREIGN = """
from lake_assets import Pipeline, RawTable
PIPELINE = Pipeline(raw=(RawTable("prod.x", {columns}time_column="at"),), targets=(), start="2026-01-01-00:00")
"""


@pytest.mark.parametrize("taken", ["batch_id", "landed_at", "landing_date", "landing_hour", "_lake_hour"])
def test_a_name_that_is_taken_is_refused_where_it_is_declared(lake_without_spark: LakeDoor, taken: str) -> None:
    lake = lake_without_spark
    declared = {"dose_id": "string", taken: "string", "given_at": "timestamptz"}
    lake.declare({**DOSES, "sources": [{**DOSES["sources"][0], "columns": declared}]})  # type: ignore[dict-item]
    assert_named(lake.refused("init"), taken)
    if taken == "batch_id":
        lake.declare_in_python(FOREIGN.format(columns='{"at": "timestamptz", "Batch_ID": "string"}, '))
        assert_named(lake.refused("init"), "Batch_ID")


def test_a_table_with_a_reserved_name_or_one_name_in_two_cases_is_refused(lake_without_spark: LakeDoor) -> None:
    lake = lake_without_spark
    create(lake, "x", {"at": TimestamptzType()})
    lake.declare_in_python(FOREIGN.format(columns=""))
    lake("init")
    for name in (OWN[0], OWN[-1].upper(), "AT"):
        with lake.table("prod.x").update_schema() as update:
            update.add_column((name,), StringType())
        assert_named(lake.refused("init"), name)
        with lake.table("prod.x").update_schema() as update:
            update.delete_column(name)


def assert_named(message: str, name: str) -> None:
    """A message has two lines, and the first one names the column."""
    lines = message[message.index("Error") :].strip().splitlines()
    assert len(lines) == 2, message
    assert name in lines[0], message


FLIGHTS = """
from lake_assets import Pipeline, RawTable, Source, Stateless, audits, incremental_asset

def target(name, **source):
    def function(session, flights):
        return flights.select("flight_id", "departed_at")
    function.__name__ = function.__doc__ = name
    return incremental_asset(mode=Stateless(), key="flight_id", time_column="departed_at",
        sources=[Source("prod.flights", time_column="departed_at", key="flight_id", **source)],
        columns={"flight_id": "string", "departed_at": "timestamptz"},
        audits=[audits.source_target_counts(), audits.no_missing_events()])(function)

PIPELINE = Pipeline(raw=(RawTable("prod.flights", time_column="departed_at", complete_after="30 minutes"),),
    targets=(target("flown"), target("landed", landed_column="landed_at")), start="2026-01-01-00:00")
"""


def test_which_column_says_when_a_row_landed_is_declared_and_quarantine_keeps_microseconds(lake: LakeDoor) -> None:
    kinds: dict[str, IcebergType] = {"flight_id": StringType(), "departed_at": TimestamptzType()}
    create(lake, "flights", {**kinds, "landed_at": TimestamptzType(), "batch_id": LongType()})
    micro = timedelta(microseconds=1)
    flights = [("done", at(1), at(3)), ("in the air", at(1, 10), None), ("over the date line", at(9), at(1))]
    rejected = [(None, at(2) + micro, at(3)), (None, at(2) + 2 * micro, at(3))]
    add_flights(lake, [*flights, *rejected])
    lake.declare_in_python(FLIGHTS)
    lake("init")
    lake("catch-up")
    assert lake.values("core.flown", "flight_id") == ["done", "in the air", "over the date line"]
    assert lake.values("core.landed", "flight_id") == ["done"]
    aside = lake.rows("etl.quarantine", "target", "reason", "row")
    reasons = sorted(row["reason"] for row in aside if row["target"] == "core.landed")
    assert reasons == ["departed_at is over an hour after landed_at", *["flight_id is null"] * 2, "landed_at is null"]
    written = [json.loads(row["row"])["departed_at"] for row in aside if row["target"] == "core.flown"]
    assert sorted(written) == ["2026-01-01T02:05:00.000001Z", "2026-01-01T02:05:00.000002Z"]

    # The version before told these two apart by nothing, and stored the hash of their milliseconds.
    before = {"departed_at": "2026-01-01T02:05:00.000Z", "landed_at": "2026-01-01T03:05:00.000Z", "batch_id": 1}
    former = hashlib.sha256(json.dumps(before, separators=(",", ":")).encode()).hexdigest()
    quarantine = lake.table("etl.quarantine")
    stored: list[dict[str, Any]] = quarantine.scan().to_arrow().to_pylist()
    kept = [row for row in stored if row["target"] == "core.flown"][:1]
    quarantine.delete("target = 'core.flown'")
    quarantine.append(pa.Table.from_pylist([{**kept[0], "row_hash": former}], schema=quarantine.schema().as_arrow()))
    add_flights(lake, [("new", at(2, 20), None), (None, at(2, 30), None)])
    lake("catch-up", "flown")
    lake("rebuild", "flown", "2026-01-01-02:00", "2026-01-01-02:00")
    hashes = [row["row_hash"] for row in lake.rows("etl.quarantine") if row["target"] == "core.flown"]
    assert len(hashes) == 2
    assert former in hashes


def add_flights(lake: LakeDoor, rows: list[tuple[str | None, datetime, datetime | None]]) -> None:
    table = lake.table("prod.flights")
    made = [{"flight_id": i, "departed_at": d, "landed_at": landed, "batch_id": 1} for i, d, landed in rows]
    table.append(pa.Table.from_pylist(made, schema=table.schema().as_arrow()))
