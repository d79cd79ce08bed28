"""What others do to a target between its sessions, and what its next session makes of it. No Spark.

Sessions append their rows here by pyiceberg, staged and committed as the engine does it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa
import pytest
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update import AddSnapshotUpdate, RemoveSnapshotRefUpdate, SetSnapshotRefUpdate

from lake_assets.base.hours import hour_start
from lake_assets.errors import PublishConflict, TargetGone, TargetRolledBack
from lake_assets.incremental.engine import iceberg, publish
from lake_assets.incremental.engine.engine import Engine
from lake_assets.incremental.engine.model import NoSession, SessionPlan
from lake_assets.incremental.engine.planning import committed_after
from lake_assets.incremental.engine.session_log import record_of
from lake_assets.incremental.engine.state import State, after_session, commit_state, summary_of
from lake_assets_tests.incremental.clicks import CLICKS, START, at, click_fact, land_clicks

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

FACT = click_fact.table


class Sessions:
    """Sessions of click_fact, and others who write to it. Hours are counted from the start of the pipeline."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.engine = Engine(catalog, CLICKS, clock=lambda: at(8))
        self.engine.create_tables()
        self.landings = 0

    @property
    def table(self) -> Table:
        return iceberg.load(self.catalog, FACT)

    @property
    def main(self) -> int:
        found = publish.main_id(self.table)
        assert found is not None
        return found

    @property
    def state(self) -> State:
        return self.engine.state(click_fact)

    def land(self, *hours: int) -> None:
        self.landings += 1
        land_clicks(self.catalog, hours, landing=self.landings)

    def staged(self) -> tuple[State, State, int]:
        """The next session up to its commit: the state before, the one after, and the snapshot."""
        before, plan = self.state, self.engine.decide(click_fact)
        assert isinstance(plan, SessionPlan)
        assert before.table is not None
        committed = committed_after(click_fact.mode, before.committed, plan, plan.hour_numbers)
        after = after_session(before, plan, committed, pattern_id=1, run_id="run", started_at=at(8))
        summary, _ = summary_of(after, publish.base_of(before.table))
        return before, after, append(self.catalog, [hour - START for hour in plan.hour_numbers], summary, staged=True)

    def commit(self, before: State, after: State, snapshot_id: int) -> State:
        assert before.table is not None
        return commit_state(self.catalog, before.table, after, snapshot_id)

    def session(self, *hours: int) -> State:
        """Land a click of each hour, and build it."""
        self.land(*hours)
        stored = self.commit(*self.staged())
        self.engine.log.add(record_of(stored), stored)
        assert self.state == stored
        return stored

    def set_main(self, snapshot_id: int) -> None:
        self.table.manage_snapshots().set_current_snapshot(snapshot_id=snapshot_id).commit()

    def expire(self) -> None:
        """All snapshots but those that a branch or a tag names."""
        table = self.table
        named = {ref.snapshot_id for ref in table.metadata.refs.values()}
        old = [each.snapshot_id for each in table.metadata.snapshots if each.snapshot_id not in named]
        table.maintenance.expire_snapshots().by_ids(old).commit()

    def due(self) -> tuple[str, list[int]]:
        """How the next session writes, and which hours."""
        plan = self.engine.decide(click_fact)
        if isinstance(plan, NoSession):
            assert plan.kind == "idle", plan
            return "idle", []
        return plan.load, [hour - START for hour in plan.hour_numbers]


def append(catalog: Catalog, hours: Iterable[int], summary: dict[str, str] | None = None, *, staged: bool) -> int:
    """Append a row of each hour, and return the snapshot."""
    table = iceberg.load(catalog, FACT)
    known = {each.snapshot_id for each in table.metadata.snapshots}
    rows = [{"click_id": f"c{hour}", "clicked_at": hour_start(START + hour)} for hour in hours]
    arrow = pa.Table.from_pylist(rows, schema=table.schema().as_arrow())
    table.append(arrow, snapshot_properties=summary or {}, branch=None if staged else "main")
    (new,) = {each.snapshot_id for each in iceberg.load(catalog, FACT).metadata.snapshots} - known
    return new


