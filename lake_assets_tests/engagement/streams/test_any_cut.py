"""A random history on real Kafka, Spark and Delta: requests of the second turn were executed among the first ones."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from lake_assets.engagement.requests import MutationRequest
from lake_assets_tests.engagement.requests.test_aliases import since
from lake_assets_tests.engagement.scenario import ORGS, START, Traffic, email

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake_assets.settings import Settings

IDS = ("a", "b", "c", "d", "e")
MINUTES = 12
SEED = 0


@pytest.mark.journey
def test_requests_act_in_their_order_of_time_in_whatever_batch_they_come(
    home: Settings, spark: SparkSession, kafka: str
) -> None:
    """Ids are used again all the time. The second turn also has rows that come only then."""
    mail = Traffic(home, spark, kafka)
    chance = random.Random(SEED)
    rows = {}
    for turn in range(2):
        for number in range(turn * 12, (turn + 1) * 12):
            who, minute = chance.choice(IDS), chance.randrange(MINUTES)
            mailed = email(len(ORGS) * number, who_id=who, engaged_at=(START + timedelta(minutes=minute)).isoformat())
            rows[mailed["engagement_id"]] = (who, START + timedelta(minutes=minute))
            mail.deliver([mailed])
        mail.run()
        for _ in range(6):
            convert(mail, chance)
        mail.run("mutation")
    requests = [request for _, request in mail.requests]
    expected = {row: ("acme", since(requests, *sent)) for row, sent in rows.items()}
    assert mail.whose() == expected


def convert(mail: Traffic, chance: random.Random) -> None:
    """A request of acme, executed at a random minute."""
    number, at = len(mail.requests), START + timedelta(minutes=chance.randrange(MINUTES))
    old_id, new_id = chance.sample(IDS, 2)
    mail.requests.append(("acme", MutationRequest(f"r{number}", "convert", old_id, new_id, at, 0, number)))
    mail.repeat()
