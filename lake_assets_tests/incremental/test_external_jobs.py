"""A job of any language builds a target: plan, audits and watermark are the engine's, the rows are its own."""

from __future__ import annotations

import json
import os
import subprocess
from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from lake_assets.base.hours import hour_key, hour_start
from lake_assets.base.time_filters import hours_condition, within
from lake_assets.connections.spark import jvm_conf, spark_conf, spark_environment, spark_home
from lake_assets.demo.membership_simulator import worked_example
from lake_assets.errors import AuditFailed, LakeError, PublishConflict, UsageError
from lake_assets.incremental.declaration import SessionContext
from lake_assets.incremental.engine.model import NoSession, OpenedSession
from lake_assets.incremental.engine.undeclared import Named, find_target, remember
from lake_assets.membership import PIPELINE
from lake_assets.membership.raw import RAW
from lake_assets_tests.doors.lake_door import LakeDoor
from lake_assets_tests.incremental.scenario import START, Lake, raw_row, signup
from lake_assets_tests.membership.in_memory import ARROW, COLUMNS, in_order
from lake_assets_tests.membership.oracle import expected

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

    from lake_assets.settings import Settings

SIGNUP_COLUMNS = "signup_id, account_id, plan, monthly_price, event_ts, landed_at"
INSERT = f"INSERT INTO lake.core.signup_fact SELECT {SIGNUP_COLUMNS} FROM lake.raw.signups VERSION AS OF {{to}}"


def insert(how: str, where: str, *, replacing: str = "") -> str:
    """A statement that writes raw signups. how: INTO or OVERWRITE. replacing: the rows of the target that go."""
    replace = f"REPLACE WHERE {replacing}" if replacing else ""
    return f"INSERT {how} lake.core.signup_fact {replace} SELECT {SIGNUP_COLUMNS} FROM lake.raw.signups WHERE {where}"


def in_hours(column: str, first: int, last: int) -> str:
    """A condition: the time lies in the hours first..last, both inclusive."""
    start, end = hour_start(START + first), hour_start(START + last + 1)
    return f"({column} >= TIMESTAMP '{start}' AND {column} < TIMESTAMP '{end}')"


def lake_command(home: Settings, *arguments: str) -> str:
    variables = {"LAKE_HOME": str(home.home), "LAKE_SPARK_REMOTE": str(home.spark_remote)}
    return LakeDoor(home.home.parent, variables)(*arguments)


