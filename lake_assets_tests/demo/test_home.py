"""The data directory of a demo: others' data is refused, the last demo's is cleared, and its settings are fixed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lake_assets.demo import engagement as scenes
from lake_assets.demo.home import prepare_home
from lake_assets.engagement.lakes import configured_lakes
from lake_assets.errors import UsageError
from lake_assets.incremental.from_settings import open_pipeline
from lake_assets.settings import settings


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The data directory that the settings name; it does not exist yet."""
    for name in [name for name in os.environ if name.startswith("LAKE_")]:
        monkeypatch.delenv(name)
    folder = tmp_path / "home"
    monkeypatch.setenv("LAKE_HOME", str(folder))
    settings.cache_clear()
    yield folder
    monkeypatch.undo()
    settings.cache_clear()


def test_the_settings_of_the_demo_replace_those_of_the_environment(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE_START", "2020-05-05-05:00")
    found = prepare_home()
    assert found.home == home
    assert (found.start, found.end) == ("2026-01-01-00:00", "2026-01-02-00:00")


def test_the_demo_of_a_lake_has_the_lake_and_nothing_else(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE_LAKES", "voice_insight")
    found = prepare_home(fixed=scenes.SETTINGS)
    assert configured_lakes(found) == (scenes.LAKE,)
    assert open_pipeline(found).targets == ()
    assert (found.start, found.mutation_seconds, found.settle_seconds) == ("2026-01-01-00:00", 5, 900)
    assert configured_lakes(prepare_home()) == ()  # the other demo uses none, so Dagster shows none


def test_tables_that_no_demo_made_are_refused_and_stay(home: Path) -> None:
    home.mkdir()
    (home / "catalog.db").write_text("tables")
    with pytest.raises(UsageError, match=r"holds tables that the demo did not make(.|\n)*LAKE_HOME="):
        prepare_home()
    assert (home / "catalog.db").read_text() == "tables"


def test_the_data_of_the_last_demo_is_cleared_and_jars_stay(home: Path) -> None:
    found = prepare_home()
    for folder in ("warehouse", "landing", "jars"):
        (home / folder).mkdir()
        (home / folder / "file").write_text("content")
    addresses = [found.catalog_address, *map(found.landing_manifest_address, ("a", "b"))]
    for address in addresses:
        Path(address.removeprefix("sqlite:///")).write_text("tables")
    prepare_home()
    assert sorted(file.name for file in home.iterdir() if file.name != "run") == ["demo", "jars", "lake.env"]


@pytest.mark.parametrize("name", ["LAKE_KAFKA", "LAKE_WAREHOUSE"])
def test_a_setting_that_names_others_data_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "somewhere:1")
    settings.cache_clear()
    with pytest.raises(UsageError, match=name):
        prepare_home()
    assert not home.exists()
