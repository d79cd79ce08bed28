"""Streams of a lake take turns on a real ZooKeeper: who may run, what is claimed, and who goes on after a death."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from lake_assets.engagement.lake import StreamName
from lake_assets.engagement.tables import ENGAGEMENT
from lake_assets.engagement.turn import TurnReport, connected, coordinator, take_turn
from lake_assets.errors import ClaimRefused, TurnRefused
from lake_assets_tests.engagement.scenario import SESSION_SECONDS, Traffic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake_assets.settings import Settings

Turn = Callable[[StreamName], TurnReport]


@pytest.fixture
def mail(home: Settings, spark: SparkSession, kafka: str, zookeeper: str) -> Traffic:
    return Traffic(home.model_copy(update={"zookeeper": zookeeper}), spark, kafka)


@pytest.fixture
def turn(mail: Traffic) -> Iterator[Turn]:
    """Take a turn of a stream; refused, it waits no longer than a session."""
    with connected(str(mail.home.zookeeper), session_seconds=SESSION_SECONDS) as zk:

        def take(name: StreamName) -> TurnReport:
            stream = mail.stream(name)
            coordinated = coordinator(stream, zk, mail.spark, timeout=2 * SESSION_SECONDS)
            return take_turn(stream, coordinated, max_wait=2 * SESSION_SECONDS)

        yield take


def test_mutation_follows_ingestion_and_an_idle_turn_claims_nothing(mail: Traffic, turn: Turn) -> None:
    with pytest.raises(TurnRefused):
        turn("mutation")
    mail.send(range(6))
    mail.ask("acme", "convert", "lead 0", "contact 0")
    assert turn("ingestion").predecessor is None
    found = turn("mutation")
    assert found.predecessor == "ingestion"
    assert found.batch is not None
    version = mail.tables.version(ENGAGEMENT)
    assert turn("ingestion") == TurnReport("mutation", None)
    assert mail.tables.version(ENGAGEMENT) == version
    mail.assert_true()


def test_whoever_was_killed_with_the_lock_goes_on_before_anybody_else(mail: Traffic, turn: Turn) -> None:
    for number, point in enumerate(("written-data", "before-unlock", "after-unlock")):
        mail.send([number])
        mail.ask("acme", "convert", "lead 0", "contact 0")
        mail.die(point)
        if point != "after-unlock":
            with pytest.raises(TurnRefused):
                turn("mutation")
    turn("ingestion")
    turn("mutation")
    mail.assert_true()


def test_an_earlier_holder_can_not_claim_after_a_later_one(mail: Traffic) -> None:
    mail.tables.claim(mail.spark, 8)
    with pytest.raises(ClaimRefused):
        mail.tables.claim(mail.spark, 7)
    mail.tables.claim(mail.spark, 8)
