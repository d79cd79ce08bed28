"""Turns on a real ZooKeeper: order, answers, fencing, and what is left behind: nothing."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from lake_assets.connections import zookeeper as client
from lake_assets.coordination import ANY, JobCoordinator, check_claim
from lake_assets.errors import (
    ConfigurationError,
    CoordinationError,
    LockLost,
    LockNotFree,
    ServiceError,
    TurnRefused,
)
from lake_assets_tests.coordination.conftest import Connect

ROOT = "/coordination"
PATIENCE_SECONDS = 30.0
"""For a lock that is free, on a machine that may stall; nobody waits so long when all is well."""


class Streams:
    """The three streams of an engagement lake, each on a session of its own."""

    def __init__(self, connect: Connect, lock_name: str) -> None:
        self.zk = connect()
        self.ingestion, self.mutation, self.retention = (
            JobCoordinator(lock_name, name, predecessor, connect(), timeout=PATIENCE_SECONDS)
            for name, predecessor in (("ingestion", ANY), ("mutation", "ingestion"), ("retention", "mutation"))
        )
        self.path = f"{ROOT}/{lock_name}"

    def contenders(self) -> list[str]:
        return [str(name) for name in self.zk.get_children(f"{self.path}/lock")]

    def waiting(self) -> list[str]:
        return sorted(self.zk.get_children(f"{self.path}/waiting")) if self.zk.exists(f"{self.path}/waiting") else []

    def turn(self) -> bytes:
        return bytes(self.zk.get(f"{self.path}/turn")[0])


@pytest.fixture
def streams(connect: Connect, lock_name: str) -> Streams:
    return Streams(connect, lock_name)


def play(coordinator: JobCoordinator) -> str | None:
    """A whole turn without work."""
    assert coordinator.lock()
    predecessor = coordinator.register()
    coordinator.done()
    assert coordinator.unlock()
    return predecessor


def test_turns_follow_each_other_and_each_learns_who_ran_before(streams: Streams) -> None:
    order = (streams.ingestion, streams.mutation, streams.retention, streams.ingestion, streams.ingestion)
    assert [play(c) for c in order] == [None, "ingestion", "mutation", "retention", "ingestion"]
    assert streams.contenders() == []


def test_nobody_but_a_first_stream_starts(streams: Streams) -> None:
    assert streams.mutation.lock()
    with pytest.raises(TurnRefused, match="mutation: no stream has run yet"):
        streams.mutation.register()
    assert streams.contenders() == []
    assert streams.zk.exists(f"{streams.path}/turn") is None


def test_a_declared_first_stream_starts(connect: Connect, lock_name: str) -> None:
    assert play(JobCoordinator(lock_name, "loader", "cleaner", connect(), timeout=PATIENCE_SECONDS, first=True)) is None


def test_one_of_several_predecessors_is_enough(connect: Connect, streams: Streams, lock_name: str) -> None:
    upkeep = JobCoordinator(lock_name, "upkeep", ["ingestion", "retention"], connect(), timeout=PATIENCE_SECONDS)
    play(streams.ingestion)
    assert play(upkeep) == "ingestion"


def test_a_refused_stream_releases_and_waits_and_an_any_stream_yields_to_it(streams: Streams) -> None:
    play(streams.ingestion)
    assert streams.retention.lock()
    with pytest.raises(TurnRefused, match="retention: it waits for mutation, and ingestion ran last"):
        streams.retention.register()
    assert (streams.contenders(), streams.waiting()) == ([], ["retention"])
    play(streams.mutation)
    assert streams.ingestion.lock()
    with pytest.raises(TurnRefused, match="retention is waiting to run after mutation"):
        streams.ingestion.register()
    assert play(streams.retention) == "mutation"
    assert streams.waiting() == ["ingestion"]
    assert play(streams.ingestion) == "retention"
    assert streams.waiting() == []


def test_register_again_changes_nothing_and_answers_the_same(streams: Streams) -> None:
    play(streams.ingestion)
    assert streams.mutation.lock()
    assert streams.mutation.register() == "ingestion"
    before = streams.turn()
    assert streams.mutation.register() == "ingestion"
    assert streams.turn() == before
    assert streams.zk.get(f"{streams.path}/turn")[1].version == 2  # created running, then done, then running


def test_without_the_lock_nothing_is_written(streams: Streams) -> None:
    for forbidden in (streams.ingestion.register, streams.ingestion.done, streams.ingestion.claim):
        with pytest.raises(CoordinationError):
            forbidden()
    assert streams.zk.exists(streams.path) is None


def test_unlock_is_true_once_and_touches_nobody_else(streams: Streams) -> None:
    assert not streams.ingestion.unlock()
    assert streams.ingestion.lock()
    assert streams.ingestion.lock()
    assert not streams.mutation.unlock()
    assert len(streams.contenders()) == 1
    assert streams.ingestion.unlock()
    assert not streams.ingestion.unlock()


def test_a_turn_that_was_not_done_is_its_own_streams_to_redo(connect: Connect, streams: Streams) -> None:
    play(streams.ingestion)
    assert streams.mutation.lock()
    streams.mutation.register()
    assert streams.mutation.unlock()
    for other in (streams.ingestion, streams.retention):
        assert other.lock()
        with pytest.raises(TurnRefused, match="the last turn, of mutation, is not done"):
            other.register()
    assert play(streams.mutation) == "ingestion"


def test_a_lock_that_is_not_free_is_given_up_in_time_and_no_contender_stays(streams: Streams) -> None:
    assert streams.ingestion.lock()
    begun = time.monotonic()
    assert not streams.mutation.lock(1)
    assert time.monotonic() - begun < 30
    assert len(streams.contenders()) == 1
    assert streams.ingestion.unlock()
    assert streams.contenders() == []


def test_z6_tokens_grow_also_when_the_parent_is_made_again(streams: Streams) -> None:
    tokens = []
    for _ in range(2):
        assert streams.ingestion.lock()
        tokens.append(streams.ingestion.token)
        assert streams.ingestion.unlock()
        streams.zk.delete(streams.path, recursive=True)
    assert tokens == sorted(set(tokens))


def test_z1_a_lock_whose_session_is_gone_is_lost_and_its_writes_are_refused(streams: Streams) -> None:
    play(streams.ingestion)
    assert streams.mutation.lock()
    streams.mutation.register()
    take_away(streams)
    before = streams.turn()
    with pytest.raises(LockLost, match="mutation has lost its lock: its lock node is gone"):
        streams.mutation.done()
    assert streams.turn() == before
    assert not streams.mutation.unlock()


def test_z2_a_lost_lock_can_be_had_again_by_the_same_coordinator(streams: Streams) -> None:
    assert streams.ingestion.lock()
    take_away(streams)
    with pytest.raises(LockLost):
        streams.ingestion.confirm()
    assert streams.ingestion.lock()
    assert streams.ingestion.register() is None


def test_a_session_that_the_server_ended_loses_the_lock(connect: Connect, zookeeper: str, lock_name: str) -> None:
    zk = connect()
    ingestion = JobCoordinator(lock_name, "ingestion", ANY, zk, timeout=PATIENCE_SECONDS)
    assert ingestion.lock()
    ingestion.register()
    same = KazooClient(zookeeper, client_id=zk.client_id)  # whoever closes a session closes it for all
    same.start()
    same.stop()
    same.close()
    with pytest.raises(LockLost):
        ingestion.done()
    assert play(ingestion) is None


def take_away(streams: Streams) -> None:
    """What the server does to the lock when its holder's session expires."""
    for name in streams.contenders():
        streams.zk.delete(f"{streams.path}/lock/{name}")


