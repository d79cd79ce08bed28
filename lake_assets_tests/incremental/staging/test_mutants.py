"""A fault in how sessions read, filter, join or write is stopped by an audit, because the audits read for themselves.

A mutant is a production function with one fault, put in its place. The session that it disturbs is staged and audited
on one lake, and not published, so that every mutant meets the same state.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from lake_assets.base.columns import DELIVERY
from lake_assets.base.hours import hour_start
from lake_assets.connections.row_checkpoint import release_checkpoints
from lake_assets.errors import AuditFailed, SourceError
from lake_assets.incremental.engine.model import SessionPlan, SessionReport
from lake_assets.incremental.engine.readable import LeastRows
from lake_assets.incremental.engine.session import Session, failures
from lake_assets_tests.incremental.scenario import START, Lake, raw_row, signup

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

ENGINE = "lake_assets.incremental.engine"
TIMES = "lake_assets.base.time_filters"
JOIN = "lake_assets.membership.cancel_fact"
COUNTS, MISSING = "source_target_counts", "no_missing_events"

Change = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True)
class Mutant:
    """A fault: a function of a module, by name, and what stands in its place, made from the function itself.

    caught_by: blocking audits that must fail, among others.
    """

    name: str
    module: str
    function: str
    mutate: Callable[[Any], Any]
    caught_by: set[str]


def changed(change: Change) -> Callable[[Any], Any]:
    return lambda original: lambda *args, **kwargs: change(original(*args, **kwargs))


def of_cancels(change: Change) -> Callable[[Any], Any]:
    """A reader that has a fault in raw.cancels alone."""

    def mutate(original: Any) -> Any:
        def read(spark: SparkSession, catalog: Catalog, table: str, snapshot_id: int | None) -> DataFrame:
            rows: DataFrame = original(spark, catalog, table, snapshot_id)
            return change(rows) if table == "raw.cancels" else rows

        return read

    return mutate


def writes(change: Change) -> Callable[[Any], Any]:
    """A writer that writes other rows than it is given."""

    def mutate(original: Any) -> Any:
        def write(prepared: Any, *named: object) -> None:
            original(replace(prepared, rows=change(prepared.rows)), *named)

        return write

    return mutate


def keeps_none_of_repeated(original: Any) -> Any:
    def delivered(rows: DataFrame, source: Any, columns: Any) -> DataFrame:
        found: DataFrame = original(rows, source, columns)
        deliveries = F.count("*").over(Window.partitionBy(source.key, source.time_column))
        return found.withColumn(DELIVERY, F.when(deliveries > 1, 2).otherwise(1))

    return delivered


def takes_all_for_stored(original: Any) -> Any:
    def compared(*args: Any, **kwargs: Any) -> DataFrame:
        rows: DataFrame = original(*args, **kwargs)
        return rows.withColumn(DELIVERY, F.lit(2))

    return compared


def rejects(condition: str) -> Callable[[Any], Any]:
    def mutate(original: Any) -> Any:
        def reason(*args: Any, **kwargs: Any) -> Column:
            return F.when(F.expr(condition), "mutant").otherwise(original(*args, **kwargs))

        return reason

    return mutate


def leaves_out_first_moment(_: Any) -> Any:
    def hours_condition(time_column: str, hours: Any) -> Column:
        time = F.col(time_column)
        return (time > hour(min(hours))) & (time < hour(max(hours) + 1))

    return hours_condition


def takes_in_next_moment(_: Any) -> Any:
    def hours_condition(time_column: str, hours: Any) -> Column:
        time = F.col(time_column)
        return (time >= hour(min(hours))) & (time <= hour(max(hours) + 1))

    return hours_condition


def ends_too_early(original: Any) -> Any:
    return lambda rows, time_column, hour: original(rows, time_column, hour - 1)


def hour(number: int) -> Column:
    return F.lit(hour_start(number))


def at(column: str, first: int, last: int) -> str:
    return f"hour({column}) between {first} and {last}"


def lost(condition: str) -> Change:
    return lambda rows: rows.where(f"not ({condition})")


def twice(condition: str) -> Change:
    return lambda rows: rows.unionByName(rows.where(condition))


APPENDED = [
    Mutant("reader drops a row", "stage", "read_appended", changed(lost("signup_id = 's01-3'")), {COUNTS, MISSING}),
    Mutant("reader drops a file", "stage", "read_appended", changed(lost(at("event_ts", 6, 6))), {COUNTS, MISSING}),
    Mutant("reader drops an hour", "stage", "read_appended", changed(lost(at("event_ts", 4, 4))), {COUNTS, MISSING}),
    Mutant("reader drops all", "stage", "read_appended", changed(lost("true")), {COUNTS, MISSING}),
    Mutant("reader repeats a row", "stage", "read_appended", changed(twice("signup_id = 's01-3'")), {COUNTS}),
    Mutant("writer drops a row", "stage", "write", writes(lost("signup_id = 's01-3'")), {COUNTS, MISSING}),
    Mutant("writer repeats", "stage", "write", writes(twice("signup_id = 's01-3'")), {COUNTS, "unique_key"}),
    Mutant("dedupe keeps none", "stage", "_with_delivery", keeps_none_of_repeated, {MISSING}),
    Mutant("all taken for stored", "stage", "classify_against_earlier", takes_all_for_stored, {MISSING}),
    Mutant("rule rejects too much", "stage", "_reason", rejects(at("event_ts", 4, 6)), {MISSING}),
]
"""Of a session of signup_fact, which appends."""

REBUILT = [
    Mutant("reader drops a row", "stage", "read_at", of_cancels(lost("cancel_id = 's30-6'")), {COUNTS, MISSING}),
    Mutant("reader drops an hour", "stage", "read_at", of_cancels(lost(at("processing_ts", 5, 5))), {COUNTS, MISSING}),
    Mutant("reader repeats", "stage", "read_at", of_cancels(twice("cancel_id = 's30-6'")), {COUNTS}),
    Mutant("filter leaves out a moment", TIMES, "hours_condition", leaves_out_first_moment, {COUNTS, MISSING}),
    Mutant("filter takes in a moment", TIMES, "hours_condition", takes_in_next_moment, {COUNTS}),
    Mutant("filter ends too early", TIMES, "before", ends_too_early, {COUNTS, MISSING}),
    Mutant("dedupe keeps none", "stage", "_with_delivery", keeps_none_of_repeated, {MISSING}),
    Mutant("join loses rows", JOIN, "_with_request", changed(lost("churn_type = 'involuntary'")), {COUNTS, MISSING}),
    Mutant("writer drops a row", "stage", "write", writes(lost("cancel_id = 's30-6'")), {COUNTS, MISSING}),
]
"""Of a session of cancel_fact, which overwrites hours 5 to 7 and joins cancels with requests."""


def apply(mutant: Mutant, patch: pytest.MonkeyPatch) -> None:
    """Put the mutant wherever production code has the function; the audits' own reads have none of these."""
    module = mutant.module if "." in mutant.module else f"{ENGINE}.{mutant.module}"
    original = getattr(sys.modules[module], mutant.function)
    mutated = mutant.mutate(original)
    for name, found in list(sys.modules.items()):
        if name.startswith("lake_assets.") and vars(found).get(mutant.function) is original:
            patch.setattr(found, mutant.function, mutated)


