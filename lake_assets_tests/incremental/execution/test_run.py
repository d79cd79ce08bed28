"""A session is staged, audited, published and committed once, whoever has begun it."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING

import pytest

from lake_assets.errors import StateMoved
from lake_assets.incremental.declaration.target import Audit, AuditScope, Verdict
from lake_assets.incremental.execution.driver import Driver
from lake_assets.incremental.execution.planner import Planner
from lake_assets.incremental.execution.run import Runner
from lake_assets.incremental.execution.steps.attempt import Attempt
from lake_assets.incremental.execution.steps.run_context import RunContext
from lake_assets.incremental.metadata import publish, tables
from lake_assets.membership import PIPELINE
from lake_assets_tests.incremental.scenario import NOW, START, Lake, signup, with_target

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

    from lake_assets.incremental.declaration import Pipeline

FACT = "core.signup_fact"


def runner_of(lake: Lake) -> Runner:
    return Runner(
        RunContext(
            catalog=lake.catalog,
            start_hour=START,
            store=lake.engine.store,
            clock=lambda: NOW,
            open_spark=lambda: lake.spark,
        )
    )


def planned(lake: Lake) -> Attempt:
    """A session of the signups, planned and not yet run."""
    target = lake.target("signup_fact")
    planner = Planner(lake.catalog, lake.pipeline, target)
    driver = Driver(
        target,
        planner,
        lake.engine.store,
        lake.engine.erasure_guard,
        clock=lambda: NOW,
        create_tables=lake.engine.create_tables,
    )
    attempt = driver.drive(planner.next_session, lambda opened: opened, run_id="run-1")
    assert isinstance(attempt, Attempt)
    return attempt


def test_the_steps_of_a_session_run_once(catalog: Catalog, spark: SparkSession) -> None:
    lake = Lake(catalog, spark)
    lake.append("raw.signups", [signup(1, 3), signup(2, 4), signup(3, 4, monthly_price=Decimal(-1))])
    attempt = planned(lake)
    overtaken = copy(attempt)

    report = runner_of(lake).run(attempt)

    assert report.status == "committed"
    assert (report.hours_built, report.rows_written) == ((START + 3, START + 4), 2)
    assert [row["signup_id"] for row in lake.rows(FACT)[FACT]] == ["s01-3", "s02-4"]
    assert len(lake.quarantined(FACT)) == 1
    assert list(report.seconds) == ["plan", "stage", "audit", "publish", "commit"]
    assert attempt.record.state == "committed"

    with pytest.raises(StateMoved):
        runner_of(lake).run(overtaken)
    found = Attempt(attempt.target, attempt.state, replace(attempt.record, state="published"))
    assert runner_of(lake).run(found).status == "already_committed"
    assert len(lake.published(FACT)) == 1


def test_a_session_is_staged_and_audited_anew_if_main_moves_meanwhile(catalog: Catalog, spark: SparkSession) -> None:
    evaluated: list[int] = []

    def compact_once(scope: AuditScope) -> Verdict:
        evaluated.append(scope.staged.count())
        if len(evaluated) == 1:
            table = tables.load(catalog, FACT)
            table.append(table.scan(limit=0).to_arrow())
        return Verdict(True)

    lake = Lake(catalog, spark, audited_by(Audit("compact_once", compact_once, "another program moves main")))
    lake.append("raw.signups", [signup(1, 3)])
    report = runner_of(lake).run(planned(lake))
    staged = tables.load(catalog, FACT).snapshot_by_id(report.staged_snapshot_id or 0)
    assert evaluated == [1, 1]
    assert staged is not None
    assert staged.summary is not None
    assert staged.summary.additional_properties[publish.WAP_ID] == f"{report.plan.session_id}.2"
    assert lake.main(FACT) == report.published_snapshot_id == staged.snapshot_id


def audited_by(audit: Audit) -> Pipeline:
    return with_target(PIPELINE, replace(PIPELINE.target("signup_fact"), audits=(audit,)))