def test_of_two_claims_the_later_holders_counts(connect: Connect, lock_name: str, tmp_path: Path) -> None:
    resource = tmp_path / "epoch"

    def claim(token: int) -> None:
        check_claim("the file", int(resource.read_text()) if resource.exists() else None, token)
        resource.write_text(str(token))

    def write(token: int) -> None:
        check_claim("the file", int(resource.read_text()), token)

    first, second = (
        JobCoordinator(lock_name, "a", ANY, connect(), timeout=PATIENCE_SECONDS, claim=claim) for _ in range(2)
    )
    assert first.lock()
    first.register()
    stale = first.claim()
    write(stale)
    assert first.unlock()
    assert second.lock()
    second.register()
    write(second.claim())
    with pytest.raises(CoordinationError, match=f"claimed with token {second.token}"):
        write(stale)


def test_a_claim_needs_a_registered_turn_and_a_hook(streams: Streams) -> None:
    assert streams.ingestion.lock()
    with pytest.raises(CoordinationError):
        streams.ingestion.claim()
    streams.ingestion.register()
    with pytest.raises(ConfigurationError, match="ingestion has no claim function"):
        streams.ingestion.claim()


def test_whoever_is_given_the_turn_goes_on_before_anybody_else(
    connect: Connect, lock_name: str, streams: Streams
) -> None:
    hasty = JobCoordinator(lock_name, "retention", "mutation", connect(), timeout=1)
    with pytest.raises(CoordinationError):
        streams.ingestion.give_turn("mutation")
    with streams.ingestion.locked():
        streams.ingestion.give_turn("mutation")
        with pytest.raises(LockNotFree, match="retention waits, and ingestion holds it"), hasty.locked():
            pass
    assert streams.contenders() == []
    assert streams.ingestion.lock()
    with pytest.raises(TurnRefused, match="of mutation, is not done"):
        streams.ingestion.register()
    assert [play(c) for c in (streams.mutation, streams.retention)] == [None, "mutation"]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"{}",
        b"[1]",
        b'{"name": "ingestion", "state": "asleep", "token": 1, "predecessor": null}',
        b'{"name": "ingestion", "state": "done", "token": 1, "predecessor": 5}',
    ],
)
def test_a_damaged_registry_is_named_with_what_to_do(streams: Streams, data: bytes) -> None:
    play(streams.ingestion)
    streams.zk.set(f"{streams.path}/turn", data)
    assert streams.ingestion.lock()
    with pytest.raises(CoordinationError, match=rf"{streams.path}/turn holds(.|\n)*delete {streams.path}/turn"):
        streams.ingestion.register()
    assert streams.contenders() == []
    streams.zk.delete(f"{streams.path}/turn")
    assert play(streams.ingestion) is None