def compact(catalog: Catalog) -> None:
    """Write all rows again, as a snapshot of the operation `replace`."""
    table = iceberg.load(catalog, FACT)
    removed = [task.file for task in table.scan().plan_files()]
    added = list(_dataframe_to_data_files(table.metadata, table.scan().to_arrow(), table.io))
    snapshot_id, (made,) = publish._snapshot(table, Operation.OVERWRITE, added, removed, {})
    assert isinstance(made, AddSnapshotUpdate)
    summary = Summary(Operation.REPLACE, **publish.summary_of(made.snapshot))
    snapshot = made.snapshot.model_copy(update={"summary": summary})
    main = SetSnapshotRefUpdate(ref_name="main", type=SnapshotRefType.BRANCH, snapshot_id=snapshot_id)  # type: ignore[call-arg]
    catalog.commit_table(table, (), (AddSnapshotUpdate(snapshot=snapshot), main))


@pytest.fixture
def lake(catalog: Catalog) -> Sessions:
    return Sessions(catalog)


def test_a_target_that_only_sessions_write_to_is_idle(lake: Sessions) -> None:
    assert lake.state == State(FACT)
    assert [lake.session(1).n, lake.session(2, 3).n] == [1, 2]
    assert lake.due() == ("idle", [])
    assert (lake.state.snapshot_id, publish.tag_id(lake.table)) == (lake.main, lake.main)


def test_what_a_stranger_appends_or_deletes_is_built_again(lake: Sessions) -> None:
    lake.session(1)
    lake.session(2, 3)
    append(lake.catalog, [3, 5], staged=False)
    assert lake.due() == ("overwrite", [3, 5])
    lake.table.delete("click_id = 'c1'")
    assert lake.due() == ("overwrite", [1, 3, 5])
    lake.land(7)
    assert lake.due() == ("overwrite", [1, 3, 5, 7])
    plan = lake.engine.decide(click_fact)
    assert isinstance(plan, SessionPlan)
    reasons = {each.hour - START: each.reason for each in plan.hours}
    assert "which no session made" in reasons[1]
    assert "which no session made" in reasons[5]
    assert "raw.clicks" in reasons[7]
    assert lake.engine.problem(click_fact) is None


def test_a_table_that_had_rows_before_its_first_session_is_overwritten(lake: Sessions) -> None:
    append(lake.catalog, [1, 9], staged=False)
    lake.land(1, 2)
    assert lake.due() == ("overwrite", [1, 2, 9])


def test_a_compaction_is_no_change(lake: Sessions) -> None:
    lake.session(1)
    stored = lake.session(1, 2)
    compact(lake.catalog)
    assert lake.main != stored.snapshot_id
    assert lake.state == stored
    assert lake.due() == ("idle", [])
    lake.land(3)
    assert lake.due() == ("append", [3])


def test_a_compaction_whose_line_has_expired_is_built_again(lake: Sessions) -> None:
    """The tag keeps the state, and nothing says any more that the files since then have the same rows."""
    stored = lake.session(1)
    compact(lake.catalog)
    compact(lake.catalog)
    lake.expire()
    assert lake.state == stored
    assert lake.due() == ("overwrite", [1])


def test_a_line_that_expiry_has_cut_is_no_rollback(lake: Sessions) -> None:
    lake.session(1)
    stored = lake.session(2)
    append(lake.catalog, [4], staged=False)
    append(lake.catalog, [5], staged=False)
    lake.expire()
    assert all(each.snapshot_id != stored.snapshot_id for each in publish.ancestors(lake.table))
    assert lake.state == stored
    assert lake.due() == ("overwrite", [4, 5])


def test_create_or_replace_is_compared_with_what_the_last_session_published(lake: Sessions) -> None:
    """Uuid, properties, tags and old snapshots stay; main has no parent."""
    lake.session(1)
    stored = lake.session(2)
    lake.catalog.commit_table(lake.table, (), (RemoveSnapshotRefUpdate(ref_name="main"),))  # type: ignore[call-arg]
    append(lake.catalog, [6], staged=False)
    assert [each.parent_snapshot_id for each in publish.ancestors(lake.table)] == [None]
    assert lake.state == stored
    assert lake.due() == ("overwrite", [1, 2, 6])


def test_a_rollback_stops_the_target_until_it_is_undone_or_accepted(lake: Sessions) -> None:
    first = lake.session(1)
    second = lake.session(2)
    third = lake.session(3)
    assert first.snapshot_id is not None
    assert third.snapshot_id is not None
    lake.set_main(first.snapshot_id)
    with pytest.raises(TargetRolledBack, match=f"rolled back behind snapshot {third.snapshot_id}"):
        lake.engine.decide(click_fact)
    assert isinstance(lake.engine.problem(click_fact), TargetRolledBack)
    lake.set_main(third.snapshot_id)
    assert lake.state == third

    assert second.snapshot_id is not None
    lake.set_main(second.snapshot_id)
    lake.engine.carry(click_fact, why="repair")
    assert (lake.state.n, lake.state.watermarks) == (4, second.watermarks), "numbers are not used again"
    assert lake.due() == ("append", [3])
    assert lake.session(4).n == 5
    lake.set_main(third.snapshot_id)  # is a rollback, too: what follows it is not there
    with pytest.raises(TargetRolledBack):
        lake.engine.decide(click_fact)