def blocking_failures(lake: Lake, name: str) -> set[str]:
    """Stage and audit the next session of a target. Nothing is recorded or published."""
    target = lake.target(name)
    plan = lake.engine.decide(target)
    assert isinstance(plan, SessionPlan)
    attempt = Session(lake.engine, target, lake.engine.state(target), plan, run_id="")
    try:
        return set(failures(attempt.audited(attempt.staged()).audits))
    finally:
        release_checkpoints(lake.spark)


def uncaught(lake: Lake, name: str, mutants: list[Mutant]) -> Iterator[tuple[str, set[str]]]:
    """Mutants that not all the audits stop that should; and the audits that do."""
    for mutant in mutants:
        with pytest.MonkeyPatch.context() as patch:
            apply(mutant, patch)
            # Else most faults of readers come no further.
            patch.setattr(LeastRows, "check", lambda *args, **counts: None)
            failed = blocking_failures(lake, name)
        if not failed >= mutant.caught_by:
            yield mutant.name, failed


def assert_stopped_before_staging(lake: Lake, name: str, mutants: list[Mutant]) -> None:
    """The metadata of a source tell how many rows a reader has lost."""
    readers = [mutant for mutant in mutants if mutant.name.startswith("reader drops")]
    assert readers
    for mutant in readers:
        with pytest.MonkeyPatch.context() as patch:
            apply(mutant, patch)
            with pytest.raises(SourceError, match="of at least"):
                blocking_failures(lake, name)


def test_a_fault_in_an_append_is_stopped(catalog: Catalog, spark: SparkSession) -> None:
    lake = Lake(catalog, spark)
    lake.append("raw.signups", [signup(1, 2)])
    lake.session("signup_fact")
    late = hour_start(START + 9)
    lake.append("raw.signups", [signup(1, 2, landed_at=late), signup(1, 3), signup(0, 4), signup(0, 4, landed_at=late)])
    lake.append("raw.signups", [signup(2, 6), signup(3, 6, plan="gold")])
    assert list(uncaught(lake, "signup_fact", APPENDED)) == []
    assert_stopped_before_staging(lake, "signup_fact", APPENDED)

    with pytest.MonkeyPatch.context() as patch:
        apply(APPENDED[3], patch)
        with pytest.raises(SourceError, match=r"reads 0 of at least 6 rows of raw\.signups"):
            lake.run("signup_fact")
        patch.setattr(LeastRows, "check", lambda *args, **counts: None)
        with pytest.raises(AuditFailed, match="6 in source, 0 read"):
            lake.run("signup_fact")
    report = lake.engine.run(lake.target("signup_fact"), again=True)
    assert isinstance(report, SessionReport)
    lake.assert_true("signup_fact")
    assert [audit.name for audit in report.audits if not audit.passed] == ["quarantine"]


@pytest.mark.faults
def test_a_fault_in_an_overwrite_is_stopped(catalog: Catalog, spark: SparkSession) -> None:
    lake = Lake(catalog, spark)
    lake.append("raw.cancel_requests", [raw_row("raw.cancel_requests", 10, 5)])
    late = hour_start(START + 9)
    cancels = [(0, 5, "a"), (0, 6, "b"), (30, 6, "c"), (40, 7, "d"), (0, 8, "e")]
    rows = [raw_row("raw.cancels", minute, hour, account_id=account) for minute, hour, account in cancels]
    lake.append("raw.cancels", [*rows, {**rows[3], "landed_at": late}, {**rows[0], "processing_ts": None}])
    for table in ("raw.cancels", "raw.cancel_requests"):
        lake.complete(table, START + 7)
    lake.catch_up("cancel_request_fact")
    assert list(uncaught(lake, "cancel_fact", REBUILT)) == []
    assert_stopped_before_staging(lake, "cancel_fact", REBUILT)

    report = lake.session("cancel_fact")
    lake.assert_true("cancel_fact")
    assert [audit.name for audit in report.audits if not audit.passed] == ["referential_account_id", "quarantine"]
