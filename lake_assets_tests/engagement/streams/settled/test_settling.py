"""Settled requests on real Kafka, Spark and Delta: once each, for the orgs of a batch alone, also of an older lake."""

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

from lake_assets.engagement.batch import run_batch
from lake_assets.engagement.checkpoint import Checkpoint
from lake_assets.engagement.settled import former, prune_log, settled_requests
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


@pytest.mark.journey
def test_what_is_settled_is_found_behind_a_log_that_was_pruned(home: Settings, spark: SparkSession, kafka: str) -> None:
    mail = Traffic(home, spark, kafka)
    mail.send(range(21))
    mail.run()
    mail.ask("acme", "convert", "lead 0", "contact 0")
    mail.ask("globex", "convert", "lead 1", "contact 1")
    mail.die("written-settled", "mutation")
    mail.run("mutation")
    mail.ask("acme", "convert", "contact 0", "contact 00")
    mail.ask("acme", "delete", "lead 6")
    mail.ask("initech", "convert", "nobody", "somebody")
    batch = mail.run("mutation").batch
    assert settled(mail) == {"r0": "applied", "r1": "applied", "r2": "applied", "r3": "applied"}
    assert_only_what_is_connected_is_read(mail, spark)

    assert {row["batch_id"] for row in mail.rows(MUTATION_REQUEST)} == {1, 2}
    prune_log(mail.tables)
    assert {row["batch_id"] for row in mail.rows(MUTATION_REQUEST)} == {batch.batch_id} == {2}
    mail.send([21], who_id="lead 0")  # late
    mail.send([23], who_id="nobody")  # of the pending request
    mail.run()
    first = mail.requests[0]
    mail.requests.append(first)
    mail.repeat()
    mail.run("mutation")
    assert settled(mail)["r4"] == "applied"
    assert mail.whose()["e21"] == ("acme", "contact 00")
    assert mail.whose() == mail.truth()
    assert run_batch(mail.stream("mutation"), Alone()) is None


def assert_only_what_is_connected_is_read(mail: Traffic, spark: SparkSession) -> None:
    """Of an org that has applied three requests, two concern the chain of a new one; no file of other orgs is read."""
    last = mail.tables.checkpoints.read(mail.lake.app_name("mutation"))
    assert last is not None
    reads = {**last.batch.reads, SETTLED_REQUEST: mail.tables.version(SETTLED_REQUEST)}
    batch = replace(last.batch, reads=reads, since={})
    files = settled_requests(mail.tables, spark, batch, ["acme"]).inputFiles()
    assert len(files) == 2
    assert all("/org_id=acme/" in file for file in files)
    request = ("acme", "who_id", CHAIN[2], "x")
    asked = spark.createDataFrame([request], "org_id string, column string, old_id string, new_id string")
    related = former(mail.tables, spark, batch, asked, ["acme"]).applied
    assert {(row["old_id"], row["new_id"]) for row in related.collect()} == set(pairwise(CHAIN))


@pytest.mark.journey
def test_a_lake_of_the_version_before_goes_on_with_its_open_batch(
    home: Settings, spark: SparkSession, kafka: str
) -> None:
    """It has a log alone; its last batch has recorded its requests when it stops. Late rows follow both batches.

    A row without the id that it was sent with goes with the others.
    """
    mail = Traffic(home, spark, kafka)
    make_older_table(mail, email(900, who_id="lead 0"))
    mail.send(range(9))
    mail.run()
    mail.ask("acme", "convert", "lead 0", "contact 0")
    mail.run("mutation")
    mail.send([21], who_id="lead 0")
    mail.run()
    mail.ask("acme", "convert", "contact 0", "contact 00")
    with pytest.raises(LockLost):
        run_batch(mail.stream("mutation"), Losing(confirmed=2))  # the intent, and requests
    make_older(mail)
    mail.tables.create(spark)  # as `lake engagement init` does to add orgs
    resumed = mail.run("mutation")
    assert resumed.resumed
    assert settled(mail) == {"r0": "applied", "r1": "applied"}
    mail.send([42], who_id="lead 0")
    mail.run()
    mail.run("mutation")
    assert mail.whose() == mail.truth()
    sent = {row["engagement_id"]: row["sent_who_id"] for row in mail.rows(ENGAGEMENT)}
    assert (sent["e900"], sent["e0"], sent["e42"], sent["e3"]) == (None, "lead 0", "lead 0", "lead 3")


def make_older_table(mail: Traffic, older: Values) -> None:
    """Give a lake without rows a table of the version before, with a row."""
    shutil.rmtree(Path(urlsplit(mail.tables.location(ENGAGEMENT)).path))
    schema = next(schema for schema in spark_tables(mail.lake) if schema.name == ENGAGEMENT)
    columns = {name: kind for name, kind in schema.columns.items() if name != "sent_who_id"}
    mail.spark.sql(create_statement(replace(schema, columns=columns), mail.tables.identifier(ENGAGEMENT)))
    at = datetime.fromisoformat(older["engaged_at"])
    row = dict.fromkeys(columns) | older | {"engaged_at": at, "engagement_date": at.date()}
    rows = mail.spark.createDataFrame([row], mail.tables.read(mail.spark, ENGAGEMENT).schema)
    mail.tables.append(ENGAGEMENT, rows, app_id="older", batch_id=1)
    mail.sent.append(older)


def make_older(mail: Traffic) -> None:
    """Take from a lake what the version before did not have."""
    store, name = mail.tables.checkpoints, mail.lake.app_name("mutation")
    last = store.read(name)
    assert last is not None
    reads = {table: version for table, version in last.batch.reads.items() if table != SETTLED_REQUEST}
    commits = tuple(commit for commit in last.commits if commit != "settled")
    store.move(name, last, Checkpoint(replace(last.batch, reads=reads), commits, last.done))
    shutil.rmtree(Path(urlsplit(mail.tables.location(SETTLED_REQUEST)).path))


def settled(mail: Traffic) -> dict[str, str]:
    """Request → its status, of those that are settled; each is there once."""
    rows = mail.rows(SETTLED_REQUEST)
    assert max(Counter(row["request_id"] for row in rows).values()) == 1
    return {row["request_id"]: row["status"] for row in rows}
