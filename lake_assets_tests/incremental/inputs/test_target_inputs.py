"""What moves the inputs of a target, and what does not. Metadata only: no Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog

from lake_assets.incremental.engine.engine import Engine
from lake_assets.incremental.engine.iceberg import HIGH_WATERMARK, QUARANTINE
from lake_assets.incremental.engine.model import SessionReport
from lake_assets.incremental.operations import inputs
from lake_assets.incremental.operations.inputs import Locations, TargetInputs
from lake_assets_tests.incremental.clicks import CLICKS, at, click_fact, land_clicks, publish_clicks

if TYPE_CHECKING:
    from collections.abc import Callable

TABLES = ["raw.clicks", "core.click_fact", "core.click_state"]


class AskedTableByTable:
    """A catalog that is no database: it can load tables, and tells no location without that."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.loaded: list[str] = []

    def load_table(self, name: str) -> object:
        self.loaded.append(name)
        return self.catalog.load_table(name)


def commit_a_session(catalog: Catalog) -> None:
    """Commit the next session of click_fact, which has no rows."""
    report = Engine(catalog, CLICKS, clock=lambda: at(8)).run(click_fact)
    assert isinstance(report, SessionReport)


def test_inputs_move_for_those_that_a_commit_concerns(catalog: Catalog) -> None:
    Engine(catalog, CLICKS, clock=lambda: at(8)).create_tables()
    looked = TargetInputs(CLICKS, CLICKS.targets)
    before = looked.look(catalog)

    def moved_by(change: Callable[[], object]) -> set[str]:
        nonlocal before
        change()
        now = looked.look(catalog)
        moved = {table for table, inputs in now.items() if inputs != before[table]}
        before = now
        return moved

    both, downstream = {"core.click_fact", "core.click_state"}, {"core.click_state"}
    assert moved_by(lambda: None) == set()
    assert moved_by(lambda: land_clicks(catalog, [], landing=0)) == both  # the state waits for the fact to settle
    assert moved_by(lambda: commit_a_session(catalog)) == both
    assert moved_by(lambda: publish_clicks(catalog, [0], complete_through=0)) == both
    assert moved_by(lambda: catalog.load_table("core.click_state").delete("click_id = 'none'")) <= downstream
    assert moved_by(lambda: touch(catalog, "core.click_state")) == downstream
    assert moved_by(lambda: touch(catalog, QUARANTINE)) == set()
    assert moved_by(lambda: touch(catalog, HIGH_WATERMARK)) == set()  # nothing is decided by the log
    assert moved_by(lambda: catalog.drop_table("core.click_state")) == downstream


def touch(catalog: Catalog, name: str) -> None:
    """A commit to a table that changes no row."""
    with catalog.load_table(name).transaction() as transaction:
        transaction.set_properties({"touched": "yes"})


def test_any_catalog_tells_the_same_locations_a_bounded_number_at_a_look(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(catalog, SqlCatalog)
    Engine(catalog, CLICKS, clock=lambda: at(8)).create_tables()
    names = [*TABLES, "raw.missing"]
    expected = {name: catalog.load_table(name).metadata_location for name in TABLES}
    assert Locations().look(catalog, names) == expected

    monkeypatch.setattr(inputs, "LOADS_PER_LOOK", 3)
    other, looked = AskedTableByTable(catalog), Locations()
    looked.look(other, names)  # type: ignore[arg-type]
    assert other.loaded == TABLES
    assert looked.look(other, names) == expected  # type: ignore[arg-type]
    land_clicks(catalog, [0], landing=0)
    touch(catalog, "core.click_fact")
    for _ in range(2):
        found = looked.look(other, names)  # type: ignore[arg-type]
    assert found == {name: catalog.load_table(name).metadata_location for name in TABLES}
    assert len(other.loaded) == 12
