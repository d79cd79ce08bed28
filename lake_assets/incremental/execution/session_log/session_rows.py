"""Rows of `etl.session`: a record as its columns, and back. The columns and their JSON are stored; they stay as is."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

from pydantic import TypeAdapter

from lake_assets.base.hours import HOUR_FORMAT, hour_key, parse_hour
from lake_assets.incremental.execution.session_log.records import SessionRecord
from lake_assets.incremental.planning.session import AuditResult, HeldHour, SessionPlan

_PLAN: TypeAdapter[SessionPlan] = TypeAdapter(SessionPlan)
_AUDITS: TypeAdapter[tuple[AuditResult, ...]] = TypeAdapter(tuple[AuditResult, ...])


def session_row(record: SessionRecord) -> dict[str, Any]:
    """Return a record as a row of `etl.session`."""
    return {**_plan_columns(record.plan), **_progress_columns(record)}


def session_record(row: Mapping[str, Any]) -> SessionRecord:
    """Return a row of `etl.session` as a record."""
    return SessionRecord(
        plan=_PLAN.validate_json(row["plan"]),
        state=row["state"],
        revision=row["revision"],
        pattern_id=row["etl_pattern_id"],
        run_id=row["run_id"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
        staging_number=row["staging_number"],
        staged_snapshot_id=row["staged_snapshot_id"],
        published_snapshot_id=row["published_snapshot_id"],
        built=_parse_hours(row["built_hours"]),
        unchanged=_parse_hours(row["unchanged_hours"]),
        rows_read=row["rows_read"],
        rows_written=row["rows_written"],
        audits=_AUDITS.validate_json(row["audits"]),
    )


def held_hours_as_json(held: Iterable[HeldHour]) -> list[dict[str, Any]]:
    """Return held hours as objects for JSON, each hour as its key."""
    found = []
    for each in held:
        found.append({**asdict(each), "hour": hour_key(each.hour)})
    return found


def optional_hour_key(hour: int | None) -> str | None:
    """Return the key of an hour; None for None."""
    if hour is None:
        return None
    return hour_key(hour)


def _plan_columns(plan: SessionPlan) -> dict[str, Any]:
    first, last = plan.envelope or (None, None)
    sources = [asdict(source) for source in plan.sources]
    hours = []
    for planned in plan.hours:
        hours.append({"hour": hour_key(planned.hour), "reason": planned.reason})
    return {
        "process_name": plan.process,
        "session_id": plan.session_id,
        "kind": plan.kind,
        "load": plan.load,
        "sources": json.dumps(sources),
        "processing_uris": json.dumps(list(plan.processing_uris)),
        **_date_and_hour("from_event", first),
        **_date_and_hour("to_event", last),
        **_landing_columns(plan),
        "hours": json.dumps(hours),
        "pending_hours": _hours_as_json(plan.pending),
        "skipped_hours": _hours_as_json(plan.skipped),
        "complete_through": optional_hour_key(plan.complete_through),
        "code_version": plan.code_version,
        "plan": _PLAN.dump_json(plan).decode(),
    }


def _progress_columns(record: SessionRecord) -> dict[str, Any]:
    return {
        "revision": record.revision,
        "etl_pattern_id": record.pattern_id,
        "state": record.state,
        "built_hours": _hours_as_json(record.built),
        "unchanged_hours": _hours_as_json(record.unchanged),
        "held_hours": json.dumps(held_hours_as_json(record.held)),
        "rows_read": record.rows_read,
        "rows_written": record.rows_written,
        "audits": _AUDITS.dump_json(record.audits).decode(),
        "staging_number": record.staging_number,
        "staged_snapshot_id": record.staged_snapshot_id,
        "published_snapshot_id": record.published_snapshot_id,
        "run_id": record.run_id,
        "started_at": record.started_at,
        "ended_at": record.ended_at,
    }


def _landing_columns(plan: SessionPlan) -> dict[str, Any]:
    """Return the first and the last landing hour of the partitions that a session reads."""
    landings = []
    for uri in plan.processing_uris:
        if "landing_hour" in uri:
            landing = (str(uri["landing_date"]), uri["landing_hour"])
            landings.append(landing)
    first = min(landings, default=(None, None))
    last = max(landings, default=(None, None))
    return {
        "from_landing_date": first[0],
        "from_landing_hour": first[1],
        "to_landing_date": last[0],
        "to_landing_hour": last[1],
    }


def _date_and_hour(prefix: str, hour: int | None) -> dict[str, Any]:
    if hour is None:
        return {f"{prefix}_date": None, f"{prefix}_hour": None}
    moment = datetime.strptime(hour_key(hour), HOUR_FORMAT)
    return {f"{prefix}_date": moment.date().isoformat(), f"{prefix}_hour": moment.hour}


def _hours_as_json(hours: Iterable[int]) -> str:
    return json.dumps([hour_key(hour) for hour in hours])


def _parse_hours(text: str) -> tuple[int, ...]:
    return tuple(parse_hour(key) for key in json.loads(text))
