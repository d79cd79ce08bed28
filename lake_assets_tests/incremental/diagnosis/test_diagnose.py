"""Each kind of damage to a home is found, and repaired where that loses nothing. Real tables, no Spark."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lake_assets.base.findings import Finding, Repaired, repair
from lake_assets.connections.catalog import connect, open_catalog, table_names
from lake_assets.incremental.engine import iceberg
from lake_assets.incremental.engine.engine import Engine
from lake_assets.incremental.engine.iceberg import HIGH_WATERMARK, SESSION
from lake_assets.incremental.engine.model import NoSession, OpenedSession
from lake_assets.incremental.engine.retention import bare_path
from lake_assets.incremental.engine.state import State
from lake_assets.incremental.operations.doctor import diagnose_lake
from lake_assets_tests.incremental.clicks import (
    CLICKS,
    START,
    click_fact,
    click_state,
    land_clicks,
    publish_clicks,
    write_clicks,
)
from lake_assets_tests.incremental.committing import carry, commit

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from lake_assets.settings import Settings

NOW = datetime(2026, 1, 2, tzinfo=UTC)
LATER = NOW + timedelta(hours=2)
FACT = click_fact.table
RAW = "raw.clicks"


@dataclass
class Home:
    settings: Settings

    @property
    def catalog(self) -> Catalog:
        return open_catalog(self.settings)

    @property
    def engine(self) -> Engine:
        return Engine(self.catalog, CLICKS, clock=lambda: NOW)

    @property
    def file(self) -> Path:
        return self.settings.home / "catalog.db"

    def diagnose(self, *, declared: bool = True) -> list[Finding]:
        return diagnose_lake(self.settings, CLICKS if declared else None, clock=lambda: LATER)

    def problems(self, **options: bool) -> list[Finding]:
        return [found for found in self.diagnose(**options) if found.level != "ok"]

    def only_problem(self, **options: bool) -> Finding:
        (found,) = self.problems(**options)
        return found

    def repair(self) -> list[Repaired]:
        """Repair everything; then nothing is wrong."""
        done, left = repair(self.diagnose)
        assert [found for found in left if found.level != "ok"] == []
        assert all(not each.failure for each in done), done
        return done

    def rows(self, name: str) -> int:
        return iceberg.load(self.catalog, name).scan().to_arrow().num_rows

    def commit_session(self) -> State:
        """A session of click_fact."""
        return commit(self.engine, click_fact)

    def state(self) -> State:
        return self.engine.state(click_fact)

    def set_property(self, name: str, key: str, value: str) -> None:
        with iceberg.load(self.catalog, name).transaction() as transaction:
            transaction.set_properties({key: value})


@pytest.fixture
def home(bare_home: Settings) -> Home:
    home = Home(bare_home)
    home.engine.create_tables()
    land_clicks(home.catalog, [0], landing=0)
    return home


def newest_file(home: Home, name: str) -> Path:
    return Path(bare_path(iceberg.load(home.catalog, name).metadata_location))


def data_files(home: Home, name: str) -> list[Path]:
    files = iceberg.load(home.catalog, name).inspect.files()["file_path"].to_pylist()
    return [Path(bare_path(file)) for file in files]


def test_a_sound_home_is_sound_and_an_empty_one_was_never_initialised(home: Home, tmp_path: Path) -> None:
    home.commit_session()
    assert home.problems() == []
    empty = Home(home.settings.model_copy(update={"home": tmp_path / "empty"}))
    found = empty.only_problem()
    assert "was never initialised" in found.text
    assert "`lake init`" in found.remedy
    assert not (tmp_path / "empty").exists()


@pytest.mark.parametrize("content", [b"", b"this is no database at all, but it is long enough to be one"])
def test_a_lost_catalog_is_made_again_from_the_metadata_files(home: Home, content: bytes) -> None:
    home.commit_session()
    publish_clicks(home.catalog, [0], complete_through=0)
    names, state = table_names(home.catalog), home.state()
    newest = newest_file(home, FACT).name
    home.file.write_bytes(content)
    found = home.only_problem()
    assert (found.check, found.level) == ("catalog", "error")
    assert found.repair
    assert "registers 7 tables again" in found.remedy
    assert any(newest in step for step in found.details)
    assert home.file.read_bytes() == content  # nothing is changed without --repair
    assert len(home.repair()) == 1
    assert table_names(home.catalog) == names
    assert (home.rows(RAW), home.rows(FACT)) == (1, 1)
    assert newest_file(home, FACT).name == newest
    assert home.state() == state
    aside = sorted(home.settings.home.glob("catalog.db.damaged-*"))
    assert [file.read_bytes() for file in aside] == ([content] if content else [])


def test_empty_tables_over_lost_ones_give_way_to_them(home: Home) -> None:
    state = home.commit_session()
    home.file.unlink()
    # So did a version that did not know a lost catalog.
    Engine(connect(home.settings), CLICKS, clock=lambda: NOW).create_tables()
    assert home.rows(RAW) == 0
    errors = home.problems()
    assert {found.level for found in errors} == {"error"}
    assert len(errors) == 4  # raw.clicks, core.click_fact and both logs; the other tables were empty
    home.repair()
    assert home.rows(RAW) == 1
    assert home.state() == state


def test_all_tables_are_registered_again_or_none(home: Home) -> None:
    file = newest_file(home, RAW)
    content = file.read_bytes()
    file.write_bytes(b"{")
    home.file.unlink()
    lost, blocking = home.problems()
    assert lost.repair is None
    assert RAW in blocking.text
    assert file.name in blocking.text
    assert repair(home.diagnose)[0] == []
    assert not home.file.exists()
    file.write_bytes(content)
    home.repair()
    assert home.rows(RAW) == 1


def test_a_single_lost_table_comes_back_and_a_dropped_one_is_forgotten(home: Home) -> None:
    catalog = home.catalog
    catalog.create_table("core.old", iceberg.load(catalog, RAW).schema())
    assert "core.old" in table_names(home.catalog)
    catalog.purge_table("core.old")
    for file in (home.settings.home / "warehouse" / "core" / "old").rglob("*.json"):
        file.unlink()
    catalog.drop_table(RAW)
    lost, dropped = (found for found in home.problems() if found.check == "catalog")
    assert (lost.level, dropped.level) == ("error", "warning")
    assert RAW in lost.text
    assert "core.old" in dropped.text
    home.repair()
    assert home.rows(RAW) == 1
    assert "core.old" not in json.loads((home.settings.home / "tables.json").read_text())["tables"]


def test_properties_that_sessions_need_are_set_again(home: Home) -> None:
    home.commit_session()
    home.set_property(FACT, iceberg.WAP_ENABLED, "false")
    home.set_property(SESSION, "commit.retry.num-retries", "4")
    home.set_property(RAW, iceberg.COMPLETE_THROUGH, "soon")
    home.set_property(FACT, iceberg.COMPLETE_THROUGH, "2026-01-01 00:00")
    home.set_property("core.click_state", iceberg.COMPLETE_THROUGH, "never")
    found = home.problems()
    assert [each.level for each in found if each.check == "tables"] == ["error"] * 5
    assert {each.check for each in found} == {"tables", "targets"}, "and the targets say what stops them"
    home.repair()
    through = {name: iceberg.complete_through(iceberg.load(home.catalog, name), name) for name in (RAW, FACT)}
    assert through == {RAW: START, FACT: START}
    assert iceberg.COMPLETE_THROUGH not in iceberg.load(home.catalog, "core.click_state").properties
    iceberg.check_write_audit_publish(iceberg.load(home.catalog, FACT), FACT)


def test_a_damaged_file_of_the_log_makes_it_forget_one_target_which_keeps_its_state(home: Home) -> None:
    other = carry(home.engine, click_state, complete_through=START)
    for hour, log in enumerate((SESSION, HIGH_WATERMARK), 1):
        state = home.commit_session()
        damaged = [file for file in data_files(home, log) if f"process_name={FACT}" in str(file)]
        damaged[-1].write_bytes(b"PAR1")
        found = home.problems()[0]
        assert (found.check, found.level) == ("session log", "error")
        assert f"forgets the logged sessions of {FACT}" in found.remedy
        home.repair()
        assert home.state() == state
        assert home.engine.log.history(FACT) == []
        assert home.engine.state(click_state) == other
        assert len(home.engine.log.history(click_state.table)) == 1
        assert isinstance(home.engine.decide(click_fact), NoSession)
        land_clicks(home.catalog, [hour], landing=hour)


@pytest.mark.parametrize("log", [SESSION, HIGH_WATERMARK])
def test_a_damaged_manifest_of_the_log_starts_it_again(home: Home, log: str) -> None:
    state = home.commit_session()
    snapshot = iceberg.load(home.catalog, log).current_snapshot()
    assert snapshot
    Path(bare_path(snapshot.manifest_list)).write_bytes(b"")
    found = home.problems()[0]
    assert f"starts {log} again and forgets all logged sessions" in found.remedy
    repair(home.diagnose)
    assert home.state() == state
    land_clicks(home.catalog, [1], landing=1)
    assert home.commit_session().n == state.n + 1
    assert [record.revision for record in home.engine.log.history(FACT)] == [1, 2]


def test_watermarks_of_missing_and_replaced_tables_are_named(home: Home) -> None:
    home.commit_session()
    expected = str(iceberg.load(home.catalog, RAW).metadata.table_uuid)
    home.catalog.drop_table(RAW)
    home.engine.create_tables()
    problems = home.problems()
    replaced = next(found for found in problems if found.check == "watermarks")
    assert expected in replaced.text
    assert "reads all of it" in replaced.remedy
    former = next(found for found in problems if found.check == "tables")
    assert "former table" in former.text


def test_a_target_that_others_have_changed_is_sound_and_one_that_they_dropped_is_named(home: Home) -> None:
    home.commit_session()
    write_clicks(home.catalog, [1])
    assert home.problems() == []  # the next session rebuilds the hour
    home.catalog.drop_table(FACT)
    dropped, reader = (found for found in home.problems() if found.check == "targets")
    assert (dropped.level, reader.level) == ("error", "error")
    assert f"{click_state.table}: Table {FACT} is not in the catalog" in reader.text
    assert f"{FACT} was dropped" in dropped.text
    assert "--reset" in dropped.remedy


def test_a_session_that_another_program_writes_is_named_and_no_problem(home: Home) -> None:
    opened = home.engine.open_session(click_fact)
    assert isinstance(opened, OpenedSession)
    assert home.problems() == []
    (told,) = [found for found in home.diagnose() if found.check == "open sessions"]
    assert opened.plan.session_id in told.text
    home.commit_session()  # blocks nobody, and ends it
    (told,) = [found for found in home.diagnose() if found.check == "open sessions"]
    assert told.text == "No session is open."


def test_staged_snapshots_go_unless_a_session_needs_them(home: Home) -> None:
    publish_clicks(home.catalog, [0], complete_through=0)
    opened = home.engine.open_session(click_fact)
    assert isinstance(opened, OpenedSession)
    for wap in ("dead.1", f"{opened.plan.session_id}.1"):
        table = iceberg.load(home.catalog, FACT)
        table.manage_snapshots().create_branch(table.metadata.snapshots[0].snapshot_id, "staged").commit()
        rows = table.scan().to_arrow()
        iceberg.load(home.catalog, FACT).append(rows, snapshot_properties={"wap.id": wap}, branch="staged")
        iceberg.load(home.catalog, FACT).manage_snapshots().remove_branch("staged").commit()
    found = home.only_problem()
    assert (found.check, found.level) == ("leftovers", "warning")
    repair(home.diagnose)
    kept = [s.summary for s in iceberg.load(home.catalog, FACT).metadata.snapshots]
    staged = [s.additional_properties.get("wap.id") for s in kept if s]
    assert staged == [None, None, f"{opened.plan.session_id}.1"]


def test_without_a_pipeline_all_that_is_stored_is_checked(home: Home) -> None:
    newest_file(home, RAW).write_bytes(b"")
    found = home.only_problem(declared=False)
    assert RAW in found.text
    assert "from a backup" in found.remedy
