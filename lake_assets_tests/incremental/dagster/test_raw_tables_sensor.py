"""What landed in the raw tables, as Dagster shows it. Metadata only: no Spark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lake_assets.base.hours import hour_key
from lake_assets.errors import TableMissing
from lake_assets.incremental.dagster import sensors as raw_tables_sensor
from lake_assets.incremental.declaration import RawTable
from lake_assets.incremental.engine.engine import Engine, utc_now
from lake_assets_tests.incremental.clicks import CLICKS, START, land_clicks
from lake_assets_tests.incremental.in_process_daemon import InProcessDaemon, in_process_daemon
from lake_assets_tests.incremental.tick_matrix import clicks_daemon

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from lake_assets.incremental.engine.arrivals import RawSnapshot

KEYS = [hour_key(START + hour) for hour in range(24)]


@pytest.fixture
def daemon(catalog: Catalog) -> Iterator[InProcessDaemon]:
    with clicks_daemon(catalog) as daemon:
        yield daemon


def test_g8_each_landed_partition_is_shown_once(daemon: InProcessDaemon, catalog: Catalog) -> None:
    land_clicks(catalog, [0, 1], landing=1)
    land_clicks(catalog, [2], landing=2)
    events = daemon.tick("raw_tables_sensor").asset_events
    assert [
        (e.partition, e.metadata["dagster/partition_row_count"].value, e.metadata["operation"].value) for e in events
    ] == [
        (KEYS[1], 2, "append"),
        (KEYS[2], 1, "append"),
    ]
    assert daemon.hours_of("raw.clicks") == [1, 2]
    assert not daemon.tick("raw_tables_sensor").asset_events


def test_a_landed_partition_tells_how_late_its_rows_came_as_far_as_a_tick_may_read(
    daemon: InProcessDaemon, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lateness() -> list[list[object]]:
        events = daemon.tick("raw_tables_sensor").asset_events
        return [[v.value for k, v in e.metadata.items() if k.startswith("lateness")] for e in events]

    land_clicks(catalog, [0, 1, 2], landing=2)
    land_clicks(catalog, [3], landing=4)
    assert lateness() == [[60, 120, 120], [60, 60, 60]]
    monkeypatch.setattr(raw_tables_sensor, "LATENESS_ROWS", 1)
    land_clicks(catalog, [5], landing=5)
    land_clicks(catalog, [5], landing=6)
    assert lateness() == [[0, 0, 0], []]


def test_a_landed_partition_is_shown_when_its_files_are_removed_or_written_anew(
    daemon: InProcessDaemon, catalog: Catalog
) -> None:
    for hour in (1, 2, 3):
        land_clicks(catalog, [0, hour], landing=hour)
    daemon.tick("raw_tables_sensor")
    table = catalog.load_table("raw.clicks")
    table.delete("landing_hour = 1 OR click_id = 'c2-0'")
    events = daemon.tick("raw_tables_sensor").asset_events
    assert [(e.partition, e.metadata["dagster/partition_row_count"].value) for e in events] == [
        (KEYS[1], 0),
        (KEYS[2], 1),
    ]
    assert not any(name.startswith("lateness") for e in events for name in e.metadata)


def test_g12_what_landed_is_shown_a_bounded_number_at_a_time(
    daemon: InProcessDaemon, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(raw_tables_sensor, "LANDED_PER_TICK", 2)
    for hour in range(3):
        land_clicks(catalog, [hour], landing=hour)
    assert [len(daemon.tick("raw_tables_sensor").asset_events) for _ in range(3)] == [2, 1, 0]


def test_a_table_that_cannot_be_read_is_named_and_does_not_hide_what_landed_in_others(catalog: Catalog) -> None:
    columns = {"visit_id": "string", "event_ts": "timestamptz"}
    visits, cut = (RawTable(name, columns, time_column="event_ts") for name in ("raw.a_visits", "raw.b_cut"))
    pipeline = replace(CLICKS, raw=(visits, cut, *CLICKS.raw))
    Engine(catalog, pipeline, clock=utc_now).create_tables()
    catalog.drop_table("raw.a_visits")
    table = catalog.load_table("raw.b_cut")
    table.append(table.schema().as_arrow().empty_table())
    snapshot = table.current_snapshot()
    assert snapshot is not None
    Path(snapshot.manifest_list.removeprefix("file://")).unlink()
    with in_process_daemon(pipeline, catalog, utc_now, end=KEYS[20]) as daemon:
        land_clicks(catalog, [0, 1], landing=1)
        found = daemon.tick("raw_tables_sensor")
        assert [event.partition for event in found.asset_events] == [KEYS[1]]
        assert found.skip_message is not None
        first, second, remedy, third, _ = found.skip_message.splitlines()
        assert (first, second) == ("Reported 1 landed partitions.", "Table raw.a_visits is not in the catalog.")
        assert remedy.startswith("  → ")
        assert third.startswith("raw.b_cut: There is no file /")

        with pytest.raises(TableMissing, match=r"raw\.a_visits"):  # a failed tick, as long as it is missing
            daemon.tick("raw_tables_sensor")
        land_clicks(catalog, [2], landing=2)
        assert [event.partition for event in daemon.tick("raw_tables_sensor").asset_events] == [KEYS[2]]

        catalog.drop_table("raw.b_cut")
        Engine(catalog, pipeline, clock=utc_now).create_tables()
        assert daemon.tick("raw_tables_sensor").skip_message == "No raw table has a new snapshot."


def test_a_table_that_has_not_moved_is_not_read(
    daemon: InProcessDaemon, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    activity = Engine.raw_activity

    def noted(engine: Engine, raw: RawTable, *, since: int | None) -> list[RawSnapshot]:
        read.append(raw.table)
        return activity(engine, raw, since=since)

    land_clicks(catalog, [0], landing=0)
    assert [len(daemon.tick("raw_tables_sensor").asset_events) for _ in range(2)] == [1, 0]
    monkeypatch.setattr(Engine, "raw_activity", noted)
    assert not daemon.tick("raw_tables_sensor").asset_events
    assert read == []
    land_clicks(catalog, [1], landing=1)
    assert [event.partition for event in daemon.tick("raw_tables_sensor").asset_events] == [KEYS[1]]
    assert read == ["raw.clicks"]
    daemon.cursors["raw_tables_sensor"] = None
    assert len(daemon.tick("raw_tables_sensor").asset_events) == 2
