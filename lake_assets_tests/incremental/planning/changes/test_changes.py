"""What is read from a table's metadata, of tables that pyiceberg writes: each row of the design's table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, timedelta
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.expressions import EqualTo
from pyiceberg.io.pyarrow import schema_to_pyarrow

from lake_assets.base.hours import hour_key, hour_start, parse_hour
from lake_assets.errors import HistoryCut
from lake_assets.incremental.declaration import RawTable, Source
from lake_assets.incremental.engine import iceberg
from lake_assets.incremental.engine.iceberg import hours_present
from lake_assets.incremental.engine.source_changes import (
    Head,
    SnapshotReader,
    SourceChanges,
    Watermark,
    changes,
)

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

START = parse_hour("2026-01-01-00:00")
RAW = RawTable("raw.events", {"event_id": "string", "event_ts": "timestamptz"}, time_column="event_ts")
EVENTS = Source("raw.events", time_column="event_ts", key="event_id", landed_column="landed_at")
FACT = Source("core.fact", time_column="at")

Row = dict[str, Any]


@pytest.fixture
def events(catalog: Catalog) -> Table:
    iceberg.create_raw(catalog, RAW)
    return iceberg.load(catalog, "raw.events")


def row(hour: float | None, *, landed: float = 9) -> Row:
    """An event at START + hour, landed at START + landed."""
    at = hour_start(START) + timedelta(hours=landed)
    time = None if hour is None else hour_start(START) + timedelta(hours=hour)
    return {
        "event_id": f"e{hour}",
        "event_ts": time,
        "landed_at": at,
        "landing_date": at.date(),
        "landing_hour": at.hour,
    }


def arrow(table: Table, rows: Iterable[Row], batch: str = "b") -> pa.Table:
    schema = schema_to_pyarrow(table.schema(), include_field_ids=False)
    return pa.Table.from_pylist([{"batch_id": batch, **r} for r in rows], schema=schema)


def append(table: Table, *hours: float | None, landed: float = 9, batch: str = "b") -> None:
    table.append(arrow(table, [row(h, landed=landed) for h in hours], batch))


def head(table: Table) -> Watermark:
    return read(table, None).head


def read(table: Table, since: Watermark | None, **kwargs: Any) -> SourceChanges:
    return changes(table, EVENTS, since, start=START, **kwargs)


def touched(found: SourceChanges) -> list[int]:
    """Hours that the snapshots touched, as numbers after START."""
    return sorted({h - START for s in found.effective for a, b in s.hours for h in range(a, b + 1)})


def effects(found: SourceChanges) -> list[str]:
    return [s.effect for s in found.snapshots]


def test_a_table_without_a_snapshot_has_nothing_new(events: Table) -> None:
    found = read(events, None)
    assert (found.how, found.snapshots, found.head.snapshot_id) == ("initial", (), None)
    assert not found.moved
    append(events, 2)
    assert touched(read(events, found.head)) == [2]


def test_nothing_new_since_the_head(events: Table) -> None:
    append(events, 1)
    found = read(events, head(events))
    assert (found.how, found.snapshots, found.moved) == ("history", (), False)


def test_an_idle_source_moves_by_its_complete_through_alone(events: Table) -> None:
    append(events, 1)
    since = head(events)
    with events.transaction() as transaction:
        transaction.set_properties({iceberg.COMPLETE_THROUGH: hour_key(START + 7)})
    found = read(events, since)
    assert (found.snapshots, found.head.complete_through, found.moved) == ((), START + 7, True)


def test_r6_a_snapshot_whose_clock_went_back_is_found_by_its_parent(events: Table) -> None:
    append(events, 1)
    since = head(events)
    append(events, 2)
    newest = events.metadata.snapshots[-1]
    back = newest.model_copy(update={"timestamp_ms": since.timestamp_ms - 30_000})
    snapshots = [*events.metadata.snapshots[:-1], back]
    events.metadata = events.metadata.model_copy(update={"snapshots": snapshots})
    found = read(events, since)
    assert (touched(found), found.head.snapshot_id) == ([2], newest.snapshot_id)
    assert found.head.timestamp_ms < since.timestamp_ms


def test_an_append_has_exact_hours_partitions_and_cost(events: Table) -> None:
    append(events, 1)
    since = head(events)
    append(events, 2.5, 3.1, landed=4, batch="one")
    append(events, 6, landed=6, batch="two")
    found = read(events, since)
    assert found.appends_only
    assert [(s.operation, s.effect, [(a - START, b - START) for a, b in s.hours]) for s in found.snapshots] == [
        ("append", "append", [(2, 3)]),
        ("append", "append", [(6, 6)]),
    ]
    assert [(f.rows, dict(f.partition)) for f in found.added] == [
        (2, {"landing_date": "2026-01-01", "landing_hour": 4, "batch_id": "one"}),
        (1, {"landing_date": "2026-01-01", "landing_hour": 6, "batch_id": "two"}),
    ]
    assert (found.head.last_hour, found.since) == (START + 6, since)


def test_hours_are_read_up_to_a_head_that_was_seen_earlier(events: Table) -> None:
    append(events, 1)
    since = head(events)
    append(events, 2)
    seen = Head(head(events).snapshot_id, START + 1)
    append(events, 3)
    found = read(events, since, up_to=seen)
    assert (touched(found), found.head.complete_through) == ([2], START + 1)


def test_a_row_that_is_rewritten_touches_the_hours_before_and_after(events: Table) -> None:
    append(events, 1, 4)
    append(events, 8)
    since = head(events)
    events.overwrite(arrow(events, [row(6)]), overwrite_filter="event_id = 'e4'")
    found = read(events, since)
    assert not found.appends_only
    assert set(touched(found)) >= {1, 4, 6}
    assert 8 not in touched(found)


@pytest.mark.parametrize(("gone", "hours", "rows"), [("e8", [8], 1), ("e4", [1, 2, 3, 4], 2)])
def test_r2_deleted_rows_touch_the_hours_of_their_files(events: Table, gone: str, hours: list[int], rows: int) -> None:
    append(events, 1, 4)
    append(events, 8)
    since = head(events)
    events.delete(f"event_id = '{gone}'")
    found = read(events, since)
    assert (touched(found), found.appends_only) == (hours, False)


def test_r4_rows_from_before_the_watermark_are_no_change_when_manifests_are_merged(events: Table) -> None:
    with events.transaction() as transaction:
        transaction.set_properties({"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "2"})
    for hour in range(4):
        append(events, hour)
    since = head(events)
    append(events, 5)
    append(events, 7)
    assert len(events.inspect.manifests()) < 6
    assert (touched(read(events, since)), effects(read(events, since))) == ([5, 7], ["append", "append"])


def test_of_appends_the_newest_manifest_list_is_read_and_no_other(events: Table) -> None:
    append(events, 1)
    since = head(events)
    for hour in (2, 3, 4):
        append(events, hour)
    *older, _ = [s for s in events.metadata.snapshots if s.snapshot_id != since.snapshot_id]
    for snapshot in older:
        Path(snapshot.manifest_list.removeprefix("file://")).unlink()
    found = read(events, since)
    assert [[h - START for h, _ in s.hours] for s in found.snapshots] == [[2], [3], [4]]
    assert found.appends_only


def test_of_appends_whose_manifests_were_merged_no_older_list_is_read(events: Table) -> None:
    with events.transaction() as transaction:
        transaction.set_properties({"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "3"})
    append(events, 0)
    since = head(events)
    for hour in range(1, 9):
        append(events, hour)
    *older, newest = [s for s in events.metadata.snapshots if s.snapshot_id != since.snapshot_id]
    written_by = {manifest.added_snapshot_id for manifest in newest.manifests(events.io)}
    assert not {older[0].snapshot_id, older[1].snapshot_id} & written_by
    expected = read(events, since)
    for snapshot in older:
        Path(snapshot.manifest_list.removeprefix("file://")).unlink()
    found = read(events, since)
    assert found == expected
    assert [[h - START for h, _ in s.hours] for s in found.snapshots] == [[hour] for hour in range(1, 9)]


def test_a_file_of_a_merged_manifest_that_is_gone_counts_where_it_was_added(events: Table) -> None:
    with events.transaction() as transaction:
        transaction.set_properties({"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "2"})
    append(events, 0)
    since = head(events)
    for hour in range(1, 5):
        append(events, hour)
    events.delete(EqualTo("event_id", "e2"))  # type: ignore[call-arg, arg-type]
    append(events, 6)
    found = read(events, since)
    assert [[h - START for h, _ in s.hours] for s in found.snapshots] == [[1], [2], [3], [4], [2], [6]]


def test_r3_an_expired_watermark_leaves_the_files_that_are_newer(events: Table) -> None:
    append(events, 1)
    since = head(events)
    append(events, 3)
    append(events, 5)
    expire(events, keep=1)
    found = read(events, since)
    assert (found.how, touched(found), found.appends_only) == ("expired", [3, 5], False)


def test_an_expired_watermark_is_read_on_exactly_if_it_is_the_parent_of_the_oldest_snapshot(events: Table) -> None:
    append(events, 1)
    since = head(events)
    append(events, 3, 5)
    events.delete("event_id = 'e5'")
    append(events, 8)
    _, *newer = events.metadata.snapshots
    expire(events, keep=3)
    keep_parents(events, newer)
    found = read(events, since)
    assert (found.how, found.since_expired, effects(found)) == ("history", True, ["append", "rewrite", "append"])
    assert touched(found) == [3, 4, 5, 8]
    expire(events, keep=1)
    keep_parents(events, newer[-1:])
    assert (read(events, since).how, touched(read(events, since))) == ("expired", [3, 8])


@pytest.mark.parametrize("unknown", [False, True], ids=["files gone", "a summary without totals"])
def test_an_expired_watermark_whose_files_are_gone_means_all_hours_it_knew(events: Table, unknown: bool) -> None:
    append(events, 1)
    append(events, 4)
    since = head(events)
    if unknown:
        since = Watermark(**{**vars(since), "totals": None})
    else:
        events.overwrite(
            arrow(events, [row(4)]), overwrite_filter="event_id = 'e4'"
        )  # as many files and rows as before
    append(events, 6)
    append(events, 7)
    expire(events, keep=1)
    assert touched(read(events, since)) == [0, 1, 2, 3, 4, 6, 7]


def test_after_a_rollback_the_two_file_sets_are_compared(events: Table) -> None:
    append(events, 1)
    kept = head(events)
    append(events, 4)
    since = head(events)
    roll_back(events, kept)
    append(events, 6)
    found = read(events, since)
    assert (found.how, touched(found), found.appends_only) == ("rewound", [4, 6], False)
    assert [s.rows_gone for s in found.snapshots] == [1]


def test_a_rollback_whose_snapshot_is_gone_is_refused_by_name(events: Table) -> None:
    append(events, 1)
    kept = head(events)
    append(events, 4)
    since = head(events)
    roll_back(events, kept)
    assert since.snapshot_id is not None
    events.maintenance.expire_snapshots().by_id(since.snapshot_id).commit()
    with pytest.raises(HistoryCut, match=rf"raw\.events.*{since.snapshot_id}"):
        read(events, since)
    append(events, 6)
    with pytest.raises(HistoryCut, match="reads all of it"):
        read(events, since)


def test_a_table_that_was_made_anew_is_refused(catalog: Catalog, events: Table) -> None:
    append(events, 1)
    since = head(events)
    catalog.drop_table("raw.events")
    iceberg.create_raw(catalog, RAW)
    with pytest.raises(HistoryCut, match=since.table_uuid):
        read(iceberg.load(catalog, "raw.events"), since)


def test_absurd_and_null_times_plan_nothing(events: Table) -> None:
    append(events, 2)
    since = head(events)
    append(events, None, None)
    append(events, -24 * 365 * 50, 24 * 365 * 100, 5, landed=6)
    append(events, 24 * 365 * 100, landed=6)
    append(events, 7.5, landed=6.2)  # over an hour after its landing
    append(events, 7.1, landed=6.2)
    found = read(events, since)
    assert [[(a - START, b - START) for a, b in s.hours] for s in found.snapshots] == [[], [(5, 5)], [], [], [(7, 7)]]
    assert sum(f.rows for f in found.added) == 8
    assert found.head.last_hour == START + 7


def test_absurd_times_in_a_file_that_is_no_more_are_limited_by_its_landing(events: Table) -> None:
    append(events, 2)
    since = head(events)
    append(events, 24 * 365 * 100, 3, landed=6)
    for task in events.scan().plan_files():
        events.io.delete(task.file.file_path)
    assert touched(read(events, since)) == [3, 4, 5, 6, 7]


def test_rows_of_a_trusted_source_count_whenever_they_landed(events: Table) -> None:
    append(events, 2, 20, landed=6)
    found = changes(events, Source("raw.events", time_column="event_ts"), None, start=START)
    assert found.snapshots[0].hours == ((START + 2, START + 20),)


def test_r5_missing_bounds_mean_all_hours_up_to_the_landing(events: Table) -> None:
    append(events, 1)
    since = head(events)
    with events.transaction() as transaction:
        transaction.set_properties({"write.metadata.metrics.default": "none"})
    append(events, 3, landed=5)
    assert touched(read(events, since)) == [0, 1, 2, 3, 4, 5, 6]


def test_hours_without_bounds_and_without_landing_are_read_from_the_file(catalog: Catalog) -> None:
    iceberg.create(catalog, "core.plain", {"at": "timestamptz"}, {}, {"write.metadata.metrics.default": "none"})
    table = iceberg.load(catalog, "core.plain")
    table.append(arrow_of(table, "at", [3]))
    found = changes(table, Source("core.plain", time_column="at"), None, start=START)
    assert found.snapshots[0].hours == ((START + 3, START + 3),)


def test_rows_without_landing_have_the_hours_of_their_times_even_without_bounds_or_after_the_commit(
    catalog: Catalog,
) -> None:
    far = 24 * 365 * 200
    source = Source("core.plain", time_column="at", key="id")
    columns = {"id": "string", "at": "timestamp"}
    iceberg.create(catalog, "core.plain", columns, {}, {"write.metadata.metrics.default": "none"})
    table = iceberg.load(catalog, "core.plain")
    since = changes(table, source, None, start=START).head
    table.append(arrow_of(table, "at", [3, 5]))
    with table.transaction() as transaction:
        transaction.set_properties({"write.metadata.metrics.default": "full"})
    table.append(arrow_of(table, "at", [-9, 4, far]))
    table.append(arrow_of(table, "at", [2, 5]))
    found = changes(table, source, since, start=START)
    assert touched(found) == [2, 3, 4, 5, far]


def test_a_file_without_rows_touches_nothing(events: Table, tmp_path: Path) -> None:
    append(events, 1)
    since = head(events)
    empty = arrow(events, [])
    pq.write_table(empty, tmp_path / "empty.parquet")
    plain = iceberg.load(events.catalog, "raw.events")
    with plain.update_spec() as update:
        for field in plain.spec().fields:
            update.remove_field(field.name)
    plain.add_files([str(tmp_path / "empty.parquet")])
    found = read(iceberg.load(events.catalog, "raw.events"), since)
    assert ([f.rows for f in found.added], touched(found), effects(found)) == ([0], [], ["append"])


def test_a_table_partitioned_by_hour_tells_its_hours_by_partition(catalog: Catalog) -> None:
    fact = make_fact(catalog)
    fact.append(arrow_of(fact, "at", [2, 3.5, 6]))
    since = changes(fact, FACT, None, start=START).head
    assert hours_present(fact, "at") == {START + 2, START + 3, START + 6}
    low, high = (hour_start(START + h).isoformat() for h in (3, 4))
    fact.overwrite(arrow_of(fact, "at", []), overwrite_filter=f"at >= '{low}' and at < '{high}'")
    found = changes(fact, FACT, since, start=START)
    assert (touched(found), found.appends_only) == ([3], False)
    assert hours_present(fact, "at") == {START + 2, START + 6}


def test_the_history_of_a_raw_table_is_told_snapshot_by_snapshot(events: Table) -> None:
    append(events, 1)
    first = head(events)
    append(events, 2)
    append(events, 3)
    reader = SnapshotReader(events, EVENTS, START)
    assert [s.hours for s in reader.history_since(None)] == [((START + h, START + h),) for h in (1, 2, 3)]
    assert len(list(reader.history_since(first.snapshot_id))) == 2
    assert len(list(reader.history_since(1))) == 3, "one that is gone: all that is retained"


batches = st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=4), min_size=1, max_size=5)
names = count()


@given(batches)
@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_changed_hours_are_those_of_the_rows(catalog: Catalog, history: list[list[int]]) -> None:
    fact = make_fact(catalog, f"core.fact_{next(names)}")
    source = Source(".".join(fact.name()), time_column="at")
    marks = [changes(fact, source, None, start=START).head]
    for batch in history:
        fact.append(arrow_of(fact, "at", batch))
        marks.append(changes(fact, source, None, start=START).head)
    for i, since in enumerate(marks):
        for j in range(i, len(marks)):
            found = changes(fact, source, since, start=START, up_to=Head(marks[j].snapshot_id, None))
            assert touched(found) == sorted({h for batch in history[i:j] for h in batch})


def make_fact(catalog: Catalog, name: str = "core.fact") -> Table:
    from pyiceberg.transforms import HourTransform

    iceberg.create(catalog, name, {"at": "timestamptz"}, {"at": HourTransform()}, {})
    return iceberg.load(catalog, name)


def arrow_of(table: Table, column: str, hours: Sequence[float]) -> pa.Table:
    zone = None if str(table.schema().find_type(column)) == "timestamp" else UTC
    rows = [{column: (hour_start(START) + timedelta(hours=h)).replace(tzinfo=zone)} for h in hours]
    return pa.Table.from_pylist(rows, schema=schema_to_pyarrow(table.schema(), include_field_ids=False))


def expire(table: Table, *, keep: int) -> None:
    """Forget all but the newest snapshots."""
    newest_last = sorted(table.metadata.snapshots, key=lambda s: s.sequence_number or 0)
    table.maintenance.expire_snapshots().by_ids([s.snapshot_id for s in newest_last[:-keep]]).commit()


def keep_parents(table: Table, snapshots: list[Snapshot]) -> None:
    """Leave a table these snapshots as they were, as Iceberg's own expiry does: pyiceberg's forgets their parents."""
    table.metadata = table.metadata.model_copy(update={"snapshots": snapshots})


def roll_back(table: Table, to: Watermark) -> None:
    assert to.snapshot_id is not None
    table.manage_snapshots().set_current_snapshot(snapshot_id=to.snapshot_id).commit()