def test_a_damaged_note_of_a_waiting_stream_is_named(streams: Streams) -> None:
    play(streams.ingestion)
    streams.zk.create(f"{streams.path}/waiting/mutation", b"?", makepath=True)
    assert streams.ingestion.lock()
    with pytest.raises(CoordinationError, match="waiting/mutation holds"):
        streams.ingestion.register()


def test_what_was_written_without_the_lock_does_not_count(streams: Streams) -> None:
    assert streams.ingestion.lock()
    streams.ingestion.register()
    streams.zk.set(f"{streams.path}/turn", streams.turn().replace(b"ingestion", b"somebody"))
    streams.ingestion.done()
    assert b'"ingestion", "state": "done"' in streams.turn()


def test_a_whole_turn_waits_for_its_predecessor_and_leaves_nothing(streams: Streams) -> None:
    later = threading.Timer(1.5, play, [streams.ingestion])
    later.start()
    with streams.mutation.turn(max_wait=PATIENCE_SECONDS) as predecessor:
        assert predecessor == "ingestion"
        assert streams.waiting() == []
    later.join()
    assert (streams.contenders(), streams.waiting()) == ([], [])
    assert b'"mutation", "state": "done"' in streams.turn()


def test_work_that_fails_leaves_the_turn_to_be_redone(streams: Streams) -> None:
    with pytest.raises(ZeroDivisionError), streams.ingestion.turn(max_wait=PATIENCE_SECONDS):
        _ = 1 / 0
    assert b'"ingestion", "state": "running"' in streams.turn()
    assert streams.contenders() == []


