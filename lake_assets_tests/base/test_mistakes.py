"""A mistake in a declaration is two lines: what is wrong and where, and what to do. Without Spark, where it is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from lake_assets.errors import ConfigurationError
from lake_assets.incremental.declaration import (
    Pipeline,
    RawTable,
    Source,
    Stateful,
    Stateless,
    Target,
    Topic,
    incremental_asset,
)
from lake_assets.incremental.engine.audits import accepted_values, not_null, referential, unique_key

COLUMNS = {"obs_id": "string", "temp": "double", "place": "string", "seen_at": "timestamptz"}
OBS = RawTable("raw.obs", COLUMNS, time_column="seen_at")
READ = Source("raw.obs", time_column="seen_at", key="obs_id")
NESTED = {**COLUMNS, "who": "struct<id: string>", "tags": "list<string>"}
START = "2026-01-01-00:00"


def weather(session: Any, obs: Any) -> Any:
    return obs


def declared(**changed: Any) -> Target:
    arguments = {
        "mode": Stateless(),
        "sources": [READ],
        "key": "obs_id",
        "time_column": "seen_at",
        "columns": COLUMNS,
        **changed,
    }
    return incremental_asset(**arguments)(weather)


def named(name: str, source: Source) -> Target:
    def transform(session: Any, rows: Any) -> Any:
        return rows

    transform.__name__ = name
    return incremental_asset(mode=Stateful(), sources=[source], key="obs_id", time_column="seen_at", columns=COLUMNS)(
        transform
    )


def piped(*targets: Any, **changed: Any) -> Pipeline:
    return Pipeline(**{"raw": (OBS,), "targets": targets, "start": START, **changed})


MISTAKES: dict[str, tuple[Callable[[], object], str, str]] = {
    "the mode by its name": (
        lambda: declared(mode="stateful"),
        "core.weather has mode='stateful', which is no mode.",
        "Write mode=Stateful(). The modes are Stateless(), Stateful() and Sequential().",
    ),
    "a mode without parentheses": (
        lambda: declared(mode=Stateless),
        "core.weather has mode=Stateless, the class and not a value of it.",
        "Add parentheses: mode=Stateless().",
    ),
    "no key": (
        lambda: declared(key=None),
        "core.weather has key=None.",
        'Name the column, or the columns, that with the time identify a row: key="payment_id".',
    ),
    "a misspelled key": (
        lambda: declared(key="ob_id"),
        "core.weather has no column 'ob_id', which is its key or time.",
        "Add it to columns=. Did you mean 'obs_id'? Otherwise name one of: obs_id, temp, place, seen_at.",
    ),
    "a source without a list": (
        lambda: declared(sources=READ),
        "sources= of core.weather is one Source (raw.obs), not a list or tuple.",
        'Write sources=[Source("raw.events", ...)].',
    ),
    "a table instead of a source": (
        lambda: declared(sources=["raw.obs"]),
        "sources= of core.weather contains 'raw.obs', which is no Source.",
        'Write sources=[Source("raw.events", ...)].',
    ),
    "an audit that is not called": (
        lambda: declared(audits=[unique_key]),
        "audits= of core.weather contains the function unique_key, which is no Audit.",
        "If unique_key returns the value, call it: unique_key(...).",
    ),
    "a misspelled column in not_null": (
        lambda: declared(audits=[not_null("place", "tmep")]),
        "The audit not_null_place_tmep of core.weather names the column 'tmep', which the target lacks.",
        "Did you mean 'temp'? Otherwise name one of: obs_id, temp, place, seen_at.",
    ),
    "a misspelled column in accepted_values": (
        lambda: declared(audits=[accepted_values("plaice", ["north"])]),
        "The audit accepted_values_plaice of core.weather names the column 'plaice', which the target lacks.",
        "Did you mean 'place'? Otherwise name one of: obs_id, temp, place, seen_at.",
    ),
    "a misspelled column in referential": (
        lambda: declared(audits=[referential("station", to="core.places", ref_column="place")]),
        "The audit referential_station of core.weather names the column 'station', which the target lacks.",
        "Name one of: obs_id, temp, place, seen_at.",
    ),
    "columns without types": (
        lambda: declared(columns=["obs_id", "seen_at"]),
        "columns= of core.weather is ['obs_id', 'seen_at'].",
        'Write a dict of column and Iceberg type: columns={"amount": "long", ...}.',
    ),
    "an owner that Dagster refuses": (
        lambda: declared(owners=["weather"]),
        "core.weather has the owner 'weather', which is neither an email address nor a team.",
        "Write the team as 'team:weather', or use an email address.",
    ),
    "an owner without a list": (
        lambda: declared(owners="team:weather"),
        "owners= of core.weather is 'team:weather', not a list.",
        'Write owners=["team:weather"].',
    ),
    "a raw table without a tuple": (
        lambda: piped(declared(), raw=OBS),
        "raw= of the pipeline is one RawTable (raw.obs), not a list or tuple.",
        "Write raw=(EVENTS,), with the comma.",
    ),
    "a target without a tuple": (
        lambda: piped(targets=declared()),
        "targets= of the pipeline is one Target (core.weather), not a list or tuple.",
        "Write targets=(event_fact,), with the comma.",
    ),
    "a function that is not decorated": (
        lambda: piped(weather),
        "targets= of the pipeline contains the function weather, which is no Target.",
        "Decorate the function weather with @incremental_asset(...).",
    ),
    "a raw table's misspelled time": (
        lambda: RawTable("raw.obs", COLUMNS, time_column="seen"),
        "raw.obs has the time column 'seen', which is not among its columns.",
        "Add it to columns=, or name one of: obs_id, temp, place, seen_at.",
    ),
    "a raw table's time that is a string": (
        lambda: RawTable("raw.obs", COLUMNS, time_column="place"),
        "raw.obs has the time column 'place', which is string.",
        "Declare it as timestamptz, or name another column as time_column=.",
    ),
    "a source's misspelled time": (
        lambda: piped(declared(sources=[Source("raw.obs", time_column="sen_at", key="obs_id")])),
        "core.weather reads 'sen_at' of raw.obs, which declares no such column.",
        "Did you mean 'seen_at'? Otherwise name one of: "
        "obs_id, temp, place, seen_at, landed_at, landing_date, landing_hour, batch_id.",
    ),
    "a source's time that is a string": (
        lambda: piped(declared(sources=[Source("raw.obs", time_column="place", key="obs_id")])),
        "core.weather reads raw.obs by the time column 'place', which is string.",
        "Name a timestamptz column as time_column=, or declare this one as timestamptz.",
    ),
    "a key that has parts": (
        lambda: piped(declared(sources=[replace(READ, key="tags")]), raw=(replace(OBS, columns=NESTED),)),
        "core.weather reads raw.obs by 'tags', which is list<string>.",
        "Name a column without parts, such as a string.",
    ),
    "a feed by a struct": (
        lambda: replace(OBS, columns=NESTED, feed=Topic("who")),
        "The feed of raw.obs has the id column 'who', which is struct<id: string>.",
        "Name a column without parts, such as a string.",
    ),
    "a struct with one name twice": (
        lambda: replace(OBS, columns={**COLUMNS, "who": "struct<id: string, ID: int>"}),
        "raw.obs.who is declared as 'struct<id: string, ID: int>', which is no Iceberg type.",
        "Use a type such as string, int, long, double, boolean, date, timestamptz, decimal(9, 2), list<string>,"
        " map<string, int> or struct<city: string, zip: int>.",
    ),
    "a target's column that has parts": (
        lambda: declared(columns={**COLUMNS, "place": "list<string>"}),
        "core.weather.place is declared as 'list<string>', which has parts. Columns of targets have none.",
        "Declare a column for each part, or a string, and write to_json(...) in the query.",
    ),
    "the misspelled time of a source that is a target": (
        lambda: piped(declared(), named("climate", Source("core.weather", time_column="seen"))),
        "core.climate reads 'seen' of core.weather, which declares no such column.",
        "Did you mean 'seen_at'? Otherwise name one of: obs_id, temp, place, seen_at.",
    ),
    "one name in two namespaces": (
        lambda: piped(declared(), declared(namespace="mart")),
        "core.weather and mart.weather have the same name 'weather' in two namespaces.",
        "Rename the function of one of them: commands and sensors call a target by its name alone.",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_a_declaration_is_two_lines(mistake: str) -> None:
    make, problem, remedy = MISTAKES[mistake]
    with pytest.raises(ConfigurationError) as raised:
        make()
    assert str(raised.value).splitlines() == [problem, f"  → {remedy}"]


def test_dagster_takes_every_owner_that_a_declaration_takes() -> None:
    from dagster import AssetSpec

    owners = ["team:weather", "team:the weather", "we.a+b@example.co.uk"]
    assert declared(owners=owners).owners == tuple(owners)
    assert list(AssetSpec("weather", owners=owners).owners) == owners
