"""One holding of the lock: whether it still is, and giving it back.

kazoo's own flag stays true when the session is gone (docs/hazards.md, Z1), and LOST is told only when there is a
connection again (Z3). So the time without one is taken here, from when this side notices. The server may have stopped
to hear of us before that: what is confirmed may be out of date as soon as it is said, and only the token protects what
is written elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kazoo.exceptions import ConnectionLoss, NoNodeError, OperationTimeoutError, SessionExpiredError
from kazoo.protocol.states import KazooState

from lake_assets.coordination.contender import contend, in_background, remove
from lake_assets.errors import LockLost

if TYPE_CHECKING:
    from kazoo.client import KazooClient, TransactionRequest
    from kazoo.recipe.lock import Lock

POLL_SECONDS = 0.05
ANY_VERSION = -1
Operation = Callable[["TransactionRequest"], None]
"""One of those that a transaction carries out together."""


class LockHandle:
    """From acquisition to release or loss; never used again after either.

    path: of the own lock node. token: its czxid, 0 until it is identified. It grows from holder to holder, across
    leaders and across a deleted parent, unlike the lock's sequence numbers (Z6).
    """

    def __init__(self, zk: KazooClient, lock: Lock, name: str, clock: Callable[[], float]) -> None:
        self._zk, self._lock, self._name, self._clock = zk, lock, name, clock
        self._session_seconds: float = zk._session_timeout / 1000  # kazoo has no public way to ask
        self._suspended_at: float | None = None
        self._lost = False
        self.path = f"{lock.path}/{lock.node}"
        self.token = 0
        zk.add_listener(self._changed)
        self._changed(zk.state)

    def _changed(self, state: str) -> None:
        """Called in kazoo's thread, so it never takes a loss back."""
        if self.is_lost or state == KazooState.LOST:
            self._lost = True
        if state == KazooState.CONNECTED:
            self._suspended_at = None
        elif self._suspended_at is None:
            self._suspended_at = self._clock()

    @property
    def is_lost(self) -> bool:
        """Whether the session is gone, or has been out of touch for as long as it lasts."""
        since = self._suspended_at
        return self._lost or (since is not None and self._clock() - since >= self._session_seconds)

    def identify(self) -> None:
        """Finds out the token; `LockLost` if the node is gone already."""
        found = self.ask(lambda: self._zk.exists_async(self.path))
        if found is None:
            raise self._lose("its node is gone")
        self.token = found.czxid

    def write(self, *operations: Operation) -> bool:
        """All of the operations, or none; whether they were done. `LockLost` if the own node is gone.

        Without operations it is still a write, which takes a quorum: a server that was cut off would answer a read.
        """

        def request() -> Any:
            transaction = self._zk.transaction()
            transaction.check(self.path, ANY_VERSION)
            for operation in operations:
                operation(transaction)
            return transaction.commit_async()

        results = self.ask(request)
        if isinstance(results[0], NoNodeError):
            raise self._lose("its node is gone")
        return not any(isinstance(result, Exception) for result in results)

    def ask(self, request: Callable[[], Any]) -> Any:
        """The answer to an asynchronous request, repeated when the connection broke; `LockLost`.

        So it may have been carried out before: who writes has to look.
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
        raise self._lose("its session is gone, or has been out of touch for as long as it lasts")

    def _lose(self, why: str) -> LockLost:
        self._lost = True
        return LockLost(self._name, why)

    def release(self, timeout: float) -> bool:
        """Gives the lock back; whether it was held until then.

        Without a connection its node goes when there is one again. timeout: seconds to wait for that, unless lost.
        """
        self._zk.remove_listener(self._changed)
        was_held = not self.is_lost
        return in_background(self._zk, lambda: remove(self._zk, self._lock), timeout if was_held else 0) and was_held


def acquire(zk: KazooClient, path: str, name: str, timeout: float, clock: Callable[[], float]) -> LockHandle | None:
    """The lock, or None if it was not free within `timeout` seconds; then no contender is left behind.

    If the connection goes just when it was had, it takes up to a session timeout more to know what came of it.
    """
    lock = contend(zk, path, name, timeout, clock)
    if lock is None:
        return None
    hold = LockHandle(zk, lock, name, clock)
    try:
        hold.identify()
    except LockLost:
        hold.release(0)
        return None
    return hold
