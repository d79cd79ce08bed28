"""A pipeline of one's own, named alone, loads in Dagster. `test_from_nothing.py` starts the services and uses it.

None of them declares a feed, an engagement lake or a served table, so Dagster shows no asset of those parts.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest
from pydantic import SecretStr

from lake_assets.errors import UsageError
from lake_assets.incremental.dagster.assets import incremental_definitions
from lake_assets.incremental.dagster.watch import watch_definitions
from lake_assets.incremental.declaration import Pipeline
from lake_assets.incremental.operations.alerts import Webhook
from lake_assets.incremental.sql.files import StoredColumns, columns_file, fingerprint, write_columns
from lake_assets.landing.dagster import landing_definitions
from lake_assets.landing.messages import feed_of, feeds
from lake_assets.serving.dagster import serving_definitions
from lake_assets.settings import PROJECT, Settings
from lake_assets_tests.doors.lake_door import LakeDoor
from lake_assets_tests.incremental.sql.folders import open_all
from lake_assets_tests.processes import Child

NOW = datetime(2026, 1, 2, tzinfo=UTC)

TURNS = ("ingestion", "mutation", "retention", "maintenance")

SAME_ROWS = {"source_target_counts", "no_missing_events", "ties"}
EVERYWHERE = {"unique_key", "quarantine", "quarantine_limit", "pending_hours", "intact", "equals_rebuild"}
PLACED = "not_null_carrier_origin_dest"
COUNTS = "not_null_origin_awaited_departed_today_cancelled_today_delay_minutes_today"


@dataclass(frozen=True)
class Own:
    """name, python_path: LAKE_PIPELINES and PYTHONPATH. raw: assets. checks: those of each target, by its asset."""

    name: str
    raw: set[str]
    checks: dict[str, set[str]]
    python_path: str = ""

    @property
    def assets(self) -> set[str]:
        return {*self.raw, *self.checks}

    @property
    def sensors(self) -> set[str]:
        return {"sessions_sensor", "raw_tables_sensor", "targets_sensor"}


def of_the_readme(folder: Path) -> Own:
    """The declaration that README.md shows, in a file of the name that stands in it; found by a relative path."""
    blocks = re.findall(r"^```python\n(# my_tables\.py\n.*?)^```$", (PROJECT / "README.md").read_text(), re.S | re.M)
    assert len(blocks) == 1
    (folder / "my_tables.py").write_text(blocks[0])
    checks = {"core/payment_fact": {"not_null_account_id", *SAME_ROWS, *EVERYWHERE}}
    return Own("my_tables:PIPELINE", {"raw/payments"}, checks, python_path=".")


def of_lake_new(folder: Path) -> Own:
    """The file that `lake new` writes, as it is, named as the command says."""
    options = ["--source", "raw.clicks", "--time-column", "clicked_at", "--key", "click_id", "--out", "tables"]
    told = lake(folder, dict(os.environ), "new", "click_fact", "--mode", "stateless", *options)
    exported = re.search(r"export PYTHONPATH=(\S+) LAKE_PIPELINES=(\S+)", told)
    assert exported
    checks = {"core/click_fact": {"not_null_amount", *SAME_ROWS, *EVERYWHERE}}
    return Own(exported[2], {"raw/clicks"}, checks, python_path=exported[1])


def of_sql_tables(folder: Path) -> Own:
    """The first table of docs/sql-tables.md, of refunds, beside the file that `lake check` writes."""
    page = (PROJECT / "docs" / "sql-tables.md").read_text().replace("payment", "refund")
    blocks = re.findall(r"^```(?:yaml|sql)\n(.*?)^```$", page, re.S | re.M)[:2]
    place = folder / "shop" / "refund_fact"
    place.mkdir(parents=True)
    for name, block in zip(("defs.yaml", "refund_fact.sql"), blocks, strict=True):
        (place / name).write_text(block)
    opened = open_all(folder / "shop")
    (table,) = opened.tables
    sources = {"refund_id": "refund_id", "account_id": "account_id", "amount": "amount", "paid_at": "event_ts"}
    stored = StoredColumns(
        fingerprint=fingerprint(table.sql, table.attributes, table.source_schemas(opened.raw_schemas())),
        columns={**dict.fromkeys(sources, "string"), "amount": "decimal(9, 2)", "paid_at": "timestamptz"},
        lineage={column: (f"raw.refunds.{source}",) for column, source in sources.items()},
    )
    write_columns(columns_file(table.declaration), stored)
    return Own("shop", {"raw/refunds"}, {"core/refund_fact": {"not_null_account_id", *SAME_ROWS, *EVERYWHERE}})


def of_the_example(_: Path) -> Own:
    checks = {
        "flights/departure_fact": {PLACED, "left_two_hours_early", *SAME_ROWS, *EVERYWHERE},
        "flights/flight_fact": {
            f"{PLACED}_status",
            "source_target_counts",
            "accepted_values_status",
            "landed_before_it_left",
            "landed_without_leaving",
            *EVERYWHERE,
        },
        "flights/airport_hour_dim": {COUNTS, "a_count_below_zero", *EVERYWHERE},
    }
    return Own("examples.flights:PIPELINE", {"flights_raw/departures", "flights_raw/arrivals"}, checks)


OWN: Mapping[str, Callable[[Path], Own]] = {
    "README": of_the_readme,
    "lake new": of_lake_new,
    "examples.flights": of_the_example,
}

LOADED: Mapping[str, Callable[[Path], Own]] = {**OWN, "YAML": of_sql_tables}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where somebody works: commands are called there."""
    made = tmp_path / "work"
    made.mkdir()
    return made


