"""Audits judge staged rows before anybody reads them; a blocking one that fails leaves everything as it was."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from lake_assets.base.hours import hour_key
from lake_assets.demo.membership_simulator import bad_batch, repair, worked_example
from lake_assets.errors import AuditFailed, ConfigurationError
from lake_assets.incremental.declaration.model import Audit
from lake_assets.incremental.engine import iceberg
from lake_assets.incremental.engine import stage as prepare
from lake_assets.incremental.engine.audits import (
    accepted_values,
    no_missing_events,
    not_null,
    referential,
    row_count_like_earlier,
    source_target_counts,
    sql,
    unique_key,
)
from lake_assets.incremental.engine.model import AuditResult, NoSession, SessionPlan, SessionReport
from lake_assets.membership import PIPELINE
from lake_assets_tests.incremental.scenario import START, Lake, signup, with_target

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import DataFrame, SparkSession

    from lake_assets.incremental.declaration import Pipeline, SessionContext, Transform

AUDITS = (
    source_target_counts(),
    no_missing_events(),
    not_null("account_id", "plan"),
    unique_key(),
    accepted_values("plan", ("basic", "family")),
    referential("account_id", to="core.plan_fact", ref_column="account_id"),
    row_count_like_earlier(days=2, factor=2),
    sql("cheap", "select signup_id from {staged} where monthly_price > 10"),
)


SOUND = {"duplicates": 0, "quarantined": 0}


def judging(*audits: Audit, transform: Transform | None = None) -> Pipeline:
    fact = PIPELINE.target("signup_fact")
    changed = replace(fact, audits=tuple(replace(a, blocking=False) for a in audits))
    return with_target(PIPELINE, replace(changed, transform=transform) if transform else changed)


def verdicts(report: SessionReport) -> dict[str, tuple[bool, dict[str, int], tuple[str, ...]]]:
    return {a.name: (a.passed, dict(a.counts), a.sample) for a in report.audits}


def broken(session: SessionContext, signups: DataFrame) -> DataFrame:
    """A transform with a fault for each audit."""
    number = F.substring("signup_id", 2, 2).cast("int")
    rows = PIPELINE.target("signup_fact").transform(session, signups).where(number > 2)
    rows = rows.withColumn("plan", F.when(number == 3, "gold").otherwise(F.col("plan")))
    rows = rows.withColumn(
        "account_id", F.when(number == 4, None).when(number == 5, "x").otherwise(F.col("account_id"))
    )
    rows = rows.withColumn(
        "monthly_price", F.when(number == 6, 99).otherwise(F.col("monthly_price")).cast("decimal(9,2)")
    )
    return rows.unionByName(rows.where(number == 7))


@pytest.mark.parametrize("few_rows", [prepare.SINGLE_PARTITION_ROWS, -1])
def test_each_audit_counts_and_names_what_should_not_be(
    catalog: Catalog, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, few_rows: int
) -> None:
    monkeypatch.setattr(prepare, "SINGLE_PARTITION_ROWS", few_rows)
    lake = Lake(catalog, spark, judging(*AUDITS))
    known = {"change_id": "c1", **signup(1, 3)}
    lake.append("raw.plan_changes", [{k: v for k, v in known.items() if k != "signup_id"}])
    lake.append("raw.signups", [signup(n, 3) for n in range(12)])
    lake.catch_up("plan_fact")
    assert verdicts(lake.session("signup_fact")) == {
        "source_target_counts": (True, {"in source": 12, "read": 12, **SOUND, "written": 12}, ()),
        "no_missing_events": (True, {"missing": 0}, ()),
        "not_null_account_id_plan": (True, {"nulls": 0}, ()),
        "unique_key": (True, {"repeated": 0}, ()),
        "accepted_values_plan": (True, {"unexpected": 0}, ()),
        "referential_account_id": (True, {"unknown": 0}, ()),
        "row_count_like_earlier": (True, {"odd hours": 0}, ()),
        "cheap": (True, {"offending": 0}, ()),
        "quarantine": (True, {"quarantined": 0}, ()),
        "quarantine_limit": (True, {"quarantined": 0, "limit": 100}, ()),
        "ties": (True, {"tied": 0}, ()),
    }

    lake.engine = lake.engine_of(judging(*AUDITS, transform=broken))
    lake.pipeline = lake.engine.pipeline
    lake.append("raw.signups", [signup(n, 27) for n in range(30)])
    assert verdicts(lake.session("signup_fact")) == {
        "source_target_counts": (False, {"in source": 30, "read": 30, **SOUND, "written": 28}, ()),
        "no_missing_events": (False, {"missing": 3}, ("s00-27", "s01-27", "s02-27")),
        "not_null_account_id_plan": (False, {"nulls": 1}, ("s04-27",)),
        "unique_key": (False, {"repeated": 1}, ("s07-27",)),
        "accepted_values_plan": (False, {"unexpected": 1}, ("s03-27",)),
        "referential_account_id": (False, {"unknown": 2}, ("s04-27", "s05-27")),
        "row_count_like_earlier": (False, {"odd hours": 1}, (hour_key(START + 27),)),
        "cheap": (False, {"offending": 1}, ("s06-27",)),
        "quarantine": (True, {"quarantined": 0}, ()),
        "quarantine_limit": (True, {"quarantined": 0, "limit": 100}, ()),
        "ties": (True, {"tied": 0}, ()),
    }


def test_a_failed_audit_publishes_nothing_until_its_source_is_repaired(catalog: Catalog, spark: SparkSession) -> None:
    lake, table = Lake(catalog, spark), "core.signup_fact"
    lake.land(worked_example()[0])
    lake.session("signup_fact")
    before = (lake.main(table), lake.complete_through(table), lake.state(table).watermarks)
    bad = bad_batch(hour=8)
    lake.land(bad.landing)

    with pytest.raises(AuditFailed, match="not_null_account_id: 3 nulls") as caught:
        lake.run("signup_fact")
    report = caught.value.report
    assert isinstance(report, SessionReport)
    assert report.status == "blocked"
    assert report.hours_built == ()
    stopped = AuditResult(
        "not_null_account_id", False, True, {"nulls": 3}, tuple(bad.right), "account_id is never null"
    )
    assert [a for a in report.audits if not a.passed] == [replace(stopped, hours={hour_key(START + 8): 3})]
    assert (lake.main(table), lake.complete_through(table), lake.state(table).watermarks) == before
    staged = iceberg.load(catalog, table).snapshot_by_id(report.staged_snapshot_id or 0)
    assert staged is not None  # kept for inspection

    waiting = lake.run("signup_fact")
    assert isinstance(waiting, NoSession)
    assert waiting.kind == "blocked"
    assert "not_null_account_id: 3 nulls" in waiting.reason
    newest = lake.engine.history(lake.target("signup_fact"), newest=1)
    assert [record.state for record in newest] == ["blocked"]

    other_code = lake.engine_of(with_target(PIPELINE, replace(lake.target("signup_fact"), code_version="2")))
    assert isinstance(other_code.decide(other_code.pipeline.target("signup_fact")), SessionPlan)
    with pytest.raises(AuditFailed):
        other_code.run(other_code.pipeline.target("signup_fact"))

    repair(spark, bad)
    reports = lake.catch_up("signup_fact")
    lake.assert_true("signup_fact")
    assert [r.status for r in reports] == ["committed"]
    assert lake.complete_through(table) == 8
    assert len(lake.published(table)) == 2


def test_no_missing_events_needs_a_single_key_to_look_for(catalog: Catalog, spark: SparkSession) -> None:
    fact = PIPELINE.target("signup_fact")
    twofold = replace(fact, key=("signup_id", "account_id"))
    with pytest.raises(ConfigurationError, match="needs a single key, and a key of its first source"):
        Lake(catalog, spark, with_target(PIPELINE, twofold))
