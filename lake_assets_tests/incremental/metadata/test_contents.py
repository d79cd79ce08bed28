"""What a table holds, by its manifests: compared with the rows themselves, whatever its partition spec. No Spark."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.transforms import BucketTransform, HourTransform, IdentityTransform
from pyiceberg.types import LongType
from typer.testing import CliRunner

from lake_assets.base.hours import hour_start, parse_hour
from lake_assets.cli.main import app
from lake_assets.connections.catalog import open_catalog
from lake_assets.errors import UsageError
from lake_assets.incremental.engine import iceberg
from lake_assets.incremental.operations.contents import ColumnBounds, contents
from lake_assets.settings import Settings, settings

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

START = parse_hour("2026-01-01-00:00")
COLUMNS = {"id": "string", "at": "timestamptz", "price": "decimal(9, 2)", "number": "int", "day": "date"}


def make(catalog: Catalog, name: str, by: iceberg.Partitions, properties: dict[str, str] | None = None) -> Table:
    iceberg.create(catalog, name, COLUMNS, by, properties or {})
    return iceberg.load(catalog, name)


def append(table: Table, *rows: dict[str, Any]) -> None:
    schema = schema_to_pyarrow(table.schema(), include_field_ids=False)
    table.append(pa.Table.from_pylist(list(rows), schema=schema))


def row(hour: int | None, identifier: str | None, number: int | None = None) -> dict[str, Any]:
    at = None if hour is None else hour_start(START) + timedelta(hours=hour, minutes=5)
    return {"id": identifier, "at": at, "number": number}


def test_partitions_have_rows_files_and_the_bounds_of_columns(catalog: Catalog) -> None:
    table = make(catalog, "core.fact", {"at": HourTransform()})
    assert contents(table, "core.fact", ["id"]).partitions == ()
    append(table, row(1, "b", 7), row(1, None), row(2, "c"))
    append(table, row(1, "a", -3), row(None, "d", 1))
    found = contents(table, "core.fact", ["id", "number", "at"])
    assert [(p.partition, p.rows, p.files) for p in found.partitions] == [
        ({"at_hour": None}, 1, 1),
        ({"at_hour": "2026-01-01-01"}, 3, 2),
        ({"at_hour": "2026-01-01-02"}, 1, 1),
    ]
    time = "2026-01-01T01:05:00+00:00"
    assert found.partitions[1].columns == (
        ColumnBounds("id", "a", "b", 1),
        ColumnBounds("number", "-3", "7", 1),
        ColumnBounds("at", time, time, 0),
    )
    assert [p.columns[1] for p in found.partitions[::2]] == [
        ColumnBounds("number", "1", "1", 0),
        ColumnBounds("number", None, None, 1),
    ]
    sizes = {task.file.file_path: task.file.file_size_in_bytes for task in table.scan().plan_files()}
    assert sum(p.bytes for p in found.partitions) == sum(sizes.values())
    assert not found.rows_are_before_deletes


def test_partitions_are_those_of_whatever_spec_a_file_was_written_with(catalog: Catalog) -> None:
    table = make(catalog, "core.changing", {})
    append(table, row(1, "a", 1))
    with table.update_spec() as spec:
        spec.add_field("day", IdentityTransform(), "day")
        spec.add_field("id", BucketTransform(4), "bucket")
    day = (hour_start(START) + timedelta(days=1)).date()
    append(table, {**row(2, "a", 2), "day": day})
    with table.update_schema() as schema:
        schema.update_column("number", LongType())
    append(table, {**row(2, "a", 2**40), "day": day})
    found = contents(table, "core.changing", ["number"])
    (bucket,) = {p.partition["bucket"] for p in found.partitions if p.partition}
    assert [(dict(p.partition), p.files, p.columns[0].upper) for p in found.partitions] == [
        ({}, 1, "1"),
        ({"day": "2026-01-02", "bucket": bucket}, 2, str(2**40)),
    ]
    table.delete(AlwaysTrue())
    assert contents(table, "core.changing").partitions == ()


@pytest.mark.parametrize(("mode", "marked"), [("truncate(16)", True), ("full", False), ("none", False)])
def test_bounds_of_text_that_may_be_truncated_are_marked(catalog: Catalog, mode: str, marked: bool) -> None:
    table = make(catalog, "core.long", {}, {"write.metadata.metrics.column.id": mode})
    append(table, row(1, "x" * 40), row(1, "z"))
    (bounds,) = contents(table, "core.long", ["id"]).partitions[0].columns
    assert bounds.may_be_truncated is marked
    expected = {"truncate(16)": ("x" * 16, "z"), "full": ("x" * 40, "z"), "none": (None, None)}
    assert (bounds.lower, bounds.upper) == expected[mode]


def test_a_column_that_is_not_there_is_named(catalog: Catalog) -> None:
    table = make(catalog, "core.fact", {})
    with pytest.raises(UsageError, match=r"core\.fact has no column 'nope'\.\n.*Name one of: id, at, price"):
        contents(table, "core.fact", ["nope"])


def test_the_command_takes_a_target_by_its_name_and_any_table(
    bare_home: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LAKE_HOME", str(bare_home.home))
    monkeypatch.setenv("LAKE_PIPELINES", "lake_assets_tests.incremental.clicks:CLICKS")
    settings.cache_clear()
    try:
        run = CliRunner().invoke
        assert run(app, ["init"]).exit_code == 0
        catalog = open_catalog(bare_home)
        schema = schema_to_pyarrow(iceberg.load(catalog, "core.click_fact").schema(), include_field_ids=False)
        rows = [{"click_id": "c1", "clicked_at": hour_start(START)}]
        iceberg.load(catalog, "core.click_fact").append(pa.Table.from_pylist(rows, schema=schema))
        found = json.loads(run(app, ["inspect", "click_fact", "click_id", "clicked_at", "--json"]).output)
        assert found["table"] == "core.click_fact"
        assert found["lineage"] == {"clicked_at": ["raw.clicks.event_ts"]}
        assert [(p["partition"], p["rows"]) for p in found["partitions"]] == [({"clicked_at_hour": "2026-01-01-00"}, 1)]
        shown = run(app, ["inspect", "core.click_fact", "click_id"]).output
        assert "clicked_at_hour=2026-01-01-00" in shown
        assert "c1" in shown
        assert "raw.clicks has no rows." in run(app, ["inspect", "raw.clicks"]).output
    finally:
        settings.cache_clear()
