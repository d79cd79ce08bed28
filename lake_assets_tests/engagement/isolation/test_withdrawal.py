"""Batches that fail on real Delta tables: what is left of them, also after a death while they are withdrawn."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pytest

from lake_assets.base.failpoints import EXIT_CODE, ISOLATION_POINTS
from lake_assets.coordination import ANY, JobCoordinator, zookeeper_client
from lake_assets.engagement.turn import take_turn
from lake_assets.errors import BatchFailed, TurnRefused
from lake_assets_tests.engagement.isolation.poisoned import COMMITS, Poisoned, turn
from lake_assets_tests.matrices import one_now
from lake_assets_tests.processes import Child

POISON = (3, 7)


@pytest.fixture
def lake(tmp_path: Path) -> Poisoned:
    lake = Poisoned(f"file://{tmp_path}", 9, POISON)
    lake.create()
    return lake


def assert_isolated(lake: Poisoned) -> None:
    good = sorted(set(range(lake.end)) - set(POISON))
    assert lake.offsets("data") == good
    assert lake.offsets("request") == good  # those of withdrawn batches are gone
    assert lake.offsets("dead_letter") == list(POISON)
    assert lake.batches("request") == lake.batches("data")


def test_the_messages_that_let_a_batch_fail_become_dead_letters_and_all_others_rows(lake: Poisoned) -> None:
    for attempt in (1, 2):
        with pytest.raises(BatchFailed, match=rf"failed attempts: {attempt}, the last one in commit data: ValueError"):
            lake.turn()
        assert lake.tables.checkpoints.read("mail.mutation") is not None
    assert lake.offsets("request") == list(range(9))  # decided and durable, but nothing follows from it
    report = lake.turn()  # the third attempt, and then parts of the batch
    assert report is not None
    assert (report.batch.batch_id, dict(report.batch.messages.end)) == (3, {0: 2})
    assert lake.settle() == 0
    assert_isolated(lake)


def test_the_coordinator_says_to_other_streams_what_is_wrong(lake: Poisoned, zookeeper: str) -> None:
    lock = f"mail-{uuid4().hex}"
    with zookeeper_client(zookeeper) as zk:
        ours = JobCoordinator(lock, "mutation", ANY, zk, 60, claim=lambda token: None)
        with pytest.raises(BatchFailed):
            take_turn(lake.stream, ours, max_wait=60)
        other = JobCoordinator(lock, "retention", "mutation", zk, 60)
        assert other.lock()
        with pytest.raises(TurnRefused, match=r"of mutation, is not done: Batch 1 of mail\.mutation .*: ValueError"):
            other.register()
        other.give_up()
        for _ in range(2):
            with suppress(BatchFailed):
                take_turn(lake.stream, ours, max_wait=60)
        assert other.lock()
        assert other.register() == "mutation"
        assert other.unlock()


def test_an_error_of_the_infrastructure_is_no_attempt_and_reaches_the_caller(lake: Poisoned) -> None:
    lake.error = ConnectionResetError
    for _ in range(5):
        with pytest.raises(ConnectionResetError):
            lake.turn()
    opened = lake.tables.checkpoints.read("mail.mutation")
    assert opened is not None
    assert (opened.batch.batch_id, opened.trouble) == (1, None)


@pytest.mark.parametrize("point", one_now(ISOLATION_POINTS))
def test_who_dies_while_a_batch_is_withdrawn_goes_on_later(lake: Poisoned, point: str) -> None:
    argument = json.dumps({"root": lake.root, "end": lake.end, "poison": POISON})
    deaths = 0
    for _ in range(4):
        deaths += Child(turn, argument, {"LAKE_FAILPOINT": point}).end() == EXIT_CODE
    assert deaths > 1
    lake.settle()
    assert_isolated(lake)


def test_another_attempt_of_a_withdrawn_batch_that_still_runs_writes_nothing(lake: Poisoned) -> None:
    lake.settle()
    for name in COMMITS:
        app_id = lake.tables.lake.app_id("mutation", name)
        assert lake.tables.last_batch(COMMITS[name], app_id) == max(lake.batches("data") | lake.batches("dead_letter"))
        for batch_id in range(1, max(lake.batches("data"))):
            assert lake.tables.commit_of(COMMITS[name], app_id=app_id, batch_id=batch_id, since=0) is not None
