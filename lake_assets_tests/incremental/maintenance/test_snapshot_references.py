"""Which snapshots processes need, according to the engine's own tables. Metadata only: no Spark."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from lake_assets.incremental.engine import iceberg, publish
from lake_assets.incremental.engine.engine import Engine
from lake_assets.incremental.engine.model import Committed, Waiting
from lake_assets.incremental.engine.retention import inventory, read_references
from lake_assets_tests.incremental.clicks import CLICKS, at, click_fact, land_clicks
from lake_assets_tests.incremental.committing import commit

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

RAW, FACT = "raw.clicks", "core.click_fact"


@pytest.fixture
def engine(catalog: Catalog) -> Engine:
    engine = Engine(catalog, CLICKS, clock=lambda: at(9))
    engine.create_tables()
    return engine


def head(engine: Engine, name: str = RAW) -> int:
    found = publish.main_id(iceberg.load(engine.catalog, name))
    assert found is not None
    return found


def held(engine: Engine, name: str = RAW) -> set[int]:
    """What must stay, the head aside: that main names anyway."""
    return read_references(engine.catalog).pinned(iceberg.load(engine.catalog, name), name) - {head(engine, name)}


def land(engine: Engine, hour: int) -> int:
    """One more snapshot of the raw table; its id."""
    land_clicks(engine.catalog, [hour], landing=hour)
    return head(engine)


def test_where_a_watermark_stands_and_stood_stays(engine: Engine) -> None:
    ids = []
    for hour in range(3):
        ids.append(land(engine, hour))
        commit(engine, click_fact)
    land(engine, 3)
    assert held(engine) == {ids[1], ids[2]}


def test_what_late_rows_wait_after_stays(engine: Engine) -> None:
    ids = []
    for hour in range(4):
        ids.append(land(engine, hour))
        late = {0: Waiting("late", rows=1, after=ids[0]), 1: Waiting("late", rows=1)}
        commit(engine, click_fact, Committed(waiting=late))
    assert held(engine) == {ids[0], ids[2]}


def test_what_was_published_last_and_what_a_tag_names_stays(engine: Engine) -> None:
    land(engine, 0)
    tagged = publish_more(engine)
    published = commit(engine, click_fact).snapshot_id
    publish_more(engine)
    iceberg.load(engine.catalog, FACT).manage_snapshots().create_tag(tagged, "audit-2026").commit()
    assert held(engine, FACT) == {published, tagged}


def test_a_process_that_no_pipeline_declares_counts(engine: Engine) -> None:
    first = land(engine, 0)
    theirs = replace(click_fact, table="core.somebody_elses")
    others = Engine(engine.catalog, replace(CLICKS, targets=(theirs,)), clock=lambda: at(9))
    others.create_tables()
    commit(others, theirs)
    land(engine, 1)
    assert held(engine) == {first}


def test_figures_count_the_head_and_what_all_snapshots_hold(engine: Engine) -> None:
    land(engine, 0)
    land(engine, 1)
    iceberg.load(engine.catalog, RAW).delete("click_id = 'c0-0'")
    table = iceberg.load(engine.catalog, RAW)
    found = inventory(table.io, table.metadata).figures
    assert (found.files, found.stored_files, found.snapshots) == (1, 2, 3)
    assert 0 < found.bytes < found.stored_bytes


def publish_more(engine: Engine) -> int:
    """One more snapshot of the fact, of no session."""
    table = iceberg.load(engine.catalog, FACT)
    table.append(table.schema().as_arrow().empty_table())
    return head(engine, FACT)
