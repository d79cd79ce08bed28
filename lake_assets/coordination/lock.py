"""The lock: kazoo's recipe, acquired within a time limit without leaving a contender behind, and its holder's handle.

Without a connection, kazoo's calls block until there is one again, and may then create a node (docs/hazards.md, Z2 and
Z4). So each attempt runs in a thread of its own; the thread of an abandoned attempt runs until its node is removed.

kazoo's own flag stays true after the session is gone (Z1), and kazoo reports LOST only once there is a connection again
(Z3). So the handle measures the time without a connection itself, from the moment the client notices. The server may
have stopped receiving from this client before that. A confirmation may therefore be out of date when it returns; only
the fencing token protects writes to other systems.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kazoo.exceptions import (
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NoNodeError,
    OperationTimeoutError,
    SessionExpiredError,
)
from kazoo.protocol.states import KazooState
from kazoo.retry import KazooRetry

from lake_assets.errors import LockLost

if TYPE_CHECKING:
    from kazoo.client import KazooClient, TransactionRequest
    from kazoo.recipe.lock import Lock

CLEANUP_SECONDS = 1.0
"""Upper limit of the part of a timeout that is reserved for removing the contender's node."""

CLEANUP_FRACTION = 0.1
"""That part, if the timeout is short."""

RETRY_DELAY_SECONDS = 0.05
MAX_RETRY_DELAY_SECONDS = 1.0

POLL_SECONDS = 0.05
ANY_VERSION = -1

NODE_GONE = "its lock node is gone"
SESSION_GONE = "its session has expired, or had no connection for a whole session timeout"

Operation = Callable[["TransactionRequest"], None]
"""Adds one operation to a transaction."""


class _Attempt:
    """One attempt to acquire the lock, in a thread of its own."""

    def __init__(self, zk: KazooClient, path: str, name: str) -> None:
        self.lock: Lock = zk.Lock(path, name)
        self._zk = zk
        self._ended = threading.Event()
        self._deciding = threading.Lock()
        self._acquired = False
        self._given_up = False
        zk.handler.spawn(self._run)

    def wait(self, timeout: float) -> bool:
        """Return whether the lock was acquired in time; give up if it was not."""
        reserved = min(timeout * CLEANUP_FRACTION, CLEANUP_SECONDS)
        self._ended.wait(timeout - reserved)
        with self._deciding:
            if self._acquired:
                return True
            self._given_up = True
        self.lock.cancel()
        self._ended.wait(reserved)
        return False

    def _run(self) -> None:
        gotten = False
        with suppress(KazooException):  # cancelled, or the client was closed
            gotten = self.lock.acquire()
        with self._deciding:
            self._acquired = gotten and not self._given_up
        if not self._acquired:
            remove(self._zk, self.lock)
        self._ended.set()


def contend(zk: KazooClient, path: str, name: str, timeout: float, clock: Callable[[], float]) -> Lock | None:
    """Acquire a lock within a time limit.

    Args:
        zk: A started client.
        path: The lock's folder.
        name: What the lock node contains: the name of the stream.
        timeout: In seconds.
        clock: Monotonic seconds.

    Returns:
        The acquired lock, or None if it was not free in time. In that case no node of this attempt is left; if the
        connection breaks meanwhile, the node is removed once there is a connection again.
    """
    end = clock() + timeout
    if not _wait_for_connection(zk, timeout):
        return None
    attempt = _Attempt(zk, path, name)
    seconds_left = max(0, end - clock())
    return attempt.lock if attempt.wait(seconds_left) else None


def holder(zk: KazooClient, path: str, timeout: float) -> str | None:
    """Return the name of the stream that holds a lock.

    Returns:
        None if no stream holds it, or if ZooKeeper did not answer within `timeout` seconds.
    """
    names: list[str] = []

    def read_contenders() -> bool:
        with suppress(KazooException):
            names.extend(zk.Lock(path).contenders())
        return bool(names)

    has_holder = in_background(zk, read_contenders, timeout)
    return names[0] if has_holder else None


def _wait_for_connection(zk: KazooClient, timeout: float) -> bool:
    """Attempts without a connection would pile up, and would all contend once it is back."""
    connected = threading.Event()

    def look(state: str) -> None:
        if state == KazooState.CONNECTED:
            connected.set()

    zk.add_listener(look)
    look(zk.state)
    try:
        return connected.wait(timeout)
    finally:
        zk.remove_listener(look)


def remove(zk: KazooClient, lock: Lock) -> bool:
    """Remove the nodes of a contender; block until the server has confirmed it.

    Returns:
        Whether there were any.
    """
    found = False

    def remove_nodes() -> None:
        nonlocal found
        zk.sync(lock.path)  # a create whose reply was lost may not have reached this server yet
        for child in zk.get_children(lock.path):
            if child.startswith(lock.prefix):
                found = True
                zk.delete(f"{lock.path}/{child}")

    repeat_until_done(zk, remove_nodes)
    return found


def repeat_until_done(zk: KazooClient, work: Callable[[], None]) -> None:
    """Repeat work that removes nodes until it succeeds.

    It also ends when the nodes are gone, or when the client is closed, because the end of a session removes its nodes.
    """
    retry = KazooRetry(
        max_tries=-1,
        delay=RETRY_DELAY_SECONDS,
        max_delay=MAX_RETRY_DELAY_SECONDS,
        sleep_func=zk.handler.sleep_func,
    )
    with suppress(ConnectionClosedError, NoNodeError):
        retry(work)


