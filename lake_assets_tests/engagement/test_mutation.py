"""The mutation stream on real parts: after any number of turns, rows are what replay makes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lake_assets.engagement.batch import run_batch
from lake_assets.engagement.failpoints import points
from lake_assets.engagement.tables import ENGAGEMENT, MUTATION_REQUEST
from lake_assets_tests.engagement.scenario import Alone, Traffic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake_assets.settings import Settings


@pytest.fixture
def mail(home: Settings, spark: SparkSession, kafka: str) -> Traffic:
    traffic = Traffic(home, spark, kafka)
    traffic.send(range(42))
    traffic.run()
    return traffic


def test_d5_chains_merges_and_deletions_in_one_commit_and_what_comes_next_is_not_skipped(mail: Traffic) -> None:
    for old, new in (("lead 1", "lead 2"), ("lead 2", "lead 3"), ("lead 3", "contact 3")):
        mail.ask("acme", "convert", old, new)
    mail.ask("globex", "merge", "lead 5", "lead 6")
    mail.ask("globex", "delete", "lead 6")
    mail.ask("initech", "merge", "lead 1", "lead 0")
    report = mail.run("mutation")
    mail.assert_true()
    commit = report.commits["data"]
    assert commit is not None
    assert commit.metrics["numTargetRowsUpdated"] == "8"
    assert commit.metrics["numTargetRowsDeleted"] == "4"
    table = mail.tables.identifier(ENGAGEMENT)
    mail.spark.sql(f"DELETE FROM {table} WHERE org_id = 'acme' AND who_id = 'contact 3'")
    assert not mail.spark.sql(f"SELECT * FROM {table} WHERE who_id = 'contact 3'").count()


def test_a_request_waits_for_its_engagement_and_is_dead_in_the_end(mail: Traffic) -> None:
    mail.ask("acme", "convert", "nobody", "somebody")
    mail.ask("acme", "convert", "lead 1", "contact 1")
    mail.run("mutation")
    assert statuses(mail) == [("r0", 1, "parked"), ("r1", 1, "applied")]
    mail.run("mutation")
    assert statuses(mail)[-1] == ("r1", 1, "applied")
    assert statuses(mail)[1] == ("r0", 2, "dead")
    assert run_batch(mail.stream("mutation"), Alone()) is None
    mail.assert_true()


def test_killed_at_every_point_each_request_counts_once(mail: Traffic) -> None:
    """Each turn dies at the next point, more requests come, and the next turn goes on, to die further on."""
    for number, point in enumerate(points(mail.stream("mutation").process_names)[:-2]):
        mail.ask("acme", "convert", f"lead {number % 7}", f"lead {(number + 1) % 7}")
        mail.die(point, "mutation")
    mail.run_all("mutation")
    mail.assert_true()


def statuses(mail: Traffic) -> list[tuple[str, int, str]]:
    """(request, attempts, status), as the log has them."""
    return sorted((row["request_id"], row["attempts"], row["status"]) for row in mail.rows(MUTATION_REQUEST))
