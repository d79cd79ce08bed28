"""Bad rows never stop the others: each lands in `etl.quarantine`, once, and the rest is published."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from lake_assets.demo.membership_simulator import Population, dirty_batch, worked_example
from lake_assets.errors import AuditFailed
from lake_assets.incremental.declaration import SessionContext, Source, Stateful, incremental_asset
from lake_assets.incremental.engine import iceberg
from lake_assets.incremental.engine.engine import catch_up
from lake_assets.incremental.engine.model import SessionReport
from lake_assets.incremental.operations import verify
from lake_assets.membership import PIPELINE
from lake_assets_tests.incremental.scenario import START, Lake, with_target

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import DataFrame, SparkSession

FEW = Population(accounts=200, opening=0.4, plan_change=0.08, request=0.06, involuntary_cancel=0.05)
TIMES = {
    "{} is null": 1,
    "{} is before the declared start, 2026-01-01-00:00": 1,
    "{} is over an hour after landed_at": 1,
}


def reasons(lake: Lake, target: str) -> Counter[str]:
    return Counter(row["reason"] for row in lake.quarantined(f"core.{target}"))


def flaws(key: str, time: str) -> dict[str, int]:
    return {f"{key} is null": 1} | {reason.format(time): count for reason, count in TIMES.items()}


def test_each_flaw_is_set_aside_once_whatever_is_rebuilt_later(catalog: Catalog, spark: SparkSession) -> None:
    lake = Lake(catalog, spark)
    lake.land(worked_example(FEW)[0])
    lake.catch_up("signup_fact", "cancel_request_fact", "cancel_fact")
    lake.land(dirty_batch(FEW, hour=8))
    reports = {r.plan.process: r for r in lake.catch_up("signup_fact", "cancel_request_fact", "cancel_fact")}

    priced = {"no price or a negative one": 1, "unknown plan": 1}
    expected = {
        "signup_fact": flaws("signup_id", "event_ts") | priced,
        "cancel_fact": flaws("cancel_id", "processing_ts"),
    }
    for name, found in expected.items():
        assert reasons(lake, name) == found
        assert reports[f"core.{name}"].rows_quarantined == sum(found.values())
        warning = next(a for a in reports[f"core.{name}"].audits if a.name == "quarantine")
        assert (warning.passed, warning.blocking) == (False, False)
        assert verify.left(lake.engine, lake.target(name)) == ()  # a bad row leaves no hour pending
    lake.assert_true("signup_fact", "cancel_request_fact", "cancel_fact")

    for name, found in expected.items():
        lake.engine.rebuild(lake.target(name), range(START, START + 9), run_id="again")
        assert reasons(lake, name) == found
    lake.assert_true("signup_fact", "cancel_request_fact", "cancel_fact")


def test_too_many_bad_rows_stop_a_session(catalog: Catalog, spark: SparkSession) -> None:
    strict = with_target(PIPELINE, replace(PIPELINE.target("signup_fact"), quarantine_limit=2))
    lake = Lake(catalog, spark, strict)
    lake.land(dirty_batch(FEW, hour=8), ["raw.signups"])
    with pytest.raises(AuditFailed, match="quarantine_limit: 6 quarantined, 2 limit") as stopped:
        lake.run("signup_fact")
    assert lake.rows("core.signup_fact") == {"core.signup_fact": []}
    assert lake.quarantined("core.signup_fact") == []
    fact = lake.target("signup_fact")
    outcomes = [*catch_up(lake.engine, [fact]), *catch_up(lake.engine, [fact], again=True)]
    assert [o.waiting.kind if o.waiting else o.failure for o in outcomes] == ["blocked", str(stopped.value)]

    lenient = lake.engine_of(PIPELINE)
    rebuilt = lenient.rebuild(PIPELINE.target("signup_fact"), [START + 8])
    assert isinstance(rebuilt, SessionReport)
    lake.assert_true("signup_fact")
    assert [row["session_id"] for row in lake.quarantined("core.signup_fact")] == [rebuilt.plan.session_id] * 6

    again = lake.engine.rebuild(fact, [START + 8])  # what was set aside before is none too much now
    assert isinstance(again, SessionReport)
    counted = {a.name: (a.passed, a.counts["quarantined"]) for a in again.audits if a.name.startswith("quarantine")}
    assert counted == {"quarantine": (False, 3), "quarantine_limit": (True, 0)}


def test_bad_rows_are_set_aside_when_no_hour_is_due_and_when_there_is_no_good_row(
    catalog: Catalog, spark: SparkSession
) -> None:
    lake = Lake(catalog, spark)
    dirty = dirty_batch(FEW, hour=8)
    counts = {"raw.signups": 6, "raw.cancels": 4}
    bad = {table: dirty.rows[table].slice(dirty.rows[table].num_rows - count) for table, count in counts.items()}
    lake.land(replace(dirty, rows=bad), list(bad))
    lake.complete("raw.cancel_requests", START + 3)
    lake.catch_up("signup_fact", "cancel_request_fact", "cancel_fact")
    assert lake.rows("core.signup_fact") == {"core.signup_fact": []}
    assert sum(reasons(lake, "signup_fact").values()) == counts["raw.signups"]
    assert lake.complete_through("core.cancel_fact") == 3
    assert reasons(lake, "cancel_fact") == {reason.format("processing_ts"): 1 for reason in TIMES}

    lake.complete("raw.cancel_requests", START + 8)
    lake.catch_up("cancel_request_fact", "cancel_fact")
    assert reasons(lake, "cancel_fact") == flaws("cancel_id", "processing_ts")


def test_every_raw_source_of_a_target_is_judged(catalog: Catalog, spark: SparkSession) -> None:
    @incremental_asset(
        mode=Stateful(),
        sources=[
            Source("raw.cancels", time_column="processing_ts", key="cancel_id"),
            Source("raw.cancel_requests", time_column="event_ts", key="request_id"),
        ],
        key="cancel_id",
        time_column="canceled_at",
        columns={"cancel_id": "string", "canceled_at": "timestamptz", "asked": "boolean"},
    )
    def asked_fact(session: SessionContext, cancels: DataFrame, requests: DataFrame) -> DataFrame:
        """Each cancel, and whether its account has ever asked."""
        asked = requests.select("account_id").distinct().selectExpr("account_id", "true as asked")
        now = session.within(cancels.withColumnRenamed("processing_ts", "canceled_at"), "canceled_at")
        return now.join(asked, "account_id", "left").fillna(value=False, subset="asked")

    lake = Lake(catalog, spark, replace(PIPELINE, targets=(asked_fact,)))
    dirty = dirty_batch(FEW, hour=8)
    lake.land(dirty)
    lake.session("asked_fact")
    found = Counter((row["source"], row["reason"]) for row in lake.quarantined("core.asked_fact"))
    assert found == {
        **{("raw.cancels", reason): 1 for reason in flaws("cancel_id", "processing_ts")},
        **{("raw.cancel_requests", reason): 1 for reason in flaws("request_id", "event_ts")},
    }
    sound = dirty.rows["raw.cancels"].num_rows - lake.bad_rows("raw.cancels")
    assert iceberg.load(catalog, "core.asked_fact").scan().count() == sound
