"""The overview of a real lake that came late, was stopped, and caught up: against its rows and the reports."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from lake_assets.base.hours import hour_of
from lake_assets.demo.membership_simulator import Arrival, Population, Simulation, generate
from lake_assets.errors import AuditFailed, TableMissing
from lake_assets.incremental.engine import iceberg
from lake_assets.incremental.operations.overview import overview
from lake_assets.membership import PIPELINE
from lake_assets.membership.raw import RAW
from lake_assets_tests.incremental.scenario import NOW, START, Lake, signup

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

    from lake_assets.incremental.engine.model import SessionReport

LATE = Simulation(
    Population(accounts=400, hours=14),
    Arrival(tail=0.1, tail_hours=4, longest_hours=9, bad=0.02),
)
SECOND = timedelta(seconds=1)
BUILT = ("signup_fact", "cancel_request_fact", "cancel_fact")


def test_a_catalog_without_tables_is_told(catalog: Catalog) -> None:
    with pytest.raises(TableMissing, match="lake init"):
        overview(catalog, PIPELINE, now=NOW)


@pytest.mark.journey
def test_it_says_what_happened(catalog: Catalog, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    lake, reports = Lake(catalog, spark), []
    for number, landing in enumerate(generate(LATE)):
        lake.land(landing)
        if number == 8:
            reports += lake.catch_up(*BUILT)
    reports += lake.catch_up(*BUILT)
    lake.append("raw.signups", [signup(1, 13, account_id=None)])
    with pytest.raises(AuditFailed):
        lake.run("signup_fact")
    monkeypatch.setattr("lake_assets.incremental.engine.iceberg.ROWS_PER_SCAN", 50)

    found = overview(catalog, PIPELINE, now=NOW)

    for arrivals in found.arrivals:
        assert_counts_rows(arrivals, iceberg.load(catalog, arrivals.table).scan().to_arrow().to_pylist())
    for target in found.targets:
        done = [s for s in target.sessions if s.state == "committed"]
        assert [seen(s) for s in done] == [told(r) for r in reports if r.plan.process == target.table]
        lost = Counter((row["source"], row["reason"]) for row in lake.quarantined(target.table))
        assert {(q.source, q.reason): q.rows for q in target.quarantine} == lost
    assert sum(len(t.quarantine) for t in found.targets) > 0
    complete = {s.table for s in found.standings if s.complete_through == START + 13}
    assert complete == {*(r.table for r in RAW), *(f"core.{name}" for name in BUILT)}
    assert {s.complete_through for s in found.standings if s.table not in complete} == {None}
    stopped = next(t for t in found.targets if t.table == "core.signup_fact").sessions[-1]
    assert (stopped.state, stopped.published) == ("blocked", ())
    assert any(a.blocking and a.name.startswith("not_null") for a in stopped.failed_audits)


def seen(session: Any) -> tuple[Any, ...]:
    counts = (session.rows_read, session.rows_written)
    return session.plan.session_id, session.published, *counts


def told(report: SessionReport) -> tuple[Any, ...]:
    counts = (report.rows_read, report.rows_written)
    return report.plan.session_id, report.hours_built, *counts


def assert_counts_rows(arrivals: Any, rows: list[dict[str, Any]]) -> None:
    time = next(r.time_column for r in RAW if r.table == arrivals.table)
    known = [(row[time], row["landed_at"]) for row in rows if row[time] and row["landed_at"]]
    pairs = [(e, at) for e, at in known if hour_of(e) >= START and e <= at + timedelta(hours=1)]
    late = sorted((at - e) // SECOND for e, at in pairs)
    assert (arrivals.rows, arrivals.unplaced) == (len(rows), len(rows) - len(pairs))
    assert arrivals.overall.max_seconds == late[-1]
    assert late[-(-len(late) // 2) - 1] * 127 / 128 <= arrivals.overall.p50_seconds <= late[-(-len(late) // 2) - 1]
    cells = Counter((hour_of(at), hour_of(e)) for e, at in pairs)
    assert {(c.landed_hour, c.event_hour): c.rows for c in arrivals.cells} == cells
