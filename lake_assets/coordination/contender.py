"""Acquiring the lock within a time limit, without leaving a contender behind: kazoo's recipe, one Lock per attempt.

Without a connection, kazoo's calls block until there is one again, and may then create a node (docs/hazards.md, Z2 and
Z4). So each attempt runs in a thread of its own; the thread of an abandoned attempt runs until its node is removed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from kazoo.exceptions import ConnectionClosedError, KazooException, NoNodeError
from kazoo.protocol.states import KazooState
from kazoo.retry import KazooRetry

if TYPE_CHECKING:
    from kazoo.client import KazooClient
    from kazoo.recipe.lock import Lock

CLEANUP_SECONDS = 1.0
"""Upper limit of the part of a timeout that is reserved for removing the contender's node."""

CLEANUP_FRACTION = 0.1
"""That part, if the timeout is short."""

RETRY_DELAY_SECONDS = 0.05
MAX_RETRY_DELAY_SECONDS = 1.0


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
