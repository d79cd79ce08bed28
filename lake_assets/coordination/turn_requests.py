"""When a stream should ask for its turn, so that it gets it at once: a read of the registry, and a pure decision.

A process that asks too early waits, and occupies a place meanwhile. Nothing here takes the lock or writes a node, and
nothing depends on it: the coordinator alone grants turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kazoo.exceptions import KazooException

from lake_assets.connections.zookeeper import zookeeper_error
from lake_assets.coordination.registry import Registry
from lake_assets.coordination.rules import Refused, Stream, Turn, decide

if TYPE_CHECKING:
    from kazoo.client import KazooClient

ANSWER_SECONDS = 20.0
"""How long a read may take."""


@dataclass(frozen=True)
class LockState:
    """What the registry of a lock shows at one moment.

    Attributes:
        last: The last turn; None if no stream has run.
        changed_at: When the last turn began or was done, in seconds since 1970 by ZooKeeper's clock; 0 without a turn.
        contenders: Names of the streams that hold the lock, or wait for it, in order.
        waiting: Streams that were refused and go on trying, each with the streams that it accepts as predecessors.
    """

    last: Turn | None
    changed_at: float
    contenders: tuple[str, ...]
    waiting: Mapping[str, frozenset[str]]


@dataclass(frozen=True)
class DueStream:
    """A stream whose next turn is due. since: from when on, in seconds since 1970."""

    stream: Stream
    since: float


def read_lock_state(zk: KazooClient, lock_name: str) -> LockState:
    """Return the present state of a lock. Takes no lock and changes nothing.

    Raises:
        CoordinationError: A node contains something else than a turn or a list of streams.
        ServiceError: ZooKeeper stopped answering.
    """
    registry = Registry(zk, lock_name)
    reader = _Reader()
    try:
        contenders = tuple(zk.Lock(registry.lock_path).contenders())
        last, changed_at = registry.last_recorded(reader)
        return LockState(last, changed_at, contenders, registry.waiting(reader))
    except (KazooException, zk.handler.timeout_exception) as error:
        raise zookeeper_error(error) from None


class _Reader:
    """Answers without a lock: what is read may be out of date at once."""

    def ask(self, request: Callable[[], Any]) -> Any:
        return request().get()


def why_not_now(
    asking: DueStream, others: Iterable[DueStream], seen: LockState, *, now: float, patience: float
) -> str | None:
    """Return why a stream whose turn is due should not ask for it yet; None if it should.

    Of several streams that could come next, those that accept only some predecessors go before those that accept any,
    because they have fewer occasions; then the one that is due for longest goes. A stream that does not use its
    occasion within `patience` (its sensor is off, or its runs fail) no longer keeps the others waiting.

    Args:
        others: The other streams of the lock whose turn is due.
        now: Seconds since 1970.
        patience: Seconds for which the others leave an occasion to the stream that goes first.
    """
    if seen.contenders:
        return f"{seen.contenders[0]} holds the lock"
    verdict = decide(asking.stream, seen.last, seen.waiting)
    if isinstance(verdict, Refused):
        return verdict.reason
    for other in sorted(others, key=_order):
        if _order(other) > _order(asking):
            break
        could_begin = not isinstance(decide(other.stream, seen.last, seen.waiting), Refused)
        had_its_occasion = now - max(other.since, seen.changed_at) > patience
        if could_begin and not had_its_occasion:
            return f"{other.stream.name} comes before it"
    return None


def _order(due: DueStream) -> tuple[bool, float, str]:
    return due.stream.accepts_any, due.since, due.stream.name
