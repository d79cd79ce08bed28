"""The retention stream on real parts: what is too old goes, and a person under all ids, once and told of."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from lake_assets.engagement.batch import run_batch
from lake_assets.engagement.monitoring import Reconciliation, reconcile
from lake_assets.engagement.tables import ENGAGEMENT, ERASED, MUTATION_REQUEST, NOTIFICATION
from lake_assets.errors import UsageError
from lake_assets_tests.engagement.scenario import START, Alone, Traffic, email

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake_assets.settings import Settings


def test_what_is_too_old_and_who_is_to_be_erased_goes_in_one_commit(
    home: Settings, spark: SparkSession, kafka: str
) -> None:
    """acme erases a person by a former id, globex keeps a day by its policy, initech all."""
    mail = Traffic(home, spark, kafka)
    mail.tables.register_orgs({"globex": 1})
    mail.tables.add_orgs(["globex", "umbrella"])
    with pytest.raises(UsageError, match="globex keeps 0 days"):
        mail.tables.register_orgs({"globex": 0})
    mail.send(range(43))
    mail.run()
    mail.ask("acme", "convert", "lead 0", "contact 0")
    mail.ask("acme", "merge", "lead 5", "lead 6", insert=email(15, who_id="lead 0"))
    mail.ask("initech", "convert", "late lead", "contact")  # pending: there is no row of the lead yet
    mail.ask("acme", "merge", "lead 3", "lead 1", insert=email(18, who_id="lead 4"))
    mail.ask("acme", "convert", "lead 0", "contact 9")  # the record e15 is erased under this id, too
    mail.ask("acme", "convert", "lead 4", "lead 0")  # and e18 is not
    mail.run("mutation")
    mail.retain("initech", "gdpr", START + timedelta(days=2), who_id="contact")
    mail.retain("acme", "gdpr", START + timedelta(minutes=30), who_id="lead 0")
    mail.retain("globex", "ttl", START + timedelta(days=1, minutes=10))
    mail.retain("nobody", "ttl", START, ttl_days=1)
    stays = {row["engagement_id"] for row in mail.rows(ENGAGEMENT)} - {"e0", "e15", "e21", "e1", "e4", "e7"}
    report = mail.run("retention")
    assert {row["engagement_id"] for row in mail.rows(ENGAGEMENT)} == stays
    commit = report.commits["data"]
    assert commit is not None
    told = [row for row in mail.rows(NOTIFICATION) if row["app_name"] == "mail.retention"]
    assert {(row["org_id"], row["deleted"], row["version"]) for row in told} == {
        ("acme", 3, commit.version),
        ("globex", 3, commit.version),
    }
    left = {row["request_id"]: (row["status"], row["old_id"]) for row in mail.rows(MUTATION_REQUEST)}
    records = {row["record_engagement_id"]: row["record_who_id"] for row in mail.rows(MUTATION_REQUEST)}
    assert records == {None: None, "e15": None, "e18": "lead 4"}
    assert (left["r0"], left["r2"][0]) == (("applied", "lead 0"), ERASED)
    assert "late lead" not in left["r2"]
    assert run_batch(mail.stream("retention"), Alone()) is None
    done = {"ttl": 1, "gdpr": 2, "dead letters": 1}
    assert reconcile(mail.tables, mail.spark, mail.servers, "retention", report.batch) == Reconciliation(4, done)
