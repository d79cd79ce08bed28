"""The registry of turns: who had the last one, whether it is done, and who waits; and when a stream asks for its turn.

    /coordination/<lock>/lock/...          the contenders; ephemeral, kazoo's recipe
    /coordination/<lock>/turn              the last turn, as JSON; no stream has run while it does not exist
    /coordination/<lock>/waiting/<stream>  which streams a refused stream accepts, as JSON; ephemeral

Every write is a `LockHandle.write`, which also checks that the writer's own lock node exists. A read under the lock
returns what the previous holder wrote last: the server that showed the lock as free has applied all earlier writes.

A process that asks too early waits, and occupies a place meanwhile. `why_not_now` takes no
lock and writes no node, and nothing depends on it: the coordinator alone grants turns.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

from kazoo.exceptions import KazooException, NoNodeError

from lake_assets.connections.zookeeper import zookeeper_error
from lake_assets.coordination.lock import ANY_VERSION, LockHandle, Operation
from lake_assets.coordination.rules import Refused, Stream, Turn, checked_name, decide
from lake_assets.errors import StoredByNewerVersion, registry_damaged

if TYPE_CHECKING:
    from kazoo.client import KazooClient
    from kazoo.protocol.states import ZnodeStat

ROOT = "/coordination"
FORMAT = 1
"""Of a turn. A version reads all formats up to its own; a turn of an earlier version names none and has the first."""

MAX_TRIES = 5
"""Of a write that was refused. No other client writes under the lock, so even a second try is rare."""

SHOWN_BYTES = 80
"""How much of a damaged node an error message quotes."""


class Asks(Protocol):
    """What reads need of a `LockHandle`."""

    def ask(self, request: Callable[[], Any]) -> Any:
        """Return the answer to an asynchronous request."""


class Registry:
    """Reads and writes the nodes of one lock under a `LockHandle`. Methods raise `LockLost` and `CoordinationError`."""

    def __init__(self, zk: KazooClient, lock_name: str) -> None:
        folder = f"{ROOT}/{checked_name(lock_name)}"
        self.lock_path = f"{folder}/lock"
        self.turn_path = f"{folder}/turn"
        self.waiting_path = f"{folder}/waiting"
        self._zk = zk

    def last(self, handle: Asks) -> Turn | None:
        """Return the last turn; None if no stream has run."""
        turn, _ = self._read_turn(handle)
        return turn

    def last_recorded(self, handle: Asks) -> tuple[Turn | None, float]:
        """Return the last turn, and when it was recorded, by one read, so that both are of the same turn.

        Returns:
            None and 0 if no stream has run; otherwise the time in seconds since 1970, by ZooKeeper's clock.
        """
        turn, status = self._read_turn(handle)
        return turn, 0.0 if status is None else float(status.last_modified)

    def waiting(self, handle: Asks) -> dict[str, frozenset[str]]:
        """Return the streams that wait, each with the streams that it accepts as predecessors."""
        found = {}
        for name in self._waiting_names(handle):
            path = self._waiting_node(name)
            node = self._node(handle, path)
            if node is not None:  # its session may have ended since the names were read
                found[name] = decode_accepts(node[0], path)
        return found

    def write(self, handle: LockHandle, turn: Turn) -> None:
        """Record the last turn, and that its stream no longer waits. Nothing changes if it is recorded already."""
        # A write is also refused if it was carried out but its reply was lost, or if a waiting note expired meanwhile.
        for _ in range(MAX_TRIES):
            recorded, status = self._read_turn(handle)
            if recorded == turn:
                return
            version = ANY_VERSION if status is None else status.version
            operations = [self._store_turn(turn, version)]
            if turn.name in self._waiting_names(handle):
                operations.append(lambda transaction: transaction.delete(self._waiting_node(turn.name)))
            if handle.write(*operations):
                return
        raise registry_damaged(self.turn_path, f"is written without the lock, while {turn.name} holds it")

    def leave_waiting(self, handle: LockHandle, stream: Stream) -> None:
        """Note that the stream was refused, for as long as its session lasts. An existing note stays as it is."""
        accepts = json.dumps(sorted(stream.accepts)).encode()
        if self._node(handle, self.waiting_path) is None:
            handle.write(lambda transaction: transaction.create(self.waiting_path))
        path = self._waiting_node(stream.name)
        handle.write(lambda transaction: transaction.create(path, accepts, ephemeral=True))

    def withdraw(self, name: str) -> None:
        """Remove the waiting note of a stream. It needs no lock, because it only removes a note of its own session."""
        path = self._waiting_node(name)
        status = self._zk.exists(path)
        own_session = self._zk.client_id[0]
        if status and status.ephemeralOwner == own_session:
            self._zk.delete(path)

    def _waiting_node(self, name: str) -> str:
        return f"{self.waiting_path}/{name}"

    def _waiting_names(self, handle: Asks) -> list[str]:
        with suppress(NoNodeError):
            return sorted(handle.ask(lambda: self._zk.get_children_async(self.waiting_path)))
        return []

    def _read_turn(self, handle: Asks) -> tuple[Turn | None, ZnodeStat | None]:
        """Return the last turn and the status of its node; None and None if no stream has run."""
        node = self._node(handle, self.turn_path)
        if node is None:
            return None, None
        data, status = node
        return decode_turn(data, self.turn_path), status

    def _node(self, handle: Asks, path: str) -> Any:
        """Return the data and the status of a node; None if it does not exist."""
        with suppress(NoNodeError):
            return handle.ask(lambda: self._zk.get_async(path))
        return None

    def _store_turn(self, turn: Turn, version: int) -> Operation:
        """The first write is a create: if two clients set any version at once, one write would be lost."""
        data = encode_turn(turn)
        if version == ANY_VERSION:
            return lambda transaction: transaction.create(self.turn_path, data)
        return lambda transaction: transaction.set_data(self.turn_path, data, version)


def encode_turn(turn: Turn) -> bytes:
    """Return the content of the turn node. Earlier versions ignore the fields that they do not have."""
    values = {"format": FORMAT, **asdict(turn)}
    if not turn.note:
        del values["note"]
    return json.dumps(values).encode()


def decode_turn(data: bytes, path: str) -> Turn:
    """Return the turn that `encode_turn` wrote.

    Raises:
        CoordinationError: The node at `path` contains something else.
        StoredByNewerVersion: A later version has recorded the turn.
    """
    try:
        found = json.loads(data)
        match found:
            case {"format": int(written)} if written > FORMAT:
                raise StoredByNewerVersion(f"The turn {path}", found=written, readable=FORMAT)
            case {"name": str(name), "state": "running" | "done" as state, "token": int(token), "predecessor": before}:
                if before is None or isinstance(before, str):
                    return Turn(name, state, token, before, str(found.get("note", "")))
    except ValueError:
        pass
    raise registry_damaged(path, f"holds {data[:SHOWN_BYTES]!r}, which is not a turn")


def decode_accepts(data: bytes, path: str) -> frozenset[str]:
    """Return the predecessors that `Registry.leave_waiting` wrote.

    Raises:
        CoordinationError: The node at `path` contains something else.
    """
    try:
        found = json.loads(data)
    except ValueError:
        found = None
    if isinstance(found, list) and all(isinstance(name, str) for name in found):
        return frozenset(found)
    raise registry_damaged(path, f"holds {data[:SHOWN_BYTES]!r}, which is not a list of streams")


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
