"""A home remembers its tables: a catalog that lost them is refused, and a new one is not. No Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lake_assets.connections.catalog import (
    add_remembered,
    forget_tables,
    local_tables,
    open_catalog,
    read_remembered,
    table_names,
)
from lake_assets.errors import StoredByNewerVersion, StoredStateError
from lake_assets.incremental.engine.engine import Engine, utc_now
from lake_assets.settings import __version__
from lake_assets_tests.incremental.clicks import CLICKS, land_clicks

if TYPE_CHECKING:
    from lake_assets.settings import Settings

TABLES = {
    "core.click_fact",
    "core.click_state",
    "etl.erasure",
    "etl.high_watermark",
    "etl.quarantine",
    "etl.session",
    "raw.clicks",
}


def create(home: Settings, *, rows: bool = True) -> None:
    catalog = open_catalog(home)
    Engine(catalog, CLICKS, clock=utc_now).create_tables()
    if rows:
        land_clicks(catalog, [0], landing=0)
    catalog.close()


def marker(home: Settings) -> Path:
    return home.home / "tables.json"


def test_a_catalog_that_was_emptied_is_refused_until_it_is_back(bare_home: Settings) -> None:
    create(bare_home)
    open_catalog(bare_home)
    file = bare_home.home / "catalog.db"
    backup = file.read_bytes()
    file.write_bytes(b"")
    with pytest.raises(StoredStateError) as caught:
        open_catalog(bare_home)
    assert str(file) in caught.value.problem
    assert "core.click_fact, core.click_state, etl.erasure and 4 more" in caught.value.problem
    assert "`lake doctor --repair`" in caught.value.remedy
    file.write_bytes(backup)
    assert table_names(open_catalog(bare_home)) == TABLES


def test_a_home_of_the_version_before_is_known_by_its_warehouse(bare_home: Settings) -> None:
    create(bare_home)
    assert not marker(bare_home).exists()
    (bare_home.home / "catalog.db").unlink()
    with pytest.raises(StoredStateError, match=r"had raw\.clicks\."):
        open_catalog(bare_home)


def test_folders_without_rows_are_no_reason_to_refuse(bare_home: Settings) -> None:
    create(bare_home, rows=False)
    (bare_home.home / "catalog.db").unlink()
    assert table_names(open_catalog(bare_home)) == set()


def test_another_catalog_is_refused_and_the_former_one_is_named(bare_home: Settings) -> None:
    create(bare_home)
    open_catalog(bare_home)
    moved = bare_home.model_copy(update={"catalog_uri": f"sqlite:///{bare_home.home / 'other.db'}"})
    with pytest.raises(StoredStateError, match=r"other\.db has no tables.*in the catalog sqlite:.*/catalog\.db\."):
        open_catalog(moved)


def test_without_a_warehouse_to_look_into_the_memory_alone_counts(bare_home: Settings) -> None:
    create(bare_home)
    open_catalog(bare_home)
    (bare_home.home / "catalog.db").unlink()
    elsewhere = bare_home.model_copy(update={"warehouse": "s3://bucket/warehouse"})
    assert local_tables(elsewhere.warehouse_address) == {}
    with pytest.raises(StoredStateError):
        open_catalog(elsewhere)


def test_a_home_that_nothing_else_has_made_remembers(bare_home: Settings) -> None:
    add_remembered(bare_home.home, "postgresql://db/lake", {"a.one": "s3://bucket/a/one"})
    found = read_remembered(bare_home.home)
    assert found
    assert found.tables == {"a.one": "s3://bucket/a/one"}


def test_what_is_remembered_grows_and_is_written_only_when_it_does(bare_home: Settings) -> None:
    create(bare_home)
    catalog = open_catalog(bare_home)
    content = json.loads(marker(bare_home).read_text())
    folder = bare_home.warehouse_address
    assert content == {
        "format": 1,
        "written_by": __version__,
        "catalog": bare_home.catalog_address,
        "tables": {name: f"{folder}/{name.replace('.', '/')}" for name in sorted(TABLES)},
    }
    written = marker(bare_home).stat().st_mtime_ns
    open_catalog(bare_home)
    assert marker(bare_home).stat().st_mtime_ns == written
    catalog.create_table("core.more", catalog.load_table("raw.clicks").schema())
    open_catalog(bare_home)
    assert set(json.loads(marker(bare_home).read_text())["tables"]) == {*TABLES, "core.more"}
    forget_tables(bare_home.home, ["core.more"])
    assert set(json.loads(marker(bare_home).read_text())["tables"]) == TABLES


def test_a_home_of_a_later_version_is_refused_and_left_as_it_is(bare_home: Settings) -> None:
    create(bare_home)
    later = '{"format": 2, "written_by": "9.9.0", "catalog": "sqlite:///x", "tables": {}, "segments": {}}'
    marker(bare_home).write_text(later)
    with pytest.raises(StoredByNewerVersion, match="has format 2, and this version reads formats up to 1") as refused:
        open_catalog(bare_home)
    assert str(bare_home.home) in refused.value.problem
    assert refused.value.remedy.startswith("Install lake-assets 9.9.0 or a later one.")
    with pytest.raises(StoredByNewerVersion):
        add_remembered(bare_home.home, "sqlite:///x", {"a.one": "s3://bucket/a/one"})
    assert marker(bare_home).read_text() == later


def test_a_home_whose_version_is_not_named_is_refused_too(bare_home: Settings) -> None:
    create(bare_home)
    marker(bare_home).write_text('{"format": 3}')
    with pytest.raises(StoredByNewerVersion, match="Install the version of lake-assets that wrote it or a later one"):
        open_catalog(bare_home)


@pytest.mark.parametrize("text", ["", "[]", '{"format": "2", "tables": {}}', '{"format": 1}'])
def test_a_damaged_memory_stops_nobody(bare_home: Settings, text: str) -> None:
    create(bare_home)
    marker(bare_home).write_text(text)
    assert table_names(open_catalog(bare_home)) == TABLES
    assert set(json.loads(marker(bare_home).read_text())["tables"]) == TABLES