def spark_sql(home: Settings, *statements: str) -> None:
    """Spark's own command line, with nothing of this project but the catalog's configuration."""
    conf = {**jvm_conf(home), **spark_conf(home)}
    command = [str(spark_home() / "bin" / "spark-sql"), *(x for k, v in conf.items() for x in ("--conf", f"{k}={v}"))]
    done = subprocess.run(
        [*command, "-e", "; ".join(statements)],
        env={**os.environ, **spark_environment()},
        cwd=home.home,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.journey
def test_plain_spark_sql_gets_the_plan_the_audits_and_the_watermark(
    catalog: Catalog, spark: SparkSession, home: Settings
) -> None:
    lake = Lake(catalog, spark)
    lake.land(worked_example()[0], ["raw.signups"])
    opened = json.loads(lake_command(home, "session", "init", "signup_fact", "--json"))
    assert opened["plan"]["load"] == "append"
    rows = INSERT.format(to=opened["plan"]["sources"][0]["to_snapshot_id"])
    spark_sql(home, f"SET spark.wap.id={opened['wap_id']}", rows)
    assert lake.main("core.signup_fact") is None, "nobody sees it yet"

    published = json.loads(lake_command(home, "session", "publish", "signup_fact", "--json"))
    assert published["status"] == "published"
    assert list(lake.state("signup_fact").watermarks) == ["raw.signups"]
    assert "✓" in lake_command(home, "session", "commit", "signup_fact")
    lake.assert_true("signup_fact")
    assert isinstance(lake.run("signup_fact"), NoSession)


def test_hours_that_come_out_equal_and_rows_set_aside_are_those_of_any_session(
    catalog: Catalog, spark: SparkSession
) -> None:
    lake = Lake(catalog, spark)
    lake.land(worked_example()[0], ["raw.signups"])
    lake.session("signup_fact")
    first = lake.rows("raw.signups")["raw.signups"][0]["signup_id"]
    lake.append("raw.signups", [signup(9, 3, monthly_price=Decimal(-1)), signup(10, 4)])
    spark.sql(f"DELETE FROM lake.raw.signups WHERE signup_id = '{first}'")
    opened = lake.engine.open_session(lake.target("signup_fact"))
    assert isinstance(opened, OpenedSession)
    assert (opened.plan.load, len(opened.plan.hours) > 1) == ("overwrite", True)

    spark.conf.set("spark.wap.id", opened.wap_id)  # all planned hours, whether they change or not
    rows = spark.table("lake.raw.signups").where("monthly_price >= 0")
    rows = lake.target("signup_fact").transform(SessionContext(opened.plan.session_id, (), None), rows)
    hours = opened.plan.hour_numbers
    within(rows, "signed_up_at", hours).writeTo("lake.core.signup_fact").overwrite(
        hours_condition("signed_up_at", hours)
    )
    spark.conf.unset("spark.wap.id")
    assert lake.engine.publish_session(lake.target("signup_fact")).hours_built == hours
    assert lake.engine.commit_session(lake.target("signup_fact")).status == "committed"
    lake.assert_true("signup_fact")
    assert [row["reason"] for row in lake.quarantined("core.signup_fact")] == ["no price or a negative one"]


def test_what_was_written_wrongly_is_stopped_or_refused(catalog: Catalog, spark: SparkSession) -> None:
    lake = Lake(catalog, spark)
    lake.land(worked_example()[0], ["raw.signups"])
    target = lake.target("signup_fact")
    with pytest.raises(UsageError, match="lake session init"):
        lake.engine.publish_session(target)
    opened = lake.engine.open_session(target)
    assert isinstance(opened, OpenedSession)
    assert lake.engine.open_session(target) == opened
    with pytest.raises(UsageError, match=f"spark.wap.id set to {opened.wap_id}"):
        lake.engine.publish_session(target)
    with pytest.raises(UsageError, match="lake session publish"):
        lake.engine.commit_session(target)

    def written(wap_id: str, rows: str) -> None:
        spark.conf.set("spark.wap.id", wap_id)
        spark.sql(rows)
        spark.conf.unset("spark.wap.id")

    everything = INSERT.format(to=opened.plan.sources[0].to_snapshot_id)
    written(opened.wap_id, f"{everything} LIMIT 3")
    with pytest.raises(AuditFailed, match="no_missing_events"):
        lake.engine.publish_session(target)
    assert lake.main("core.signup_fact") is None

    again = lake.engine.open_session(target)
    assert isinstance(again, OpenedSession)
    assert (again.plan.session_id, again.wap_id) == (opened.plan.session_id, f"{opened.plan.session_id}.2")
    written(again.wap_id, everything)
    spark.sql("INSERT INTO lake.core.signup_fact VALUES ('x', 'x', 'basic', 1, timestamp'2026-01-01', null)")
    with pytest.raises(PublishConflict):
        lake.engine.publish_session(target)


@pytest.mark.journey
def test_a_home_that_another_program_has_only_landed_rows_in_catches_up(catalog: Catalog, home: Settings) -> None:
    catalog.create_namespace("raw")
    for place, raw in enumerate(RAW):  # in each hour a signup, a plan change, a request and a cancel, in this order
        schema = pa.schema([(name, ARROW[kind]) for name, kind in COLUMNS[raw.table].items()])
        rows = pa.Table.from_pylist([raw_row(raw.table, 10 * place, n) for n in range(2)], schema=schema)
        properties = {"lake.complete-through": hour_key(START + 1)}
        catalog.create_table(raw.table, schema, properties=properties).append(rows)
    plan = json.loads(lake_command(home, "plan", "signup_fact", "--json"))
    assert [h["hour"] for h in plan["hours"]] == [hour_key(START), hour_key(START + 1)]
    assert catalog.list_namespaces() == [("raw",)], "a plan changes nothing"
    lake_command(home, "catch-up")
    truth = expected(
        {raw.table: catalog.load_table(raw.table).scan().to_arrow().to_pylist() for raw in RAW},
        start=hour_start(START),
        through={raw.table: hour_start(START + 1) for raw in RAW},
    )
    found = {t.table: catalog.load_table(t.table).scan().to_arrow().to_pylist() for t in PIPELINE.targets}
    assert in_order(found) == in_order(truth)


def test_what_removes_too_much_or_too_little_or_was_written_twice_is_refused(
    catalog: Catalog, spark: SparkSession
) -> None:
    lake = Lake(catalog, spark)
    target = lake.target("signup_fact")
    lake.append("raw.signups", [signup(n, hour) for hour in (1, 2, 3) for n in (1, 2)])
    lake.session("signup_fact")

    def opened() -> OpenedSession:
        found = lake.engine.open_session(target)
        assert isinstance(found, OpenedSession)
        return found

    def written(*statements: str) -> None:
        spark.conf.set("spark.wap.id", opened().wap_id)
        for statement in statements:
            spark.sql(statement)
        spark.conf.unset("spark.wap.id")

    def refused(what: str) -> None:
        before = lake.main(target.table)
        with pytest.raises(LakeError, match=what):
            lake.engine.publish_session(target)
        assert lake.main(target.table) == before

    lake.append("raw.signups", [signup(3, 4)])
    assert opened().plan.load == "append"
    new = insert("INTO", in_hours("event_ts", 4, 4))
    written(insert("OVERWRITE", in_hours("event_ts", 4, 4)))  # Spark's static mode: the whole table
    refused(r"removes rows of 2026-01-01-01:00\.\.2026-01-01-03:00, which was not planned")
    written(new, new)
    refused("makes 2 snapshots")
    written(new)
    assert lake.engine.publish_session(target).status == "published"
    lake.engine.commit_session(target)

    spark.sql(f"DELETE FROM lake.raw.signups WHERE {in_hours('event_ts', 2, 2)} OR signup_id = 's01-3'")
    assert (opened().plan.load, opened().plan.hour_numbers) == ("overwrite", (START + 2, START + 3))
    spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    written(insert("OVERWRITE", in_hours("event_ts", 2, 3)))
    refused("leaves the former rows of 2026-01-01-02:00, which are to be replaced")
    written(insert("INTO", in_hours("event_ts", 2, 4), replacing=in_hours("signed_up_at", 2, 4)))
    refused("removes rows of 2026-01-01-04:00, which was not planned")
    lake.set_property(target.table, "write.delete.mode", "merge-on-read")
    written(f"DELETE FROM lake.{target.table} WHERE signup_id = 's01-3'")
    refused("deletes single rows and leaves the former rows")
    written(insert("INTO", in_hours("event_ts", 2, 3), replacing=in_hours("signed_up_at", 2, 3)))
    assert lake.engine.publish_session(target).hours_built == (START + 2, START + 3)
    lake.engine.commit_session(target)
    lake.assert_true("signup_fact")


def test_an_append_of_rows_that_were_delivered_again_is_written_as_an_overwrite(
    catalog: Catalog, spark: SparkSession
) -> None:
    lake = Lake(catalog, spark)
    target = lake.target("signup_fact")
    lake.append("raw.signups", [signup(1, 1), signup(2, 1), signup(1, 2)])
    lake.session("signup_fact")
    earlier = signup(1, 1)["landed_at"] - timedelta(seconds=5)
    lake.append("raw.signups", [signup(1, 1, account_id="b", landed_at=earlier), signup(3, 1)])

    def write(*, load: str, statement: str) -> OpenedSession:
        opened = lake.engine.open_session(target)
        assert isinstance(opened, OpenedSession)
        assert (opened.plan.load, opened.plan.hour_numbers) == (load, (START + 1,))
        spark.conf.set("spark.wap.id", opened.wap_id)
        spark.sql(statement)
        spark.conf.unset("spark.wap.id")
        return opened

    new = insert("INTO", "signup_id = 's03-1'")  # as a program does that does not know of the row that counts now
    first = write(load="append", statement=new)
    with pytest.raises(LakeError, match=r"delivered again[^!]*REPLACE WHERE"):
        lake.engine.publish_session(target)
    counted = f"{in_hours('event_ts', 1, 1)} AND NOT (signup_id = 's01-1' AND account_id = 'a')"
    hour = insert("INTO", counted, replacing=in_hours("signed_up_at", 1, 1))
    assert write(load="overwrite", statement=hour).plan.session_id == first.plan.session_id
    assert lake.engine.publish_session(target).hours_built == (START + 1,)
    lake.assert_true("signup_fact")
    assert isinstance(lake.run("signup_fact"), NoSession)


ORDERS = "(order_id STRING, amount INT, ordered_at TIMESTAMP) USING iceberg PARTITIONED BY"
INIT = (
    "--process-name=order_load",
    "--src-tables=orders|ordered_at",
    "--etl-pattern-id=1",
    "--psyberg-hwm-table=high_watermark",
    "--psyberg-session-table=etl.session",
)


@pytest.mark.journey
def test_a_target_that_nobody_declares_is_written_by_plain_spark_sql(
    catalog: Catalog, spark: SparkSession, home: Settings
) -> None:
    def init(*more: str) -> Any:
        return json.loads(lake_command(home, "session", "init", "shop.order_fact", *INIT, *more, "--json"))

    def rows_of(opened: Any) -> str:
        (source,) = opened["plan"]["sources"]
        since = source["from_snapshot_id"]
        hours = [each["hour"] for each in opened["plan"]["hours"]]
        rows = f"SELECT * FROM lake.shop.orders VERSION AS OF {source['to_snapshot_id']}"
        old = f" EXCEPT ALL SELECT * FROM lake.shop.orders VERSION AS OF {since}" if since else ""
        assert hours
        return f"INSERT INTO lake.shop.order_fact {rows}{old}"

    def published() -> list[str]:
        return sorted(catalog.load_table("shop.order_fact").scan().to_arrow()["order_id"].to_pylist())

    for statement in (
        "CREATE NAMESPACE lake.shop",
        f"CREATE TABLE lake.shop.orders {ORDERS} (days(ordered_at))",
        f"CREATE TABLE lake.shop.order_fact {ORDERS} (hours(ordered_at))",
        "INSERT INTO lake.shop.orders VALUES ('o1', 1, TIMESTAMP '2026-01-01 00:10:00Z'),"
        " ('o2', 2, TIMESTAMP '2026-01-01 03:10:00Z')",
    ):
        spark.sql(statement)
    first = init("--psyberg-session-id=20230914061001")
    assert (first["plan"]["session_id"], first["plan"]["load"]) == ("20230914061001", "append")
    assert [(uri["source"], uri["partition"]) for uri in first["plan"]["processing_uris"]] == [
        ("shop.orders", {"ordered_at_day": "2026-01-01"})
    ]
    assert init("--psyberg-session-id=20230914061001") == first
    spark_sql(home, f"SET spark.wap.id={first['wap_id']}", rows_of(first))
    named = ("--psyberg-session-id=20230914061001", "--json")
    assert json.loads(lake_command(home, "session", "publish", "order_fact", *named))["status"] == "published"
    assert json.loads(lake_command(home, "session", "commit", "order_fact", *named))["rows_written"] == 2
    assert published() == ["o1", "o2"]

    spark.sql("INSERT INTO lake.shop.orders VALUES ('o3', 3, TIMESTAMP '2026-01-01 00:20:00Z')")
    lake_command(home, "session", "init", "order_fact", "--psyberg-session-id=b")  # what was named is remembered
    second = init("--psyberg-session-id=c")
    assert [each["hour"] for each in second["plan"]["hours"]] == ["2026-01-01-00:00"]
    spark.conf.set("spark.wap.id", second["wap_id"])
    spark.sql(rows_of(second))
    assert "shop.order_fact" in lake_command(home, "session", "publish", "shop.order_fact")
    assert published() == ["o1", "o2", "o3"], "late, and once"
    rows = catalog.load_table("etl.session").scan().to_arrow().to_pylist()
    assert sorted((row["session_id"], row["process_name"], row["etl_pattern_id"]) for row in rows) == [
        ("20230914061001", "shop.order_fact", 1),
        ("c", "shop.order_fact", 1),
    ]
    assert "No session" in lake_command(home, "session", "init", "order_fact")


def test_a_given_id_may_be_used_for_another_plan_and_never_for_what_was_written_for_the_former(
    catalog: Catalog, spark: SparkSession
) -> None:
    lake = Lake(catalog, spark)
    target = lake.target("signup_fact")
    lake.append("raw.signups", [signup(1, 1)])
    first = lake.engine.open_session(target, session_id="mine")
    assert isinstance(first, OpenedSession)
    assert first.plan.session_id == "mine"
    spark.conf.set("spark.wap.id", first.wap_id)
    spark.sql(insert("INTO", in_hours("event_ts", 1, 1)))
    spark.conf.unset("spark.wap.id")

    lake.append("raw.signups", [signup(2, 1)])
    assert lake.engine.open_session(target, session_id="other") != first
    again = lake.engine.open_session(target, session_id="mine")
    assert isinstance(again, OpenedSession)
    assert (again.plan.session_id, again.wap_id) != (first.plan.session_id, first.wap_id)
    with pytest.raises(UsageError, match="that is open is mine, and not other"):
        lake.engine.publish_session(target, session_id="other")
    with pytest.raises(UsageError, match=f"spark.wap.id set to {again.wap_id}"):
        lake.engine.publish_session(target, session_id="mine")

    spark.conf.set("spark.wap.id", again.wap_id)
    spark.sql(insert("INTO", in_hours("event_ts", 1, 1)))
    spark.conf.unset("spark.wap.id")
    assert lake.engine.publish_session(target, session_id="mine").plan.session_id == "mine"
    assert lake.engine.commit_session(target, session_id="mine").status == "committed"
    with pytest.raises(UsageError, match="published last is mine, and not other"):
        lake.engine.commit_session(target, session_id="other")
    lake.assert_true("signup_fact")
    lake.append("raw.signups", [signup(3, 2)])
    with pytest.raises(UsageError, match=r"mine is the id of a session of core\.signup_fact that is committed"):
        lake.engine.open_session(target, session_id="mine")
    with pytest.raises(UsageError, match=r"The session id is '\.\./x'"):
        lake.engine.open_session(target, session_id="../x")


def test_hours_of_an_undeclared_target_are_overwritten_from_two_sources(catalog: Catalog, spark: SparkSession) -> None:
    lake = Lake(catalog, spark)
    spark.sql("CREATE NAMESPACE lake.shop")
    for name, partition in (
        ("orders", "days(ordered_at)"),
        ("refunds", "order_id"),
        ("order_fact", "hours(ordered_at)"),
    ):
        spark.sql(f"CREATE TABLE lake.shop.{name} {ORDERS} ({partition})")

    def land(name: str, order: str, hour: int, *, through: int) -> None:
        spark.sql(f"INSERT INTO lake.shop.{name} VALUES ('{order}', 1, TIMESTAMP '2026-01-01 0{hour}:10:00Z')")
        lake.set_property(f"shop.{name}", "lake.complete-through", hour_key(START + through))

    def opened() -> OpenedSession:
        target = find_target(catalog, PIPELINE, "order_fact", Named("p", "orders,refunds|ordered_at", 2))
        remember(catalog, PIPELINE, target, "p")
        found = lake.engine.open_session(target)
        assert isinstance(found, OpenedSession)
        return found

    def publish(first: int, last: int) -> tuple[int, ...]:
        """Write the rows of these hours, and publish them by the name of the target alone."""
        rows = f"SELECT * FROM lake.shop.orders WHERE {in_hours('ordered_at', first, last)}"
        rows += f" UNION ALL {rows.replace('orders', 'refunds')}"
        spark.conf.set("spark.wap.id", opened().wap_id)
        spark.sql(f"INSERT INTO lake.shop.order_fact REPLACE WHERE {in_hours('ordered_at', first, last)} {rows}")
        spark.conf.unset("spark.wap.id")
        return lake.engine.publish_session(find_target(catalog, PIPELINE, "shop.order_fact")).hours_built

    def published() -> list[str]:
        return sorted(catalog.load_table("shop.order_fact").scan().to_arrow()["order_id"].to_pylist())

    land("orders", "a", 1, through=3)
    land("refunds", "b", 2, through=2)
    plan = opened().plan
    assert (plan.load, plan.hour_numbers, plan.complete_through) == ("overwrite", (START + 1, START + 2), START + 2)
    places = [(uri["source"], uri["partition"]) for uri in plan.processing_uris]
    assert places == [("shop.orders", {"ordered_at_day": "2026-01-01"}), ("shop.refunds", {"order_id": "b"})]
    land("orders", "x", 3, through=3)
    with pytest.raises(LakeError, match="2026-01-01-03:00"):
        publish(1, 3)
    assert published() == []
    assert publish(1, 2) == (START + 1, START + 2)
    assert published() == ["a", "b"]

    land("refunds", "c", 1, through=3)
    assert opened().plan.hour_numbers == (START + 1, START + 2, START + 3)
    assert {(uri["source"], bool(uri.get("waited"))) for uri in opened().plan.processing_uris} == {
        ("shop.refunds", False),
        ("shop.orders", False),
    }
    assert publish(1, 3) == (START + 1, START + 2, START + 3)
    assert published() == ["a", "b", "c", "x"]
    rows = catalog.load_table("etl.high_watermark").scan().to_arrow().to_pylist()
    assert {(row["process_name"], row["source"]) for row in rows} == {
        ("shop.order_fact", "shop.orders"),
        ("shop.order_fact", "shop.refunds"),
    }
