"""The turns of a lake, as the coordinator records them in ZooKeeper.

A watch reports each change of the registry, so turns of runs of Dagster, of commands and of other machines are seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lake_assets.coordination.registry import Registry, decode_turn
from lake_assets.pages.turn_chart import TakenTurn

if TYPE_CHECKING:
    from kazoo.client import KazooClient
    from kazoo.protocol.states import ZnodeStat

    from lake_assets.coordination.rules import Turn


@dataclass(frozen=True)
class RecordedTurn:
    """A state of a turn. at: When it was recorded, in seconds since 1970 by ZooKeeper's clock."""

    turn: Turn
    at: float


@dataclass(frozen=True)
class DoneTurn:
    """A turn that ended, with the picture's view of it."""

    turn: Turn
    taken: TakenTurn


def done_turns(records: Sequence[RecordedTurn]) -> list[DoneTurn]:
    """Return the turns that were done, in order. Pure.

    Nobody gets a turn before the last one is done. So if a turn's end is missing, because the next state followed at
    once, it ended when the turn of another began.

    Args:
        records: All states, in order. A turn whose beginning is missing seems to begin when it was done.
    """
    found: list[DoneTurn] = []
    running: RecordedTurn | None = None
    for record in records:
        if running is not None and running.turn.token != record.turn.token:
            if running.turn.name != record.turn.name:  # otherwise the stream goes on with its own turn
                found.append(_done(running, running.at, record.at))
            running = None
        if record.turn.state == "done":
            found.append(_done(record, running.at if running else record.at, record.at))
            running = None
        elif running is None:
            running = record
    return found


def _done(record: RecordedTurn, began: float, ended: float) -> DoneTurn:
    return DoneTurn(record.turn, TakenTurn(record.turn.name, began, ended))


class TurnLog:
    """Watches the registry of a lock from now on.

    Args:
        zk: A started client. The watch ends with it.
        lock_name: The lock.
    """

    def __init__(self, zk: KazooClient, lock_name: str) -> None:
        self._path = Registry(zk, lock_name).turn_path
        self._records: list[RecordedTurn] = []
        zk.DataWatch(self._path, self._note)

    def done(self) -> list[DoneTurn]:
        """Return the turns that were done so far, in order."""
        return done_turns(list(self._records))

    def _note(self, data: bytes | None, status: ZnodeStat | None) -> None:
        if data is not None and status is not None:
            self._records.append(RecordedTurn(decode_turn(data, self._path), float(status.last_modified)))