def test_no_turn_begins_of_who_already_waits_when_turns_are_forbidden(
    streams: Streams, connect: Connect, lock_name: str
) -> None:
    forbidden = threading.Event()

    def may_begin() -> None:
        if forbidden.is_set():
            raise ZeroDivisionError

    waiting = JobCoordinator(lock_name, "other", ANY, connect(), timeout=PATIENCE_SECONDS, may_begin=may_begin)
    with ThreadPoolExecutor(1) as pool:
        with streams.ingestion.turn(max_wait=PATIENCE_SECONDS):
            taken = pool.submit(lambda: waiting.turn(max_wait=PATIENCE_SECONDS).__enter__())
            while len(streams.contenders()) < 2:
                time.sleep(0.05)
            forbidden.set()
        with pytest.raises(ZeroDivisionError):
            taken.result()
    assert (streams.contenders(), streams.waiting()) == ([], [])
    assert b'"ingestion", "state": "done"' in streams.turn()
    forbidden.clear()
    assert play(waiting) == "ingestion"


def test_whoever_waits_too_long_gives_up_names_the_pair_and_leaves_nothing(streams: Streams) -> None:
    play(streams.ingestion)
    with (
        pytest.raises(TurnRefused, match="retention: it waits for mutation, and ingestion ran last"),
        streams.retention.turn(max_wait=6),
    ):
        pass
    assert (streams.contenders(), streams.waiting()) == ([], [])
    assert streams.ingestion.lock()
    pair = "lock was not free within 1 s: mutation waits, and ingestion holds it"
    with pytest.raises(LockNotFree, match=pair), streams.mutation.turn(max_wait=1):
        pass
    assert len(streams.contenders()) == 1


def test_three_streams_at_once_keep_their_order_and_never_overlap(streams: Streams) -> None:
    turns: list[tuple[str, str]] = []

    def work(coordinator: JobCoordinator) -> None:
        while sum(what == "begins" for _, what in turns) < 9:
            try:
                with coordinator.turn(max_wait=20):
                    turns.append((coordinator.stream.name, "begins"))
                    time.sleep(0.02)
                    turns.append((coordinator.stream.name, "ends"))
            except (TurnRefused, LockNotFree):
                return

    threads = [
        threading.Thread(target=work, args=[c]) for c in (streams.retention, streams.mutation, streams.ingestion)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    names = [name for name, what in turns if what == "begins"]
    assert turns == [(name, what) for name in names for what in ("begins", "ends")]
    assert {"ingestion", "mutation", "retention"} == set(names)
    for before, after in pairwise(names):
        assert after == "ingestion" or (before, after) in {("ingestion", "mutation"), ("mutation", "retention")}


def test_an_ensemble_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "START_SECONDS", 0.5)
    with pytest.raises(ServiceError, match=r"No ZooKeeper answers at 127.0.0.1:1\.(.|\n)*LAKE_ZOOKEEPER"):
        client.zookeeper_client("127.0.0.1:1").__enter__()


def test_a_timeout_of_nothing_is_refused(connect: Connect, lock_name: str) -> None:
    with pytest.raises(ConfigurationError, match="The lock timeout of a is 0 s"):
        JobCoordinator(lock_name, "a", ANY, connect(), timeout=0)


def test_a_name_that_leads_elsewhere_is_refused(connect: Connect) -> None:
    client: KazooClient = connect()
    with pytest.raises(ConfigurationError, match="is not a valid name"):
        JobCoordinator("../other", "a", ANY, client, timeout=1)
