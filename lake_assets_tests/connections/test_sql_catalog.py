"""A catalog reads a metadata file once, and sees each commit, of whoever, and each file that is damaged or gone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.exceptions import NoSuchTableError, ValidationError
from sqlalchemy import event

from lake_assets.connections.catalog import open_catalog
from lake_assets.connections.sql_catalog import SqlCatalogReadingOnce, one_look, reading_once
from lake_assets.settings import Settings

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

ROWS = pa.table({"id": [1, 2]})


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    found = open_catalog(Settings(home=tmp_path))
    found.create_namespace("core")
    found.create_table("core.fact", ROWS.schema)
    return found


def metadata_file(table: Table) -> Path:
    return Path(table.metadata_location.removeprefix("file://"))


def test_a_table_that_did_not_change_is_not_read_again(catalog: Catalog) -> None:
    first = catalog.load_table("core.fact")
    second = catalog.load_table("core.fact")
    assert second.metadata is first.metadata
    assert second == first


def test_what_was_committed_here_is_what_the_file_says(catalog: Catalog, tmp_path: Path) -> None:
    table = catalog.load_table("core.fact")
    table.append(ROWS)
    with table.transaction() as transaction:
        transaction.set_properties({"lake.session": "fact-1"})
    kept = catalog.load_table("core.fact")
    read = open_catalog(Settings(home=tmp_path)).load_table("core.fact")
    assert kept.metadata is table.metadata
    assert (kept.metadata_location, kept.metadata) == (read.metadata_location, read.metadata)
    assert kept.scan().to_arrow().num_rows == 2


def test_a_commit_of_another_process_is_seen_at_once(catalog: Catalog, tmp_path: Path) -> None:
    before = catalog.load_table("core.fact")
    other = open_catalog(Settings(home=tmp_path))
    other.load_table("core.fact").append(ROWS)
    after = catalog.load_table("core.fact")
    assert before.current_snapshot() is None
    assert after.scan().to_arrow().num_rows == 2


def test_a_table_that_was_created_again_is_another_one(catalog: Catalog) -> None:
    former = catalog.load_table("core.fact")
    catalog.drop_table("core.fact")
    catalog.create_table("core.fact", ROWS.schema)
    assert catalog.load_table("core.fact").metadata.table_uuid != former.metadata.table_uuid


def test_a_file_that_was_damaged_or_is_gone_is_noticed(catalog: Catalog) -> None:
    file = metadata_file(catalog.load_table("core.fact"))
    file.write_text("{")
    with pytest.raises(ValidationError, match="JSON"):
        catalog.load_table("core.fact")
    file.unlink()
    with pytest.raises(OSError, match=file.name):
        catalog.load_table("core.fact")


def test_so_many_tables_are_kept_and_no_more(catalog: Catalog) -> None:
    assert isinstance(catalog, SqlCatalogReadingOnce)
    catalog._read.by_table.most = 1
    catalog.create_table("core.other", ROWS.schema)
    first = catalog.load_table("core.fact")
    catalog.load_table("core.other")
    assert catalog.load_table("core.fact").metadata is not first.metadata
    assert catalog.load_table("core.fact") == first


def test_one_look_shows_tables_as_they_were_and_asks_for_none_of_them(catalog: Catalog, tmp_path: Path) -> None:
    other = open_catalog(Settings(home=tmp_path))
    asked = []
    assert isinstance(catalog, SqlCatalogReadingOnce)
    event.listen(catalog.engine, "before_cursor_execute", lambda *call: asked.append(call[2]))
    with one_look(catalog):
        other.load_table("core.fact").append(ROWS)
        assert len(catalog.load_table("core.fact").snapshots()) == 0
        assert catalog.load_table("core.fact").name() == ("core", "fact")
        with pytest.raises(NoSuchTableError):
            catalog.load_table("core.missing")
    assert len([query for query in asked if "FROM iceberg_tables" in query]) == 2  # all tables, and the missing one
    assert len(catalog.load_table("core.fact").snapshots()) == 1


def test_one_look_ends_with_a_commit_and_does_not_mind_that_old_files_go(catalog: Catalog, tmp_path: Path) -> None:
    with one_look(catalog):
        catalog.load_table("core.fact").append(ROWS)
        assert len(catalog.load_table("core.fact").snapshots()) == 1
    with one_look(catalog):
        other = open_catalog(Settings(home=tmp_path)).load_table("core.fact")
        before = metadata_file(other)
        other.append(ROWS)
        before.unlink()
        assert len(catalog.load_table("core.fact").snapshots()) == 2


def test_a_catalog_of_another_kind_stays_as_it_is() -> None:
    other = InMemoryCatalog("other")
    assert reading_once(other) is other
    with one_look(other):
        assert other.list_namespaces() == []
