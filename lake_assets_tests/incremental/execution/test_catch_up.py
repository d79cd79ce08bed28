"""What is due is done, whatever else fails, and whatever was declared when it was planned. Metadata only: no Spark."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from lake_assets.errors import UsageError
from lake_assets.incremental.declaration import Source, Stateless
from lake_assets.incremental.execution.catch_up import Outcome, catch_up
from lake_assets.incremental.execution.engine import Engine
from lake_assets.incremental.planning.session import NoSession, OpenedSession
from lake_assets_tests.incremental.clicks import CLICKS, at, click_state, land_clicks, publish_clicks
from lake_assets_tests.incremental.scenario import with_target

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from lake_assets.incremental.declaration import Target


@pytest.fixture
def engine(catalog: Catalog) -> Engine:
    found = Engine(catalog, CLICKS, clock=lambda: at(8))
    found.create_tables()
    return found


def test_what_fails_in_one_target_does_not_stop_the_others(engine: Engine) -> None:
    with engine.catalog.load_table("raw.clicks").update_schema(allow_incompatible_changes=True) as schema:
        schema.delete_column("click_id")
    failed, other = catch_up(engine, CLICKS.targets)
    assert "raw.clicks should have the column click_id" in (failed.failure or "")
    assert (other.table, other.failure) == ("core.click_state", None)
    assert other.waiting


def test_an_error_of_any_kind_does_not_stop_the_others_unless_the_machine_has_it(engine: Engine) -> None:
    def fails_with(error: Exception) -> list[Outcome]:
        def run(target: Target, **_: object) -> NoSession:
            if target.name == "click_fact":
                raise error
            return NoSession("idle", "nothing new")

        engine.run = run  # type: ignore[method-assign]
        seen: list[Exception] = []
        outcomes = catch_up(engine, CLICKS.targets, on_error=seen.append)
        assert seen == [error]
        return outcomes

    failed, other = fails_with(KeyError("place"))
    assert (failed.failure or "").splitlines()[0] == "core.click_fact: KeyError: 'place'."
    assert (other.table, other.failure) == ("core.click_state", None)

    (failed,) = fails_with(OSError(28, "No space left on device"))
    assert (failed.failure or "").splitlines()[0] == "The disk is full."


@pytest.mark.parametrize(
    "changed",
    [
        replace(click_state, sources=(*click_state.sources, Source("raw.clicks", "event_ts", key="click_id"))),
        replace(click_state, sources=(Source("raw.clicks", "event_ts", key="click_id"),)),
        replace(click_state, mode=Stateless()),
    ],
)
def test_a_session_that_was_planned_for_other_sources_is_planned_anew(engine: Engine, changed: Target) -> None:
    land_clicks(engine.catalog, [0], landing=0)
    publish_clicks(engine.catalog, [0], complete_through=0)
    before = engine.open_session(click_state)
    engine.pipeline = with_target(CLICKS, changed)
    with pytest.raises(UsageError, match="has no open session"):
        engine.publish_session(changed)
    after = engine.open_session(changed)
    assert isinstance(before, OpenedSession)
    assert isinstance(after, OpenedSession)
    assert [(r.plan, r.state) for r in engine.store.history(click_state.table)] == [
        (before.plan, "abandoned"),
        (after.plan, "planned"),
    ]
