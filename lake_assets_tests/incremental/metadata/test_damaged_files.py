"""A damaged file of a table is named, with what to do. No Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lake_assets.errors import TableDamaged
from lake_assets.incremental.execution.session_log import SessionStore, create_tables, log_files
from lake_assets.incremental.maintenance.snapshot_references import read_references
from lake_assets.incremental.maintenance.stored_files import bare_path
from lake_assets.incremental.metadata import tables
from lake_assets.incremental.metadata.damaged_files import damaged_file
from lake_assets.incremental.metadata.state_tables import SESSION
from lake_assets_tests.incremental.execution.test_session_log import planned, record_of

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table


def metadata_file(table: Table) -> str:
    return table.metadata_location


def manifest_list(table: Table) -> str:
    snapshot = table.current_snapshot()
    assert snapshot
    return snapshot.manifest_list


def manifest(table: Table) -> str:
    snapshot = table.current_snapshot()
    assert snapshot
    return snapshot.manifests(table.io)[0].manifest_path


def data_file(table: Table) -> str:
    return str(table.inspect.files()["file_path"][0].as_py())


FILES: list[Callable[[Table], str]] = [metadata_file, manifest_list, manifest, data_file]


@pytest.fixture
def store(catalog: Catalog) -> SessionStore:
    create_tables(catalog)
    store = SessionStore(catalog)
    store.record(record_of(planned()), after=None)
    return store


def test_a_damaged_file_of_the_session_log_is_named_whatever_it_is(store: SessionStore) -> None:
    record = store.state("core.fact").session
    for choose in FILES:
        path = bare_path(choose(tables.load(store.catalog, SESSION)))
        content = Path(path).read_bytes()
        for damaged in (b"", content[: len(content) // 2], None):
            if damaged is None:
                Path(path).unlink()
            else:
                Path(path).write_bytes(damaged)
            for read in (store.state, store.history):
                log_files._known.clear()  # as in a process that has not read the log before
                with pytest.raises(TableDamaged) as caught:
                    read("core.fact")
                assert SESSION in caught.value.problem
                assert path in caught.value.problem
                assert "is missing" in caught.value.problem or damaged is not None
                assert f"{path} from a backup" in caught.value.remedy
                assert "`lake doctor --repair`" in caught.value.remedy
        with pytest.raises(TableDamaged):
            read_references(store.catalog)
        Path(path).write_bytes(content)
    assert store.state("core.fact").session == record


def test_the_process_of_a_damaged_row_is_known_and_other_processes_go_on(store: SessionStore) -> None:
    path = data_file(tables.load(store.catalog, SESSION))
    store.record(record_of(planned("core.other")), after=None)
    Path(bare_path(path)).write_bytes(b"PAR1")
    found = damaged_file(store.catalog, SESSION)
    assert found is not None
    assert (found.path, found.kind, found.partition) == (path, "data file", "core.fact")
    assert store.state("core.other").session is not None
    assert damaged_file(store.catalog, SESSION, data=False) is None


def test_a_table_that_is_sound_or_missing_has_no_damaged_file(store: SessionStore) -> None:
    assert damaged_file(store.catalog, SESSION) is None
    assert damaged_file(store.catalog, "core.none") is None