def in_background(zk: KazooClient, work: Callable[[], bool], timeout: float) -> bool:
    """Run work in a thread of its own, which goes on after the timeout.

    Returns:
        What the work returned, or False if it did not end within `timeout` seconds.
    """
    ended = threading.Event()
    result = False

    def run() -> None:
        nonlocal result
        result = work()
        ended.set()

    zk.handler.spawn(run)
    return ended.wait(timeout) and result


class LockHandle:
    """A lock from acquisition to release or loss; it is not used again after either.

    Attributes:
        path: The handle's own lock node.
        token: The node's czxid; 0 until `identify` is called. It grows from holder to holder, also after a change of
            ZooKeeper's leader and after the parent node is deleted; the lock's sequence numbers do not (Z6).
    """

    def __init__(self, zk: KazooClient, lock: Lock, name: str, clock: Callable[[], float]) -> None:
        """Watch the client's connection from now on.

        Args:
            zk: The client that acquired the lock.
            lock: The acquired lock.
            name: The stream, for error messages.
            clock: Monotonic seconds.
        """
        self.path = f"{lock.path}/{lock.node}"
        self.token = 0
        self._zk = zk
        self._lock = lock
        self._name = name
        self._clock = clock
        self._session_seconds: float = zk._session_timeout / 1000  # kazoo has no public attribute for it
        self._suspended_at: float | None = None
        self._lost = False
        zk.add_listener(self._connection_changed)
        self._connection_changed(zk.state)

    def _connection_changed(self, state: str) -> None:
        """Runs in kazoo's thread. A lost lock stays lost."""
        if self.is_lost or state == KazooState.LOST:
            self._lost = True
        if state == KazooState.CONNECTED:
            self._suspended_at = None
        elif self._suspended_at is None:
            self._suspended_at = self._clock()

    @property
    def is_lost(self) -> bool:
        """Whether the session is gone, or had no connection for a whole session timeout."""
        if self._lost:
            return True
        since = self._suspended_at
        return since is not None and self._clock() - since >= self._session_seconds

    def identify(self) -> None:
        """Read the token.

        Raises:
            LockLost: The lock node is gone already.
        """
        status = self.ask(lambda: self._zk.exists_async(self.path))
        if status is None:
            raise self._lose(NODE_GONE)
        self.token = status.czxid

    def write(self, *operations: Operation) -> bool:
        """Carry out operations in one transaction that also checks the handle's own lock node.

        Without operations it is still a write, which needs a quorum. A read would be answered by a server that is cut
        off from the others.

        Returns:
            Whether all operations were carried out; otherwise none was.

        Raises:
            LockLost: The lock node or the session is gone.
        """

        def request() -> Any:
            transaction = self._zk.transaction()
            transaction.check(self.path, ANY_VERSION)
            for operation in operations:
                operation(transaction)
            return transaction.commit_async()

        results = self.ask(request)
        if isinstance(results[0], NoNodeError):
            raise self._lose(NODE_GONE)
        return not any(isinstance(result, Exception) for result in results)

    def ask(self, request: Callable[[], Any]) -> Any:
        """Return the answer to an asynchronous request, which is repeated if the connection breaks.

        A repeated request may have been carried out before, so a caller that writes has to check.

        Raises:
            LockLost: The session is gone.
        """
        answer = request()
        while not self.is_lost:
            try:
                return answer.get(timeout=POLL_SECONDS)
            except self._zk.handler.timeout_exception:
                continue
            except (ConnectionLoss, OperationTimeoutError):
                self._zk.handler.sleep_func(POLL_SECONDS)
                answer = request()
            except SessionExpiredError:
                break
        raise self._lose(SESSION_GONE)

    def _lose(self, why: str) -> LockLost:
        self._lost = True
        return LockLost(self._name, why)

    def release(self, timeout: float) -> bool:
        """Release the lock.

        Args:
            timeout: Seconds to wait for the server's confirmation; a lost lock is not waited for. Without a
                connection the node is removed once there is one again.

        Returns:
            Whether the lock was held until now.
        """
        self._zk.remove_listener(self._connection_changed)
        was_held = not self.is_lost
        seconds = timeout if was_held else 0
        was_removed = in_background(self._zk, lambda: remove(self._zk, self._lock), seconds)
        return was_removed and was_held


def acquire(zk: KazooClient, path: str, name: str, timeout: float, clock: Callable[[], float]) -> LockHandle | None:
    """Acquire a lock within a time limit.

    If the connection breaks right after the acquisition, the call lasts up to a session timeout longer.

    Args:
        zk: A started client.
        path: The lock's folder.
        name: The stream.
        timeout: In seconds.
        clock: Monotonic seconds.

    Returns:
        None if the lock was not free in time; in that case no contender is left behind.
    """
    lock = contend(zk, path, name, timeout, clock)
    if lock is None:
        return None
    handle = LockHandle(zk, lock, name, clock)
    try:
        handle.identify()
    except LockLost:
        handle.release(0)
        return None
    return handle