@pytest.fixture(params=LOADED)
def own(request: pytest.FixtureRequest, folder: Path) -> Own:
    return LOADED[request.param](folder)


@pytest.fixture
def variables(own: Own, bare_home: Settings) -> dict[str, str]:
    return variables_of([own], bare_home)


def variables_of(owns: Sequence[Own], home: Settings) -> dict[str, str]:
    """The environment of somebody who names these pipelines and no other."""
    others = {name: value for name, value in os.environ.items() if not name.startswith(("LAKE_", "PYTHONPATH"))}
    names = ",".join(own.name for own in owns)
    paths = os.pathsep.join(own.python_path for own in owns if own.python_path)
    return {**others, "LAKE_HOME": str(home.home), "LAKE_PIPELINES": names, "PYTHONPATH": paths}


def lake(folder: Path, variables: Mapping[str, str], *arguments: str) -> str:
    """What a command prints; it must succeed."""
    return LakeDoor(folder, dict(variables))(*arguments)


def loaded(folder: Path, variables: Mapping[str, str]) -> dict[str, list[str]]:
    """The assets and sensors of the definitions that Dagster loads in a folder."""
    found: dict[str, list[str]] = json.loads(Child(load, str(folder), variables).said())
    return found


def load(folder: str) -> str:
    os.chdir(folder)
    sys.path[:0] = os.environ["PYTHONPATH"].split(os.pathsep)
    from lake_assets.definitions import defs as load_definitions

    defs = load_definitions()
    assets = [key.to_user_string() for key in defs.resolve_asset_graph().get_all_asset_keys()]
    names = [str(spec.metadata["dagster/table_name"]) for spec in defs.resolve_all_asset_specs() if _has_columns(spec)]
    return json.dumps({"assets": assets, "sensors": [sensor.name for sensor in defs.sensors or ()], "tables": names})


def _has_columns(spec: dg.AssetSpec) -> bool:
    return bool({"dagster/table_name", "dagster/column_schema"} <= set(spec.metadata))


def test_it_loads_with_its_tables_and_nothing_of_other_parts(own: Own, folder: Path, variables: dict[str, str]) -> None:
    found = loaded(folder, variables)
    assert sorted(found["assets"]) == sorted(own.assets)
    assert sorted(found["sensors"]) == sorted(own.sensors)


