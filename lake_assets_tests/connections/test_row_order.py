"""What depends on the order of rows is found in texts of SQL, and in plans of Spark Connect and of this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql import Window
from pyspark.sql import functions as F

from lake_assets.connections.query_plans import REMEDY, order_dependent, order_dependent_in_sql, sums_of_floats

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TEXTS = {
    "SELECT k, first(v) AS v FROM t GROUP BY k": {"first"},
    "SELECT k, FIRST_VALUE ( v ) FROM t GROUP BY k": {"first_value"},
    "SELECT any_value(v), max_by(v, at), min(first_seen) FROM t": {"any_value"},
    "SELECT first(v) OVER (PARTITION BY k ORDER BY at) FROM t": set(),
    "SELECT last(v) IGNORE NULLS OVER (PARTITION BY k) FROM t": {"last"},
    "SELECT collect_list(v) FROM t": {"collect_list"},
    "SELECT sort_array(collect_list(v)), array_sort( collect_set(w) ) FROM t": set(),
    "SELECT array_agg(struct(v, max(w))) FROM t": {"array_agg"},
    "SELECT listagg(v, ', ') FROM t": {"listagg"},
    "SELECT listagg(v, ', ') WITHIN GROUP (ORDER BY v) FROM t": set(),
    "SELECT row_number() OVER (PARTITION BY k ORDER BY at) FROM t": {"row_number"},
    "SELECT row_number() OVER (PARTITION BY k ORDER BY at, abs(x), visit_id DESC) FROM t": set(),
    "SELECT row_number() OVER (PARTITION BY visit_id ORDER BY at) FROM t": {"row_number"},
    "SELECT * FROM t LIMIT 10": {"limit"},
    "SELECT * FROM t ORDER BY at LIMIT 10": set(),
    "SELECT 'first(v)' AS x -- last(v)\nFROM t /* collect_list(v) */": set(),
    "SELECT monotonically_increasing_id() FROM t": {"monotonically_increasing_id"},
    # As a session in this process shows an analysed plan.
    "Window [row_number() windowspecdefinition(k#1, at#2 ASC NULLS FIRST, visit_id#3 ASC NULLS FIRST, frame)]": set(),
    "Window [row_number() windowspecdefinition(k#1, at#2 ASC NULLS FIRST, specifiedwindowframe(RowFrame))]": {
        "row_number"
    },
    "Aggregate [k#1], [k#1, first(v#2, false) AS v#3]": {"first"},
}


@pytest.mark.parametrize("text", TEXTS)
def test_of_a_text(text: str) -> None:
    found = order_dependent_in_sql(text, {"visit_id"})
    assert found == TEXTS[text]
    assert found <= REMEDY.keys()


def test_sums_are_found_by_their_names() -> None:
    assert sums_of_floats("SELECT k, SUM (x) FROM t")
    assert sums_of_floats("SELECT stddev_pop(x)")
    assert not sums_of_floats("SELECT 'sum(x)', max(summary), min(average) -- avg(x)")


def test_of_a_data_frame_without_what_its_inputs_do(spark: SparkSession) -> None:
    visits = spark.sql("SELECT 'a' AS visit_id, 'k' AS k, 1 AS at, 2.5D AS v")
    by_time = Window.partitionBy("k").orderBy("at")
    numbered = visits.withColumn("n", F.row_number().over(by_time)).where("n = 1").drop("n")
    exact = F.row_number().over(Window.partitionBy("k").orderBy("at", F.desc("visit_id")))
    cases = {
        "row_number": numbered,
        "first": visits.groupBy("k").agg(F.first("v")),
        "collect_list": visits.groupBy("k").agg(F.array_join(F.transform(F.collect_list("k"), F.upper), ",")),
        "dropDuplicates": visits.dropDuplicates(["k"]),
        "limit": visits.limit(3),
        "any_value": visits.groupBy("k").agg(F.expr("any_value(v)")),
    }
    for name, rows in cases.items():
        assert order_dependent(rows, [visits], {"visit_id"}) == (name,)
        assert order_dependent(rows.where("true"), [rows], {"visit_id"}) == (), f"the input itself calls {name}"
    for rows in (
        visits.withColumn("n", exact),
        visits.distinct(),
        visits.orderBy("at").limit(1),
        visits.groupBy("k").agg(F.sort_array(F.collect_list("v")), F.max_by("v", "at"), F.sum("v")),
        visits.withColumn("before", F.first("v").over(by_time)),
    ):
        assert order_dependent(rows, [visits], {"visit_id"}) == ()
