"""The mutation stream on real Kafka, Spark and Delta: requests, their outcomes, and the one MERGE that applies them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lake_assets.engagement.batch import run_batch
from lake_assets.engagement.notifications import Counts, total_counts
from lake_assets.engagement.tables import MUTATION_REQUEST
from lake_assets_tests.engagement.scenario import Alone, Traffic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake_assets.settings import Settings


@pytest.mark.journey
def test_one_merge_moves_rows_to_their_final_ids_and_a_request_waits_for_its_row(
    home: Settings, spark: SparkSession, kafka: str
) -> None:
    mail = Traffic(home, spark, kafka)
    mail.send(range(9))
    mail.run()
    mail.ask("acme", "convert", "lead 0", "contact 0")
    mail.ask("acme", "merge", "contact 0", "lead 3")
    mail.ask("acme", "delete", "lead 6")
    mail.ask("acme", "convert", "nobody", "somebody")
    mail.repeat()
    data = mail.run("mutation").commits["data"]
    assert data is not None
    assert (data.operation, total_counts(data)) == ("MERGE", Counts(updated=1, deleted=1))
    assert ids(mail, "acme") == {"e0": "lead 3", "e3": "lead 3"}
    assert ids(mail, "globex") == {"e1": "lead 1", "e4": "lead 4", "e7": "lead 0"}
    assert outcomes(mail, 1) == {"r0": "applied", "r1": "applied", "r2": "applied", "r3": "parked"}

    mail.send([21])
    mail.send([24], who_id="nobody")
    mail.run()
    mail.run("mutation")
    assert ids(mail, "acme") == {"e0": "lead 3", "e3": "lead 3", "e21": "lead 3", "e24": "somebody"}
    assert outcomes(mail, 2) == {"r3": "met"}
    assert run_batch(mail.stream("mutation"), Alone()) is None


def ids(mail: Traffic, wanted: str) -> dict[str, str]:
    """Engagement → who_id of the rows of an org. e21 was sent as lead 0, after its conversion was applied."""
    return {engagement: who for engagement, (org, who) in mail.whose().items() if org == wanted}


def outcomes(mail: Traffic, batch_id: int) -> dict[str, str]:
    """Request → its stored status after a batch that tried it."""
    return {row["request_id"]: row["status"] for row in mail.rows(MUTATION_REQUEST) if row["batch_id"] == batch_id}
