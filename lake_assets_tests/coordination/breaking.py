"""What comes of a turn under which the ensemble, the connection or the registry breaks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from lake_assets.coordination import ANY, JobCoordinator, zookeeper_client
from lake_assets.errors import CoordinationError, LockLost, TurnRefused
from lake_assets_tests.coordination.ensembles import Ensemble
from lake_assets_tests.coordination.lossy import CREATE, DELETE, TRANSACTION, lossy_line
from lake_assets_tests.coordination.world import World, settle
from lake_assets_tests.outcomes import Outcomes

SHORT, LONG = 2.0, 10.0
"""Sessions, in seconds: one that a loss outlasts, one that outlasts the election of a leader on a busy machine."""
STEPS = ("lock", "register", "done", "unlock")
REQUESTS = {"lock": CREATE, "register": TRANSACTION, "done": TRANSACTION, "unlock": DELETE}


def a_server_is_killed(role: str, three: Ensemble, world: World) -> str:
    """The lock outlives it, and nobody else has it meanwhile."""
    holder, other = world.coordinator("ingestion"), world.coordinator("mutation", timeout=30)
    assert holder.lock()
    holder.register()
    token = holder.claim()
    with ThreadPoolExecutor() as pool:
        contending = pool.submit(other.lock)
        with three.without(three.servers_in(role)[0]):
            holder.confirm()
            assert holder.token == token
            assert not contending.done()
            number = world.ledger.next_batch("ingestion")
            world.ledger.write("ingestion", number, token)
            world.ledger.checkpoint("ingestion", number, token)
            holder.done()
            assert holder.unlock()
            assert contending.result(20)
            assert other.register() == "ingestion"
            assert other.claim() > token
            other.done()
            assert other.unlock()
    settle(world)
    return "ingestion goes on with its lock; mutation follows ingestion"


def the_quorum_is_lost(seconds: float, three: Ensemble, world: World) -> str:
    """The lock is lost in time, nobody gets it, and turns go on when the servers are back."""
    holder, other = world.coordinator("ingestion", timeout=1), world.coordinator("mutation", timeout=1)
    assert holder.lock()
    holder.register()
    with three.without(*three.servers[:2]):
        begun = time.monotonic()
        with pytest.raises(LockLost, match="had no connection for a whole session timeout"):
            holder.confirm()
        assert time.monotonic() - begun < SHORT + 30
        for coordinator in (holder, other):
            begun = time.monotonic()
            assert not coordinator.lock()
            assert time.monotonic() - begun < 30
        time.sleep(seconds)
    assert within(20, other.lock)
    with pytest.raises(TurnRefused, match="of ingestion, is not done"):
        other.register()
    settle(world)
    return "stops: LockLost; nobody gets the lock; then ingestion goes on"


def the_session_is_ended(three: Ensemble, world: World) -> str:
    """By the server, for whoever closes a session closes it for all."""
    zk = world.client()
    holder = world.coordinator("ingestion", client=zk)
    assert holder.lock()
    holder.register()
    same = KazooClient(three.hosts, client_id=zk.client_id)
    same.start()
    same.stop()
    same.close()
    with pytest.raises(LockLost):
        holder.done()
    other = world.coordinator("mutation")
    assert other.lock()
    with pytest.raises(TurnRefused, match="of ingestion, is not done"):
        other.register()
    settle(world)
    return "stops: LockLost; mutation is refused; ingestion goes on"


def a_reply_is_lost(step: str, three: Ensemble, world: World) -> str:
    """The request arrives, and then the connection breaks: it is neither forgotten nor done twice."""
    zk, path = world.client(), f"/coordination/{world.lock_name}"
    zk.ensure_path(f"{path}/lock")
    with (
        lossy_line(three.hosts.split(",")[0]) as line,
        zookeeper_client(line.address, session_seconds=LONG) as client,
    ):
        coordinator = JobCoordinator(world.lock_name, "ingestion", ANY, client, timeout=10)
        for name in STEPS:
            if name == step:
                line.lose_reply(REQUESTS[name])
            assert getattr(coordinator, name)() in (True, None)
            zk.sync(path)  # this client's server may be behind
            assert len(zk.get_children(f"{path}/lock")) == (0 if name == "unlock" else 1)
        assert line.lost == 1
    zk.sync(path)
    data, status = zk.get(f"{path}/turn")
    assert b'"done"' in data
    assert status.version == 1  # created running, then set to done
    settle(world)
    return "done once; the turn goes on"


def the_registry_is_damaged(three: Ensemble, world: World) -> str:
    """Nobody guesses whose turn it is."""
    world.play("ingestion")
    zk, path = world.client(), f"/coordination/{world.lock_name}/turn"
    zk.set(path, b"{}")
    coordinator = world.coordinator("mutation")
    assert coordinator.lock()
    with pytest.raises(CoordinationError, match=rf"{path} holds(.|\n)*delete {path}"):
        coordinator.register()
    assert world.contenders() == []
    zk.delete(path)
    settle(world)
    return "stops: CoordinationError, which names the node; without it ingestion starts"


Fault = Callable[[Ensemble, World], str]


def faults(without_quorum: float) -> Mapping[str, tuple[float, Fault]]:
    """What breaks → how long sessions last then, and how it is played. without_quorum: for so many seconds."""
    return {
        "the leader is killed": (LONG, partial(a_server_is_killed, "leader")),
        "a follower is killed": (LONG, partial(a_server_is_killed, "follower")),
        "two of the three servers are killed": (SHORT, partial(the_quorum_is_lost, without_quorum)),
        "the server ends the session": (LONG, the_session_is_ended),
        **{f"the reply to `{step}` is lost": (LONG, partial(a_reply_is_lost, step)) for step in STEPS},
        "the registry is damaged": (LONG, the_registry_is_damaged),
    }


def play_faults(three: Ensemble, folder: Path, *, without_quorum: float) -> Outcomes:
    """All of them, one after the other: they break what they share."""
    found = {}
    for number, (fault, (session, play)) in enumerate(faults(without_quorum).items()):
        place = folder / str(number)
        place.mkdir(parents=True)
        with World(three.hosts, f"fault-{number}", place, session_seconds=session) as world:
            world.ledger.create()
            found[fault] = play(three, world)
    return found


def within(seconds: float, condition: Callable[[], bool]) -> bool:
    """Whether it becomes true in time."""
    end = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < end:
        time.sleep(0.1)
    return found
