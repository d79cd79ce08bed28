"""A ZooKeeper client as the coordinator needs it: started, and reconnected soon after a lost quorum is back."""

from __future__ import annotations

import logging
import socket
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError, NoNodeError, OperationTimeoutError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.retry import KazooRetry
from kazoo.security import ACL, OPEN_ACL_UNSAFE, make_digest_acl

from lake_assets.base.described import recognise
from lake_assets.connections.addresses import Login, zookeeper_login
from lake_assets.errors import ServiceError, chain_text, first_line
from lake_assets.settings import settings

if TYPE_CHECKING:
    from kazoo.interfaces import IAsyncResult

# Without a handler, Python prints each try to connect, after which the error says the same.
logging.getLogger("kazoo").addHandler(logging.NullHandler())

SESSION_SECONDS = 10.0
"""How long a killed holder keeps its lock. A client that pauses for less does not lose its lock."""

START_SECONDS = 15.0
RECONNECT_SECONDS = 1.0
"""Upper limit between two tries to connect. With kazoo's 60 s, clients would stay away long after a quorum is back."""

COMMAND_SECONDS = 30.0
"""How long a read is tried again while no server answers. Without a limit, it would wait until one does."""

DEFAULT_PORT = 2181

ANSWER_SECONDS = 5.0
"""How long one answer is waited for. kazoo keeps requests until it is connected again, however long that takes."""


@contextmanager
def zookeeper_client(
    hosts: str, *, session_seconds: float = SESSION_SECONDS, login: Login | None = None
) -> Iterator[KazooClient]:
    """Yield a started client. The end of the block ends its session, and with it its locks.

    With a login, the nodes that it creates are open to this login alone.

    Args:
        hosts: Of the ensemble: `host:port,...`.
        session_seconds: The session timeout. The server must grant it; with a shorter one, a lost lock would be
            noticed too late.
        login: Of the client; None for the one that belongs to the hosts, if any.

    Raises:
        ServiceError: No server of the ensemble answers.
    """
    login = login or zookeeper_login(settings(), hosts)
    zk = KazooClient(
        hosts,
        timeout=session_seconds,
        connection_retry=_retry(),
        command_retry=_retry(deadline=COMMAND_SECONDS),
        auth_data=[("digest", ":".join(login))] if login else None,
        default_acl=access_of(login) if login else None,
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
        listening = any(_listens(host, port) for host, port in zk.hosts)
        problem = f"What listens at {hosts} does not answer as a ZooKeeper." if listening else None
        raise ServiceError(
            problem or f"No ZooKeeper answers at {hosts}.",
            remedy="Start one with `lake up`, or correct LAKE_ZOOKEEPER.",
        ) from None


def _listens(host: str, port: int | None) -> bool:
    try:
        socket.create_connection((host, port or DEFAULT_PORT), timeout=1).close()
    except OSError:
        return False
    return True


def zookeeper_error(error: Exception, hosts: str | None = None) -> ServiceError:
    """Return what ZooKeeper refused, or that it did not answer, and what to do.

    Args:
        error: Of kazoo.
        hosts: Of the ensemble; None if the error does not name them.
    """
    name = f"ZooKeeper at {hosts}" if hosts else "ZooKeeper"
    known = recognise(chain_text(error))
    if known is not None:
        return ServiceError(known.problem.replace("ZooKeeper", name, 1), remedy=known.remedy)
    return ServiceError(
        f"{name} answers with an error: {type(error).__name__}: {first_line(str(error))}.",
        remedy="Check that its nodes are as they were left; a backup of the data directory has them.",
    )


def retry_for(zk: KazooClient, seconds: float) -> KazooRetry:
    """Return what calls a function again after a lost connection, a lost session or no answer, for so many seconds."""
    return _retry(deadline=seconds, sleep_func=zk.handler.sleep_func)


def _retry(**options: Any) -> KazooRetry:
    return KazooRetry(max_tries=-1, max_delay=RECONNECT_SECONDS, **options)


def answer(request: IAsyncResult, *, seconds: float = ANSWER_SECONDS) -> Any:
    """Return the answer to an asynchronous request.

    Raises:
        OperationTimeoutError: There is none within the seconds. kazoo's retries try again after it.
        KazooException: The answer is an error.
    """
    try:
        return request.get(timeout=seconds)
    except KazooTimeoutError:
        raise OperationTimeoutError(f"ZooKeeper did not answer within {seconds:g} s") from None


def access_of(login: Login | None) -> list[ACL]:
    """Return who may do anything with a node: one login, or (None) all."""
    return [make_digest_acl(*login, all=True)] if login else list(OPEN_ACL_UNSAFE)


def set_access(zk: KazooClient, access: Sequence[ACL]) -> None:
    """Set who may use the nodes: each node that the client may change, the root first. Safe to repeat."""
    paths = deque(["/"])
    while paths:
        path = paths.popleft()
        with suppress(NoNodeError, NoAuthError):
            zk.set_acls(path, access)
            paths.extend(str(PurePosixPath(path, name)) for name in zk.get_children(path))
