"""A lake is a function of the set of its messages, in whatever order and cut they come: against an oracle of its rules.

Histories share few batches: each has ids of its own, and each kind of contradiction an org of its own; all together
have one, too. Not yet so: records of requests whose id was used.
"""

from __future__ import annotations

import os
from random import Random
from typing import TYPE_CHECKING

import pytest

from lake_assets_tests.engagement.histories import FEATURES, history, play, wrong
from lake_assets_tests.engagement.scenario import Traffic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake_assets.settings import Settings


HISTORIES = 10
"""Of each kind."""

ROUNDS = 2
"""Into how many batches of each stream they are cut."""


@pytest.mark.journey
@pytest.mark.timeout(1800)
def test_the_rows_follow_from_the_set_of_messages(home: Settings, spark: SparkSession, kafka: str) -> None:
    """LAKE_TEST_SEED: other histories."""
    seed = os.environ.get("LAKE_TEST_SEED", "1")
    print(f"LAKE_TEST_SEED={seed}")
    chance = Random(seed)
    worlds = [f"w{number}" for number in range(HISTORIES)]
    kinds = {**{kind: (kind,) for kind in FEATURES}, "all": {*FEATURES} - {"repeats"}}
    sent = {org: [each for world in worlds for each in history(org, world, chance, of)] for org, of in kinds.items()}
    mail = Traffic(home, spark, kafka, "history", partitions=1)
    assert wrong(mail, play(mail, sent, chance, ROUNDS)) == {}
