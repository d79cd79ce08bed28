"""The requests that batches know, on real Kafka, Spark and Delta: once each, for the orgs of a batch alone, also of an
older lake.
"""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from pyspark.sql import functions as F

from lake_assets.engagement.batch import run_batch
from lake_assets.engagement.checkpoint import Checkpoint
from lake_assets.engagement.delta_log import is_table
from lake_assets.engagement.known_requests import former, requests_of, scoped
from lake_assets.engagement.tables import (
    ENGAGEMENT,
    MUTATION_REQUEST,
    SETTLED_REQUEST,
    create_statement,
    spark_tables,
)
from lake_assets.errors import LockLost
from lake_assets_tests.engagement.dagster.test_assets import Losing
from lake_assets_tests.engagement.scenario import Alone, Traffic, Values, email

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake_assets.settings import Settings

CHAIN = ("lead 0", "contact 0", "contact 00")


@pytest.mark.faults
def test_requests_are_stored_once_and_found_by_rows_that_come_later(
    home: Settings, spark: SparkSession, kafka: str
) -> None:
    mail = Traffic(home, spark, kafka)
    mail.send(range(21))
    mail.run()
    mail.ask("acme", "convert", "lead 0", "contact 0")
    mail.ask("globex", "convert", "lead 1", "contact 1")
    mail.die("written-request", "mutation")
    mail.run("mutation")
    mail.ask("acme", "convert", "contact 0", "contact 00")
    mail.ask("acme", "delete", "lead 6")
    mail.ask("initech", "convert", "nobody", "somebody")
    mail.run("mutation")
    assert statuses(mail) == {**{key: ["applied"] for key in ("r0", "r1", "r2", "r3")}, "r4": ["parked"]}
    assert_only_what_is_connected_is_read(mail, spark)
    mail.send([21], who_id="lead 0")  # late
    mail.send([23], who_id="nobody")  # of the request that has met no row
    mail.run()
    first = mail.requests[0]
    mail.requests.append(first)
    mail.repeat()
    mail.run("mutation")
    assert statuses(mail)["r4"] == ["met", "parked"]
    assert mail.whose()["e21"] == ("acme", "contact 00")
    assert mail.whose() == mail.truth()
    assert run_batch(mail.stream("mutation"), Alone()) is None


def assert_only_what_is_connected_is_read(mail: Traffic, spark: SparkSession) -> None:
    """Of an org with three requests, two concern the chain of a new one; no file of other orgs is read."""
    last = mail.tables.checkpoints.read(mail.lake.app_name("mutation"))
    assert last is not None
    reads = {**last.batch.reads, MUTATION_REQUEST: mail.tables.version(MUTATION_REQUEST)}
    batch = replace(last.batch, reads=reads, since={})
    files = requests_of(mail.tables, spark, batch, ["acme"]).inputFiles()
    assert len(files) == 2
    assert all("/org_id=acme/" in file for file in files)
    request = ("acme", "who_id", CHAIN[2], "x")
    asked = spark.createDataFrame([request], "org_id string, column string, old_id string, new_id string")
    related = former(mail.tables, spark, batch, scoped(asked), ["acme"]).applied
    assert {(row["old_id"], row["new_id"]) for row in related.collect()} == set(pairwise(CHAIN))


