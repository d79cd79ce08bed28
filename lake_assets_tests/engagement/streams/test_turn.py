"""Streams of a lake take turns on a real ZooKeeper: who may run, what is claimed, and who goes on after a death."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from typer.testing import CliRunner

from lake_assets.base.failpoints import TURN_GIVEN
from lake_assets.cli.engagement import engagement, reclaimed
from lake_assets.coordination import zookeeper_client
from lake_assets.engagement.batch import run_batch
from lake_assets.engagement.lake import STREAMS, StreamName
from lake_assets.engagement.maintenance import reclaim
from lake_assets.engagement.notifications import BatchEffect
from lake_assets.engagement.requests import Op
from lake_assets.engagement.tables import ENGAGEMENT, MUTATION_REQUEST
from lake_assets.engagement.turn import TurnReport, coordinator, take_due_turns, take_turn
from lake_assets.engagement.turn_order import coordinator_of
from lake_assets.errors import CoordinationError, LockLost, LockNotFree, TurnRefused
from lake_assets.settings import Settings, settings
from lake_assets_tests.engagement.child import RECLAIM
from lake_assets_tests.engagement.scenario import ORGS, PATIENCE_SECONDS, SESSION_SECONDS, Losing, Traffic, email

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


AHEAD = 2**60
"""A token that no ZooKeeper of a test comes to."""
Turn = Callable[[StreamName], TurnReport]
Step = tuple[Op, str, str | None]


@pytest.fixture
def mail(home: Settings, spark: SparkSession, kafka: str, zookeeper: str) -> Traffic:
    """A lake with a name, and so a lock, of its own: turns of others on the shared ZooKeeper do not count."""
    return Traffic(home.model_copy(update={"zookeeper": zookeeper}), spark, kafka, name=f"mail_{uuid4().hex}")


@pytest.fixture
def turn(mail: Traffic) -> Iterator[Turn]:
    """Take a turn of a stream; refused, it waits for two sessions: whoever was killed keeps the lock for one."""
    with zookeeper_client(str(mail.home.zookeeper), session_seconds=SESSION_SECONDS) as zk:

        def take(name: StreamName) -> TurnReport:
            stream = mail.stream(name)
            coordinated = coordinator(stream, zk, mail.spark, timeout=PATIENCE_SECONDS)
            return take_turn(stream, coordinated, max_wait=2 * SESSION_SECONDS)

        yield take


@pytest.mark.journey
@pytest.mark.timeout(1200)
def test_d5_requests_are_applied_in_one_commit_or_wait_and_an_idle_turn_claims_nothing(
    mail: Traffic, turn: Turn
) -> None:
    mail.send(range(42))
    assert turn("ingestion").predecessor is None
    for old, new in (("lead 1", "lead 2"), ("lead 2", "lead 3"), ("lead 3", "contact 3"), ("nobody", "somebody")):
        mail.ask("acme", "convert", old, new)
    mail.ask("globex", "merge", "lead 5", "lead 6")
    mail.ask("globex", "delete", "lead 6")
    applied = turn("mutation")
    mail.assert_true()
    assert applied.predecessor == "ingestion"
    assert applied.batch is not None
    commit = applied.batch.commits["data"]
    assert commit is not None
    assert (commit.metrics["numTargetRowsUpdated"], commit.metrics["numTargetRowsDeleted"]) == ("6", "4")
    assert applied.effect == BatchEffect(updated=6, deleted=4, requests=5, ids_moved=5)
    assert set(applied.seconds) == {"wait", "rest", *applied.batch.commits}
    assert [row["status"] for row in mail.rows(MUTATION_REQUEST) if row["request_id"] == "r3"] == ["parked"]
    version = mail.tables.version(ENGAGEMENT)
    assert turn("ingestion") == TurnReport("mutation", None)
    assert mail.tables.version(ENGAGEMENT) == version
    assert turn("mutation").batch is None
    mail.spark.sql(f"DELETE FROM {mail.tables.identifier(ENGAGEMENT)} WHERE org_id = 'acme'")
    assert "acme" not in {row["org_id"] for row in mail.rows(ENGAGEMENT)}


@pytest.mark.journey
@pytest.mark.timeout(1200)
def test_due_turns_are_taken_in_their_order_until_all_is_read(mail: Traffic, turn: Turn) -> None:
    mail.lake = replace(mail.lake, max_records=8)
    mail.send(range(20), [b"{"])
    mail.ask("acme", "convert", "lead 1", "contact 1")
    first = turn("ingestion").effect
    assert first is not None
    with zookeeper_client(str(mail.home.zookeeper), session_seconds=SESSION_SECONDS) as zk:
        due = take_due_turns(mail.tables, STREAMS, mail.spark, zk, mail.servers, max_wait=PATIENCE_SECONDS)
        taken = [(stream.name, report.effect or BatchEffect()) for stream, report in due]
    assert [name for name, _ in taken] == [*STREAMS, *STREAMS], "13 messages are left: two batches of ingestion"
    effects = [first, *(effect for _, effect in taken)]
    assert (sum(each.inserted for each in effects), sum(each.dead_letters for each in effects)) == (20, 1)
    assert sum(each.requests for each in effects) == 1
    mail.assert_true()


@pytest.mark.faults
def test_whoever_was_killed_with_the_lock_goes_on_before_anybody_else(mail: Traffic, turn: Turn) -> None:
    mail.send(range(14))
    mail.die("before-unlock")
    with pytest.raises(TurnRefused):
        turn("mutation")
    turn("ingestion")
    mail.ask("globex", "convert", "lead 5", "lead 6")
    mail.ask("globex", "convert", "lead 6", "contact 6")
    for number, point in enumerate(("written-request", "written-data")):
        mail.ask("acme", "convert", f"lead {number}", f"lead {number + 1}")
        mail.die(point, "mutation")
    assert turn("mutation").predecessor == "ingestion"
    mail.send(range(14, 42))
    turn("ingestion")
    turn("mutation")
    assert Counter(row["request_id"] for row in mail.rows(MUTATION_REQUEST)) == Counter(["r0", "r1", "r2", "r3"])
    mail.assert_true()


def test_d1_an_earlier_holder_can_not_claim_after_a_later_one(mail: Traffic) -> None:
    mail.tables.claims.claim(mail.spark, 8)
    with pytest.raises(CoordinationError):
        mail.tables.claims.claim(mail.spark, 7)
    mail.tables.claims.claim(mail.spark, 8)


@pytest.mark.faults
def test_a_lake_goes_on_with_another_zookeeper_and_first_of_all_with_the_batch_that_is_open(
    mail: Traffic, turn: Turn
) -> None:
    """The registry is lost while mutation has a batch, and the table was claimed with a token far ahead."""
    mail.send(range(14))
    turn("ingestion")
    mail.ask("acme", "convert", "lead 0", "contact 0")
    with pytest.raises(LockLost):
        run_batch(mail.stream("mutation"), Losing(confirmed=1))
    mail.tables.claims.claim(mail.spark, AHEAD)
    mail.send(range(14, 17))
    with zookeeper_client(str(mail.home.zookeeper), session_seconds=SESSION_SECONDS) as zk:
        with coordinator_of("ingestion", mail.tables, zk, mail.spark, timeout=PATIENCE_SECONDS).locked():
            zk.delete(f"/coordination/{mail.lake.lock}/turn")
            with pytest.raises(LockNotFree):
                reclaim(mail.tables, mail.spark, zk, timeout=0.2)
        with pytest.raises(CoordinationError, match="lake engagement reclaim"):
            turn("ingestion")
        mail.die(TURN_GIVEN, RECLAIM)
        assert mail.tables.claims.token() == AHEAD
        done = reclaim(mail.tables, mail.spark, zk, timeout=PATIENCE_SECONDS)
        words = f"token {mail.tables.claims.token()} replaces {AHEAD}; mutation continues its open batch"
        assert reclaimed(done) == words
        ingestion = coordinator_of("ingestion", mail.tables, zk, mail.spark, timeout=PATIENCE_SECONDS)
        assert ingestion.lock()
        with pytest.raises(TurnRefused, match="of mutation, is not done"):
            ingestion.register()
        resumed = turn("mutation").batch
        assert resumed is not None
        assert resumed.resumed
        turn("ingestion")
        mail.assert_true()
        done = reclaim(mail.tables, mail.spark, zk, timeout=PATIENCE_SECONDS)
        assert reclaimed(done) == "the claim needs no change; no batch is open"


def test_a_lake_is_not_reclaimed_unless_somebody_says_that_nothing_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKE_HOME", str(tmp_path))
    settings.cache_clear()
    done = CliRunner().invoke(engagement, ["reclaim", "email_event"], input="n\n")
    settings.cache_clear()
    assert (done.exit_code, "on any machine?" in done.output) == (1, True)


@pytest.mark.faults
def test_y1_one_org_sends_more_requests_than_spark_hands_to_python_at_once(mail: Traffic, turn: Turn) -> None:
    """Rows go along forty paths of ids, one path after the other. All paths have one id in common, but no end.

    Each request meets a row, first of all the row at the beginning of its path.
    """
    paths = [[*(f"lead {path}.{n}" for n in range(300)), "hub", f"contact {path}"] for path in range(40)]
    chance = random.Random(1)
    starts = [*(path[0] for path in paths), *(chance.choice(path[:300]) for path in paths), "gone", "stays"]
    mail.deliver([email(len(ORGS) * n, who_id=who) for n, who in enumerate(starts)])
    steps: list[Step] = [("convert", *ids) for path in paths for ids in pairwise(path)]
    mail.ask_all("acme", [*steps, ("delete", "gone", None)])
    assert len(mail.requests) > 12_000
    turn("ingestion")
    turn("mutation")
    mail.assert_true()
    assert {who for _, who in mail.whose().values()} == {*(path[-1] for path in paths), "stays"}
    assert Counter(row["status"] for row in mail.rows(MUTATION_REQUEST)) == {"applied": len(mail.requests)}
