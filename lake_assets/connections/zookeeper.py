"""A ZooKeeper client as the coordinator needs it: started, and soon back when a lost quorum is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.retry import KazooRetry

from lake_assets.errors import ServiceError

SESSION_SECONDS = 10.0
"""How long a killed holder keeps its lock; pauses shorter than this cost nobody the lock."""

START_SECONDS = 15.0
RECONNECT_SECONDS = 1.0
"""Most time between two tries to connect. kazoo's 60 would keep clients away long after a lost quorum is back."""


@contextmanager
def zookeeper_client(hosts: str, *, session_seconds: float = SESSION_SECONDS) -> Iterator[KazooClient]:
    """A started client of the ensemble at `host:port,...`; its session ends with the block, and its locks with it.

    session_seconds: what the server must grant, or a lock counts as lost later than it is. `ServiceError` if no server
    of the ensemble answers.
    """
    zk = KazooClient(
        hosts, timeout=session_seconds, connection_retry=KazooRetry(max_tries=-1, max_delay=RECONNECT_SECONDS)
    )
    try:
        _start(zk, hosts)
        yield zk
    finally:
        zk.stop()
        zk.close()


def _start(zk: KazooClient, hosts: str) -> None:
    try:
        zk.start(START_SECONDS)
    except KazooTimeoutError:
        raise ServiceError(
            f"No ZooKeeper answers at {hosts}.", remedy="Start one with `lake up`, or correct LAKE_ZOOKEEPER."
        ) from None
