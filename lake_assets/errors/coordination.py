"""Errors of turns, locks and claims."""

from lake_assets.errors.base import LakeError

_STOP_BATCH = "Stop this batch without another commit; the next turn repeats it from its checkpoint."


class CoordinationError(LakeError):
    """A turn cannot start or cannot continue."""


class LockNotFree(CoordinationError):
    """The lock was not acquired in time. No contender is left behind.

    Args:
        holder: The stream that holds it; None if it is not known.
        answers: Whether ZooKeeper answers.
    """

    def __init__(self, lock: str, *, seconds: float, stream: str, holder: str | None, answers: bool = True) -> None:
        held = f"{holder or 'an unknown process'} holds it" if answers else "ZooKeeper does not answer"
        super().__init__(
            f"{lock} was not free within {seconds:g} s: {stream} waits, and {held}.",
            remedy="Wait if the turn of the holder takes long; otherwise check whether the holder still works."
            if answers
            else "Check that ZooKeeper runs and has a quorum. The turn is tried again from its checkpoint.",
        )


class TurnRefused(CoordinationError):
    """It is not this stream's turn. The lock was released and nothing was registered."""

    def __init__(self, stream: str, reason: str) -> None:
        super().__init__(
            f"It is not the turn of {stream}: {reason}.",
            remedy="Run the other stream first, then try again. Dagster does both automatically.",
        )
        self.stream = stream
        self.reason = reason


class NotHolder(CoordinationError):
    """A caller that does not hold the lock called a method for the holder. Nothing was written."""

    def __init__(self, stream: str, *, needs: str) -> None:
        super().__init__(
            f"{stream} has not called {needs}.",
            remedy="Call lock(), register(), then do the work, then call done() and unlock().",
        )


class LockLost(CoordinationError):
    """The holder's ZooKeeper session ended or may have ended, so another process may hold the lock."""

    def __init__(self, stream: str, why: str) -> None:
        super().__init__(f"{stream} has lost its lock: {why}.", remedy=_STOP_BATCH)


class ClaimRefused(CoordinationError):
    """A later holder has claimed the guarded resource."""

    def __init__(self, resource: str, *, token: int, found: int) -> None:
        super().__init__(
            f"{resource} was claimed with token {found}, which is later than this turn's token {token}.",
            remedy=f"{_STOP_BATCH} If every turn is refused because ZooKeeper was replaced or lost its data, run "
            "`lake engagement reclaim LAKE`.",
        )


class RegistryDamaged(CoordinationError):
    """A node of the registry has content that the coordinator never writes. what: the content, as a sentence end."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(
            f"The registry node {path} {what}.",
            remedy=f"Stop all streams, check in their checkpoints that none has an open batch, then delete {path}. "
            "The first stream can start after that.",
        )
