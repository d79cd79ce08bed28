"""The state in the summary of a snapshot: what is committed is read again, however much it is. No Spark."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lake_assets.errors import StoredByNewerVersion
from lake_assets.incremental.engine import iceberg, publish
from lake_assets.incremental.engine.engine import Engine
from lake_assets.incremental.engine.model import Committed, Kind, SessionPlan, Waiting
from lake_assets.incremental.engine.session_log import SessionLog
from lake_assets.incremental.engine.source_changes import Totals, Watermark
from lake_assets.incremental.engine.state import FORMAT, HOURS, LONGEST, STATE, State, commit_state, read_state
from lake_assets_tests.incremental.clicks import CLICKS, START, at, click_fact, land_clicks, publish_clicks

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

FACT = click_fact.table
numbers = st.integers(0, 2**63 - 1)
hours = st.integers(START - 100, START + 100_000)
names = st.text(max_size=8)
ids = st.text("abcdef-0123456789", max_size=20)
waits = st.builds(
    Waiting,
    kind=st.sampled_from(get_args(Kind)),
    why=names,
    since_ms=numbers,
    session_id=ids,
    code_version=ids,
    rows=numbers,
    after=st.none() | numbers,
)
totals = st.none() | st.builds(Totals, numbers, numbers, numbers)


def marks(found: Mapping[str, tuple[Any, ...]]) -> dict[str, Watermark]:
    return {name: Watermark(name, *values) for name, values in found.items()}


spans = st.lists(st.tuples(hours, hours).map(list))
states = st.builds(
    State,
    process=st.just(FACT),
    session_id=ids,
    watermarks=st.dictionaries(
        names,
        st.tuples(ids, st.none() | numbers, numbers, numbers, st.none() | hours, totals, st.none() | hours),
        max_size=3,
    ).map(marks),
    committed=st.builds(
        Committed,
        waiting=st.dictionaries(hours, waits, max_size=60),
        last_built=st.none() | hours,
        complete_through=st.none() | hours,
        code_version=ids,
        older=st.lists(st.tuples(hours, hours, ids), max_size=3).map(tuple),
        span=st.none() | st.tuples(hours, hours),
        chunk_hours=st.integers(0, 1_000),
    ),
    log=st.fixed_dictionaries({"run": names, "hours": spans, "unchanged": spans}),
)


@pytest.fixture
def lake(catalog: Catalog) -> Catalog:
    iceberg.create_target(catalog, click_fact)
    return catalog


def read(lake: Catalog) -> State:
    return read_state(lake, SessionLog(lake), FACT)


def commit(lake: Catalog, found: State) -> State:
    """A state as that of the next session of the target; the state as it is stored."""
    before = read(lake)
    assert before.table is not None
    uuid, n = str(before.table.metadata.table_uuid), before.highest + 1
    after = replace(found, process=FACT, uuid=uuid, n=n, highest=n)
    stored = commit_state(lake, before.table, after, None)
    assert replace(stored, snapshot_id=None, sequence_number=0) == after
    return stored


def waiting_properties(lake: Catalog) -> dict[str, str]:
    properties = iceberg.load(lake, FACT).metadata.properties
    return {name: value for name, value in properties.items() if name.startswith(HOURS)}


def scattered(count: int, *, why: str = "append 1 of raw.clicks") -> Committed:
    """Every other hour waits."""
    return Committed({START + 2 * number: Waiting("changed", why) for number in range(count)})


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(found=states)
def test_a_state_that_was_committed_is_read_again(lake: Catalog, found: State) -> None:
    stored = commit(lake, found)
    assert read(lake) == stored


def test_a_target_that_no_session_has_built_has_an_empty_state(lake: Catalog) -> None:
    found = read(lake)
    assert found == State(FACT)
    assert found.table is not None
    assert read_state(lake, SessionLog(lake), "core.none") == State("core.none")


def test_many_waiting_hours_are_a_property_that_the_same_commit_sets(lake: Catalog) -> None:
    commit(lake, State(FACT, session_id="few", committed=scattered(10)))
    assert waiting_properties(lake) == {}
    stored = commit(lake, State(FACT, session_id="many", committed=scattered(1_000)))
    assert len(waiting_properties(lake)) == 1
    table = iceberg.load(lake, FACT)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert len(publish.summary_of(snapshot)[STATE]) < LONGEST
    assert read(lake) == stored
    assert read(lake).committed == scattered(1_000)


def test_a_property_is_kept_while_a_snapshot_names_it(lake: Catalog) -> None:
    commit(lake, State(FACT, session_id="one", committed=scattered(1_000)))
    first = waiting_properties(lake)
    commit(lake, State(FACT, session_id="two", committed=scattered(1_000)))
    assert waiting_properties(lake) == first
    commit(lake, State(FACT, session_id="three", committed=scattered(1_000, why="another")))
    assert len(waiting_properties(lake)) == 2
    commit(lake, State(FACT, session_id="four"))
    assert len(waiting_properties(lake)) == 2, "a person may roll back to what the first sessions published"

    table = iceberg.load(lake, FACT)
    older = [each.snapshot_id for each in publish.ancestors(table)][1:]
    table.maintenance.expire_snapshots().by_ids(older).commit()
    commit(lake, State(FACT, session_id="five"))
    assert waiting_properties(lake) == {}
    assert read(lake).committed == Committed()


@pytest.mark.parametrize("changed", [None, "[]"])
def test_without_the_list_of_waiting_hours_all_is_built_again(catalog: Catalog, changed: str | None) -> None:
    """Nothing else says what waits. A table that is altered by hand may lack it, or have another list."""
    engine = Engine(catalog, CLICKS, clock=lambda: at(8))
    engine.create_tables()
    land_clicks(catalog, [1, 2], landing=2)
    plan = engine.decide(click_fact)
    assert isinstance(plan, SessionPlan)
    (source,) = plan.sources
    mark = Watermark(source.source, source.table_uuid, source.to_snapshot_id, source.to_sequence_number)
    publish_clicks(catalog, [1, 2], complete_through=2)
    commit(catalog, State(FACT, session_id="one", watermarks={mark.source: mark}, committed=scattered(1_000)))
    table = iceberg.load(catalog, FACT)
    (name,) = waiting_properties(catalog)
    with table.transaction() as transaction:
        if changed is None:
            transaction.remove_properties(name)
        else:
            transaction.set_properties({name: changed})
    again = engine.decide(click_fact)
    assert isinstance(again, SessionPlan)
    assert (again.load, again.hour_numbers) == ("overwrite", (START + 1, START + 2))
    assert again.sources[0].from_snapshot_id is None
    assert engine.state(click_fact).highest == 2


def test_the_state_of_a_later_version_is_refused(lake: Catalog) -> None:
    stored = commit(lake, State(FACT, session_id="one"))
    assert stored.table is not None
    snapshot = stored.table.current_snapshot()
    assert snapshot is not None
    summary = dict(publish.summary_of(snapshot))
    encoded = json.loads(summary[STATE])
    assert encoded["v"] == FORMAT == 1
    summary[STATE] = json.dumps({**encoded, "v": 2, "later": {}})
    base = publish.base_of(stored.table)
    written = {key: summary[key] for key in summary if key.startswith("lake.")}
    publish.end_session(lake, FACT, base, None, summary={**written, "lake.n": "2"}, properties={})
    with pytest.raises(StoredByNewerVersion, match=r"The state of core\.click_fact has format 2.*formats up to 1"):
        read(lake)
