"""Contending for the lock within a time, and leaving nothing behind: kazoo's recipe, one Lock for each attempt.

Without a connection, kazoo's calls last until there is one, and may then leave a node (docs/hazards.md, Z2 and Z4). So
an attempt has a thread of its own, and that of one that was given up stays until its node is gone.
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

CLEANING_SECONDS = 1.0
"""How much of a timeout, at most, is kept for removing the contender; a tenth of a short one."""


class _Attempt:
    def __init__(self, zk: KazooClient, path: str, name: str) -> None:
        self._zk = zk
        self.lock: Lock = zk.Lock(path, name)
        self._ended = threading.Event()
        self._deciding = threading.Lock()
        self._acquired = self._given_up = False
        zk.handler.spawn(self._run)

    def wait(self, timeout: float) -> bool:
        """Whether the lock was had in time; if not, it is given up."""
        kept = min(timeout / 10, CLEANING_SECONDS)
        self._ended.wait(timeout - kept)
        with self._deciding:
            if self._acquired:
                return True
            self._given_up = True
        self.lock.cancel()
        self._ended.wait(kept)
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
    """The acquired lock, or None if it was not free within `timeout` seconds; then no node of it is left.

    If the connection goes meanwhile, the node goes when there is one again. name: what the node carries.
    """
    end = clock() + timeout
    if not _connected(zk, timeout):
        return None
    attempt = _Attempt(zk, path, name)
    return attempt.lock if attempt.wait(max(0, end - clock())) else None


def holder(zk: KazooClient, path: str, timeout: float) -> str | None:
    """Who holds a lock, as its node tells; None if nobody does, or if it can not be told within `timeout` seconds."""
    names: list[str] = []

    def look() -> bool:
        with suppress(KazooException):
            names.extend(zk.Lock(path).contenders())
        return bool(names)

    return names[0] if in_background(zk, look, timeout) else None


def _connected(zk: KazooClient, timeout: float) -> bool:
    """Waits for a connection: attempts without one would pile up, and all contend when it is back."""
    found = threading.Event()

    def look(state: str) -> None:
        if state == KazooState.CONNECTED:
            found.set()

    zk.add_listener(look)
    look(zk.state)
    try:
        return found.wait(timeout)
    finally:
        zk.remove_listener(look)


def remove(zk: KazooClient, lock: Lock) -> bool:
    """Removes the nodes of a contender; whether there were any. Lasts until the server has said so."""
    found = False

    def once() -> None:
        nonlocal found
        zk.sync(lock.path)  # a create whose reply was lost may not have reached the server that is asked now
        for child in zk.get_children(lock.path):
            if child.startswith(lock.prefix):
                found = True
                zk.delete(f"{lock.path}/{child}")

    persistently(zk, once)
    return found


def persistently(zk: KazooClient, work: Callable[[], None]) -> None:
    """Repeats what removes nodes until it is done, or the client is closed: then its session has taken them along."""
    with suppress(ConnectionClosedError, NoNodeError):
        KazooRetry(max_tries=-1, delay=0.05, max_delay=1, sleep_func=zk.handler.sleep_func)(work)


def in_background(zk: KazooClient, work: Callable[[], bool], timeout: float) -> bool:
    """What the work returned, if it ended within `timeout` seconds, else False; it goes on by itself."""
    ended, outcome = threading.Event(), [False]

    def run() -> None:
        outcome[0] = work()
        ended.set()

    zk.handler.spawn(run)
    return ended.wait(timeout) and outcome[0]
