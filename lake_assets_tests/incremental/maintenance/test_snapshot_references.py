"""Which snapshots processes need, according to the engine's own tables. Metadata only: no Spark."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from lake_assets.incremental.execution.engine import Engine
from lake_assets.incremental.execution.log import SessionRecord, State
from lake_assets.incremental.maintenance.figures import table_figures
from lake_assets.incremental.maintenance.snapshot_references import read_references
from lake_assets.incremental.metadata import publish, tables
from lake_assets.incremental.planning.deferred import DeferredHour
from lake_assets.incremental.planning.plan import Committed
from lake_assets.incremental.planning.session import SessionPlan
from lake_assets_tests.incremental.clicks import CLICKS, at, click_fact, land_clicks

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

RAW, FACT = "raw.clicks", "core.click_fact"


@pytest.fixture
def engine(catalog: Catalog) -> Engine:
    engine = Engine(catalog, CLICKS, clock=lambda: at(9))
    engine.create_tables()
    return engine


def head(engine: Engine, name: str = RAW) -> int:
    found = publish.main_id(tables.load(engine.catalog, name))
    assert found is not None
    return found


def held(engine: Engine, name: str = RAW) -> frozenset[int]:
    """What must stay, the head aside: that main names anyway."""
    return read_references(engine.catalog).pinned(tables.load(engine.catalog, name), name) - {head(engine, name)}


def land(engine: Engine, hour: int) -> int:
    """One more snapshot of the raw table; its id."""
    land_clicks(engine.catalog, [hour], landing=hour)
    return head(engine)


def planned(engine: Engine) -> SessionPlan:
    decision = engine.decide(click_fact)
    assert isinstance(decision, SessionPlan)
    return decision


def record(engine: Engine, plan: SessionPlan, state: State, staged: int | None = None) -> None:
    newest = engine.store.state(FACT).session
    new = SessionRecord(plan, state, 0, 1, "", at(9), staged_snapshot_id=staged)
    engine.store.record(new, after=newest)


def commit(engine: Engine, plan: SessionPlan, published: int | None = None) -> None:
    """Move the watermark as a session would that has no rows."""
    engine.store.move_watermarks(engine.store.state(FACT), plan, Committed(), published)


def test_where_a_watermark_stands_and_stood_stays(engine: Engine) -> None:
    ids = []
    for hour in range(3):
        ids.append(land(engine, hour))
        commit(engine, planned(engine))
    land(engine, 3)
    assert held(engine) == {ids[1], ids[2]}


def test_what_late_rows_wait_after_stays(engine: Engine) -> None:
    ids = []
    for hour in range(4):
        ids.append(land(engine, hour))
        deferred = (DeferredHour(0, 0, 1, after=ids[0]), DeferredHour(1, 0, 1))
        engine.store.move_watermarks(
            engine.store.state(FACT), planned(engine), Committed(deferred=deferred, pending=frozenset([0, 1])), None
        )
    assert held(engine) == {ids[0], ids[2]}


def test_what_an_open_session_reads_stays_until_it_is_over(engine: Engine) -> None:
    first = land(engine, 0)
    plan = planned(engine)
    record(engine, plan, "planned")
    land(engine, 1)
    assert held(engine) == {first}
    assert read_references(engine.catalog).open_session(FACT) == plan.session_id
    record(engine, plan, "committed")
    assert held(engine) == frozenset()
    assert read_references(engine.catalog).open_session(FACT) is None


@pytest.mark.parametrize(("state", "stays"), [("staged", True), ("blocked", True), ("committed", False)])
def test_what_a_session_staged_stays_while_it_may_matter(engine: Engine, state: State, stays: bool) -> None:
    land(engine, 0)
    plan = planned(engine)
    land_as(engine, plan.session_id)  # recorded by nobody: found by its WAP id
    unrecorded = head(engine, FACT)
    recorded = publish_more(engine)
    publish_more(engine)
    record(engine, plan, state, staged=recorded)
    assert held(engine, FACT) == ({unrecorded, recorded} if stays else frozenset())


def test_what_was_published_last_and_what_a_tag_names_stays(engine: Engine) -> None:
    land(engine, 0)
    published, tagged = publish_more(engine), publish_more(engine)
    publish_more(engine)
    commit(engine, planned(engine), published)
    tables.load(engine.catalog, FACT).manage_snapshots().create_tag(tagged, "audit-2026").commit()
    assert held(engine, FACT) == {published, tagged}


def test_a_process_that_no_pipeline_declares_counts(engine: Engine) -> None:
    first = land(engine, 0)
    plan = replace(planned(engine), process="core.somebody_elses")
    engine.store.move_watermarks(engine.store.state("core.somebody_elses"), plan, Committed(), None)
    land(engine, 1)
    assert held(engine) == {first}


def test_figures_count_the_head_and_what_all_snapshots_hold(engine: Engine) -> None:
    land(engine, 0)
    land(engine, 1)
    tables.load(engine.catalog, RAW).delete("click_id = 'c0-0'")
    found = table_figures(tables.load(engine.catalog, RAW))
    assert (found.files, found.stored_files, found.snapshots) == (1, 2, 3)
    assert 0 < found.bytes < found.stored_bytes


def publish_more(engine: Engine) -> int:
    """One more snapshot of the fact, of no session."""
    land_as(engine, None)
    return head(engine, FACT)


def land_as(engine: Engine, session_id: str | None) -> None:
    """One more snapshot of the fact, under the WAP id of a session or under none."""
    table = tables.load(engine.catalog, FACT)
    rows = table.schema().as_arrow().empty_table()
    table.append(rows, snapshot_properties={publish.WAP_ID: publish.wap_id(session_id, 1)} if session_id else {})
