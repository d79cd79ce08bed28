"""The nodes of a lock on a real ZooKeeper: turns and waiting notes, written only under the lock."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from kazoo.client import KazooClient
from kazoo.protocol.states import KazooState

from lake_assets.coordination.lock import LockHandle, acquire
from lake_assets.coordination.registry import Asks, Registry
from lake_assets.coordination.rules import ANY, Turn, stream
from lake_assets.errors import ConfigurationError, CoordinationError, LockLost, StoredByNewerVersion
from lake_assets_tests.coordination.conftest import Connect

RUNNING = Turn("ingestion", "running", 7, None)
DONE = Turn("ingestion", "done", 7, None)


@contextmanager
def locked(zk: KazooClient, registry: Registry) -> Iterator[LockHandle]:
    handle = acquire(zk, registry.lock_path, "ingestion", 5, time.monotonic)
    assert handle is not None
    try:
        yield handle
    finally:
        handle.release(5)


def test_the_last_turn_is_what_was_written_last(connect: Connect, lock_name: str) -> None:
    zk = connect()
    registry = Registry(zk, lock_name)
    with locked(zk, registry) as handle:
        assert registry.last(handle) is None
        registry.write(handle, RUNNING)
        registry.write(handle, DONE)
        assert registry.last(handle) == DONE
        registry.write(handle, DONE)
        data, status = zk.get(f"/coordination/{lock_name}/turn")
    assert json.loads(data) == {"format": 1, "name": "ingestion", "state": "done", "token": 7, "predecessor": None}
    assert status.version == 1  # the third write changed nothing


def test_a_turn_ends_the_waiting_of_its_stream_and_of_no_other(connect: Connect, lock_name: str) -> None:
    zk = connect()
    registry = Registry(zk, lock_name)
    with locked(zk, registry) as handle:
        registry.leave_waiting(handle, stream("ingestion", ANY))
        registry.leave_waiting(handle, stream("mutation", ["ingestion", "retention"]))
        assert registry.waiting(handle) == {
            "ingestion": frozenset({ANY}),
            "mutation": frozenset({"ingestion", "retention"}),
        }
        registry.write(handle, RUNNING)
        assert list(registry.waiting(handle)) == ["mutation"]


def test_a_waiting_note_is_withdrawn_by_its_own_session_alone(connect: Connect, lock_name: str) -> None:
    zk = connect()
    registry = Registry(zk, lock_name)
    with locked(zk, registry) as handle:
        registry.leave_waiting(handle, stream("mutation", "ingestion"))
        Registry(connect(), lock_name).withdraw("mutation")
        assert list(registry.waiting(handle)) == ["mutation"]
        registry.withdraw("mutation")
        assert registry.waiting(handle) == {}


def test_nothing_is_written_after_the_lock_node_is_gone(connect: Connect, lock_name: str) -> None:
    zk = connect()
    registry = Registry(zk, lock_name)
    with locked(zk, registry) as handle:
        connect().delete(handle.path)
        with pytest.raises(LockLost, match="its lock node is gone"):
            registry.write(handle, RUNNING)
    assert zk.exists(registry.turn_path) is None


class StaleNames(Registry):
    """Of its first reading of the waiting notes, one has expired since."""

    stale: tuple[str, ...] = ("ingestion",)

    def _waiting_names(self, handle: Asks) -> list[str]:
        names, self.stale = self.stale, ()
        return list(names) or super()._waiting_names(handle)


def test_a_write_that_an_expired_note_refuses_is_tried_again(connect: Connect, lock_name: str) -> None:
    zk = connect()
    registry = StaleNames(zk, lock_name)
    with locked(zk, registry) as handle:
        registry.write(handle, RUNNING)
        assert registry.last(handle) == RUNNING


def test_a_lock_is_lost_after_a_session_timeout_without_a_connection(connect: Connect, lock_name: str) -> None:
    zk, now = connect(), [0.0]
    handle = acquire(zk, Registry(zk, lock_name).lock_path, "ingestion", 5, lambda: now[0])
    assert handle is not None
    session_seconds = zk._session_timeout / 1000
    for state in (KazooState.SUSPENDED, KazooState.CONNECTED, KazooState.SUSPENDED):
        handle._connection_changed(state)
        now[0] += 0.75 * session_seconds
        assert not handle.is_lost
    now[0] += 0.25 * session_seconds
    assert handle.is_lost
    handle._connection_changed(KazooState.CONNECTED)
    assert handle.is_lost
    assert not handle.release(5)


@pytest.mark.parametrize("note", [{}, {"note": "n"}])
def test_a_turn_that_a_former_version_recorded_is_read(connect: Connect, lock_name: str, note: dict[str, str]) -> None:
    zk = connect()
    registry = Registry(zk, lock_name)
    former = {"name": "ingestion", "state": "done", "token": 7, "predecessor": None, **note}
    with locked(zk, registry) as handle:
        zk.create(registry.turn_path, json.dumps(former).encode())
        assert registry.last(handle) == Turn("ingestion", "done", 7, None, note.get("note", ""))


def test_a_turn_that_a_later_version_recorded_is_refused_and_kept(connect: Connect, lock_name: str) -> None:
    zk = connect()
    registry = Registry(zk, lock_name)
    later = b'{"format": 2, "name": "ingestion", "state": "paused", "token": 7, "predecessor": null}'
    with locked(zk, registry) as handle:
        zk.create(registry.turn_path, later)
        refusal = r"The turn /coordination/.*/turn has format 2, and this version reads formats up to 1"
        with pytest.raises(StoredByNewerVersion, match=refusal):
            registry.last(handle)
        with pytest.raises(StoredByNewerVersion):
            registry.write(handle, RUNNING)
        assert zk.get(registry.turn_path)[0] == later


def test_a_damaged_node_is_named(connect: Connect, lock_name: str) -> None:
    zk = connect()
    registry = Registry(zk, lock_name)
    with locked(zk, registry) as handle:
        zk.create(registry.turn_path, b'{"name": "ingestion"}')
        zk.create(f"{registry.waiting_path}/mutation", b"?", makepath=True)
        with pytest.raises(CoordinationError, match=r"/turn holds .*which is not a turn"):
            registry.last(handle)
        with pytest.raises(CoordinationError, match=r"/waiting/mutation holds .*which is not a list of streams"):
            registry.waiting(handle)


def test_a_lock_name_cannot_lead_to_other_nodes(connect: Connect) -> None:
    with pytest.raises(ConfigurationError, match="is not a valid name"):
        Registry(connect(), "../other")
