"""Time decides, on real Kafka, Spark and Delta: which rows a request acts on does not depend on the cut of batches."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from lake_assets.engagement.tables import MUTATION_REQUEST, REMOVED
from lake_assets_tests.engagement.scenario import START, Traffic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake_assets.settings import Settings

MAILS = (9, 12, 15, 18, 21)
"""Numbers of emails of acme."""
AFTER = (START + timedelta(days=2)).isoformat()
"""After all requests."""


@pytest.mark.faults
def test_a_row_that_engaged_after_a_request_stays_and_is_not_what_the_request_waits_for(
    home: Settings, spark: SparkSession, kafka: str
) -> None:
    """Two rows of each of two ids: one engaged before the requests, and one after them, when the id was used again.
    The row of a third id is deleted, and comes back by a request that comes late."""
    mail = Traffic(home, spark, kafka)
    mail.send(MAILS[:1], who_id="lead a")
    mail.send(MAILS[1:2], who_id="lead b")
    mail.send(MAILS[2:3], who_id="lead a", engaged_at=AFTER)
    mail.send(MAILS[3:4], who_id="lead b", engaged_at=AFTER)
    mail.send(MAILS[4:], who_id="lead e")
    mail.run()
    mail.ask("acme", "delete", "lead a")
    mail.ask("acme", "convert", "lead b", "contact b")
    mail.ask("acme", "delete", "lead e")
    mail.run("mutation")
    left = {"e12": ("acme", "contact b"), "e15": ("acme", "lead a"), "e18": ("acme", "lead b")}
    assert mail.whose() == left

    mail.ask("acme", "convert", "lead a", "lead c")  # executed before the row of lead a engaged
    mail.spoil("mutation", [late_request()])
    mail.run("mutation")
    assert mail.whose() == {**left, "e21": ("acme", "lead d")}
    assert [row["engagement_id"] for row in mail.rows(REMOVED)] == ["e9"]
    statuses = {row["request_id"]: row["status"] for row in mail.rows(MUTATION_REQUEST)}
    assert statuses == {"r0": "applied", "r1": "applied", "r2": "applied", "r3": "parked", "late": "applied"}


def late_request() -> bytes:
    """It was executed before the row of lead e was deleted, and so moves that row away from the deletion."""
    at = (START + timedelta(hours=12)).isoformat()
    asked = {"org_id": "acme", "request_id": "late", "op": "convert", "old_id": "lead e", "new_id": "lead d"}
    return json.dumps({**asked, "executed_at": at}).encode()
