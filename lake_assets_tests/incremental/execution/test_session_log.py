"""The state tables: what is written is read again; a move is made from the state that it names, or not at all."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.transforms import IdentityTransform
from typer.testing import CliRunner

from lake_assets.base.hours import hour_key, parse_hour
from lake_assets.cli.main import app
from lake_assets.connections.catalog import open_catalog
from lake_assets.errors import StateMoved, StoredByNewerVersion, TableDamaged
from lake_assets.incremental.execution.session_log import (
    KEEP_SNAPSHOTS,
    MERGE_FILES,
    ProcessState,
    SessionRecord,
    SessionStore,
    create_tables,
    process_log,
    session_rows,
)
from lake_assets.incremental.execution.session_log.records import State
from lake_assets.incremental.execution.session_log.schemas import FORMAT_PROPERTY, LOG_PROPERTIES, WATERMARK_COLUMNS
from lake_assets.incremental.execution.session_log.watermark_rows import decode_committed, encode_committed
from lake_assets.incremental.maintenance.snapshot_references import read_references
from lake_assets.incremental.metadata import manifests, tables
from lake_assets.incremental.metadata.state_tables import HIGH_WATERMARK, QUARANTINE, SESSION
from lake_assets.incremental.planning.changes import Totals
from lake_assets.incremental.planning.deferred import DeferredHour
from lake_assets.incremental.planning.plan import Committed
from lake_assets.incremental.planning.session import (
    AuditResult,
    Cost,
    HeldHour,
    PlannedHour,
    SessionPlan,
    SourceRange,
    TargetVersion,
)
from lake_assets.settings import Settings

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

START = parse_hour("2026-01-01-00:00")
LATER_COLUMNS = [
    "previous_sequence_number",
    "previous_snapshot_timestamp_ms",
    "target_uuid",
    "target_snapshot_id",
    "target_sequence_number",
    "target_rows",
]
"""Those that the first version did not have."""
NOW = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.fixture
def store(catalog: Catalog) -> SessionStore:
    return store_on(catalog)


def store_on(catalog: Catalog) -> SessionStore:
    assert create_tables(catalog) == [SESSION, HIGH_WATERMARK, QUARANTINE]
    assert create_tables(catalog) == []
    return SessionStore(catalog)


def planned(process: str = "core.fact", number: int = 1, **changed: Any) -> SessionPlan:
    plan = SessionPlan(
        process=process,
        session_id=f"fact-{number}",
        kind="session",
        load="append",
        sources=(
            SourceRange("raw.a", "uuid-a", None, 2**62 + number, 7, 1_000, START + 5, Totals(3, 30, 300), START + 6),
            SourceRange("raw.b", "uuid-b", None, None, 0, 0, None),
        ),
        hours=(PlannedHour(START + 2, "append 1 of raw.a"), PlannedHour(START + 3, "append 1 of raw.a")),
        pending=(START + 7,),
        skipped=(START,),
        complete_through=START + 5,
        processing_uris=({"landing_date": "2026-01-01", "landing_hour": 4, "batch_id": "one"},),
        cost=Cost(1, 10, 100),
        notes=("one compaction",),
        code_version="abc",
    )
    return replace(plan, **changed)


def record_of(plan: SessionPlan, **changed: Any) -> SessionRecord:
    return replace(SessionRecord(plan, "planned", 0, 1, "run-1", NOW), **changed)


def move(
    store: SessionStore, plan: SessionPlan, committed: Committed | None = None, published: int | None = None
) -> None:
    store.move_watermarks(store.state(plan.process), plan, committed or Committed(), published)


def test_a_process_that_never_ran_has_an_empty_state(store: SessionStore) -> None:
    assert store.state("core.fact") == ProcessState("core.fact")
    assert store.history("core.fact") == []
    assert store.watermark_session("core.fact") is None
    assert (store.last_move("core.fact"), store.session_revision("core.fact")) == ((0, None), 0)


def test_a_record_comes_back_as_it_was_written(store: SessionStore) -> None:
    first = store.record(record_of(planned()), after=None)
    assert (first.revision, store.state("core.fact").open_session) == (1, first)
    assert (store.session_revision("core.fact"), store.session_revision("core.other")) == (1, 0)
    audits = (
        AuditResult("unique_key", False, True, {"duplicates": 2}, ("a", "b"), "no key twice"),
        AuditResult("quarantine", True, False),
    )
    done = replace(
        first,
        state="committed",
        ended_at=NOW,
        staging_number=2,
        staged_snapshot_id=2**62,
        published_snapshot_id=2**62,
        built=(START + 2, START + 3),
        rows_read=10,
        rows_written=9,
        audits=audits,
    )
    second = store.record(done, after=first)
    state = store.state("core.fact")
    assert (state.session, state.open_session) == (second, None)
    assert second == replace(done, revision=2)
    assert store.history("core.fact") == [second]


def test_only_a_session_that_published_an_hour_is_why_it_is_as_it_is(
    store: SessionStore, bare_home: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lake_assets.cli.common.settings", lambda: bare_home)
    plan = planned(process="core.signup_fact")
    record = store.record(record_of(plan, state="staged", built=(START + 2,)), after=None)
    states: tuple[tuple[State, int], ...] = (("staged", 0), ("published", 1), ("committed", 1), ("abandoned", 0))
    for state, known in states:
        record = store.record(replace(record, state=state), after=record)
        done = CliRunner().invoke(app, ["why", "signup_fact", hour_key(START + 2), "--json"], catch_exceptions=False)
        assert len(json.loads(done.stdout)) == known, state


def test_a_record_tells_the_hours_that_its_session_held_back(store: SessionStore) -> None:
    table = tables.load(store.catalog, SESSION)
    failed = AuditResult("unique_key", False, counts={"repeated": 2}, hours={hour_key(START + 3): 2})
    held = HeldHour(START + 3, "audit unique_key: 2 repeated", "fact-1", "abc")
    first = store.record(record_of(planned(), state="committed", audits=(failed,)), after=None)
    assert store.history("core.fact")[0].held == first.held == first.report().held == (held,)
    (row,) = table.refresh().scan().to_arrow().to_pylist()
    assert json.loads(row["held_hours"]) == [{**asdict(held), "hour": hour_key(START + 3)}]
    with table.update_schema(allow_incompatible_changes=True) as schema:
        schema.delete_column("held_hours")  # as a table from before has none: verdicts tell it all
    store.record(replace(first, state="blocked"), after=first)
    newest = store.history("core.fact")[0]
    assert (newest.audits, newest.held) == ((failed,), ())


def test_what_was_committed_before_hours_were_held_back_or_chunks_grew_is_read() -> None:
    metadata = encode_committed(Committed(last_built=START), None)
    for later in ("held", "following", "chunk_hours", "deferred"):
        del metadata[later]
    assert decode_committed(metadata) == Committed(last_built=START)


def test_watermarks_come_back_as_they_were_moved(store: SessionStore) -> None:
    committed = Committed(
        pending=frozenset({START + 7}),
        skipped=frozenset({START}),
        last_built=START + 5,
        complete_through=START + 5,
        held=(HeldHour(START + 6, "audit x: 1 bad", "fact-0"),),
        code_version="abc",
        uniform_from=START + 1,
        following=frozenset({START + 7}),
        chunk_hours=4,
        deferred=(DeferredHour(START + 7, 1767243600123, 12),),
    )
    move(store, planned(), committed, published=11)
    state = store.state("core.fact")
    assert (state.committed, state.revision, state.published_snapshot_id) == (committed, 1, 11)
    assert store.watermark_session("core.fact") == "fact-1"
    mark = state.watermarks["raw.a"]
    assert (mark.snapshot_id, mark.sequence_number, mark.complete_through) == (2**62 + 1, 7, START + 5)
    assert (mark.totals, mark.last_hour) == (Totals(3, 30, 300), START + 6)
    assert state.watermarks["raw.b"].snapshot_id is None


def test_what_was_recorded_before_sessions_told_entities_apart_is_read(store: SessionStore) -> None:
    """Records and watermarks lack what came later: the code of the hours, and whose rows were recomputed."""
    store.record(record_of(planned(changed_through=START + 3)), after=None)
    move(store, planned(), Committed(code_version="abc", uniform_from=START))
    for name, column, later in (
        (SESSION, "plan", {"changed_through", "appends_only"}),
        (HIGH_WATERMARK, "metadata", {"code_version", "uniform_from"}),
    ):
        table = tables.load(store.catalog, name)
        rows = [{**r, column: without(r[column], later)} for r in table.scan().to_arrow().to_pylist()]
        table.overwrite(pa.Table.from_pylist(rows, table.schema().as_arrow()))
    state = store.state("core.fact")
    assert state.open_session is not None
    assert state.open_session.plan == planned()
    assert (state.committed.code_version, state.committed.uniform_from) == ("", None)


def without(text: str, names: set[str]) -> str:
    """JSON, whose objects lack some names."""
    return json.dumps(json.loads(text, object_hook=lambda o: {k: v for k, v in o.items() if k not in names}))


def test_the_log_of_watermarks_says_from_where_to_where(store: SessionStore) -> None:
    move(store, planned())
    move(store, planned(number=2))
    rows = tables.load(store.catalog, HIGH_WATERMARK).scan().to_arrow().to_pylist()
    found = [(r["source"], r["revision"], r["previous_snapshot_id"], r["latest_snapshot_id"]) for r in rows]
    assert sorted(found, key=str) == sorted(
        [
            ("raw.a", 1, None, 2**62 + 1),
            ("raw.a", 2, 2**62 + 1, 2**62 + 2),
            ("raw.b", 1, None, None),
            ("raw.b", 2, None, None),
        ],
        key=str,
    )


def test_a_move_records_the_whole_previous_snapshot_and_the_target(store: SessionStore) -> None:
    built = TargetVersion("uuid-t", 2**62 + 9, 4, 30)
    move(store, planned())
    assert store.state("core.fact").target is None
    store.move_watermarks(store.state("core.fact"), planned(number=2), Committed(), 11, target=built)
    assert store.state("core.fact").target == built
    rows = tables.load(store.catalog, HIGH_WATERMARK).scan().to_arrow().to_pylist()
    columns = ("previous_snapshot_id", "previous_sequence_number", "previous_snapshot_timestamp_ms")
    found = {(r["source"], r["revision"]): tuple(r[c] for c in columns) for r in rows}
    nothing = (None, None, None)
    assert found == {
        ("raw.a", 1): nothing,
        ("raw.b", 1): nothing,
        ("raw.a", 2): (2**62 + 1, 7, 1_000),
        ("raw.b", 2): nothing,
    }


def test_a_table_of_an_older_version_gets_the_columns_with_the_next_move(store: SessionStore) -> None:
    """Nobody has to call `lake init` after an upgrade; what was stored before is read without them."""
    move(store, planned(), published=11)
    log = tables.load(store.catalog, HIGH_WATERMARK)
    old = log.scan().to_arrow().drop_columns(LATER_COLUMNS)
    store.catalog.drop_table(HIGH_WATERMARK)
    partitions = {"process_name": IdentityTransform[Any]()}
    columns = {name: kind for name, kind in WATERMARK_COLUMNS.items() if name not in LATER_COLUMNS}
    former = {name: value for name, value in LOG_PROPERTIES.items() if name != FORMAT_PROPERTY}
    tables.create(store.catalog, HIGH_WATERMARK, columns, partitions, former)
    tables.load(store.catalog, HIGH_WATERMARK).append(old)

    state = store.state("core.fact")
    assert (state.revision, state.target) == (1, TargetVersion(None, 11))
    assert state.watermarks["raw.a"].sequence_number == 7
    assert read_references(store.catalog).watermarks[0]["latest_snapshot_id"] == 2**62 + 1

    built = TargetVersion("uuid-t", 12, 4, 30)
    store.move_watermarks(state, planned(number=2), Committed(), 12, target=built)
    assert store.state("core.fact").target == built
    rows = tables.load(store.catalog, HIGH_WATERMARK).scan().to_arrow().to_pylist()
    numbers = {(r["source"], r["revision"]): r["previous_sequence_number"] for r in rows}
    assert numbers[("raw.a", 2)] == 7
    assert numbers[("raw.a", 1)] is None


def test_a_log_that_a_later_version_has_changed_is_neither_read_nor_moved(store: SessionStore) -> None:
    move(store, planned())
    state = store.state("core.fact")
    for name in (HIGH_WATERMARK, SESSION):
        log = tables.load(store.catalog, name)
        assert log.properties[FORMAT_PROPERTY] == "1"
        with log.transaction() as change:
            change.set_properties({FORMAT_PROPERTY: "2"})
        refusal = f"The table {name} of the session log has format 2, and this version reads formats up to 1"
        with pytest.raises(StoredByNewerVersion, match=refusal):
            store.state("core.fact")
    with pytest.raises(StoredByNewerVersion, match=HIGH_WATERMARK):
        store.move_watermarks(state, planned(number=2), Committed(), None)


def test_a_rebuild_ends_where_it_started_and_a_reset_where_the_sources_are(store: SessionStore) -> None:
    move(store, planned())
    before = store.state("core.fact")
    move(store, planned(kind="rebuild", sources=planned().sources))
    assert store.state("core.fact").watermarks == before.watermarks
    anew = SourceRange("raw.a", "another uuid", None, 5, 1, 1_000, START, Totals(1, 1, 1), START)
    move(store, planned(kind="rebuild", sources=(anew,)))
    assert store.state("core.fact").watermarks["raw.a"].table_uuid == "another uuid"


def test_a_move_from_a_state_that_is_past_is_refused(store: SessionStore) -> None:
    first = store.record(record_of(planned()), after=None)
    store.record(replace(first, state="staged"), after=first)
    with pytest.raises(
        StateMoved, match=r"core\.fact moved meanwhile: expected revision 1 of etl\.session, found revision 2"
    ):
        store.record(replace(first, state="blocked"), after=first)
    with pytest.raises(StateMoved, match=r"expected revision 0"):
        store.record(record_of(planned(number=2)), after=None)
    state = store.state("core.fact")
    move(store, planned())
    with pytest.raises(StateMoved, match=r"revision 0 of etl\.high_watermark"):
        store.move_watermarks(state, planned(), Committed(), None)


def test_sessions_are_told_apart_by_process(store: SessionStore) -> None:
    for process in ("core.a", "core.b"):
        store.record(record_of(planned(process)), after=None)
        move(store, planned(process), Committed(last_built=START))
    move(store, planned("core.b", 2), Committed(last_built=START + 1))
    assert [store.state(p).committed.last_built for p in ("core.a", "core.b")] == [START, START + 1]
    assert [store.state(p).revision for p in ("core.a", "core.b")] == [1, 2]


def test_what_was_quarantined_is_not_added_again(store: SessionStore) -> None:
    rows = [
        {"source": "raw.a", "row_hash": h, "session_id": "s", "reason": "null key", "row": "{}"}
        for h in ("x", "y", "x")
    ]
    assert store.quarantine("core.fact", []) == 0
    assert store.quarantine("core.fact", rows) == 2
    assert store.quarantine("core.fact", rows) == 0
    assert store.quarantine("core.other", rows[:1]) == 1
    assert store.quarantine("core.fact", [{**rows[0], "source": "raw.b"}, {**rows[0], "row_hash": "z"}]) == 2
    assert tables.load(store.catalog, QUARANTINE).scan().to_arrow().num_rows == 5


hour_sets = st.frozensets(st.integers(START - 100, START + 100_000))


@given(hour_sets, hour_sets, hour_sets, st.none() | st.integers(START, START + 9))
@settings(max_examples=50)
def test_what_is_committed_survives_its_spelling(
    pending: frozenset[int], skipped: frozenset[int], held: frozenset[int], last: int | None
) -> None:
    committed = Committed(pending, skipped, last, last, tuple(HeldHour(h, "why", "s", "v") for h in sorted(held)))
    assert decode_committed(encode_committed(committed, 1)) == committed


def test_after_many_moves_a_lookup_reads_few_files(store: SessionStore) -> None:
    moves = MERGE_FILES + 15
    for number in range(1, moves + 1):
        move(store, planned(number=number), Committed(last_built=START + number))
    state = store.state("core.fact")
    assert (state.revision, state.committed.last_built) == (moves, START + moves)
    assert state.watermarks["raw.a"].snapshot_id == 2**62 + moves
    table = tables.load(store.catalog, HIGH_WATERMARK)
    assert table.scan().to_arrow().num_rows == 2 * moves, "every move is still there"
    assert len(list(table.scan().plan_files())) <= MERGE_FILES
    assert len(table.metadata.snapshots) <= 2 * KEEP_SNAPSHOTS + 2


def test_a_lookup_reads_no_manifest_again(store: SessionStore) -> None:
    for number in (1, 2, 3):
        move(store, planned(number=number))
    store.watermark_session("core.fact")
    before = manifests._reader.cache_info()
    store.watermark_session("core.fact")
    assert manifests._reader.cache_info() == before


def test_a_state_is_read_from_its_files_once_until_one_is_damaged_or_gone(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    read_table = pq.read_table

    def recorded(file: Any, **named: Any) -> Any:
        opened.append("file")
        return read_table(file, **named)

    monkeypatch.setattr(pq, "read_table", recorded)
    move(store, planned(number=1))
    first = store.state("core.fact")
    assert store.state("core.fact") == first
    assert len(opened) == 1
    move(store, planned(number=2))
    assert store.state("core.fact").revision == first.revision + 1
    assert len(opened) == 2

    for task in tables.load(store.catalog, HIGH_WATERMARK).scan().plan_files():
        Path(task.file.file_path.removeprefix("file://")).write_bytes(b"damaged")
    with pytest.raises(TableDamaged):
        store.state("core.fact")


def test_a_lookup_finds_the_newest_move_in_a_merged_file_and_large_files_stay(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_log, "MERGE_FILES", 2)
    monkeypatch.setattr(process_log, "MERGE_ROWS", 5)
    large: set[str] = set()
    for number in range(1, 10):
        move(store, planned(number=number), Committed(last_built=START + number))
        state = store.state("core.fact")
        assert (state.revision, state.committed.last_built) == (number, START + number)
        assert state.watermarks["raw.a"].snapshot_id == 2**62 + number
        assert store.watermark_session("core.fact") == f"fact-{number}"
        tasks = list(tables.load(store.catalog, HIGH_WATERMARK).scan().plan_files())
        assert large <= {task.file.file_path for task in tasks}
        large |= {task.file.file_path for task in tasks if task.file.record_count >= 5}
    assert large


def test_the_history_is_ordered_by_the_last_move_of_each_session(store: SessionStore) -> None:
    first = store.record(record_of(planned(number=1)), after=None)
    second = store.record(record_of(planned(number=2)), after=first)
    store.record(replace(first, state="abandoned"), after=second)
    found = [(each.plan.session_id, each.state) for each in store.history("core.fact")]
    assert found == [("fact-2", "planned"), ("fact-1", "abandoned")]


STATES: tuple[State, ...] = ("planned", "staged", "published", "committed")


def grow(store: SessionStore, sessions: range) -> None:
    """Append the moves of sessions in one file, as a log has them after many merges."""
    rows = []
    for number in sessions:
        for move, state in enumerate(STATES, start=1):
            hours = (START + number % 50,)
            moved = replace(record_of(planned(number=number)), state=state, built=hours, revision=4 * number + move)
            rows.append(session_rows.session_row(moved))
    table = tables.load(store.catalog, SESSION)
    table.append(process_log.arrow_rows(table, rows))


def test_whoever_asks_for_the_newest_sessions_reads_the_end_of_the_log(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    new_input = PyArrowFileIO.new_input

    def recorded(io: PyArrowFileIO, location: str) -> Any:
        if location.endswith(".parquet"):
            read.append(location)
        return new_input(io, location)

    monkeypatch.setattr(PyArrowFileIO, "new_input", recorded)
    files = []
    for part in range(8):
        grow(store, range(100 * part, 100 * (part + 1)))
        read.clear()
        found = store.history("core.fact", newest=20)
        files.append(len(set(read)))
        assert [each.plan.session_id for each in found] == [
            f"fact-{n}" for n in range(100 * part + 80, 100 * part + 100)
        ]
    assert files == [1] * 8
    read.clear()
    assert [each.plan.session_id for each in store.history("core.fact", after=4 * 798)] == ["fact-798", "fact-799"]
    assert len(set(read)) == 1
    everything = store.history("core.fact")
    assert len(everything) == 800
    assert {each.state for each in everything} == {"committed"}
    assert store.history("core.fact", newest=150) == everything[-150:]
    assert store.history("core.fact", newest=10_000) == everything
    assert store.builds("core.fact", START + 7) == [each for each in everything if each.built == (START + 7,)]
    assert len(store.builds("core.fact", START + 7)) == 16


def test_the_newest_sessions_are_found_behind_one_of_many_moves(store: SessionStore) -> None:
    for number in range(1, 4):
        store.record(record_of(planned(number=number)), after=store.state("core.fact").session)
    for _ in range(20):
        last = store.state("core.fact").session
        assert last is not None
        store.record(replace(last, staging_number=last.staging_number + 1), after=last)
    assert [each.plan.session_id for each in store.history("core.fact", newest=2)] == ["fact-2", "fact-3"]
    assert [each.plan.session_id for each in store.history("core.fact", newest=9)] == ["fact-1", "fact-2", "fact-3"]
    assert store.builds("core.fact", START) == []


def test_what_a_tag_holds_on_to_is_not_forgotten(store: SessionStore) -> None:
    move(store, planned())
    table = tables.load(store.catalog, HIGH_WATERMARK)
    tagged = table.metadata.current_snapshot_id
    assert tagged is not None
    table.manage_snapshots().create_tag(tagged, "audit").commit()
    for number in range(2, 2 * KEEP_SNAPSHOTS + 4):
        move(store, planned(number=number))
    left = {s.snapshot_id for s in tables.load(store.catalog, HIGH_WATERMARK).metadata.snapshots}
    assert tagged in left
    assert len(left) <= KEEP_SNAPSHOTS + 5


def test_a_log_that_somebody_rewrote_tells_the_same(store: SessionStore) -> None:
    for number in range(1, 6):
        move(store, planned(number=number), Committed(last_built=START + number))
        move(store, planned("core.other", number))
    before = store.state("core.fact")
    table = tables.load(store.catalog, HIGH_WATERMARK)
    with table.transaction() as transaction:
        transaction.set_properties({"write.metadata.metrics.default": "none"})
    table.overwrite(table.scan().to_arrow())
    assert store.state("core.fact") == before
    move(store, planned(number=6))
    assert store.state("core.fact").revision == 6


@pytest.fixture
def configured(bare_home: Settings, address: str | None) -> Settings:
    """A home whose catalog is in one database or in the other."""
    return bare_home.model_copy(update={"catalog_uri": address})


@pytest.fixture
def workers() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(3, mp_context=get_context("spawn")) as pool:
        yield pool


def test_processes_of_different_targets_move_at_once(configured: Settings, workers: ProcessPoolExecutor) -> None:
    store, moves = store_on(open_catalog(configured)), 5
    done = [workers.submit(moves_of, configured, f"core.t{i}", moves) for i in range(3)]
    assert [future.result(timeout=200) for future in done] == [moves] * 3
    for i in range(3):
        state = store.state(f"core.t{i}")
        assert (state.revision, state.session and state.session.revision) == (moves, moves)
        assert len(store.history(f"core.t{i}")) == moves
    rows = tables.load(store.catalog, SESSION).scan().to_arrow().to_pylist()
    assert sorted((r["process_name"], r["revision"]) for r in rows) == [
        (f"core.t{i}", n) for i in range(3) for n in range(1, moves + 1)
    ]


def test_of_several_that_move_one_state_exactly_one_wins(configured: Settings, workers: ProcessPoolExecutor) -> None:
    store = store_on(open_catalog(configured))
    for number in range(1, 4):
        state, begin = store.state("core.fact"), time.time() + (5 if number == 1 else 0.5)
        found = [workers.submit(one_move, configured, state, f"{number}-{who}", begin) for who in range(3)]
        outcomes = [future.result(timeout=100) for future in found]
        assert sorted(outcomes) == ["StateMoved", "StateMoved", "won"]
        assert store.state("core.fact").revision == number
    assert tables.load(store.catalog, HIGH_WATERMARK).scan().to_arrow().num_rows == 3 * 2


def moves_of(home: Settings, process: str, count: int) -> int:
    """In a process of its own: move a process so many times."""
    store = SessionStore(open_catalog(home))
    last = None
    for number in range(1, count + 1):
        last = store.record(record_of(planned(process, number)), after=last)
        move(store, planned(process, number))
    return store.state(process).revision


def one_move(home: Settings, state: ProcessState, session_id: str, begin: float) -> str:
    """In a process of its own: wait for the others, then move from the state that all were given."""
    store = SessionStore(open_catalog(home))
    time.sleep(max(0.0, begin - time.time()))
    try:
        store.move_watermarks(state, planned(session_id=session_id), Committed(), None)
    except StateMoved:
        return "StateMoved"
    return "won"
