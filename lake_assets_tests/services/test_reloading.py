"""Edits while `lake up` runs: which files declare tables, and that a change of one has the definitions loaded anew."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from lake_assets.services.webserver import declaring_files, follow
from lake_assets_tests.doors.lake_door import LakeDoor

RIDES = """\
type: lake_assets.SourceTable
attributes: {table: raw.rides, columns: {ride_id: string, at: timestamptz}, time_column: at}
"""


def test_the_files_that_declare_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["tables/a.yaml", "tables/in/b.yml", "tables/in/b.sql", "tables/in/b.columns.json", "tables/notes.md"]
    names += ["one.yaml", "one.sql", "own.py", "beside.py", "shop/__init__.py", "shop/in/facts.py", "shop/data.csv"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.syspath_prepend(str(tmp_path))

    def found(declared: str) -> set[str]:
        return {str(file.relative_to(tmp_path)) for file in declaring_files(declared)}

    assert found(f"{tmp_path}/tables") == set(names[:4])
    assert found(f"{tmp_path}/one.yaml") == {"one.yaml", "one.sql"}
    assert found("own:PIPELINE") == found(f"{tmp_path}/own.py:PIPELINE") == {"own.py", "beside.py"}
    assert found("shop.in.facts") == {"shop/__init__.py", "shop/in/facts.py"}
    assert found("lake_assets.membership:PIPELINE") == set()


def test_an_edit_creates_its_tables_and_has_the_definitions_loaded_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = LakeDoor(tmp_path)
    file = lake.write("tables/rides.yaml", RIDES)
    lake("init", LAKE_PIPELINES="tables")
    for name, value in {"LAKE_HOME": str(lake.home), "LAKE_PIPELINES": str(file.parent)}.items():
        monkeypatch.setenv(name, value)
    loaded: list[float] = []
    arguments = {"pipelines": str(file.parent), "load_anew": lambda: loaded.append(time.time())}
    started = time.time()
    threading.Thread(target=follow, kwargs={**arguments, "loaded_at": started}, daemon=True).start()

    def wait_for(times: int) -> None:
        deadline = time.monotonic() + 120
        while len(loaded) < times and time.monotonic() < deadline:
            time.sleep(0.1)
        assert len(loaded) == times

    more = lake.write("tables/more.yaml", RIDES.replace("raw.rides", "raw.more"))
    wait_for(1)
    assert lake.table("raw.more").schema().column_names[:2] == ["ride_id", "at"]
    more.unlink()
    wait_for(2)
    file.write_text(RIDES + "  tab\t: [")  # nothing is left that could be loaded
    time.sleep(6)
    file.write_text(RIDES + "# mended")
    wait_for(3)
    time.sleep(5)
    assert len(loaded) == 3  # what was stored beside the declarations is no edit
