"""The change reader and the metrics on real Kafka, Spark and Delta: changes applied one after the other are the table,
and what was counted piece by piece is what counting all rows gives."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from lake_assets.demo.engagement_simulator import Simulation, generate, org_names, send
from lake_assets.engagement.metrics.refresh import Metrics
from lake_assets.engagement.model.table_schemas import ENGAGEMENT, ENGAGEMENT_COLUMNS, SENT_WHO_ID
from lake_assets.engagement.notifications.change_reader import ChangeReader
from lake_assets.engagement.streams.batch import run_batch
from lake_assets.errors import ChangesExpired, UsageError
from lake_assets_tests.engagement.metrics.test_refresh import (
    QUOTED,
    assert_killed_anywhere_it_ends_the_same,
    assert_metrics,
    assert_only_what_changed_is_touched,
)
from lake_assets_tests.engagement.scenario import Alone, Traffic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake_assets.settings import Settings

SIMULATION = Simulation(orgs=3, people=40, touches=150, requests=0.3, deletions=0.3, hours=6)
COLUMNS = [*ENGAGEMENT_COLUMNS, "engagement", SENT_WHO_ID]


class Follower:
    """Somebody who knows the table by its changes alone. rows: how often each is there."""

    def __init__(self, mail: Traffic) -> None:
        self.mail, self.reader = mail, ChangeReader(mail.tables, mail.spark)
        self.rows: Counter[tuple[Any, ...]] = Counter()
        self.cursor = 0

    def read(self) -> Counter[str]:
        """Take over what is new: just what notifications speak of; no row goes that is not there. Rows of each kind."""
        changes = self.reader.read_changes(self.cursor)
        told: Counter[str] = Counter()
        for row in changes.rows.orderBy("_commit_version").collect():
            told[row["_change_type"]] += 1
            gone = row["_change_type"] in ("delete", "update_preimage")
            self.rows[tuple(row[name] for name in COLUMNS)] += -1 if gone else 1
        counted = changes.notifications.agg(dict.fromkeys(("inserted", "updated", "deleted"), "sum")).first()
        assert counted is not None
        for kind, name in (("insert", "inserted"), ("update_postimage", "updated"), ("delete", "deleted")):
            assert told[kind] == (counted[f"sum({name})"] or 0)
        assert min(self.rows.values(), default=0) >= 0
        assert +self.rows == Counter(map(tuple, self.mail.tables.read(self.mail.spark, ENGAGEMENT).collect()))
        self.cursor = changes.cursor
        return told


def test_d3_changes_applied_one_after_the_other_are_the_table(home: Settings, spark: SparkSession, kafka: str) -> None:
    mail, orgs = Traffic(home, spark, kafka), org_names(SIMULATION)
    mail.tables.register_orgs(dict.fromkeys([*orgs, QUOTED]))
    follower, metrics = Follower(mail), Metrics(mail.tables, spark)
    send(mail.servers, generate(SIMULATION, mail.lake))
    mail.run()
    follower.read()
    assert metrics.refresh().orgs is None
    assert_metrics(mail)
    mail.run("mutation")
    assert set(follower.read()) >= {"update_preimage", "update_postimage", "delete"}
    assert_of_one_org(follower)
    assert_killed_anywhere_it_ends_the_same(mail, metrics)
    assert_only_what_changed_is_touched(mail, metrics, orgs)
    assert_an_expired_feed_is_told(follower)
    assert_what_is_not_told_is_not_read(follower)


def assert_of_one_org(follower: Follower) -> None:
    org = org_names(SIMULATION)[0]
    everything, of_one = (follower.reader.read_changes(0, org_id=wanted) for wanted in (None, org))
    assert of_one.cursor == everything.cursor
    for one, all_orgs in ((of_one.rows, everything.rows), (of_one.notifications, everything.notifications)):
        assert Counter(one.collect()) == Counter(all_orgs.where(f"org_id = '{org}'").collect()) != Counter()


def assert_an_expired_feed_is_told(follower: Follower) -> None:
    """VACUUM takes the feed: who is behind starts again from the version that is told, as metrics do."""
    mail, reader = follower.mail, follower.reader
    mail.ask(QUOTED, "convert", "lead 1", "contact 1")  # what the metrics have not read yet
    mail.run("mutation")
    mail.spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    mail.spark.sql(f"VACUUM {mail.tables.identifier(ENGAGEMENT)} RETAIN 0 HOURS")
    with pytest.raises(ChangesExpired) as expired:
        reader.read_changes(0)
    follower.cursor = expired.value.version
    assert follower.cursor == mail.tables.version(ENGAGEMENT)
    assert reader.read_changes(follower.cursor).cursor == follower.cursor
    refreshed = Metrics(mail.tables, mail.spark).refresh()
    assert (refreshed.orgs, refreshed.cursor) == (None, follower.cursor)
    assert_metrics(mail)
    with pytest.raises(UsageError, match="999 is no cursor"):
        reader.read_changes(999)


def assert_what_is_not_told_is_not_read(follower: Follower) -> None:
    """A batch that has not come to its notification is not read yet."""
    mail = follower.mail
    stream = mail.stream()
    mail.send(range(6))
    run_batch(replace(stream, commits=stream.commits[:1]), Alone())
    changes = follower.reader.read_changes(follower.cursor)
    assert (changes.cursor, changes.rows.count(), changes.notifications.count()) == (follower.cursor, 0, 0)
