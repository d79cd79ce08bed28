"""Time decides, on real Kafka, Spark and Delta: which rows a request acts on does not depend on the cut of batches."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from lake_assets.engagement.tables import MUTATION_REQUEST
from lake_assets_tests.engagement.scenario import START, Traffic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake_assets.settings import Settings

MAILS = (9, 12, 15, 18)
"""Numbers of emails of acme."""
AFTER = (START + timedelta(days=2)).isoformat()
"""After all requests."""


@pytest.mark.journey
def test_a_row_that_engaged_after_a_request_stays_in_whatever_batch_both_come(
    home: Settings, spark: SparkSession, kafka: str
) -> None:
    """Two rows of each of two ids engaged before the requests, and two after them, when the ids were used again."""
    at_once, apart = Traffic(home, spark, kafka, "at_once"), Traffic(home, spark, kafka, "apart")
    for mail in (at_once, apart):
        mail.send(MAILS[:1], who_id="lead a")
        mail.send(MAILS[1:2], who_id="lead b")
    late(at_once)
    for mail in (at_once, apart):
        mail.run()
        mail.ask("acme", "delete", "lead a")
        mail.ask("acme", "convert", "lead b", "contact b")
        mail.run("mutation")
    late(apart)
    apart.run()
    apart.run("mutation")
    assert at_once.whose() == apart.whose() == {"e12": ("acme", "contact b"), "e15": LATE_A, "e18": LATE_B}
    for mail in (at_once, apart):
        assert {row["request_id"]: row["status"] for row in mail.rows(MUTATION_REQUEST)} == APPLIED

    at_once.ask("acme", "convert", "lead a", "lead c")  # executed before the rows of lead a engaged
    at_once.run("mutation")
    assert at_once.whose()["e15"] == LATE_A
    statuses = {row["request_id"]: row["status"] for row in at_once.rows(MUTATION_REQUEST)}
    assert statuses == {**APPLIED, "r2": "parked"}


LATE_A, LATE_B = ("acme", "lead a"), ("acme", "lead b")
APPLIED = {"r0": "applied", "r1": "applied"}


def late(mail: Traffic) -> None:
    """Rows of the same ids that engaged after the requests."""
    mail.send(MAILS[2:3], who_id="lead a", engaged_at=AFTER)
    mail.send(MAILS[3:4], who_id="lead b", engaged_at=AFTER)
