"""A mistake in a target's function, or in an audit, is two lines that name it. All cases share one Spark session."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from lake_assets.errors import ConfigurationError, LakeError
from lake_assets.incremental.declaration import SessionContext, Source, Stateless, Target, incremental_asset
from lake_assets.incremental.declaration.model import Audit, AuditScope, Offenders
from lake_assets.incremental.engine import audits
from lake_assets.incremental.engine.audit_run import evaluate
from lake_assets.incremental.engine.user_code import NondeterministicFunction, call_function

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CONTEXT = SessionContext("s", (0,), None)
HERE = "lake_assets_tests/incremental/user_code/test_call_function.py"
ADVICE = "Compute the column from the rows of the source: otherwise a rebuilt hour never equals the published one."


def target(transform: Callable[..., Any], *declared: Audit) -> Target:
    return incremental_asset(
        mode=Stateless(),
        sources=[Source("raw.obs", time_column="seen_at")],
        key="obs_id",
        time_column="seen_at",
        columns={"obs_id": "string", "temp": "long", "seen_at": "timestamptz"},
        audits=declared,
    )(transform)


def misspelled(_: SessionContext, obs: DataFrame) -> DataFrame:
    return obs.select("obs_id", F.col("tmep") * 2, "seen_at")


def misspelled_in_sql(_: SessionContext, obs: DataFrame) -> DataFrame:
    return obs.selectExpr("obs_id", "2 * tmep AS temp", "seen_at")


def misspelled_attribute(_: SessionContext, obs: DataFrame) -> DataFrame:
    return obs.select("obs_id", obs.tmep, "seen_at")


def raising(_: SessionContext, obs: DataFrame) -> DataFrame:
    return obs.limit(int("ten\nrows"))


def returning_nothing(_: SessionContext, obs: DataFrame) -> None:
    obs.select("obs_id", "temp", "seen_at")


def returning_rows(_: SessionContext, obs: DataFrame) -> Any:
    return obs.take(1)


def without_a_column(_: SessionContext, obs: DataFrame) -> DataFrame:
    return obs.select("obs_id", F.col("temp").alias("celsius"), "seen_at")


def with_a_column_twice(_: SessionContext, obs: DataFrame) -> DataFrame:
    return obs.select("*", "temp")


def wrong_type(_: SessionContext, obs: DataFrame) -> DataFrame:
    return obs.select("obs_id", (F.col("seen_at") + F.col("seen_at")).alias("temp"), "seen_at")


def line(function: Callable[..., Any], offset: int = 0) -> str:
    return f"{HERE}:{function.__code__.co_firstlineno + offset}"


MISTAKES: dict[Callable[..., Any], tuple[str, str]] = {
    misspelled: (
        f"at {line(misspelled, 1)}, the column 'tmep' does not exist.",
        "Did you mean 'temp'? There are also: obs_id, seen_at.",
    ),
    misspelled_in_sql: (
        f"at {line(misspelled_in_sql)}, the column 'tmep' does not exist in the SQL, line 1: 2 * tmep AS temp.",
        "Did you mean 'temp'? There are also: obs_id, seen_at.",
    ),
    misspelled_attribute: (
        f"at {line(misspelled_attribute, 1)}, the DataFrame has no column 'tmep'.",
        "Use a column that its source has.",
    ),
    raising: (
        f"at {line(raising, 1)}, the function raised ValueError: invalid literal for int() with base 10: 'ten\\nrows'.",
        "Correct the function, then run the command again.",
    ),
    returning_nothing: (
        f"at {line(returning_nothing)}, the function returns None and no DataFrame.",
        "Add `return` before the DataFrame.",
    ),
    returning_rows: (
        f"at {line(returning_rows)}, the function returns a value of class list and no DataFrame.",
        "Return a DataFrame.",
    ),
    without_a_column: (
        f"at {line(without_a_column)}, the DataFrame that it returns has no column 'temp'.",
        "Select it, or remove it from columns= of the target. The DataFrame has: obs_id, celsius, seen_at.",
    ),
    with_a_column_twice: (
        f"at {line(with_a_column_twice)}, the DataFrame that it returns has more than one column 'temp'.",
        "Drop the others, or give them another name.",
    ),
}


def rand_in_python(_: SessionContext, obs: DataFrame) -> DataFrame:
    return obs.withColumn("temp", (F.rand() * 9).cast("long")).where("seen_at < current_timestamp")


def uuid_in_sql(_: SessionContext, obs: DataFrame) -> DataFrame:
    return obs.sparkSession.sql("select uuid() as obs_id, temp, seen_at from {obs} -- not now()", obs=obs)


def deterministic(_: SessionContext, obs: DataFrame) -> DataFrame:
    named = obs.where("obs_id <> 'rand()'").withColumn("temp", F.unix_timestamp("seen_at"))
    return named.select("obs_id", "temp", "seen_at").distinct()


WARNINGS: dict[Callable[..., Any], str] = {
    rand_in_python: "current_timestamp(), rand()",
    uuid_in_sql: "uuid()",
    deterministic: "",
}


def broken(_: AuditScope) -> Any:
    known: dict[str, object] = {}
    return known["no such key"]


def lazily_broken(scope: AuditScope) -> Offenders:
    return Offenders(scope.staged.select(F.col("obs").alias("k"), F.lit(0).alias("h")), "rows")


AUDITS: dict[str, tuple[Audit, str, str]] = {
    "SQL": (
        audits.sql("too_cold", "select obs_id from {staged} where tmep < -90"),
        "the column 'tmep' does not exist in the SQL, line 1: … where tmep < -90.",
        "Did you mean 'temp'? There are also: obs_id, seen_at.",
    ),
    "an error": (
        Audit("broken", broken, ""),
        "its function raised KeyError: 'no such key'.",
        "Correct the audit, then run the command again.",
    ),
    "a column": (
        Audit("lazy", lazily_broken, ""),
        "the column 'obs' does not exist.",
        "Did you mean 'obs_id'? There are also: temp, seen_at.",
    ),
}


def test_a_mistake_names_the_target_the_function_and_its_line(spark: SparkSession) -> None:
    obs = spark.sql("select 'a' as obs_id, 1L as temp, timestamp'2026-01-01 00:05:00' as seen_at")
    for function, (problem, remedy) in MISTAKES.items():
        with pytest.raises(LakeError) as failed:
            call_function(target(function), CONTEXT, [obs])
        name = function.__name__
        assert str(failed.value).splitlines() == [f"core.{name}: in {name}() {problem}", f"  → {remedy}"]
    with pytest.raises(LakeError, match=r"core\.wrong_type: in wrong_type\(\).*Spark refuses the query: Cannot"):
        call_function(target(wrong_type), CONTEXT, [obs])

    for function, functions in WARNINGS.items():
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            rows = call_function(target(function), CONTEXT, [obs])
        assert rows.columns == ["obs_id", "temp", "seen_at"]
        told = [str(each.message) for each in found if each.category is NondeterministicFunction]
        name = function.__name__
        expected = f"core.{name}: its function {name}() at {line(function)} calls {functions}, whose value changes"
        assert told == ([f"{expected} with every run.\n  → {ADVICE}"] if functions else [])

    for audit, problem, remedy in AUDITS.values():
        declared = target(deterministic, audits.not_null("temp"), audit)
        scope = scope_of(declared, obs)
        with pytest.raises(LakeError) as stopped:
            evaluate(declared.audits, scope)
        first, second = str(stopped.value).splitlines()
        assert first == f"core.deterministic: in the audit {audit.name}, {problem}"
        assert second == f"  → {remedy}"


def test_an_error_of_the_project_stays_as_it_is() -> None:
    def click_fact(_: SessionContext, obs: DataFrame) -> DataFrame:
        raise ConfigurationError("No place is known.", remedy="Set PLACE.")

    unread: Any = None
    with pytest.raises(ConfigurationError, match="No place is known"):
        call_function(target(click_fact), CONTEXT, [unread])


def scope_of(declared: Target, rows: DataFrame) -> AuditScope:
    fields: dict[str, Any] = dict.fromkeys(AuditScope.__dataclass_fields__)
    fields |= {"target": declared, "hours": (0,), "staged": rows, "kept": rows, "counts": {}, "few": False}
    return AuditScope(**fields)