@pytest.mark.faults
@pytest.mark.parametrize("has_settled", [False, True])
def test_a_lake_of_an_earlier_version_goes_on_with_its_open_batch(
    home: Settings, spark: SparkSession, kafka: str, *, has_settled: bool
) -> None:
    """It has a log, and perhaps a table of settled requests; its last batch has recorded its requests when it stops.

    Late rows follow both batches. A row without the id that it was sent with goes with the others. Of the requests that
    met no row, one is given up.
    """
    mail = Traffic(home, spark, kafka)
    make_older_table(mail, email(900, who_id="lead 0"))
    mail.send(range(9))
    mail.run()
    mail.ask("acme", "convert", "lead 0", "contact 0")
    mail.ask("acme", "convert", "nobody", "somebody")
    mail.run("mutation")
    mail.send([21], who_id="lead 0")
    mail.run()
    mail.ask("acme", "convert", "contact 0", "contact 00")
    with pytest.raises(LockLost):
        run_batch(mail.stream("mutation"), Losing(confirmed=2))  # the intent, and requests
    make_older(mail, has_settled=has_settled)
    mail.tables.create(spark)  # as `lake engagement init` does to add orgs
    resumed = mail.run("mutation")
    assert resumed.resumed
    assert statuses(mail) == {"r0": ["applied"], "r1": ["parked"], "r2": ["applied"]}
    mail.send([42], who_id="lead 0")
    mail.send([45], who_id="nobody")
    mail.run()
    assert not is_table(mail.tables.location(SETTLED_REQUEST))
    mail.run("mutation")
    assert statuses(mail)["r1"] == ["met", "parked"]
    assert mail.whose() == mail.truth()
    sent = {row["engagement_id"]: row["sent_who_id"] for row in mail.rows(ENGAGEMENT)}
    assert (sent["e900"], sent["e0"], sent["e42"], sent["e3"]) == (None, "lead 0", "lead 0", "lead 3")


def make_older_table(mail: Traffic, older: Values) -> None:
    """Give a lake without rows a table of an earlier version, with a row."""
    shutil.rmtree(Path(urlsplit(mail.tables.location(ENGAGEMENT)).path))
    schema = next(schema for schema in spark_tables(mail.lake) if schema.name == ENGAGEMENT)
    columns = {name: kind for name, kind in schema.columns.items() if name not in ("sent_at", "sent_who_id")}
    mail.spark.sql(create_statement(replace(schema, columns=columns), mail.tables.identifier(ENGAGEMENT)))
    at = datetime.fromisoformat(older["engaged_at"])
    row = dict.fromkeys(columns) | older | {"engaged_at": at, "engagement_date": at.date()}
    rows = mail.spark.createDataFrame([row], mail.tables.read(mail.spark, ENGAGEMENT).schema)
    mail.tables.append(ENGAGEMENT, rows, app_id="older", batch_id=1)
    mail.sent.append(older)


def make_older(mail: Traffic, *, has_settled: bool) -> None:
    """Make the requests of a lake those of an earlier version: a log of attempts, and the settled ones apart."""
    tables, name = mail.tables, mail.lake.app_name("mutation")
    last = tables.checkpoints.read(name)
    assert last is not None
    versions = (last.batch.reads[MUTATION_REQUEST], None)
    before, newest = (tables.read(mail.spark, MUTATION_REQUEST, version).localCheckpoint() for version in versions)
    identifier = tables.identifier(MUTATION_REQUEST)
    mail.spark.sql(f"ALTER TABLE {identifier} SET TBLPROPERTIES ('delta.dataSkippingStatsColumns' = 'batch_id')")
    reads = {**last.batch.reads}
    if has_settled:
        settled = before.where("status <> 'parked'").write.format("delta").partitionBy("org_id")
        settled.save(tables.location(SETTLED_REQUEST))
        reads[SETTLED_REQUEST] = 0
    for rows in (before, newest):
        log = rows.withColumns({"attempts": F.lit(1), "insert_record": F.lit(None).cast("string")})
        log = log.drop("records", "record_engagement_id", "record_who_id", "record_engaged_at")
        writer = log.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
        writer.save(tables.location(MUTATION_REQUEST))
        reads[MUTATION_REQUEST] = tables.version(MUTATION_REQUEST) - (rows is newest)
    commits = (*last.commits, "settled") if has_settled else last.commits
    tables.checkpoints.move(name, last, Checkpoint(replace(last.batch, reads=reads), commits, last.done))


def statuses(mail: Traffic) -> dict[str, list[str]]:
    """Request → the statuses of its rows, sorted; each is there once."""
    rows = Counter((row["request_id"], row["status"]) for row in mail.rows(MUTATION_REQUEST))
    assert set(rows.values()) == {1}
    return {request: sorted(status for of, status in rows if of == request) for request, _ in rows}
