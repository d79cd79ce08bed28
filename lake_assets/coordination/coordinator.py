"""The job coordinator: streams that write one resource take turns, in an order of their own, and none writes late.

    lock → register → (claim → work → checkpoint) → done → unlock

What it promises, and what would break the promise, is in docs/coordination.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lake_assets.coordination.contender import holder, in_background, persistently
from lake_assets.coordination.hold import LockHandle, acquire
from lake_assets.coordination.registry import Registry
from lake_assets.coordination.rules import Refused, Turn, checked_name, decide, stream
from lake_assets.errors import ConfigurationError, CoordinationError, LockLost, LockNotFree, NotHolder, TurnRefused

if TYPE_CHECKING:
    from kazoo.client import KazooClient

RETRY_SECONDS = 1.0
"""Between a refusal and the next try."""

Claim = Callable[[int], None]
"""Writes the token to the guarded resource. It must refuse (`check_claim`) when a greater one is there."""


class JobCoordinator:
    """One stream's side of one lock. For one thread; a stream that ended is begun again with a new one.

    lock_name: of the resource that is guarded. name: of this stream. predecessor: the stream, or streams, that may have
    run last, or `ANY`. zk: a started client; its session timeout is how long a killed holder keeps the lock. timeout:
    seconds that `lock()` waits, more than 0. first: it may start when nobody has run yet, as one that accepts any may.
    claim: what `claim()` calls. clock: seconds that only grow.
    """

    def __init__(
        self,
        lock_name: str,
        name: str,
        predecessor: str | Collection[str],
        zk: KazooClient,
        timeout: float,
        *,
        first: bool = False,
        claim: Claim | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if timeout <= 0:
            raise ConfigurationError(f"{name} would wait {timeout:g} s for its lock.", remedy="Give it some seconds.")
        self.stream = stream(name, predecessor, first=first)
        self._zk, self._timeout, self._claim, self._clock = zk, timeout, claim, clock
        self._registry = Registry(zk, lock_name)
        self._hold: LockHandle | None = None
        self._turn: Turn | None = None

    @property
    def token(self) -> int:
        """The fencing token of this holding; a later holder's is greater. `NotHolder` without the lock."""
        return self._held().token

    def lock(self, timeout: float | None = None) -> bool:
        """Whether the lock is held now. Waits at most the coordinator's timeout; then no contender is left behind.

        With the lock in hand it changes nothing. timeout: seconds, instead of the coordinator's.
        """
        if self._hold and self._hold.is_lost:
            self.unlock()
        if self._hold is None:
            seconds = self._timeout if timeout is None else timeout
            self._hold = acquire(self._zk, self._registry.lock_path, self.stream.name, seconds, self._clock)
        return self._hold is not None

    def register(self) -> str | None:
        """Begins a turn: records it as running, and returns who ran before; None if nobody had. Again: the same.

        An interrupted turn of this stream goes on. `TurnRefused` if it is not its turn: then the lock is released, and
        the stream noted as waiting until it is granted a turn, gives up or ends. `NotHolder` without the lock,
        `LockLost`, `RegistryDamaged`: the lock is released too.
        """
        hold = self._held()
        if self._turn is None:
            try:
                self._turn = self._begin(hold)
            except CoordinationError:
                self.unlock()
                raise
        return self._turn.predecessor

    def _begin(self, hold: LockHandle) -> Turn:
        verdict = decide(self.stream, self._registry.last(hold), self._registry.waiting(hold))
        if isinstance(verdict, Refused):
            self._registry.leave_waiting(hold, self.stream)
            raise TurnRefused(self.stream.name, verdict.reason)
        turn = Turn(self.stream.name, "running", hold.token, verdict.predecessor)
        self._registry.write(hold, turn)
        return turn

    def claim(self) -> int:
        """Writes the token to the guarded resource, and returns it. Call it in a registered turn, before the first read
        that the work depends on; a turn without work claims nothing. `LockLost`, and what the hook raises.
        """
        self._registered()
        if self._claim is None:
            raise ConfigurationError(f"{self.stream.name} has nothing to claim with.", remedy="Pass it claim=...")
        self.confirm()
        self._claim(self.token)
        return self.token

    def confirm(self) -> None:
        """Returns if the lock is held: call it before each commit. Waits while the connection is gone; `LockLost`."""
        hold = self._held()
        try:
            hold.write()
        except LockLost:
            self.unlock()
            raise

    def done(self) -> None:
        """Ends the turn: its work is checkpointed, and the next may come. Again: no change. `LockLost`."""
        turn, hold = self._registered(), self._held()
        try:
            self._registry.write(hold, Turn(turn.name, "done", turn.token, turn.predecessor))
        except CoordinationError:
            self.unlock()
            raise

    def unlock(self) -> bool:
        """Whether the lock was held, and is given back now. True once; nobody else's lock is touched.

        A turn that is not done stays *running*: only this stream can go on with it.
        """
        hold, self._hold, self._turn = self._hold, None, None
        return hold is not None and hold.release(self._timeout)

    @contextmanager
    def locked(self) -> Iterator[int]:
        """The lock around work that is no turn; yields the token. `LockNotFree` after the coordinator's timeout."""
        if not self.lock():
            raise self._not_free(self._timeout)
        try:
            yield self.token
        finally:
            self.unlock()

    def give_turn(self, name: str) -> None:
        """Records a stream's turn as running, whoever ran last: it alone can go on then, as if it had died in it.

        For a registry that was lost while the stream's work was not done. `NotHolder` without the lock, `LockLost`.
        """
        hold = self._held()
        self._registry.write(hold, Turn(checked_name(name), "running", hold.token))

    def give_up(self) -> None:
        """No longer waits: an any-stream need not yield to this one any more."""

        def work() -> bool:
            persistently(self._zk, lambda: self._registry.withdraw(self.stream.name))
            return True

        in_background(self._zk, work, self._timeout)

    @contextmanager
    def turn(self, *, max_wait: float, sleep: Callable[[float], None] = time.sleep) -> Iterator[str | None]:
        """A whole turn around the work: `lock()` and `register()`, tried each second, then `done()` and `unlock()`.

        Yields what `register()` returns. Work that raises leaves the turn running. After `max_wait` seconds:
        `TurnRefused`, or `LockNotFree`, and nothing is left of the attempt.
        """
        try:
            predecessor = self._wait_for_turn(max_wait, sleep)
        except BaseException:
            self.give_up()
            raise
        try:
            yield predecessor
            self.done()
        finally:
            self.unlock()

    def _wait_for_turn(self, max_wait: float, sleep: Callable[[float], None]) -> str | None:
        end = self._clock() + max_wait
        while True:
            refused: CoordinationError | None = None
            try:
                if self.lock(max(RETRY_SECONDS, min(self._timeout, end - self._clock()))):
                    return self.register()
            except (TurnRefused, LockLost) as error:
                refused = error
            if self._clock() + RETRY_SECONDS > end:
                raise refused or self._not_free(max_wait)
            sleep(RETRY_SECONDS)

    def _not_free(self, seconds: float) -> LockNotFree:
        path = self._registry.lock_path
        held_by = holder(self._zk, path, RETRY_SECONDS)
        return LockNotFree(path, seconds=seconds, stream=self.stream.name, holder=held_by)

    def _held(self) -> LockHandle:
        if self._hold is None:
            raise NotHolder(self.stream.name, needs="lock()")
        return self._hold

    def _registered(self) -> Turn:
        if self._turn is None:
            raise NotHolder(self.stream.name, needs="lock() and register()")
        return self._turn