def test_a_number_that_only_the_log_knows_is_not_used_again(lake: Sessions) -> None:
    first = lake.session(1)
    lake.session(2)
    lake.catalog.commit_table(lake.table, (), (RemoveSnapshotRefUpdate(ref_name=publish.TAG),))  # type: ignore[call-arg]
    assert first.snapshot_id is not None
    lake.set_main(first.snapshot_id)
    assert (lake.state.n, lake.state.highest) == (1, 2)
    assert lake.session(3).n == 3


def test_a_target_without_a_main_is_built_again(lake: Sessions) -> None:
    """`CREATE OR REPLACE TABLE` without rows leaves such a table."""
    lake.session(1)
    lake.catalog.commit_table(lake.table, (), (RemoveSnapshotRefUpdate(ref_name="main"),))  # type: ignore[call-arg]
    assert lake.due() == ("overwrite", [1])


def test_a_target_that_was_dropped_or_replaced_stops(lake: Sessions) -> None:
    lake.session(1)
    lake.catalog.drop_table(FACT)
    with pytest.raises(TargetGone, match=r"lake rebuild core\.click_fact --reset"):
        lake.engine.decide(click_fact)
    iceberg.create_target(lake.catalog, click_fact)
    with pytest.raises(TargetGone, match=r"lake rebuild core\.click_fact --reset"):
        lake.engine.decide(click_fact)
    assert isinstance(lake.engine.problem(click_fact), TargetGone)


def test_a_table_that_another_was_copied_into_is_replaced(lake: Sessions) -> None:
    """The copy has the snapshots and the states of its original, and a uuid of its own."""
    lake.session(1)
    table = lake.table
    lake.catalog.drop_table(FACT)
    path = f"{table.location()}/metadata/copy.metadata.json"
    copy = table.metadata.model_copy(update={"table_uuid": uuid4()})
    with table.io.new_output(path).create() as file:
        file.write(copy.model_dump_json().encode())
    lake.catalog.register_table(FACT, path)
    with pytest.raises(TargetGone, match="its sessions built the one with uuid " + str(table.metadata.table_uuid)):
        lake.engine.decide(click_fact)


def test_a_session_that_a_person_publishes_counts_if_main_had_not_moved(lake: Sessions) -> None:
    lake.session(1)
    lake.land(2)
    before, after, snapshot_id = lake.staged()
    lake.set_main(snapshot_id)
    assert (lake.state.n, lake.state.watermarks, lake.state.snapshot_id) == (2, after.watermarks, snapshot_id)
    assert lake.due() == ("idle", [])
    with pytest.raises(PublishConflict):
        lake.commit(before, after, snapshot_id)
    assert lake.session(3).n == 3


def test_a_session_that_a_person_publishes_on_another_main_is_a_strangers_write(lake: Sessions) -> None:
    """Its state tells nothing of what others have done between its plan and its staging."""
    stored = lake.session(1)
    lake.land(2)
    before, after, _ = lake.staged()
    append(lake.catalog, [5], staged=False)
    assert before.table is not None
    summary, _ = summary_of(after, publish.base_of(before.table))
    on_another = append(lake.catalog, [2], summary, staged=True)
    lake.set_main(on_another)
    assert lake.state == replace(stored, highest=2)
    assert lake.due() == ("overwrite", [2, 5])


def test_of_two_sessions_of_one_plan_one_is_committed(lake: Sessions) -> None:
    lake.session(1)
    lake.land(2)
    one, other = lake.staged(), lake.staged()
    stored = lake.commit(*one)
    with pytest.raises(PublishConflict):
        lake.commit(*other)
    assert lake.state == stored
    assert sorted(lake.table.scan().to_arrow()["click_id"].to_pylist()) == ["c1", "c2"]


def test_losing_the_log_loses_nothing(lake: Sessions) -> None:
    stored = lake.session(1)
    for name in ("etl.session", "etl.high_watermark"):
        lake.catalog.drop_table(name)
    lake.engine.create_tables()
    assert lake.state == stored
    lake.engine.log.complete(lake.state)
    assert [each.plan.session_id for each in lake.engine.history(click_fact)] == [stored.session_id]
    assert lake.due() == ("idle", [])
