"""The change reader and the metrics on real Kafka, Spark and Delta: changes applied one after the other are the table,
and what was counted piece by piece is what counting all rows gives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from lake_assets.demo.engagement_simulator import Simulation, generate, org_names, send
from lake_assets.engagement.batch import run_batch
from lake_assets.engagement.metrics import Metrics
from lake_assets.engagement.notifications import Changes, changes_of
from lake_assets.engagement.tables import ENGAGEMENT, ENGAGEMENT_COLUMNS, SENT_WHO_ID
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
COLUMNS = [*ENGAGEMENT_COLUMNS, "engagement", "sent_at", SENT_WHO_ID]


class Follower:
    """Somebody who knows the table by its changes alone. rows: how often each is there."""

    def __init__(self, mail: Traffic) -> None:
        self.mail = mail
        self.rows: Counter[str] = Counter()
        self.cursor: str | int = 0

    def changes(self, cursor: str | int | None = None, org_id: str | None = None) -> Changes:
        return changes_of(self.mail.tables, self.cursor if cursor is None else cursor, org_id)

    def read(self) -> Counter[str]:
        """Take over what is new: just what notifications speak of; no row goes that is not there. Rows of each kind."""
        changes = self.changes()
        told: Counter[str] = Counter()
        for row in changes.rows.read_all().to_pylist():
            told[row["_change_type"]] += 1
            gone = row["_change_type"] in ("delete", "update_preimage")
            self.rows[repr([row[name] for name in COLUMNS])] += -1 if gone else 1
        for kind, name in (("insert", "inserted"), ("update_postimage", "updated"), ("delete", "deleted")):
            assert told[kind] == sum(changes.notifications[name].to_pylist())
        assert min(self.rows.values(), default=0) >= 0
        table = self.mail.tables.read(self.mail.spark, ENGAGEMENT, version=changes.version).toArrow().to_pylist()
        assert +self.rows == Counter(repr([row[name] for name in COLUMNS]) for row in table)
        self.cursor = changes.cursor
        return told


@dataclass
class Played:
    """A lake whose metrics have followed it once, and then a batch of mutation, and who follows its changes."""

    mail: Traffic
    follower: Follower
    metrics: Metrics
    orgs: Sequence[str]


@pytest.fixture
def played(home: Settings, spark: SparkSession, kafka: str) -> Played:
    mail, orgs = Traffic(home, spark, kafka), org_names(SIMULATION)
    mail.tables.register_orgs(dict.fromkeys([*orgs, QUOTED]))
    follower, metrics = Follower(mail), Metrics(mail.tables, spark)
    send(mail.servers, generate(SIMULATION, mail.lake))
    mail.run()
    follower.read()
    assert metrics.refresh().orgs is None
    mail.run("mutation")
    return Played(mail, follower, metrics, orgs)


@pytest.mark.journey
@pytest.mark.timeout(900)
def test_d3_changes_applied_one_after_the_other_are_the_table(played: Played) -> None:
    """Who is behind a feed that is gone starts again. Metrics follow the same changes, and go on wherever they die."""
    assert set(played.follower.read()) >= {"update_preimage", "update_postimage", "delete"}
    assert_of_one_org(played.follower, played.orgs[0])
    assert_killed_anywhere_it_ends_the_same(played.mail, played.metrics)
    assert_only_what_changed_is_touched(played.mail, played.metrics, played.orgs)
    assert_of_one_org(played.follower, QUOTED)
    assert_an_expired_feed_is_told(played.follower)
    assert_what_is_not_told_is_not_read(played.follower)


def assert_of_one_org(follower: Follower, org: str) -> None:
    """A part of all changes, and the same next cursor."""
    everything, of_one = follower.changes(0), follower.changes(0, org)
    assert of_one.cursor == everything.cursor
    for one, all_orgs in (
        (of_one.rows.read_all(), everything.rows.read_all()),
        (of_one.notifications, everything.notifications),
    ):
        assert one.to_pylist() == [row for row in all_orgs.to_pylist() if row["org_id"] == org] != []


def assert_an_expired_feed_is_told(follower: Follower) -> None:
    """VACUUM takes the feed: who is behind starts again from the version that is told, as metrics do."""
    mail = follower.mail
    mail.ask(QUOTED, "convert", "lead 1", "contact 1")  # what the metrics have not read yet
    mail.run("mutation")
    mail.spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    mail.spark.sql(f"VACUUM {mail.tables.identifier(ENGAGEMENT)} RETAIN 0 HOURS")
    with pytest.raises(ChangesExpired) as expired:
        follower.changes(0)
    follower.cursor = expired.value.version
    assert follower.cursor == mail.tables.version(ENGAGEMENT)
    next_cursor = follower.changes().cursor
    assert next_cursor == follower.changes(next_cursor).cursor
    follower.cursor = next_cursor
    refreshed = Metrics(mail.tables, mail.spark).refresh()
    assert (refreshed.orgs, refreshed.cursor) == (None, expired.value.version)
    assert_metrics(mail)
    other_table = str(next_cursor).split("@")[0] + "@01234567"
    for cursor in (999, -1, "x", "", other_table):
        with pytest.raises(UsageError, match=f"{cursor}.* is (no|a) cursor"):
            follower.changes(cursor)
    with pytest.raises(UsageError, match="has no org 'nobody'"):
        follower.changes(0, "nobody")


def assert_what_is_not_told_is_not_read(follower: Follower) -> None:
    """A batch that has not come to its notification is not read yet."""
    mail = follower.mail
    stream = mail.stream()
    mail.send(range(6))
    first, *others = stream.commits
    reads = (*stream.reads, *(commit.table for commit in others))
    run_batch(replace(stream, commits=(first,), reads=reads), Alone())
    changes = follower.changes()
    read = (changes.cursor, changes.rows.read_all().num_rows, changes.notifications.num_rows)
    assert read == (follower.cursor, 0, 0)