DECLARED = """
from lake_assets import Pipeline, RawTable, Source, Stateless, Topic, incremental_asset

VISITS, COUNTED = (
    RawTable(f"raw.{name}", {"id": "string", "at": "timestamptz"}, time_column="at", feed=feed)
    for name, feed in (("visits", Topic("id", name="web-visits")), ("counted", None))
)

@incremental_asset(
    mode=Stateless(),
    sources=[Source("raw.visits", time_column="at")],
    key="id",
    time_column="at",
    columns={"id": "string", "at": "timestamptz"},
    served=True,
)
def visit_fact(session, visits):
    return visits

PIPELINE = Pipeline(raw=(VISITS, COUNTED), targets=(visit_fact,), start="2026-01-01-00:00")
"""


def test_parts_are_chosen_by_what_is_declared(folder: Path, bare_home: Settings) -> None:
    (folder / "visits.py").write_text(DECLARED)
    metrics = "metrics: {messages: {kinds: {asked: asked}}}"
    (folder / "chat.yaml").write_text(f"name: chat\nfields: {{channel: string}}\n{metrics}\n")
    named = {"LAKE_HOME": str(bare_home.home), "LAKE_PIPELINES": "visits:PIPELINE", "LAKE_LAKES": "chat.yaml"}
    found = loaded(folder, {**named, "PYTHONPATH": "."})
    assert set(found["assets"]) == {
        *("raw/visits", "raw/counted", "core/visit_fact"),
        *("landing/a/web-visits", "landing/b/web-visits", "landing/web-visits", "kafka/web-visits"),
        *(f"engagement/chat/{name}" for name in (*TURNS, "engagement", "notification", "engagement_metrics")),
        *(f"engagement/chat/kafka/{name}" for name in TURNS[:-1]),
        *("serving/visit_fact", "serving/chat_metrics"),
    }
    assert {f"chat.{name}" for name in ("engagement", "notification", "engagement_metrics")} <= set(found["tables"])
    assert set(found["sensors"]) == {
        *("sessions_sensor", "raw_tables_sensor", "targets_sensor", "landing_sensor", "serving_sensor"),
        "landing_merging_sensor",
        *(f"chat_{name}_sensor" for name in (*TURNS, "metrics")),
    }


@pytest.mark.parametrize("own", ["examples.flights"], indirect=True)
def test_landing_from_kafka_is_refused_where_no_table_is(folder: Path, variables: dict[str, str]) -> None:
    for arguments in (("landing", "init"), ("landing", "run", "--once")):
        done = LakeDoor(folder, variables).run(*arguments, LAKE_KAFKA="127.0.0.1:1")
        assert (done.code, done.out) == (1, "")
        assert "No raw table of the pipelines is landed from Kafka" in done.err
        assert 'add feed=Topic("id_column") to its RawTable' in done.err


def test_what_needs_a_subject_or_a_feed_says_how_to_have_one() -> None:
    nothing = Pipeline(raw=(), targets=(), start="2026-01-01-00:00")
    with pytest.raises(UsageError, match="subjects="):
        nothing.subject("account")
    with pytest.raises(UsageError, match="feed=Topic"):
        feed_of(feeds(nothing), "raw.payments")


def test_g22_no_definition_is_made_for_nothing() -> None:
    with pytest.raises(TypeError, match="empty"):
        dg.SensorDefinition(name="of_nothing", evaluation_fn=lambda _: None, asset_selection=[])

    nothing, now = Pipeline(raw=(), targets=(), start="2026-01-01-00:00"), lambda: NOW
    made = [
        incremental_definitions(nothing, clock=now),
        watch_definitions(nothing, clock=now, webhook=Webhook(SecretStr("http://127.0.0.1:9/alerts"))),
        landing_definitions(
            [], clock=now, deadline=timedelta(minutes=15), maintenance_cron="0 3 * * *", verify_cron="0 4 * * *"
        ),
        serving_definitions([], clock=now),
    ]
    assert [(list(found.assets or ()), list(found.sensors or ()), list(found.jobs or ())) for found in made] == [
        ([], [], [])
    ] * len(made)
