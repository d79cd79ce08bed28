"""What ZooKeeper keeps of one lock: who holds it, whose turn was last, who waits.

    /coordination/<lock>/lock/...          the contenders; ephemeral, kazoo's recipe
    /coordination/<lock>/turn              the last turn, as JSON; its absence means that nobody has run
    /coordination/<lock>/waiting/<stream>  whom a refused stream accepts, as JSON; ephemeral

Every write is one of `LockHandle.write`: it also checks that the writer's own lock node is there. What is read under
the lock is what the holder before wrote last: the server that showed the lock as free has applied all that came before.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from kazoo.exceptions import NoNodeError

from lake_assets.coordination.hold import ANY_VERSION, LockHandle, Operation
from lake_assets.coordination.rules import Stream, Turn, checked_name
from lake_assets.errors import RegistryDamaged

if TYPE_CHECKING:
    from kazoo.client import KazooClient

ROOT = "/coordination"
TRIES = 5
"""Of a write that was refused. Nobody else writes under the lock, so the second is rare, and the third rarer."""


class Registry:
    """The nodes of one lock, read and written under a `LockHandle`. Methods raise `LockLost` and `RegistryDamaged`."""

    def __init__(self, zk: KazooClient, lock_name: str) -> None:
        self._zk = zk
        folder = f"{ROOT}/{checked_name(lock_name)}"
        self.lock_path, self.turn_path, self.waiting_path = f"{folder}/lock", f"{folder}/turn", f"{folder}/waiting"

    def last(self, hold: LockHandle) -> Turn | None:
        """The last turn; None if nobody has run."""
        return self._read(hold)[0]

    def waiting(self, hold: LockHandle) -> dict[str, frozenset[str]]:
        """Who waits → whom it accepts."""
        names = self._children(hold)
        found = {name: self._node(hold, self._waiting(name)) for name in names}
        return {name: decode_accepts(node[0], self._waiting(name)) for name, node in found.items() if node}

    def write(self, hold: LockHandle, turn: Turn) -> None:
        """Makes this the last turn, and its stream one that no longer waits. Written already, it changes nothing."""
        # Refused, too, when it was carried out and its reply was lost, or when the note of a former session expired.
        for _ in range(TRIES):
            found, version = self._read(hold)
            if found == turn:
                return
            operations = [self._store(turn, version)]
            if turn.name in self._children(hold):
                operations.append(lambda t: t.delete(self._waiting(turn.name)))
            if hold.write(*operations):
                return
        raise RegistryDamaged(self.turn_path, f"is written without the lock, while {turn.name} holds it")

    def leave_waiting(self, hold: LockHandle, stream: Stream) -> None:
        """Notes that the stream was refused, for as long as its session lasts. A note that is there stays."""
        accepts = json.dumps(sorted(stream.accepts)).encode()
        if self._node(hold, self.waiting_path) is None:
            hold.write(lambda t: t.create(self.waiting_path))
        hold.write(lambda t: t.create(self._waiting(stream.name), accepts, ephemeral=True))

    def withdraw(self, name: str) -> None:
        """Removes the note of a stream that no longer waits: its own session's, so it needs no lock."""
        found = self._zk.exists(self._waiting(name))
        if found and found.ephemeralOwner == self._zk.client_id[0]:
            self._zk.delete(self._waiting(name))

    def _waiting(self, name: str) -> str:
        return f"{self.waiting_path}/{name}"

    def _children(self, hold: LockHandle) -> list[str]:
        with suppress(NoNodeError):
            return sorted(hold.ask(lambda: self._zk.get_children_async(self.waiting_path)))
        return []

    def _read(self, hold: LockHandle) -> tuple[Turn | None, int]:
        node = self._node(hold, self.turn_path)
        return (None, ANY_VERSION) if node is None else (decode_turn(node[0], self.turn_path), node[1].version)

    def _node(self, hold: LockHandle, path: str) -> Any:
        """Data and status of a node; None if there is none."""
        with suppress(NoNodeError):
            return hold.ask(lambda: self._zk.get_async(path))
        return None

    def _store(self, turn: Turn, version: int) -> Operation:
        """A first write is a create: of two at once, one would be lost if both were to set any version."""
        data = encode_turn(turn)
        if version == ANY_VERSION:
            return lambda t: t.create(self.turn_path, data)
        return lambda t: t.set_data(self.turn_path, data, version)


def encode_turn(turn: Turn) -> bytes:
    return json.dumps(asdict(turn)).encode()


def decode_turn(data: bytes, path: str) -> Turn:
    """A turn as `encode_turn` wrote it; `RegistryDamaged`."""
    try:
        match json.loads(data):
            case {"name": str(name), "state": "running" | "done" as state, "token": int(token), "predecessor": before}:
                if before is None or isinstance(before, str):
                    return Turn(name, state, token, before)
    except ValueError:
        pass
    raise RegistryDamaged(path, f"holds {data[:80]!r}, which is no turn")


def decode_accepts(data: bytes, path: str) -> frozenset[str]:
    """What `Registry.leave_waiting` wrote; `RegistryDamaged`."""
    try:
        found = json.loads(data)
    except ValueError:
        found = None
    if isinstance(found, list) and all(isinstance(name, str) for name in found):
        return frozenset(found)
    raise RegistryDamaged(path, f"holds {data[:80]!r}, which is no list of streams")
