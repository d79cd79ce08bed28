"""Servers of an ensemble of three die while turns are taken."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from kazoo.client import KazooClient

from lake_assets.coordination import ANY, JobCoordinator, zookeeper_client
from lake_assets.errors import LockLost, TurnRefused
from lake_assets_tests.coordination.conftest import Ensemble

QUORUM_LOSS_SECONDS = float(os.environ.get("LAKE_TEST_QUORUM_LOSS_SECONDS", "4"))
SHORT, LONG = 2.0, 10.0
"""Sessions, in seconds: one that a loss outlasts, one that outlasts the election of a leader on a busy machine."""

Connect = Callable[[float], KazooClient]


@pytest.fixture
def connect(three: Ensemble) -> Iterator[Connect]:
    with ExitStack() as stack:

        def opened(seconds: float) -> KazooClient:
            return stack.enter_context(zookeeper_client(three.hosts, session_seconds=seconds))

        yield opened


@pytest.mark.parametrize("mode", ["leader", "follower"])
def test_z5_the_lock_outlives_a_server_and_nobody_else_has_it_meanwhile(
    three: Ensemble, connect: Connect, lock_name: str, mode: str
) -> None:
    holder = JobCoordinator(lock_name, "ingestion", ANY, connect(LONG), timeout=10)
    other = JobCoordinator(lock_name, "mutation", "ingestion", connect(LONG), timeout=30)
    assert holder.lock()
    holder.register()
    token = holder.token
    with ThreadPoolExecutor() as pool:
        contending = pool.submit(other.lock)
        with three.without(three.servers_in(mode)[0]):
            holder.confirm()
            assert holder.token == token
            assert not contending.done()
            holder.done()
            assert holder.unlock()
            assert contending.result(20)
            assert other.register() == "ingestion"
            assert other.token > token
            assert other.unlock()


def test_z3_z4_without_a_quorum_the_lock_is_lost_in_time_and_turns_go_on_when_it_is_back(
    three: Ensemble, connect: Connect, lock_name: str
) -> None:
    holder = JobCoordinator(lock_name, "ingestion", ANY, connect(SHORT), timeout=1)
    other = JobCoordinator(lock_name, "mutation", "ingestion", connect(SHORT), timeout=1)
    assert holder.lock()
    holder.register()
    with three.without(*three.servers[:2]):
        begun = time.monotonic()
        with pytest.raises(LockLost, match="out of touch for as long as it lasts"):
            holder.confirm()
        assert time.monotonic() - begun < SHORT + 2
        for coordinator in (holder, other):
            begun = time.monotonic()
            assert not coordinator.lock()
            assert time.monotonic() - begun < 1.1
        time.sleep(QUORUM_LOSS_SECONDS)
    assert within(20, other.lock)
    with pytest.raises(TurnRefused, match="of ingestion, is not done"):
        other.register()
    assert within(20, holder.lock)
    holder.register()
    holder.done()
    assert holder.unlock()
    zk = connect(SHORT)
    assert within(5, lambda: zk.get_children(f"/coordination/{lock_name}/lock") == [])


def within(seconds: float, condition: Callable[[], bool]) -> bool:
    """Whether it becomes true in time."""
    end = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < end:
        time.sleep(0.1)
    return found
