"""A source that keeps the last version of a key: corrections, moves, deletions and re-insertions reach every hour."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from functools import cache
from math import inf
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from lake_assets.base.hours import hour_start
from lake_assets.connections.catalog import open_catalog
from lake_assets.connections.spark import open_spark
from lake_assets.errors import AuditFailed
from lake_assets.incremental.engine import iceberg, stage
from lake_assets.incremental.engine import stage as prepare
from lake_assets.incremental.engine.engine import Engine, utc_now
from lake_assets.incremental.engine.model import NoSession, PlannedHour, SessionPlan, SessionReport
from lake_assets.incremental.engine.stage import Stager
from lake_assets.incremental.operations import verify
from lake_assets.settings import settings
from lake_assets_tests.incremental.crash_matrix import die
from lake_assets_tests.incremental.payments import (
    PIPELINE,
    START,
    History,
    Row,
    arrow,
    history,
    standing,
    version,
)
from lake_assets_tests.incremental.scenario import Lake

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

    from lake_assets.settings import Settings

FACT = "core.payment_fact"


class Payments:
    """A lake of payments, and the rows that have landed in it."""

    def __init__(self, catalog: Catalog, spark: SparkSession) -> None:
        self.lake = Lake(catalog, spark, PIPELINE)
        self.landed: list[Row] = []
        self.batches = 0

    def land(self, *rows: Row) -> None:
        self.landed += rows
        self.lake.append("raw.payments", arrow(rows))

    def session(self, name: str = "payment_fact") -> SessionReport:
        report = self.lake.session(name)
        self.check(report)
        return report

    def check(self, report: SessionReport) -> None:
        assert not [audit for audit in report.audits if audit.blocking and not audit.passed]
        assert self.published() == standing(self.landed), report.plan

    def published(self, table: str = FACT) -> list[Row]:
        rows = iceberg.load(self.lake.catalog, table).scan().to_arrow().to_pylist()
        return sorted(rows, key=lambda row: (row["payment_id"], str(row.get("valid_from"))))

    def built(self, *rows: Row) -> tuple[str, list[int], list[int]]:
        """Land rows and run a session: its load, its planned hours, and those that it changed."""
        self.land(*rows)
        report = self.session()
        planned = [hour - START for hour in report.plan.hour_numbers]
        return report.plan.load, planned, [hour - START for hour in report.hours_built]


@pytest.fixture
def payments(catalog: Catalog, spark: SparkSession) -> Payments:
    return Payments(catalog, spark)


def test_each_kind_of_change_rebuilds_the_hours_that_it_concerns(payments: Payments) -> None:
    built = payments.built
    first = built(version("a", 1, 10), version("b", 2, 10), version("a", 3, 20, amount=2))
    assert first == ("append", [1, 2, 3], [2, 3])
    assert built(version("c", 2, 10)) == ("append", [2], [2]), "no key is known: no further hour is rebuilt"
    assert built(version("b", 6, 20, amount=5)) == ("overwrite", [2, 6], [2, 6]), "moved to another hour"
    older, broken = version("b", 4, 15, amount=7), version("b", 7, 50, amount=-3)
    assert built(older, broken)[2] == [], "an older version, and a row that breaks a rule"
    assert [row["reason"] for row in payments.lake.quarantined(FACT)] == ["negative"]
    assert built(version("c", None, 30, op="D", amount=-1))[2] == [2], "deleted, by a row without a time"
    assert built(version("c", 2, 20, amount=4), version("e", None, 9, op="D"))[2] == [], "older than its deletion"
    assert built(version("c", 5, 40, amount=6))[2] == [5], "inserted again"
    assert built(version("e", 1, 5)) == ("overwrite", [1], []), "its deletion came in an earlier session"
    fact = payments.lake.target("payment_fact")
    assert verify.compare(payments.lake.engine, fact).equal


@pytest.mark.journey
def test_random_histories_equal_a_replay(payments: Payments) -> None:
    random = History(Random(20260101))
    lake = payments.lake
    for rows in (5, 6):
        payments.land(*random.batch(rows))
        payments.session()
    lake.compact("raw.payments")
    lake.complete("raw.payments", START + 4)
    lake.catch_up()
    payments.land(*random.batch(4))
    payments.land(*random.batch(5))
    lake.complete("raw.payments", START + 9)
    lake.catch_up()
    assert isinstance(lake.run("payment_fact"), NoSession)
    assert payments.published() == standing(payments.landed)
    expected = [{**row, "paid_before": row["amount"]} for row in standing(payments.landed)]
    assert payments.published("core.payment_running") == expected
    assert payments.published("core.payment_history") == history(payments.landed)


def test_many_rows_are_chosen_from_as_few_are(payments: Payments) -> None:
    payments.land(version("a", 1, 10), version("a", 4, 20), version("b", 2, 10), version(None, 2, 1))
    payments.land(version("c", 2, 10), version("c", None, 20, op="D"), version("a", 1, 15))
    lake, fact = payments.lake, payments.lake.target("payment_fact")
    planned = lake.engine.decide(fact)
    assert isinstance(planned, SessionPlan)
    hours = tuple(PlannedHour(START + hour, "") for hour in (1, 2))
    for max_rows in (7.0, inf):
        stager = Stager(
            lake.spark,
            fact,
            start=START,
            main=None,
            complete_through=None,
            max_rows=max_rows,
            catalog=lake.catalog,
        )
        prepared = stager.prepare(replace(planned, load="overwrite", hours=hours))
        assert [row["payment_id"] for row in prepared.rows.collect()] == ["b"]
        counts = prepared.row_counts
        assert (counts.read, counts.outside, counts.duplicates, counts.quarantined) == (6, 1, 4, 1)


def test_a_version_ends_the_one_before_in_whatever_hour_that_stands(payments: Payments) -> None:
    """The worked example of docs/corrections.md."""

    def after(*rows: Row) -> list[tuple[int, int, int | None]]:
        payments.land(*rows)
        assert lake.session("payment_history").status == "committed"
        found = payments.published("core.payment_history")
        assert found == history(payments.landed)
        return [(row["amount"], minutes(row["valid_from"]), minutes(row["valid_to"])) for row in found]

    def minutes(moment: datetime | None) -> Any:
        return None if moment is None else (moment - hour_start(START)) // timedelta(minutes=1)

    lake = payments.lake
    lake.complete("raw.payments", START + 9)
    bonn, kiel, ulm = 1, 2, 3
    assert after(version("c1", 0, 60, amount=bonn)) == [(bonn, 60, None)]
    assert after(version("c1", 0, 300, amount=kiel)) == [(bonn, 60, 300), (kiel, 300, None)]
    last = after(version("c1", 0, 180, amount=ulm), version("c1", None, 480, op="D"))
    assert last == [(bonn, 60, 180), (ulm, 180, 300), (kiel, 300, 480)]
    planned = lake.history("payment_history")[-1]
    assert [hour - START for hour in planned.plan.hour_numbers] == [1, 3, 5, 8]


def run_payments(target: str) -> str:
    """One run of a target of the payments, for a process of its own."""
    home = settings()
    engine = Engine(open_catalog(home), PIPELINE, clock=utc_now, spark=cache(lambda: open_spark(home)))
    return type(engine.run(PIPELINE.target(target))).__name__


@pytest.mark.journey
def test_a_correction_whose_session_dies_is_planned_anew_with_what_has_landed_since(
    payments: Payments, home: Settings
) -> None:
    payments.land(version("a", 1, 10), version("b", 2, 10))
    payments.session()
    for number, point in enumerate(("after-planned", "before-committed")):
        order = 20 + number * 20
        payments.land(version("a", 4, order), version("b", 2, order, op="D"))
        before = payments.published()
        die(home, "payment_fact", point, work=run_payments)
        assert payments.published() == before
        payments.land(version("a", 6, order + 10), version("b", 3, order + 10))
        planned = [hour - START for hour in payments.session().plan.hour_numbers]
        assert {2, 3, 4, 6} <= {*planned}
        assert isinstance(payments.lake.run("payment_fact"), NoSession)


@pytest.mark.faults
def test_a_fault_in_the_choice_of_versions_is_stopped_by_an_audit(
    payments: Payments, monkeypatch: pytest.MonkeyPatch
) -> None:
    payments.land(version("a", 1, 10), version("b", 2, 10), version("c", 2, 11))
    payments.session()
    numbered = prepare._numbered
    faults: dict[str, Any] = {
        "_numbered": lambda rows, source, order, _: numbered(rows, source, order, F.asc),
        "_is_deleted": lambda source: F.lit(False),
        "is_counted": prepare.is_valid,
    }
    payments.land(version("a", 4, 20), version("b", 2, 20, op="D"), version("c", 5, 9))
    for name, fault in faults.items():
        with monkeypatch.context() as patch:
            for module in (prepare, stage):
                if hasattr(module, name):
                    patch.setattr(module, name, fault)
            with pytest.raises(AuditFailed, match="source_target_counts"):
                payments.lake.engine.run(payments.lake.target("payment_fact"), again=True)
    report = payments.lake.engine.run(payments.lake.target("payment_fact"), again=True)
    assert isinstance(report, SessionReport)
    payments.check(report)
