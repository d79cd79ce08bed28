"""A session moves the watermarks once, also if an attempt died between that move and the record of it. No Spark."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from lake_assets.errors import StateMoved
from lake_assets.incremental.execution.session_log import SessionStore, create_tables
from lake_assets.incremental.execution.steps.attempt import Attempt, Staged
from lake_assets.incremental.execution.steps.commit_watermarks import commit_watermarks
from lake_assets.incremental.execution.steps.run_context import RunContext
from lake_assets.incremental.metadata import publish, tables
from lake_assets.membership import PIPELINE
from lake_assets_tests.incremental.execution.test_session_log import planned, record_of
from lake_assets_tests.incremental.scenario import NOW, START

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

TARGET = PIPELINE.target("signup_fact")


def test_the_watermarks_are_moved_once_and_only_from_where_the_session_found_them(catalog: Catalog) -> None:
    create_tables(catalog)
    published = publish_nothing(catalog)
    staged = Staged(snapshot_id=published, parent=None, hours=(START + 2, START + 3))
    store = SessionStore(catalog)
    context = RunContext(catalog, START, store, clock=lambda: NOW, open_spark=None)
    before = store.state(TARGET.table)
    record = store.record(record_of(planned(TARGET.table), state="published"), after=None)
    commit_watermarks(context, Attempt(TARGET, before, record), staged)
    committed = store.state(TARGET.table)
    assert (committed.revision, committed.published_snapshot_id, committed.open_session) == (1, published, None)
    assert committed.session is not None
    assert (committed.session.state, committed.session.built, committed.session.ended_at) == (
        "committed",
        staged.hours,
        NOW,
    )

    # The process dies after the move: the next attempt finds the session published, and the watermarks moved.
    unrecorded = store.record(replace(record, state="published"), after=committed.session)
    again = Attempt(TARGET, store.state(TARGET.table), unrecorded)
    commit_watermarks(context, again, staged)
    assert store.state(TARGET.table).revision == 1
    assert again.record.state == "committed"

    # A session that has found an older state must not move what another one has moved meanwhile.
    other = store.record(record_of(planned(TARGET.table, number=2), state="published"), after=again.record)
    with pytest.raises(StateMoved):
        commit_watermarks(context, Attempt(TARGET, before, other), staged)
    without_rows = Staged(snapshot_id=None, parent=None)
    commit_watermarks(context, Attempt(TARGET, store.state(TARGET.table), other), without_rows)
    moved = store.state(TARGET.table)
    assert (moved.revision, moved.published_snapshot_id) == (2, published)


def publish_nothing(catalog: Catalog) -> int:
    """Create the target, and return the snapshot that main then has."""
    tables.create_target(catalog, TARGET)
    table = tables.load(catalog, TARGET.table)
    table.append(table.schema().as_arrow().empty_table())
    return publish.main_id(table) or 0
