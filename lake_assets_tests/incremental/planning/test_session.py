"""Stored sessions stay readable: the JSON in `etl.session` of an older version is read as the same plan."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from hashlib import sha256
from typing import Any

from pydantic import TypeAdapter

from lake_assets.base.hours import parse_hour
from lake_assets.incremental.declaration import Stateful
from lake_assets.incremental.engine.model import (
    AuditResult,
    Committed,
    Cost,
    HeldHour,
    PlannedHour,
    PlanningInput,
    SessionPlan,
    SourceRange,
    Waiting,
)
from lake_assets.incremental.engine.planning import plan, plan_rebuild
from lake_assets.incremental.engine.session_log import plan_from_json, plan_to_json
from lake_assets.incremental.engine.source_changes import SnapshotChange, SourceChanges, Totals, Watermark

HOUR = parse_hour("2026-01-01-05:00")

STORED_PLAN = """
{"process":"core.signup_fact","session_id":"signup_fact-0123456789abcdef","kind":"session","load":"append",
"sources":[{"source":"raw.signups","table_uuid":"uuid","from_snapshot_id":1,"to_snapshot_id":2,"to_sequence_number":7,
"to_timestamp_ms":1767243600000,"complete_through":490901,"totals":{"data_files":3,"rows":30,"bytes":300},
"last_hour":490902,"appends_only":true}],"hours":[{"hour":490901,"reason":"append 2 of raw.signups"}],
"pending":[490902],"skipped":[490890],"follows":[490903],"held":[490904],"changed_through":490901,
"complete_through":490901,"processing_uris":[{"landing_date":"2026-01-01","landing_hour":5,"batch_id":"b"}],
"cost":{"files":1,"rows":10,"bytes":100},"notes":["a note"],"code_version":"abc"}
"""
PLAN = SessionPlan(
    process="core.signup_fact",
    session_id="signup_fact-0123456789abcdef",
    kind="session",
    load="append",
    sources=(
        SourceRange(
            source="raw.signups",
            table_uuid="uuid",
            from_snapshot_id=1,
            to_snapshot_id=2,
            to_sequence_number=7,
            to_timestamp_ms=1767243600000,
            complete_through=HOUR,
            totals=Totals(data_files=3, rows=30, bytes=300),
            last_hour=HOUR + 1,
            appends_only=True,
        ),
    ),
    hours=(PlannedHour(HOUR, "append 2 of raw.signups"),),
    waiting={
        HOUR - 11: Waiting("skipped"),
        HOUR + 1: Waiting("changed"),
        HOUR + 2: Waiting("follows"),
        HOUR + 3: Waiting("held"),
    },
    changed_through=HOUR,
    complete_through=HOUR,
    processing_uris=({"landing_date": "2026-01-01", "landing_hour": 5, "batch_id": "b"},),
    cost=Cost(files=1, rows=10, bytes=100),
    notes=("a note",),
    code_version="abc",
)

STORED_AUDITS = """
[{"name":"unique_key","passed":false,"blocking":true,"counts":{"repeated":3},"sample":["s1"],"description":"keys",
"hours":{"2026-01-01-05:00":3}}]
"""
AUDITS = (
    AuditResult(
        name="unique_key",
        passed=False,
        blocking=True,
        counts={"repeated": 3},
        sample=("s1",),
        description="keys",
        hours={"2026-01-01-05:00": 3},
    ),
)

STORED_HELD = {"hour": HOUR, "why": "audit unique_key: 3 repeated", "session_id": "s", "code_version": "abc"}


def test_a_stored_plan_is_read_as_it_was_planned() -> None:
    assert plan_from_json(json.loads(STORED_PLAN)) == PLAN
    assert PLAN.landings() == [("2026-01-01", 5)], "though its source is not named"
    lists = ("pending", "skipped", "follows", "held")
    first = {name: value for name, value in json.loads(STORED_PLAN).items() if name not in lists}
    assert plan_from_json(first) == replace(PLAN, waiting={})


def test_a_stored_plan_has_lists_of_the_hours_that_wait_and_why() -> None:
    stored = {**json.loads(STORED_PLAN), "starts_anew": False, "deferred": [], "late_rows": []}
    stored["sources"][0]["from_timestamp_ms"] = None
    stored["follows"].append(HOUR + 4)
    stored["reasons"] = {str(hour): "" for hour in (HOUR - 11, HOUR + 1, HOUR + 2)} | {str(HOUR + 4): "another"}
    stored["pending"].extend([HOUR + 2, HOUR + 4])  # an hour before them waits in any case
    plan = replace(PLAN, waiting={**PLAN.waiting, HOUR + 4: Waiting("follows", "another")})
    assert plan_to_json(plan) == stored
    assert plan_from_json(stored) == plan


def test_a_stored_plan_says_which_of_its_hours_wait_for_late_rows_or_are_held() -> None:
    stored = json.loads(STORED_PLAN)
    stored |= {"pending": [HOUR + 1, HOUR + 3, HOUR + 5], "reasons": {str(HOUR + 1): "append 2", str(HOUR + 5): "3"}}
    stored["deferred"] = [{"hour": HOUR + 5, "since_ms": 7, "rows": 3, "after": 1}]
    assert plan_from_json(stored).waiting == {
        HOUR - 11: Waiting("skipped"),
        HOUR + 1: Waiting("changed", "append 2"),
        HOUR + 2: Waiting("follows"),
        HOUR + 3: Waiting("retry"),
        HOUR + 5: Waiting("late", "3", 7, rows=3, after=1),
    }


def test_stored_audit_results_and_held_hours_are_read() -> None:
    adapter: TypeAdapter[tuple[AuditResult, ...]] = TypeAdapter(tuple[AuditResult, ...])
    assert adapter.validate_json(STORED_AUDITS) == AUDITS
    assert json.loads(adapter.dump_json(AUDITS)) == json.loads(STORED_AUDITS)
    assert asdict(HeldHour(HOUR, "audit unique_key: 3 repeated", "s", "abc")) == STORED_HELD


def planning_input(since: int | None) -> PlanningInput:
    change = SnapshotChange(2, "append", 0, "append", (), ((HOUR, HOUR),))
    watermark = None if since is None else Watermark("raw.a", "uuid", since, since, 0, HOUR - 1)
    head = Watermark("raw.a", "uuid", 2, 2, 0, HOUR)
    changes = SourceChanges("raw.a", "event_ts", watermark, head, "history", (change,))
    committed = Committed(last_built=HOUR - 1, complete_through=HOUR - 1)
    return PlanningInput("core.target", Stateful("changed"), (changes,), committed, revision=4)


def test_a_session_planned_by_an_older_version_has_the_same_id() -> None:
    """After an update, a session that an audit stopped, or that another program writes, is found by its id."""

    def id_of(*parts: str) -> str:
        return f"target-{sha256('|'.join(parts).encode()).hexdigest()[:16]}"

    hour = "2026-01-01-05:00"
    first = id_of("core.target", "session", "overwrite", str(HOUR), "4", "", "raw.a:uuid:1:2", hour, "", "", "")
    assert session_id(plan(planning_input(1))) == first
    rebuilt = id_of("core.target", "rebuild", "overwrite", "None", "4", "t", "raw.a:uuid:None:2", hour, "", "", "")
    assert session_id(plan_rebuild(planning_input(None), [HOUR], present=(), token="t")) == rebuilt


def session_id(decision: Any) -> str:
    assert isinstance(decision, SessionPlan)
    return decision.session_id
