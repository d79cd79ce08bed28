"""A ZooKeeper client as the coordinator needs it: started, and reconnected soon after a lost quorum is back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.retry import KazooRetry

from lake_assets.errors import ServiceError

SESSION_SECONDS = 10.0
"""How long a killed holder keeps its lock. A client that pauses for less does not lose its lock."""

START_SECONDS = 15.0
RECONNECT_SECONDS = 1.0
"""Upper limit between two tries to connect. With kazoo's 60 s, clients would stay away long after a quorum is back."""


@contextmanager
def zookeeper_client(hosts: str, *, session_seconds: float = SESSION_SECONDS) -> Iterator[KazooClient]:
    """Yield a started client. The end of the block ends its session, and with it its locks.

    Args:
        hosts: Of the ensemble: `host:port,...`.
        session_seconds: The session timeout. The server must grant it; with a shorter one, a lost lock would be
            noticed too late.

    Raises:
        ServiceError: No server of the ensemble answers.
    """
    reconnect = KazooRetry(max_tries=-1, max_delay=RECONNECT_SECONDS)
    zk = KazooClient(hosts, timeout=session_seconds, connection_retry=reconnect)
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
