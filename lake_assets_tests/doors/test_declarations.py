"""Declarations: YAML declares what Python does, both are one pipeline, and what cannot be read stops itself alone."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from pyiceberg.catalog.sql import SqlCatalog

from lake_assets import (
    Defer,
    Lake,
    Pipeline,
    RawTable,
    Rule,
    Sequential,
    Served,
    Source,
    Stateful,
    Stateless,
    Subject,
    Topic,
    audits,
    incremental_asset,
    incremental_definitions,
    lake_resources,
    utc_now,
)
from lake_assets_tests.doors.lake_door import LakeDoor

CLICKS = {"click_id": "string", "account_id": "string", "amount": "long", "at": "timestamptz", "changed": "timestamptz"}
FACT = {"click_id": "string", "account_id": "string", "amount": "long", "clicked_at": "timestamptz"}
PAGE = {"account_id": "string", "amount": "long", "at_hour": "timestamptz"}

AUDITS: Mapping[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "source_target_counts": ((), {}),
    "no_missing_events": ((), {}),
    "unique_key": ((), {}),
    "not_null": (("account_id", "amount"), {"blocking": False}),
    "accepted_values": ((), {"column": "account_id", "values": ["a", "b"], "blocking": False}),
    "referential": ((), {"column": "account_id", "to": "core.account", "ref_column": "account_id", "blocking": True}),
    "row_count_like_earlier": ((), {"days": 3, "factor": 2.0, "blocking": True}),
    "sql": ((), {"name": "small", "query": "SELECT click_id FROM {staged} WHERE amount > 9", "blocking": False}),
}
"""Audit → its arguments, each other than its default."""

RAW = (
    RawTable(
        "raw.clicks",
        columns=CLICKS,
        time_column="at",
        description="Clicks.",
        descriptions={"amount": "In cents."},
        complete_after="30 minutes",
        feed=Topic("account_id", name="the.clicks", retention_hours=5),
        renamed_from={"amount": "price"},
    ),
    RawTable("raw.visits", time_column="at", complete_after="valid-through", landed_column="seen_at", feed=False),
)


@incremental_asset(
    namespace="shop",
    mode=Stateless(),
    sources=[Source("raw.clicks", time_column="at", key="click_id", rules=(Rule("negative", "amount < 0"),))],
    key="click_id",
    time_column="clicked_at",
    columns=FACT,
    audits=[getattr(audits, name)(*words, **named) for name, (words, named) in AUDITS.items()],
    quarantine_limit=7,
    code_version="v1",
    owners=["team:shop"],
    lineage={"amount": ["raw.clicks.account_id"]},
    max_delay=timedelta(seconds=90),
    grain="day",
    timezone="America/New_York",
    descriptions={"amount": "In cents."},
    served=Served(name="Clicks", rows="newest", frequency="DAILY", quota="10G"),
    late=Defer(older_than="6 hours", at_most="4 hours", or_rows=10),
    renamed_from={"amount": "price"},
)
def click_fact(session: Any, clicks: Any) -> Any:
    """Clicks, once each."""


@incremental_asset(
    mode=Stateful(load="changed", catchup_threshold=48, chunk_hours=None, entity="account_id"),
    sources=[
        Source(
            "raw.clicks",
            time_column="at",
            key="click_id",
            keep="last",
            order_by=("changed", "amount"),
            deleted="amount = 0",
            landed_column="landed_at",
        )
    ],
    key=["account_id", "click_id"],
    time_column="clicked_at",
    columns=FACT,
    served=True,
)
def account_clicks(session: Any, clicks: Any) -> Any: ...


@incremental_asset(
    mode=Sequential(load="range", chunk_hours=24, entity="account_id", few_rows=5),
    sources=[Source("shop.click_fact", time_column="clicked_at")],
    key="account_id",
    time_column="at_hour",
    columns=PAGE,
)
def balance(session: Any, click_fact: Any) -> Any: ...


@incremental_asset(
    mode=Sequential(load="all", catchup_threshold=24),
    sources=[Source("shop.click_fact", time_column="clicked_at")],
    key="account_id",
    time_column="at_hour",
    columns=PAGE,
)
def balance_again(session: Any, click_fact: Any) -> Any: ...


PYTHON = Pipeline(
    raw=RAW,
    targets=(click_fact, account_clicks, balance, balance_again),
    start="2025-06-01-00:00",
    subjects=(Subject("person", ("account_id",)),),
)

_PAGE_SQL = "SELECT account_id, amount, date_trunc('HOUR', clicked_at) AS at_hour FROM click_fact"
_FACT_SQL = "SELECT click_id, account_id, amount, at AS clicked_at FROM clicks"
_OF_CLICKS = {"table": "raw.clicks", "time_column": "at", "key": "click_id"}
_OF_FACT = {"sources": [{"table": "shop.click_fact", "time_column": "clicked_at"}], "key": "account_id"}

IN_YAML: Mapping[str, list[dict[str, Any]]] = {
    "SourceTable": [
        {
            "table": "raw.clicks",
            "columns": CLICKS,
            "time_column": "at",
            "description": "Clicks.",
            "descriptions": {"amount": "In cents."},
            "complete_after": "30 minutes",
            "feed": {"id_column": "account_id", "name": "the.clicks", "retention_hours": 5},
            "renamed_from": {"amount": "price"},
            "subjects": {"person": ["account_id"]},
            "start": "2025-06-01-00:00",
        },
        {
            "table": "raw.visits",
            "time_column": "at",
            "complete_after": "valid-through",
            "landed_column": "seen_at",
            "feed": False,
        },
    ],
    "IncrementalTable": [
        {
            "table": "shop.click_fact",
            "mode": "stateless",
            "sources": [{**_OF_CLICKS, "rules": {"negative": "amount < 0"}}],
            "key": "click_id",
            "time_column": "clicked_at",
            "sql": _FACT_SQL,
            "audits": [
                {name: {**({"columns": list(words)} if words else {}), **named}} if words or named else name
                for name, (words, named) in AUDITS.items()
            ],
            "quarantine_limit": 7,
            "code_version": "v1",
            "owners": ["team:shop"],
            "lineage": {"amount": ["raw.clicks.account_id"]},
            "max_delay": "90 seconds",
            "grain": "day",
            "timezone": "America/New_York",
            "description": "Clicks, once each.",
            "descriptions": {"amount": "In cents."},
            "served": {"name": "Clicks", "rows": "newest", "frequency": "DAILY", "quota": "10G"},
            "late": {"older_than": "6 hours", "at_most": "4 hours", "or_rows": 10},
            "renamed_from": {"amount": "price"},
        },
        {
            "table": "core.account_clicks",
            "mode": {
                "stateful": {"load": "changed", "catchup_threshold": 48, "chunk_hours": None, "entity": "account_id"}
            },
            "sources": [
                {
                    **_OF_CLICKS,
                    "keep": "last",
                    "order_by": ["changed", "amount"],
                    "deleted": "amount = 0",
                    "landed_column": "landed_at",
                }
            ],
            "key": ["account_id", "click_id"],
            "time_column": "clicked_at",
            "sql": _FACT_SQL,
            "served": True,
        },
        {
            "table": "core.balance",
            "mode": {"sequential": {"load": "range", "chunk_hours": 24, "entity": "account_id", "few_rows": 5}},
            "time_column": "at_hour",
            "sql": _PAGE_SQL,
            **_OF_FACT,
        },
        {
            "table": "core.balance_again",
            "mode": {"sequential": {"load": "all", "catchup_threshold": 24}},
            "time_column": "at_hour",
            "sql": _PAGE_SQL,
            **_OF_FACT,
        },
    ],
}

DECLARED = (Pipeline, RawTable, Topic, Source, Rule, Subject, Stateful, Sequential, Stateless, Defer, Served)
NOT_DECLARED = {"broken"}
"""Attributes that a reader of declarations sets."""


def _values(value: Any) -> Iterator[Any]:
    """Yield a value and all that it consists of."""
    yield value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _values(getattr(value, field.name))
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _values(each)


def _default(field: Any) -> Any:
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default


def test_the_example_has_every_parameter_of_python() -> None:
    """A parameter that is added to a declaration fails here until the example has it, in Python and so in YAML."""
    found = list(_values(PYTHON))
    forgotten = {
        f"{kind.__name__}.{field.name}"
        for kind in DECLARED
        for field in dataclasses.fields(kind)
        if field.name not in NOT_DECLARED
        and all(getattr(value, field.name) == _default(field) for value in found if isinstance(value, kind))
    }
    assert forgotten == set()
    options = {name for name in inspect.signature(incremental_asset).parameters if name != "namespace"}
    attributes = {"grain", *(name for name in options if getattr(click_fact, name, None))} | {"timezone"}
    assert options - attributes == set()
    factories = {
        name: inspect.signature(function).parameters
        for name, function in vars(audits).items()
        if inspect.isfunction(function) and function.__annotations__.get("return") == "Audit" and name[0] != "_"
    }
    assert factories.keys() == AUDITS.keys()
    for name, parameters in factories.items():
        words, named = AUDITS[name]
        for parameter in parameters.values():
            given = words if parameter.kind is parameter.VAR_POSITIONAL else named.get(parameter.name)
            assert given not in (None, (), parameter.default), f"{name}.{parameter.name}"


def _comparable(value: Any) -> Any:
    """Return a declaration as plain values, without the function and what is computed from it."""
    if isinstance(value, type(PYTHON.targets[0].audits[0])):
        return value.name, value.description, value.blocking, value.columns, value.query
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        left_out = {"transform", "unknown_lineage", "code_version_before", "lineage"}
        if getattr(value, "code_version", None) != "v1":
            left_out.add("code_version")
        fields = [field.name for field in dataclasses.fields(value) if field.name not in left_out]
        return type(value).__name__, {name: _comparable(getattr(value, name)) for name in fields}
    if isinstance(value, tuple | list):
        return [_comparable(each) for each in value]
    return dict(value) if isinstance(value, Mapping) else value


def _write(folder: Path, declared: Mapping[str, list[dict[str, Any]]]) -> Path:
    for kind, tables in declared.items():
        for attributes in tables:
            file = folder / f"{attributes['table']}.yaml"
            file.parent.mkdir(parents=True, exist_ok=True)
            document = {"type": f"lake_assets.{kind}", "attributes": attributes}
            file.write_text(yaml.safe_dump(document, sort_keys=False))
    return folder


def _opened(tmp_path: Path, *declared: Any) -> Pipeline:
    catalog = SqlCatalog("lake", uri="sqlite:///:memory:", warehouse=f"file://{tmp_path}/warehouse")
    with Lake.open(declared[0] if len(declared) == 1 else list(declared), catalog=catalog) as opened:
        return opened.pipeline


def test_yaml_declares_what_python_declares(lake: LakeDoor) -> None:
    folder = _write(lake.folder / "tables", IN_YAML)
    lake("check", LAKE_PIPELINES=str(folder))
    found = _opened(lake.folder, str(folder))
    by_table = {target.table: target for target in found.targets}
    in_order = dataclasses.replace(found, targets=tuple(by_table[target.table] for target in PYTHON.targets))
    assert _comparable(in_order) == _comparable(PYTHON)
    for target in PYTHON.targets:
        assert {column: list(by_table[target.table].lineage[column]) for column in target.lineage} == target.lineage


IN_PYTHON = """
from lake_assets import Pipeline, RawTable, Source, Stateless, Subject, incremental_asset

