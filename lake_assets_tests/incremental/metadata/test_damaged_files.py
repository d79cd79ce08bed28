"""A damaged file of a table is named, with what to do. No Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lake_assets.errors import TableDamaged
from lake_assets.incremental.engine import iceberg, session_log
from lake_assets.incremental.engine.iceberg import SESSION, damaged_file
from lake_assets.incremental.engine.retention import bare_path
from lake_assets.incremental.engine.session_log import SessionLog
from lake_assets_tests.incremental.execution.test_log import FACT, log_on, write

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
def log(catalog: Catalog) -> SessionLog:
    found = log_on(catalog)
    write(found)
    return found


def test_a_damaged_file_of_the_session_log_is_named_whatever_it_is(log: SessionLog) -> None:
    history = log.history(FACT)
    for choose in FILES:
        path = bare_path(choose(iceberg.load(log.catalog, SESSION)))
        content = Path(path).read_bytes()
        for damaged in (b"", content[: len(content) // 2], None):
            if damaged is None:
                Path(path).unlink()
            else:
                Path(path).write_bytes(damaged)
            for read in (log.history, log.numbers) if choose is not data_file else (log.history,):
                session_log._numbers_of.clear()  # as in a process that has not read the log before
                with pytest.raises(TableDamaged) as caught:
                    read(FACT)
                assert SESSION in caught.value.problem
                assert path in caught.value.problem
                assert "is missing" in caught.value.problem or damaged is not None
                assert f"{path} from a backup" in caught.value.remedy
                assert "`lake doctor --repair`" in caught.value.remedy
        Path(path).write_bytes(content)
    assert log.history(FACT) == history


def test_the_process_of_a_damaged_row_is_known_and_other_processes_go_on(log: SessionLog) -> None:
    path = data_file(iceberg.load(log.catalog, SESSION))
    write(log, "core.other")
    Path(bare_path(path)).write_bytes(b"PAR1")
    found = damaged_file(log.catalog, SESSION)
    assert found is not None
    assert (found.file, found.partition) == (path, "core.fact")
    assert len(log.history("core.other")) == 1
    assert damaged_file(log.catalog, SESSION, data=False) is None


def test_a_table_that_is_sound_or_missing_has_no_damaged_file(log: SessionLog) -> None:
    assert damaged_file(log.catalog, SESSION) is None
    assert damaged_file(log.catalog, "core.none") is None
