"""The session log: each session is written once, whoever writes it; homes of the version before are read. No Spark."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.transforms import IdentityTransform

from lake_assets.base.hours import hour_key, parse_hour
from lake_assets.connections.catalog import open_catalog
from lake_assets.errors import StoredByNewerVersion, TableDamaged
from lake_assets.incremental.engine import iceberg, publish, session_log
from lake_assets.incremental.engine.engine import Engine
from lake_assets.incremental.engine.iceberg import HIGH_WATERMARK, QUARANTINE, SESSION
from lake_assets.incremental.engine.model import (
    AuditResult,
    Committed,
    Cost,
    HeldHour,
    PlannedHour,
    SessionPlan,
    SessionReport,
    SourceRange,
    Waiting,
)
from lake_assets.incremental.engine.session_log import (
    EXTERNAL_RUN,
    FORMAT_PROPERTY,
    KEEP_SNAPSHOTS,
    MERGE_FILES,
    SESSION_COLUMNS,
    WATERMARK_COLUMNS,
    SessionLog,
    SessionRecord,
    create_tables,
)
from lake_assets.incremental.engine.session_log import record_of as told_by
from lake_assets.incremental.engine.source_changes import Totals, Watermark
from lake_assets.incremental.engine.state import State
from lake_assets_tests.incremental.clicks import CLICKS, at, click_fact, land_clicks
from lake_assets_tests.incremental.planning.test_session import PLAN, STORED_AUDITS, STORED_PLAN

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from lake_assets.settings import Settings

START = parse_hour("2026-01-01-00:00")
NOW = datetime(2026, 1, 2, tzinfo=UTC)
FACT = "core.fact"
LATER_COLUMNS = [
    "from_processing_date",
    "from_processing_hour",
    "to_processing_date",
    "to_processing_hour",
]
"""Columns of the sessions that the version before did not have."""


@pytest.fixture
def log(catalog: Catalog) -> SessionLog:
    return log_on(catalog)


def log_on(catalog: Catalog) -> SessionLog:
    assert create_tables(catalog) == [SESSION, HIGH_WATERMARK, QUARANTINE]
    assert create_tables(catalog) == []
    return SessionLog(catalog)


def planned(process: str = FACT, number: int = 1, **changed: Any) -> SessionPlan:
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
        waiting={START: Waiting("skipped"), START + 7: Waiting("changed")},
        complete_through=START + 5,
        processing_uris=({"landing_date": "2026-01-01", "landing_hour": 4, "batch_id": "one"},),
        cost=Cost(1, 10, 100),
        notes=("one compaction",),
        code_version="abc",
    )
    return replace(plan, **changed)


def record_of(plan: SessionPlan, number: int = 1, **changed: Any) -> SessionRecord:
    return replace(SessionRecord(plan, "committed", number, 1, "run-1", NOW), **changed)


def state_of(process: str = FACT, number: int = 1) -> State:
    """The state that session number so-and-so leaves."""
    before = {"raw.a": [2**62 + number - 1, 6, 900]} if number > 1 else {}
    return State(
        process=process,
        uuid="uuid-t",
        n=number,
        highest=number,
        session_id=f"fact-{number}",
        watermarks={
            "raw.a": Watermark("raw.a", "uuid-a", 2**62 + number, 7, 1_000, START + 5, Totals(3, 30, 300), START + 6),
            "raw.b": Watermark("raw.b", "uuid-b", None),
        },
        committed=Committed({START + 7: Waiting("changed")}, last_built=START + number, code_version="abc"),
        log={
            "kind": "session",
            "load": "append",
            "pattern": 1,
            "run": "run-1",
            "at": NOW.isoformat(),
            "hours": [[START + 2, START + 3]],
            "why": "append 1 of raw.a",
            "from": before,
            "read": 10,
            "unchanged": [[START + 3, START + 3]],
        },
    )


def write(log: SessionLog, process: str = FACT, number: int = 1, **changed: Any) -> None:
    log.add(record_of(planned(process, number), number, **changed), state_of(process, number))


def rows(catalog: Catalog, name: str) -> list[dict[str, Any]]:
    return list(iceberg.load(catalog, name).scan().to_arrow().to_pylist())


def written(catalog: Catalog) -> list[tuple[str, str, int, str]]:
    """Rows of both tables, in an order of their own."""
    sessions = [(SESSION, row["process_name"], row["revision"], row["state"]) for row in rows(catalog, SESSION)]
    marks = [
        (HIGH_WATERMARK, row["process_name"], row["revision"], row["source"]) for row in rows(catalog, HIGH_WATERMARK)
    ]
    return sorted(sessions + marks)


def expected(process: str, number: int) -> list[tuple[str, str, int, str]]:
    marks = [(HIGH_WATERMARK, process, number, source) for source in ("raw.a", "raw.b")]
    return [*marks, (SESSION, process, number, "committed")]


# What is written


def test_a_process_that_never_ran_has_no_history(log: SessionLog) -> None:
    assert (log.history(FACT), log.builds(FACT, START), log.numbers(FACT)) == ([], [], (0, 0))
    assert log.before(FACT) is None
    log.complete(State(FACT))
    assert written(log.catalog) == []


def test_a_session_comes_back_as_it_was_written(log: SessionLog) -> None:
    audits = (
        AuditResult("unique_key", False, True, {"duplicates": 2}, ("a", "b"), "no key twice"),
        AuditResult("quarantine", True, False),
    )
    record = record_of(
        planned(),
        ended_at=NOW,
        staged_snapshot_id=2**62,
        published_snapshot_id=2**62,
        built=(START + 2,),
        unchanged=(START + 3,),
        rows_read=10,
        rows_written=9,
        audits=audits,
    )
    log.add(record, state_of())
    assert log.history(FACT) == [record]
    assert log.numbers(FACT) == (1, 1)
    assert log.builds(FACT, START + 2) == [record]
    assert log.builds(FACT, START + 3) == []
    assert log.history("core.other") == []


def test_the_watermarks_say_from_where_to_where(log: SessionLog) -> None:
    write(log)
    write(log, number=2)
    columns = (
        "latest_snapshot_id",
        "previous_snapshot_id",
        "previous_sequence_number",
        "previous_snapshot_timestamp_ms",
    )
    found = {
        (row["source"], row["revision"]): tuple(row[c] for c in columns) for row in rows(log.catalog, HIGH_WATERMARK)
    }
    assert found == {
        ("raw.a", 1): (2**62 + 1, None, None, None),
        ("raw.b", 1): (None, None, None, None),
        ("raw.a", 2): (2**62 + 2, 2**62 + 1, 6, 900),
        ("raw.b", 2): (None, None, None, None),
    }


def test_a_record_tells_the_hours_that_its_session_held_back(log: SessionLog) -> None:
    failed = AuditResult("unique_key", False, counts={"repeated": 2}, hours={hour_key(START + 3): 2})
    held = HeldHour(START + 3, "audit unique_key: 2 repeated", "fact-1", "abc")
    write(log, audits=(failed,))
    (record,) = log.history(FACT)
    assert record.held == record.report().held == (held,)
    (row,) = rows(log.catalog, SESSION)
    assert json.loads(row["held_hours"]) == [{**asdict(held), "hour": hour_key(START + 3)}]
    log.add(record_of(planned(number=2), 2, state="blocked", audits=(failed,)))
    assert log.history(FACT)[-1].held == ()


def test_a_batch_is_one_commit_for_all_processes(log: SessionLog) -> None:
    processes = [f"core.t{number}" for number in range(5)]
    commits = [len(iceberg.load(log.catalog, name).metadata.snapshots) for name in (SESSION, HIGH_WATERMARK)]
    with log.batch():
        for process in processes:
            write(log, process)
        assert written(log.catalog) == []
        assert log.numbers("core.t3") == (1, 1), "what is not written yet counts, too"
    now = [len(iceberg.load(log.catalog, name).metadata.snapshots) for name in (SESSION, HIGH_WATERMARK)]
    assert now == [before + 1 for before in commits]
    assert written(log.catalog) == sorted(row for process in processes for row in expected(process, 1))


def test_a_batch_that_fails_writes_what_was_committed_and_the_next_session_of_a_process_its_former(
    log: SessionLog,
) -> None:
    def fail() -> None:
        with log.batch():
            write(log, "core.a")
            write(log, "core.b")
            log.complete(state_of("core.a"))  # as before its next session
            assert {row[1] for row in written(log.catalog)} == {"core.a", "core.b"}
            write(log, "core.a", 2)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert written(log.catalog) == sorted(expected("core.a", 1) + expected("core.a", 2) + expected("core.b", 1))


def test_a_session_that_is_written_again_is_there_once(log: SessionLog) -> None:
    for _ in range(2):
        write(log)
        log.complete(state_of())
        SessionLog(log.catalog).complete(state_of())
    assert written(log.catalog) == expected(FACT, 1)


@pytest.mark.parametrize("lost", [(SESSION, HIGH_WATERMARK), (HIGH_WATERMARK,)])
def test_a_row_that_is_missing_is_written_from_the_state(log: SessionLog, lost: tuple[str, ...]) -> None:
    """Its process died after the commit of the target, or between the commits of the two tables."""
    write(log)
    write(log, number=2, audits=(AuditResult("unique_key", True),))
    for name in lost:
        iceberg.load(log.catalog, name).delete("revision = 2")
    SessionLog(log.catalog).complete(state_of(number=2))
    assert written(log.catalog) == sorted(expected(FACT, 1) + expected(FACT, 2))
    last = log.history(FACT)[-1]
    assert (last.plan.session_id, last.run_id, last.pattern_id, last.started_at) == ("fact-2", "run-1", 1, NOW)
    assert last.plan.hour_numbers == (START + 2, START + 3)
    if SESSION in lost:
        assert (last.built, last.unchanged, last.rows_read) == ((START + 2,), (START + 3,), 10)
        assert (last.audits, last.ended_at) == ((), None)
        assert [(each.source, each.from_snapshot_id, each.to_snapshot_id) for each in last.plan.sources] == [
            ("raw.a", 2**62 + 1, 2**62 + 2),
            ("raw.b", None, None),
        ]


def test_a_row_that_was_made_of_the_state_too_early_is_replaced_by_that_of_its_process(log: SessionLog) -> None:
    """Another process looks between the commit of a target and the row of its session, which tells its audits."""
    audits = (AuditResult("unique_key", True),)
    SessionLog(log.catalog).complete(state_of())
    write(log, "core.other", 1)
    for _ in range(2):
        write(log, audits=audits, ended_at=NOW)
    SessionLog(log.catalog).complete(state_of())
    assert written(log.catalog) == sorted(expected(FACT, 1) + expected("core.other", 1))
    assert [(each.audits, each.ended_at) for each in log.history(FACT)] == [(audits, NOW)]


def test_a_session_of_many_hours_is_told_without_them() -> None:
    state = state_of()
    assert told_by(replace(state, log={**state.log, "hours": None, "unchanged": None})).plan.hours == ()


def test_blocked_and_committed_sessions_of_one_number_are_both_there(log: SessionLog) -> None:
    """A session that an audit stopped has not used its number up."""
    write(log)
    stopped = record_of(planned(number=2), 2, state="blocked")
    other = record_of(planned(number=3), 2, state="blocked", started_at=NOW + timedelta(minutes=1))
    for record in (stopped, stopped, other):
        log.add(record)
    assert log.numbers(FACT) == (2, 1)
    assert [(each.plan.session_id, each.state) for each in log.history(FACT)] == [
        ("fact-1", "committed"),
        ("fact-2", "blocked"),
        ("fact-3", "blocked"),
    ]
    write(log, number=2)
    assert log.numbers(FACT) == (2, 2)
    assert sorted((each.plan.session_id, each.state) for each in log.history(FACT)) == [
        ("fact-1", "committed"),
        ("fact-2", "committed"),
        ("fact-3", "blocked"),
    ]
    stopped_again = record_of(planned(number=4), 3, state="blocked")
    log.add(stopped_again)
    assert log.history(FACT, newest=1) == [stopped_again]
    assert log.builds(FACT, START + 2) == []


def test_what_was_quarantined_is_not_added_again(log: SessionLog) -> None:
    found = [
        {"source": "raw.a", "row_hash": h, "session_id": "s", "reason": "null key", "row": "{}"}
        for h in ("x", "y", "x")
    ]
    assert log.quarantine(FACT, []) == 0
    assert log.quarantine(FACT, found) == 2
    assert log.quarantine(FACT, found) == 0
    assert log.quarantine("core.other", found[:1]) == 1
    assert log.quarantine(FACT, [{**found[0], "source": "raw.b"}, {**found[0], "row_hash": "z"}]) == 2
    assert len(rows(log.catalog, QUARANTINE)) == 5


# What it costs


def test_whoever_asks_for_the_newest_sessions_reads_the_end_of_the_log(
    log: SessionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    new_input = PyArrowFileIO.new_input

    def recorded(io: PyArrowFileIO, location: str) -> Any:
        if location.endswith(".parquet"):
            read.append(location)
        return new_input(io, location)

    monkeypatch.setattr(PyArrowFileIO, "new_input", recorded)
    for part in range(4):
        numbers = range(200 * part + 1, 200 * part + 201)
        with log.batch():
            for number in numbers:
                write(log, number=number, built=(START + number % 50,))
        read.clear()
        found = log.history(FACT, newest=20)
        assert [each.plan.session_id for each in found] == [f"fact-{n}" for n in numbers[-20:]]
        assert len(set(read)) == 1
    everything = log.history(FACT)
    assert [each.revision for each in everything] == list(range(1, 801))
    assert log.history(FACT, newest=150) == everything[-150:]
    assert log.history(FACT, newest=10_000) == everything
    assert log.builds(FACT, START + 7) == [each for each in everything if each.built == (START + 7,)]
    assert len(log.builds(FACT, START + 7)) == 16


def test_the_newest_sessions_are_found_behind_one_that_was_stopped_many_times(log: SessionLog) -> None:
    write(log)
    write(log, number=2)
    for number in range(3, 40):
        log.add(record_of(planned(number=3), number, state="blocked"))
    assert [each.plan.session_id for each in log.history(FACT, newest=2)] == ["fact-2", "fact-3"]
    assert [each.plan.session_id for each in log.history(FACT, newest=9)] == ["fact-1", "fact-2", "fact-3"]


def test_small_files_are_merged_and_few_snapshots_kept(log: SessionLog) -> None:
    many = MERGE_FILES + 10
    for number in range(1, many + 1):
        write(log, number=number)
    assert log.numbers(FACT) == (many, many)
    for name, each in ((SESSION, 1), (HIGH_WATERMARK, 2)):
        table = iceberg.load(log.catalog, name)
        assert table.scan().to_arrow().num_rows == each * many, "every session is still there"
        assert len(list(table.scan().plan_files())) <= MERGE_FILES
        assert len(table.metadata.snapshots) <= 2 * KEEP_SNAPSHOTS + 2
    assert [each.revision for each in log.history(FACT)] == list(range(1, many + 1))


def test_files_that_are_large_enough_stay(log: SessionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_log, "MERGE_FILES", 2)
    monkeypatch.setattr(session_log, "MERGE_ROWS", 5)
    large: set[str] = set()
    for number in range(1, 10):
        write(log, number=number)
        assert log.numbers(FACT) == (number, number)
        tasks = list(iceberg.load(log.catalog, HIGH_WATERMARK).scan().plan_files())
        assert large <= {task.file.file_path for task in tasks}
        large |= {task.file.file_path for task in tasks if task.file.record_count >= 5}
    assert large


def test_a_lookup_reads_no_manifest_again(log: SessionLog) -> None:
    for number in (1, 2, 3):
        write(log, number=number)
    log.numbers(FACT)
    before = iceberg._reader.cache_info()
    log.numbers(FACT)
    assert iceberg._reader.cache_info() == before


def test_what_a_tag_holds_on_to_is_not_forgotten(log: SessionLog) -> None:
    write(log)
    table = iceberg.load(log.catalog, SESSION)
    tagged = table.metadata.current_snapshot_id
    assert tagged is not None
    table.manage_snapshots().create_tag(tagged, "audit").commit()
    for number in range(2, 2 * KEEP_SNAPSHOTS + 4):
        write(log, number=number)
    left = {s.snapshot_id for s in iceberg.load(log.catalog, SESSION).metadata.snapshots}
    assert tagged in left
    assert len(left) <= KEEP_SNAPSHOTS + 5


def test_a_log_that_somebody_rewrote_tells_the_same(log: SessionLog) -> None:
    for number in (1, 2, 3):
        write(log, number=number)
        write(log, "core.other", number)
    before = log.history(FACT)
    for name in (SESSION, HIGH_WATERMARK):
        table = iceberg.load(log.catalog, name)
        with table.transaction() as transaction:
            transaction.set_properties({"write.metadata.metrics.default": "none"})
        table.overwrite(table.scan().to_arrow())
    assert (log.history(FACT), log.numbers(FACT)) == (before, (3, 3))
    log.complete(state_of(number=3))
    write(log, number=4)
    assert [each.revision for each in log.history(FACT)] == [1, 2, 3, 4]
    assert log.numbers(FACT) == (4, 4)


# Many processes


@pytest.fixture
def configured(bare_home: Settings, address: str | None) -> Settings:
    """A home whose catalog is in one database or in the other."""
    return bare_home.model_copy(update={"catalog_uri": address})


@pytest.fixture
def workers() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(3, mp_context=get_context("spawn")) as pool:
        yield pool


def test_processes_write_at_once_each_session_once(configured: Settings, workers: ProcessPoolExecutor) -> None:
    """Each writes sessions of its own, and one that all have found missing."""
    log, count = log_on(open_catalog(configured)), 4
    begin = time.time() + 6
    done = [workers.submit(write_sessions, configured, f"core.t{number}", count, begin) for number in range(3)]
    for future in done:
        future.result(timeout=200)
    own = [row for number in range(3) for n in range(1, count + 1) for row in expected(f"core.t{number}", n)]
    shared = [row for n in range(1, count + 1) for row in expected(FACT, n)]
    assert written(log.catalog) == sorted(own + shared)


def write_sessions(home: Settings, process: str, count: int, begin: float) -> None:
    """In a process of its own: wait for the others, then write."""
    log = SessionLog(open_catalog(home))
    time.sleep(max(0.0, begin - time.time()))
    for number in range(1, count + 1):
        log.complete(state_of(number=number))
        write(log, process, number)


# Homes of other versions


def test_a_log_that_a_later_version_has_changed_is_neither_read_nor_written(log: SessionLog) -> None:
    write(log)
    before = written(log.catalog)
    for name in (HIGH_WATERMARK, SESSION):
        table = iceberg.load(log.catalog, name)
        assert table.properties[FORMAT_PROPERTY] == "2"
        with table.transaction() as change:
            change.set_properties({FORMAT_PROPERTY: "3"})
        refusal = f"The table {name} of the session log has format 3, and this version reads formats up to 2"
        with pytest.raises(StoredByNewerVersion, match=refusal):
            log.numbers(FACT)
        with pytest.raises(StoredByNewerVersion, match=refusal):
            write(log, number=2)
        with table.refresh().transaction() as change:
            change.set_properties({FORMAT_PROPERTY: "2"})
    assert {row[2] for row in written(log.catalog)} == {1, 2}
    assert [row for row in written(log.catalog) if row[2] == 1] == before


METADATA = {
    "pending": ["2026-01-01-06:00", "2026-01-01-07:00", "2026-01-01-08:00", "2026-01-01-09:00"],
    "skipped": ["2026-01-01-00:00"],
    "last_built": "2026-01-01-05:00",
    "complete_through": "2026-01-01-04:00",
    "totals": {"data_files": 3, "rows": 30, "bytes": 300},
    "last_hour": "2026-01-01-09:00",
    "published_snapshot_id": 11,
    "code_version": "abc",
    "uniform_from": "2026-01-01-02:00",
    "held": [
        {"hour": "2026-01-01-03:00", "why": "audit x: 1 bad", "session_id": "s", "code_version": "abc"},
        {"hour": "2026-01-01-09:00", "why": "audit x: 2 bad", "session_id": "s", "code_version": "old"},
    ],
    "following": ["2026-01-01-08:00"],
    "chunk_hours": 4,
    "deferred": [{"hour": "2026-01-01-07:00", "since_ms": 1767243600123, "rows": 12, "after": 5}],
}
WATERMARK_ROW = {
    "process_name": FACT,
    "source": "raw.a",
    "revision": 8,
    "table_uuid": "uuid-a",
    "latest_snapshot_id": 2**62,
    "previous_snapshot_id": None,
    "sequence_number": 7,
    "snapshot_timestamp_ms": 1_000,
    "complete_through": "2026-01-01-05:00",
    "session_id": "fact-8",
}
OF_TARGET = {"target_uuid": "uuid-t", "target_snapshot_id": 12, "target_sequence_number": 4, "target_rows": 30}


def log_before(catalog: Catalog, marks: Mapping[str, Any], *, columns: Mapping[str, str] = SESSION_COLUMNS) -> None:
    """The tables as the version before has left them."""
    partitions = {"process_name": IdentityTransform[Any]()}
    for name, kinds in ((SESSION, columns), (HIGH_WATERMARK, WATERMARK_COLUMNS)):
        iceberg.create(catalog, name, kinds, partitions, {})
    add_rows(catalog, HIGH_WATERMARK, [marks])


def add_rows(catalog: Catalog, name: str, found: list[Mapping[str, Any]]) -> None:
    table = iceberg.load(catalog, name)
    table.append(pa.Table.from_pylist([dict(row) for row in found], schema=table.schema().as_arrow()))


def session_row(revision: int, state: str, **changed: Any) -> dict[str, Any]:
    """A move of a session, as the version before wrote it."""
    return {
        "process_name": PLAN.process,
        "session_id": PLAN.session_id,
        "revision": revision,
        "etl_pattern_id": 1,
        "state": state,
        "built_hours": '["2026-01-01-05:00"]',
        "unchanged_hours": "[]",
        "rows_read": 10,
        "rows_written": 9,
        "audits": STORED_AUDITS,
        "staging_number": 1,
        "staged_snapshot_id": 3,
        "published_snapshot_id": 3,
        "run_id": "run-1",
        "started_at": NOW,
        "plan": STORED_PLAN,
        **changed,
    }


def test_the_state_that_the_version_before_left_is_read(catalog: Catalog) -> None:
    log_before(catalog, {**WATERMARK_ROW, **OF_TARGET, "metadata": json.dumps(METADATA)})
    found = SessionLog(catalog).before(FACT)
    assert found is not None
    assert (found.uuid, found.snapshot_id, found.sequence_number) == ("uuid-t", 12, 4)
    assert SessionLog(catalog).opened_before(FACT) is None
    assert found.watermarks == {
        "raw.a": Watermark("raw.a", "uuid-a", 2**62, 7, 1_000, START + 5, Totals(3, 30, 300), START + 9)
    }
    assert found.committed == Committed(
        waiting={
            START: Waiting("skipped"),
            START + 3: Waiting("held", "audit x: 1 bad", session_id="s", code_version="abc"),
            START + 6: Waiting("changed"),
            START + 7: Waiting("late", since_ms=1767243600123, rows=12, after=5),
            START + 8: Waiting("follows"),
            START + 9: Waiting("retry", "audit x: 2 bad", session_id="s", code_version="old"),
        },
        last_built=START + 5,
        complete_through=START + 4,
        code_version="abc",
        older=((0, START + 1, ""),),
        span=(0, START + 5),
        chunk_hours=4,
    )
    assert SessionLog(catalog).numbers(FACT) == (8, 8)


def test_the_sessions_of_the_version_before_had_several_moves(catalog: Catalog) -> None:
    log_before(catalog, {**WATERMARK_ROW, "metadata": json.dumps(METADATA)})
    moves = [session_row(number, state) for number, state in enumerate(("planned", "staged", "published", "committed"))]
    abandoned = session_row(4, "abandoned", session_id="other", plan=STORED_PLAN.replace(PLAN.session_id, "other"))
    add_rows(catalog, SESSION, [{**row, "revision": row["revision"] + 1} for row in [*moves, abandoned]])
    log = SessionLog(catalog)
    found = log.history(PLAN.process)
    assert [(each.plan.session_id, each.state) for each in found] == [
        (PLAN.session_id, "committed"),
        ("other", "abandoned"),
    ]
    assert found[0].plan == PLAN
    assert (found[0].built, found[0].rows_written, found[0].published_snapshot_id) == ((PLAN.hours[0].hour,), 9, 3)
    assert [each.revision for each in log.builds(PLAN.process, PLAN.hours[0].hour)] == [4]


@pytest.mark.parametrize("run", [EXTERNAL_RUN, "run-1"])
def test_a_session_that_the_version_before_opened_for_another_program_is_known(catalog: Catalog, run: str) -> None:
    log_before(catalog, {**WATERMARK_ROW, "process_name": PLAN.process, "metadata": json.dumps(METADATA)})
    add_rows(catalog, SESSION, [session_row(9, "planned", run_id=run)])
    found = SessionLog(catalog).opened_before(PLAN.process)
    assert (found.plan if found else None) == (PLAN if run == EXTERNAL_RUN else None)


def test_a_home_of_the_version_before_goes_on_and_has_the_format_of_this_one(catalog: Catalog) -> None:
    engine = Engine(catalog, CLICKS, clock=lambda: at(8))
    columns = {name: kind for name, kind in SESSION_COLUMNS.items() if name not in LATER_COLUMNS}
    for raw in CLICKS.raw:
        iceberg.create_raw(catalog, raw)
    iceberg.create_target(catalog, click_fact)
    land_clicks(catalog, [1], landing=1)
    source = iceberg.load(catalog, "raw.clicks")
    marks = {
        **WATERMARK_ROW,
        "process_name": click_fact.table,
        "source": "raw.clicks",
        "table_uuid": str(source.metadata.table_uuid),
        "latest_snapshot_id": publish.main_id(source),
        "sequence_number": 1,
        "target_uuid": str(iceberg.load(catalog, click_fact.table).metadata.table_uuid),
        "metadata": json.dumps({**METADATA, "pending": [], "skipped": [], "held": [], "deferred": []}),
    }
    log_before(catalog, marks, columns=columns)
    engine.create_tables()
    before = engine.state(click_fact)
    assert (before.n, before.highest, before.snapshot_id) == (0, 8, None)
    assert before.watermarks["raw.clicks"].snapshot_id == publish.main_id(source)

    land_clicks(catalog, [], landing=6)  # without rows, it needs no Spark
    report = engine.run(click_fact)
    assert isinstance(report, SessionReport)
    state = engine.state(click_fact)
    assert (state.n, engine.log.numbers(click_fact.table)) == (9, (9, 9))
    assert engine.log.before(click_fact.table) is None
    assert [each.revision for each in engine.history(click_fact)] == [9]
    for name in (SESSION, HIGH_WATERMARK):
        assert iceberg.load(catalog, name).properties[FORMAT_PROPERTY] == "2"
    assert set(LATER_COLUMNS) <= set(iceberg.load(catalog, SESSION).schema().column_names)


# Damage


def test_a_damaged_file_of_the_version_before_is_named(catalog: Catalog) -> None:
    log_before(catalog, {**WATERMARK_ROW, "metadata": json.dumps(METADATA)})
    log = SessionLog(catalog)
    assert log.before(FACT) is not None
    for task in iceberg.load(catalog, HIGH_WATERMARK).scan().plan_files():
        Path(task.file.file_path.removeprefix("file://")).write_bytes(b"damaged")
    with pytest.raises(TableDamaged, match=HIGH_WATERMARK):
        log.before(FACT)


def test_a_damaged_file_stops_no_process_whose_rows_are_in_others(log: SessionLog) -> None:
    """What is done next stands in the target; the newest number of a process is known from the metadata of the log."""
    write(log)
    (task,) = iceberg.load(log.catalog, SESSION).scan().plan_files()
    write(log, "core.other")
    Path(task.file.file_path.removeprefix("file://")).write_bytes(b"damaged")
    with pytest.raises(TableDamaged, match=SESSION) as caught:
        log.history(FACT)
    assert task.file.file_path.removeprefix("file://") in caught.value.problem
    assert "`lake doctor --repair`" in caught.value.remedy
    assert log.numbers(FACT) == (1, 1)
    assert len(log.history("core.other")) == 1
    write(log, number=2)
    assert log.numbers(FACT) == (2, 2)
