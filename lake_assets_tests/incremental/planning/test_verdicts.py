"""One bad hour does not hold back the others: they are published, it is held back, and built alone once repaired."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import dagster as dg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import functions as F

from lake_assets.base.hours import DAY, HOUR, hour_key
from lake_assets.errors import AuditFailed
from lake_assets.incremental.declaration import Sequential, Stateful, Stateless
from lake_assets.incremental.engine.audit_run import reported_hours
from lake_assets.incremental.engine.audits import no_missing_events, not_null, source_target_counts, sql, unique_key
from lake_assets.incremental.engine.engine import utc_now
from lake_assets.incremental.engine.model import (
    AuditResult,
    HeldHour,
    NoSession,
    SessionReport,
    capped,
    failed_hours,
    held_by_audit,
    hours_to_hold,
    settled,
    verdicts_in_words,
)
from lake_assets.membership import PIPELINE
from lake_assets_tests.incremental.crash_matrix import die
from lake_assets_tests.incremental.in_process_daemon import in_process_daemon
from lake_assets_tests.incremental.scenario import START, Lake, raw_row, signup, with_target

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyiceberg.catalog import Catalog
    from pyspark.sql import DataFrame, SparkSession

    from lake_assets.incremental.declaration import SessionContext, Target
    from lake_assets.settings import Settings

TABLE = "core.signup_fact"
NULLS = "audit not_null_account_id: 1 nulls"
MEND = "UPDATE lake.raw.signups SET account_id = 'a' WHERE account_id IS NULL"


def verdict(name: str, *numbers: int, blocking: bool = True, told: bool = True) -> AuditResult:
    hours = {hour_key(START + n): 1 for n in numbers}
    return AuditResult(name, not numbers, blocking, {"bad": len(numbers)}, hours=hours if told else {})


def at(*numbers: int) -> tuple[int, ...]:
    return tuple(START + n for n in numbers)


def numbers(hours: Iterable[int]) -> list[int]:
    return sorted(h - START for h in hours)


def held(report: SessionReport) -> dict[int, str]:
    return {h.hour - START: h.why for h in report.held}


def bad(number: int, hour: int) -> dict[str, object]:
    return signup(number, hour, account_id=None)


def land(lake: Lake, *rows: dict[str, object], through: int) -> None:
    lake.append("raw.signups", rows)
    for raw in ("raw.signups", "raw.plan_changes", "raw.cancel_requests", "raw.cancels"):
        lake.complete(raw, START + through)


def hour_of_rows(lake: Lake) -> list[tuple[int, str]]:
    return sorted((r["signed_up_at"].hour, r["signup_id"]) for r in lake.rows(TABLE)[TABLE])


def test_what_can_be_told_is_held_and_the_rest_is_judged_anew() -> None:
    audits = [verdict("x", 2, 3), verdict("y", 3), verdict("whole", 1, told=False), verdict("warns", 4, blocking=False)]
    assert failed_hours(audits) == {START + 2: "audit x: 1 bad", START + 3: "audit x: 1 bad; audit y: 1 bad"}
    assert hours_to_hold(Stateless(), audits, at(1, 2, 3), ()) == at(2, 3)
    assert hours_to_hold(Stateful(), audits, at(2, 3), ()) == ()  # none would be left
    assert hours_to_hold(Stateful(), audits, at(2, 3), at(2, 3)) == at(2, 3)
    assert hours_to_hold(Stateless(), audits, at(1, 2), ()) == ()  # of an hour that nobody has judged
    assert hours_to_hold(Sequential(), audits, at(1, 2, 3), ()) == ()
    again = [verdict(name) for name in ("x", "y", "whole", "warns")]
    assert [a.passed for a in settled(audits, again)] == [False, False, True, True]


@given(st.integers(0, 9), st.frozensets(st.integers(0, 9)), st.none() | st.integers(0, 9))
def test_no_held_hour_is_called_complete_unless_it_was(through: int, found: frozenset[int], before: int | None) -> None:
    promised = capped(through, found, before)
    assert promised is not None
    assert promised <= through
    assert all(h > promised for h in found if before is None or h > before)
    assert promised == through or promised + 1 in found


@given(st.dictionaries(st.sampled_from(["x", "y", "xy", "audit x"]), st.frozensets(st.integers(1, 5), min_size=1)))
def test_an_audit_holds_the_hours_that_it_fails_in(failing: dict[str, frozenset[int]]) -> None:
    audits = [verdict(name, *sorted(hours)) for name, hours in failing.items()]
    found = [HeldHour(hour, why, "s") for hour, why in failed_hours(audits).items()]
    for name in ("x", "y", "xy", "audit x"):
        expected = [START + n for n in sorted(failing.get(name, ()))]
        assert [each.hour for each in held_by_audit(found, name)] == expected


def test_held_hours_in_words_stay_short() -> None:
    alike = [HeldHour(h, "audit x: 1 bad", "s") for h in at(*range(24))]
    assert verdicts_in_words(alike[:1]) == "hour 2026-01-01-00:00 is held back by audit x: 1 bad"
    assert verdicts_in_words(alike) == "hours 2026-01-01-00:00..2026-01-01-23:00 are held back by audit x: 1 bad"
    assert verdicts_in_words(alike, DAY) == "day 2026-01-01 is held back by audit x: 1 bad"
    many = [HeldHour(h, f"audit x: {h} bad", "s") for h in at(*range(5))]
    assert verdicts_in_words(many).endswith(
        f"hour 2026-01-01-02:00 is held back by audit x: {START + 2} bad; and 2 hours more"
    )


def test_a_bad_hour_fails_the_partition_that_it_lies_in() -> None:
    two_days = range(START, START + 48)
    assert reported_hours({START + 2: 1, START + 3: 2}, two_days, HOUR) == {
        hour_key(START + 2): 1,
        hour_key(START + 3): 2,
    }
    assert reported_hours({START + 2: 1, START + 3: 2}, two_days, DAY) == {hour_key(START + n): 3 for n in range(24)}
    assert reported_hours({START + 2: 1, None: 2}, two_days, DAY) == {}
    assert reported_hours({None: 2}, two_days[:24], DAY) == {hour_key(START + n): 2 for n in range(24)}
    assert reported_hours(dict.fromkeys(two_days, 1), two_days, HOUR).keys() == {hour_key(h) for h in two_days}
    assert reported_hours(dict.fromkeys(range(START, START + 101), 1), range(START, START + 101), HOUR) == {}


def test_a_bad_hour_is_held_back_until_it_is_repaired_and_caps_complete_through(
    catalog: Catalog, spark: SparkSession
) -> None:
    lake = Lake(catalog, spark)
    land(lake, signup(1, 1), bad(1, 2), signup(2, 2), signup(1, 3), through=3)
    reports = {r.plan.process: r for r in lake.catch_up()}
    first = reports[TABLE]
    assert (first.status, numbers(first.hours_built), held(first)) == ("committed", [1, 3], {2: NULLS})
    assert [h for h, _ in hour_of_rows(lake)] == [1, 3]
    assert (lake.complete_through(TABLE), lake.complete_through("core.account_state_dim")) == (1, 1)
    assert len(lake.published(TABLE)) == 1
    waiting = lake.run("signup_fact")
    assert isinstance(waiting, NoSession)
    assert f"hour {hour_key(START + 2)} is held back by {NULLS}" in waiting.reason

    # New hours go on; what comes for the held one is not put on top of it, but has it tried again, alone.
    land(lake, signup(3, 2), signup(1, 4), through=4)
    new, again = lake.catch_up("signup_fact")
    assert (new.plan.load, numbers(new.hours_built), held(new)) == ("append", [4], {})
    assert (again.plan.load, again.hours_built, held(again)) == ("overwrite", (), {2: NULLS})
    assert isinstance(lake.run("signup_fact"), NoSession)
    assert [h for h, _ in hour_of_rows(lake)] == [1, 3, 4]

    spark.sql(MEND)
    alone = lake.session("signup_fact")
    assert (numbers(alone.hours_built), numbers(alone.released), alone.held) == ([2], [2], ())
    assert alone.plan.reason.endswith(f"was held back by {NULLS}")
    dimension = lake.catch_up()[-1]
    assert numbers(dimension.hours_built) == [2, 3, 4]
    assert lake.complete_through(TABLE) == 4
    assert lake.state(TABLE).committed.held == ()
    lake.assert_true()
    assert [r.held for r in lake.history(TABLE)] == [first.held, (), again.held, ()]


def test_an_hour_built_before_keeps_its_rows_and_caps_nothing(catalog: Catalog, spark: SparkSession) -> None:
    lake = Lake(catalog, spark)
    land(lake, signup(1, 1), signup(1, 2), through=2)
    lake.catch_up("signup_fact")
    land(lake, bad(2, 2), {**signup(3, 3), "signup_id": None}, signup(1, 3), through=3)
    report = lake.session("signup_fact")
    assert (numbers(report.hours_built), held(report), report.rows_quarantined) == ([3], {2: NULLS}, 1)
    assert hour_of_rows(lake) == [(1, "s01-1"), (2, "s01-2"), (3, "s01-3")]
    assert lake.complete_through(TABLE) == 3

    refused = lake.engine.rebuild(lake.target("signup_fact"), [START + 2])
    assert isinstance(refused, SessionReport)
    assert (refused.hours_built, held(refused)) == ((), {2: NULLS})
    assert isinstance(lake.run("signup_fact"), NoSession)

    def mending(session: SessionContext, signups: DataFrame) -> DataFrame:
        rows = PIPELINE.target("signup_fact").transform(session, signups)
        return rows.withColumn("account_id", F.coalesce("account_id", F.lit("unknown")))

    mended = replace(lake.target("signup_fact"), transform=mending, code_version="2")
    lake.engine = lake.engine_of(with_target(PIPELINE, mended))
    alone = lake.engine.run(mended)
    assert isinstance(alone, SessionReport)
    assert (numbers(alone.hours_built), alone.held) == ([2], ())
    assert hour_of_rows(lake) == [(1, "s01-1"), (2, "s01-2"), (2, "s02-2"), (3, "s01-3")]
    assert len(lake.quarantined(TABLE)) == 1


def test_an_audit_that_cannot_tell_hours_stops_the_whole_session(catalog: Catalog, spark: SparkSession) -> None:
    def lost(columns: str) -> Target:
        audit = sql("lost", f"select {columns} from {{staged}} where account_id is null")
        return replace(PIPELINE.target("signup_fact"), audits=(audit, unique_key()), code_version=columns)

    lake = Lake(catalog, spark)
    land(lake, signup(1, 1), bad(1, 2), signup(1, 3), through=3)
    for target in (lost("signup_id"), lost("signup_id, signed_up_at")):
        lake.engine = lake.engine_of(with_target(PIPELINE, target))
        if target.code_version == "signup_id":
            with pytest.raises(AuditFailed, match="lost: 1 offending"):
                lake.engine.run(target)
            assert hour_of_rows(lake) == []
        else:
            report = lake.engine.run(target)
            assert isinstance(report, SessionReport)
            assert held(report) == {2: "audit lost: 1 offending"}


def test_an_audit_that_only_counts_judges_what_is_left(catalog: Catalog, spark: SparkSession) -> None:
    fact = PIPELINE.target("signup_fact")

    def losing(session: SessionContext, signups: DataFrame) -> DataFrame:
        """Hour 2 comes to nothing."""
        return fact.transform(session, signups).where(F.hour("signed_up_at") != 2)

    loses = replace(fact, transform=losing, audits=(source_target_counts(), no_missing_events()))
    lake = Lake(catalog, spark, with_target(PIPELINE, loses))
    land(lake, signup(1, 1), signup(1, 2), signup(1, 3), through=3)
    report = lake.session("signup_fact")
    assert (numbers(report.hours_built), held(report)) == ([1, 3], {2: "audit no_missing_events: 1 missing"})
    assert [a.name for a in report.audits if not a.passed] == ["no_missing_events"]


def test_a_stateful_overwrite_is_published_without_its_bad_hour(catalog: Catalog, spark: SparkSession) -> None:
    near = replace(PIPELINE.target("cancel_fact"), audits=(not_null("account_id"),))
    lake = Lake(catalog, spark, with_target(PIPELINE, near))
    lake.append("raw.cancel_requests", [raw_row("raw.cancel_requests", 30, 1)])
    rows = [cancel(1, 1), {**cancel(1, 2), "account_id": None}, cancel(10, 2), cancel(20, 3)]
    lake.append("raw.cancels", rows)
    for raw in ("raw.cancel_requests", "raw.cancels"):
        lake.complete(raw, START + 3)
    report = lake.catch_up("cancel_request_fact", "cancel_fact")[-1]
    assert (report.plan.load, numbers(report.hours_built), held(report)) == ("overwrite", [1, 3], {2: NULLS})
    assert lake.complete_through("core.cancel_fact") == 1
    # The request led to the cancel of the held hour: that of the next one comes after it, here as in the source.
    found = {r["canceled_at"].hour: r["churn_type"] for r in lake.rows("core.cancel_fact")["core.cancel_fact"]}
    assert found == {1: "involuntary", 3: "involuntary"}
    spark.sql(MEND.replace("signups", "cancels"))
    lake.catch_up("cancel_fact")
    assert lake.complete_through("core.cancel_fact") == 3
    lake.assert_true("cancel_fact")
    lake.engine.rebuild(near, at(1, 3))  # the hour in the gap counts, too
    lake.assert_true("cancel_fact")


def cancel(number: int, hour: int) -> dict[str, object]:
    return raw_row("raw.cancels", number, hour)


@pytest.mark.journey
def test_a_session_that_holds_an_hour_back_survives_crashes(
    catalog: Catalog, spark: SparkSession, home: Settings
) -> None:
    lake = Lake(catalog, spark)
    land(lake, signup(1, 1), bad(1, 2), signup(1, 3), through=3)
    die(home, "signup_fact", "before-committed")
    assert hour_of_rows(lake) == []
    die(home, "signup_fact", "after-committed")
    assert (hour_of_rows(lake), lake.complete_through(TABLE)) == ([(1, "s01-1"), (3, "s01-3")], 1)
    waits = lake.run("signup_fact")
    assert isinstance(waits, NoSession)
    assert f"is held back by {NULLS}" in waits.reason
    assert [(each.state, numbers(each.built)) for each in lake.history("signup_fact")] == [("committed", [1, 3])]
    assert len(lake.published(TABLE)) == 1
    spark.sql(MEND)
    lake.catch_up("signup_fact")
    lake.assert_true("signup_fact")
    assert lake.complete_through(TABLE) == 3


@pytest.mark.journey
def test_g2_dagster_shows_the_bad_hour_red_the_others_built_and_the_run_failed(
    catalog: Catalog, spark: SparkSession
) -> None:
    lake = Lake(catalog, spark)
    land(lake, signup(1, 1), bad(1, 2), signup(1, 3), through=3)
    check = dg.AssetCheckKey(dg.AssetKey(TABLE.split(".")), "not_null_account_id")
    with in_process_daemon(PIPELINE, catalog, utc_now, end=hour_key(START + 20), spark=spark) as daemon:

        def shown() -> dict[str | None, str]:
            """Partition of an evaluation (None: of the run as a whole) → its newest status."""
            found = daemon.instance.event_log_storage.get_asset_check_execution_history(check, limit=50)
            return {r.partition: r.status.value for r in reversed(found) if r.status.value != "PLANNED"}

        request = (daemon.tick("signup_fact_sensor").run_requests or [])[0]
        result = daemon.execute(TABLE, tags=dict(request.tags))
        assert not result.success
        assert daemon.hours_marked(result) == daemon.hours_of(TABLE) == [1, 3]
        assert shown() == {hour_key(START + 2): "FAILED", None: "FAILED"}
        told = daemon.tick("signup_fact_sensor")
        assert not told.run_requests
        assert f"is held back by {NULLS}" in (told.skip_message or "")

        land(lake, signup(3, 2), through=3)
        assert daemon.catch_up()["signup_fact"] == [[]]  # tried again, and held again
        assert shown() == {hour_key(START + 2): "FAILED", None: "FAILED"}

        spark.sql(MEND)
        assert daemon.catch_up()["signup_fact"] == [[2]]
        assert shown() == {hour_key(START + 2): "SUCCEEDED", None: "SUCCEEDED"}