TRIPS = RawTable("raw.trips", {"trip_id": "string", "at": "timestamptz"}, time_column="at")

@incremental_asset(mode=Stateless(), sources=[Source("raw.rides", time_column="at", key="ride_id")], key="ride_id",
                   time_column="at", columns={"ride_id": "string", "at": "timestamptz"})
def ride_fact(session, rides):
    return rides.select("ride_id", "at")

PIPELINE = Pipeline(raw=(TRIPS,), targets=(ride_fact,), start="2026-01-01-00:00",
                    subjects=(Subject("rider", ("ride_id",)),))
"""


def _fact(name: str, source: dict[str, Any], **more: Any) -> dict[str, Any]:
    raw = source["table"].partition(".")[2]
    return {
        "table": f"core.{name}",
        "mode": "stateless",
        "sources": [{"time_column": "at", "key": f"{raw[:-1]}_id", **source}],
        "key": f"{raw[:-1]}_id",
        "time_column": "at",
        "sql": f"SELECT {raw[:-1]}_id, at FROM {raw}",
        **more,
    }


RIDES = {"ride_id": "string", "at": "timestamptz"}
TRIP_ROWS = "trip_id,at\nt1,2026-01-01T00:05:00Z\nt2,2026-01-01T02:05:00Z\n"


def test_python_and_yaml_are_one_pipeline_in_any_order(lake: LakeDoor) -> None:
    """The raw table of each fact is declared in the other language, one in both; so is what a subject is found in."""
    lake.declare_in_python(IN_PYTHON)
    same = {"table": "raw.trips", "columns": {"trip_id": "string", "at": "timestamptz"}}
    rides = {"table": "raw.rides", "columns": RIDES, "time_column": "at", "subjects": {"rider": ["rider_id"]}}
    _write(
        lake.folder / "tables",
        {
            "IncrementalTable": [
                _fact("trip_fact", {"table": "raw.trips", "complete_after": "1 hour"}),
                _fact("trip_again", same, subjects={"tripper": ["trip_id"]}),
            ],
            "SourceTable": [rides],
        },
    )
    lake.environment["LAKE_PIPELINES"] = "tables,own_tables"
    lake("init")
    lake.land("raw.trips", TRIP_ROWS)
    lake.land("raw.rides", "ride_id,at\nr1,2026-01-01T00:05:00Z\n", through="2026-01-01-00:00")
    lake("catch-up")
    assert lake.values("core.ride_fact", "ride_id") == ["r1"]
    assert lake.values("core.trip_fact", "trip_id") == lake.values("core.trip_again", "trip_id") == ["t1", "t2"]
    # The raw table is complete by the rule that only a source without columns declares.
    assert lake.json("signal", "trip_again")["complete_through"] == "2026-01-01-00:00"
    for names in ("own_tables:PIPELINE,tables", "own_tables.py,tables/core.trip_again.yaml,tables/raw.rides.yaml"):
        assert lake("init", LAKE_PIPELINES=names) == "Nothing to create.\n"
        lake("catch-up", LAKE_PIPELINES=names)
        lake("verify", "trip_again", LAKE_PIPELINES=names)
    lake("erase", "rider", "r1")
    assert lake.values("core.ride_fact", "ride_id") == []


def test_a_raw_table_that_is_declared_otherwise_elsewhere_stops_the_table_of_the_second_file(
    lake_without_spark: LakeDoor,
) -> None:
    lake = lake_without_spark
    lake.declare_in_python(IN_PYTHON)
    other = {"table": "raw.trips", "columns": {"trip_id": "long", "at": "timestamptz"}}
    rides = {"table": "raw.rides", "columns": RIDES, "time_column": "at"}
    _write(lake.folder / "tables", {"IncrementalTable": [_fact("trip_fact", other)], "SourceTable": [rides]})
    for names in ("tables,own_tables", "own_tables,tables"):
        said = lake.refused("plan", "trip_fact", LAKE_PIPELINES=names)
        assert "core.trip_fact.yaml, line 3: raw.trips has other columns than at a declaration in Python." in said
        said = lake.refused("init", LAKE_PIPELINES=names)
        assert "has other columns" in said
        assert str(lake.table("raw.trips").schema().find_field("trip_id").field_type) == "string"


def test_lake_and_dagster_open_what_the_setting_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = _write(
        tmp_path / "tables", {"SourceTable": [{"table": "raw.rides", "columns": RIDES, "time_column": "at"}]}
    )
    (tmp_path / "some_own_tables.py").write_text(IN_PYTHON)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    file = folder / "raw.rides.yaml"
    rides, both = {"raw.rides"}, {"raw.rides", "raw.trips", "core.ride_fact"}
    cases: list[tuple[Any, set[str]]] = [
        ("tables", rides),
        (folder, rides),
        (str(file), rides),
        ("tables,some_own_tables:PIPELINE", both),
        (["some_own_tables", folder], both),
        ([str(tmp_path / "some_own_tables.py"), str(file)], both),
    ]
    for declared, expected in cases:
        pipeline = _opened(tmp_path, declared)
        tables = [each.table for each in pipeline.raw] + [each.table for each in pipeline.targets]
        assert set(tables) == expected, declared
        resources = dg.Definitions(resources=lake_resources())
        defs = dg.Definitions.merge(incremental_definitions(declared, clock=utc_now), resources)
        keys = {".".join(key.path) for key in defs.resolve_asset_graph().get_all_asset_keys()}
        assert keys == expected, declared


# What cannot be read stops itself alone


def _text(name: str, sql: str = "SELECT trip_id, at FROM trips", **more: Any) -> str:
    fact = _fact(name, {"table": "raw.trips"}, sql=sql, **more)
    return yaml.safe_dump({"type": "lake_assets.IncrementalTable", "attributes": fact}, sort_keys=False)


BROKEN: Mapping[str, tuple[str | bytes, int]] = {
    "colon_fact": (_text("colon_fact") + "  key: trip_id: x\n", 12),
    "tab_fact": (_text("tab_fact").replace("  mode:", "\tmode:"), 4),
    "bytes_fact": (_text("bytes_fact").encode() + b"# \xff\n", 12),
    "empty_fact": ("", 1),
    "itself_fact": (_text("itself_fact") + "  owners: &a [*a]\n", 12),
    "deep_fact": (_text("deep_fact") + "  owners: " + "[" * 600 + "]" * 600 + "\n", 1),
    "delay_fact": (_text("delay_fact") + f"  max_delay_minutes: {'9' * 30}\n", 12),
    "twice_fact": (_text("twice_fact") + "  key: trip_id\n", 12),
    "type_fact": (_text("type_fact").replace("type: lake_assets.IncrementalTable\n", ""), 1),
    "date_fact": (_text("date_fact") + "  start: 2026-13-45\n", 1),
    "served_fact": (_text("served_fact") + "  served: {rows: old}\n", 12),
    "attribute_fact": (_text("attribute_fact") + "  serve: true\n", 12),
    "sql_fact": (_text("sql_fact", sql="sql_fact.sql"), 11),
    "scalar_fact": ("type: lake_assets.IncrementalTable\nattributes: 5\n", 2),
}
"""Name of a file → its text, and the line that is wrong."""

MODULES = {
    "syntax_tables": ("from lake_assets import Pipeline\n\ndef syntax_fact(:\n", 3),
    "import_tables": ("# import_fact\nfrom lake_assets import Pipelines\n", 2),
    "exit_tables": ("# exit_fact\nimport sys\nsys.exit(3)\n", 3),
}


def test_what_cannot_be_read_stops_its_own_target_alone(lake: LakeDoor) -> None:
    good = _fact("trip_fact", {"table": "raw.trips", "columns": {"trip_id": "string", "at": "timestamptz"}})
    folder = _write(lake.folder / "tables", {"IncrementalTable": [good]})
    lake.environment["LAKE_PIPELINES"] = "tables"
    lake("init")
    for name, (content, _) in BROKEN.items():
        lake.write(f"tables/{name}.yaml", content)
    for name, (text, _) in MODULES.items():
        lake.write(f"{name}.py", text)
    (folder / "folder.yaml").mkdir()
    lake.write("tables/folder.yaml/reader.yaml", _text("reader", sql="SELECT trip_id, at FROM colon_fact"))
    reads = yaml.safe_load((folder / "folder.yaml" / "reader.yaml").read_text())
    reads["attributes"]["sources"] = [{"table": "core.colon_fact", "time_column": "at"}]
    lake.write("tables/folder.yaml/reader.yaml", yaml.safe_dump(reads, sort_keys=False))
    lake.environment["LAKE_PIPELINES"] = ",".join(("tables", *MODULES, "nowhere_tables:PIPELINE"))
    places = [f"tables/{name}.yaml, line {line}:" for name, (_, line) in BROKEN.items()]
    places += [f"{name}.py:{line}" for name, (_, line) in MODULES.items()] + ["'nowhere_tables:PIPELINE'"]

    lake.land("raw.trips", TRIP_ROWS, through="2026-01-01-01:00")
    assert "2026-01-01-00:00" in lake("plan", "trip_fact")
    lake("catch-up", "trip_fact")
    assert lake.values("core.trip_fact", "trip_id") == ["t1", "t2"]
    lake("verify", "trip_fact")
    lake("maintain", "trip_fact")
    for name in ("colon_fact", "empty_fact", "sql_fact"):
        said = lake.refused("plan", name)
        assert f"tables/{name}.yaml, line {BROKEN[name][1]}:" in said, said
        assert len(said.splitlines()) == 2, said
    assert "exit_tables.py:3" in lake.refused("plan", "exit_fact")
    assert "core.reader reads core.colon_fact, whose declaration cannot be used" in lake.refused("plan", "reader")

    for command in (["check"], ["catch-up"], ["status"], ["doctor"]):
        done = lake.run(*command)
        assert done.code == 1, done.text
        assert [place for place in places if place not in done.text.replace(f"{lake.folder}/", "")] == [], command
    found = json.loads(lake.run("report", "--json").out)
    wrong = " ".join(each["problem"] for each in found["verdict"]["wrong"]).replace(f"{lake.folder}/", "")
    assert [place for place in places if place not in wrong] == []

    for name in BROKEN:
        (folder / f"{name}.yaml").unlink()
    lake.environment["LAKE_PIPELINES"] = "tables/core.trip_fact.yaml"
    lake("status")
    assert "Nothing to create." in lake("init")


def test_while_a_declaration_cannot_be_read_nothing_is_erased_and_no_session_forgets_who_was(lake: LakeDoor) -> None:
    columns = {"trip_id": "string", "at": "timestamptz"}
    trips = {"table": "raw.trips", "columns": columns, "time_column": "at", "subjects": {"rider": ["trip_id"]}}
    folder = _write(
        lake.folder / "tables",
        {"SourceTable": [{"table": "raw.rides", "columns": RIDES, "time_column": "at"}, trips]}
        | {"IncrementalTable": [_fact("trip_fact", {"table": "raw.trips"})]},
    )
    subjects = folder / "subjects.yaml"
    more = {"table": "raw.more", "columns": columns, "time_column": "at", "subjects": {"rider": ["trip_id"]}}
    subjects.write_text(yaml.safe_dump({"type": "lake_assets.SourceTable", "attributes": more}))
    lake.environment["LAKE_PIPELINES"] = "tables"
    lake("init")
    lake("erase", "rider", "t1")
    text = subjects.read_text()
    subjects.write_text(text + "tabs\t: [\n")
    assert "subjects.yaml, line" in lake.refused("erase", "rider", "t2")
    lake.land("raw.trips", TRIP_ROWS, through="2026-01-01-02:00")
    assert "subjects.yaml, line" in lake.refused("catch-up", "trip_fact")
    subjects.write_text(text)
    lake("catch-up")
    assert lake.values("core.trip_fact", "trip_id") == ["t2"]


def test_what_a_session_would_say_later_is_said_at_once(lake: LakeDoor) -> None:
    columns = {"trip_id": "string", "amount": "long", "at": "timestamptz"}
    raw = {"table": "raw.trips", "columns": columns, "time_column": "at", "key": "trip_id"}
    count = "SELECT trip_id, count(*) AS n, max(at) AS at FROM trips GROUP BY trip_id"
    window = "SELECT trip_id, sum(amount) OVER (PARTITION BY trip_id) AS n, at FROM trips"
    row = "SELECT trip_id, 'group by' AS n, at /* OVER () */ FROM trips"
    tables = {"counted": count, "distinct_trips": "SELECT DISTINCT trip_id, at FROM trips", "windowed": window}
    facts = [_fact(name, raw, sql=sql) for name, sql in {**tables, "plain": row}.items()]
    hourly = {**_fact("hourly", raw, sql=count), "mode": {"stateful": {"load": "changed"}}}
    pair = _fact("pair", raw, sql=row, audits=["no_missing_events"]) | {"key": ["trip_id", "n"]}
    _write(lake.folder / "tables", {"IncrementalTable": [*facts, hourly, pair]})
    lake.environment["LAKE_PIPELINES"] = "tables"
    done = lake.run("check", "--json")
    assert done.code == 1
    assert "core.pair.yaml, line 3: no_missing_events() of core.pair needs a single key" in done.err
    notes = {each["table"]: " ".join(each["warnings"]) for each in json.loads(done.out)}
    assert notes.keys() == {"core.counted", "core.distinct_trips", "core.windowed", "core.plain", "core.hourly"}
    combined = {
        table: note.partition(":")[0] for table, note in notes.items() if "each adds a result of its own" in note
    }
    assert combined == {"core.counted": "GROUP BY", "core.distinct_trips": "DISTINCT", "core.windowed": "OVER"}

    said = lake.run("init").out
    assert "The first event hour is 2026-01-01-00:00: rows of earlier hours are quarantined." in said
    rows = "trip_id,amount,at\nt1,1,{}T00:05:00Z\n"
    assert "first event hour" not in lake.land("raw.trips", rows.format("2026-01-01"))
    early = lake.land("raw.trips", rows.format("2025-12-31"))
    assert "raw.trips has rows of hours before 2026-01-01-00:00, the first event hour" in early
    (file,) = (lake.folder / "tables").glob("core.plain.yaml")
    file.write_text(file.read_text() + "  start: 2025-01-01-00:00\n")
    assert "first event hour" not in lake.land("raw.trips", rows.format("2025-12-31"))


def test_a_source_key_of_several_columns_is_refused_with_what_to_write(lake_without_spark: LakeDoor) -> None:
    columns = {"trip_id": "string", "leg": "string", "at": "timestamptz"}
    raw = {"table": "raw.trips", "columns": columns, "time_column": "at", "key": ["trip_id", "leg"]}
    lake_without_spark.declare(_fact("trip_fact", raw))
    said = lake_without_spark.refused("check")
    assert "tables/trip_fact.yaml, line " in said
    assert "raw.trips has a key of 2 columns: trip_id, leg" in said
    assert "concat_ws" in said
