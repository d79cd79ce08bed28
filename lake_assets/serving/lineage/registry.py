"""What ZooKeeper keeps of served tables: the lineage of each, and the segments that are there.

    /PROPERTYSTORE/SEGMENT_LINEAGE/<table>        the lineage, changed by compare-and-set on the node's version
    /PROPERTYSTORE/SEGMENTS/<table>/<segment>     a segment that was uploaded and verified

A file without its node is no segment. A node comes only while its entry is in progress, in one transaction that writes
the lineage as it is once more, for a new version; it goes only together with the lineage that gives it up. So whoever
decides by a version of the lineage decides by the segments of that version too, of one table or of several.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from kazoo.exceptions import (
    BadVersionError,
    ConnectionLoss,
    NodeExistsError,
    NoNodeError,
    OperationTimeoutError,
    RolledBackError,
    RuntimeInconsistency,
)

from lake_assets.serving.errors import EntryReverted, LineageBusy, TargetTaken
from lake_assets.serving.lineage.lineage import Change, SegmentLineage, State, routed
from lake_assets.serving.lineage.znrecord import (
    SegmentInfo,
    checked_segment,
    checked_table,
    decode_lineage,
    decode_segment,
    encode_lineage,
    encode_segment,
    is_table,
)

if TYPE_CHECKING:
    from kazoo.client import KazooClient, TransactionRequest

LINEAGE, SEGMENTS = "/PROPERTYSTORE/SEGMENT_LINEAGE", "/PROPERTYSTORE/SEGMENTS"
TRIES = 100
"""Of a read or a write that others came before. Each is short, so this is some seconds of nothing but others."""

PAUSE_SECONDS = 0.02
BATCH = 500
"""Segments registered in one request: some 200 kB of the 1 MB that a server takes."""

_REFUSALS = (BadVersionError, NodeExistsError, NoNodeError, RolledBackError, RuntimeInconsistency)


@dataclass(frozen=True)
class TableState:
    """One table at one version of its lineage; None if nothing was ever pushed. segments: all that are there."""

    lineage: SegmentLineage
    version: int | None
    segments: frozenset[str]

    @cached_property
    def routed(self) -> frozenset[str]:
        """The segments that readers see."""
        return routed(self.lineage, self.segments)


States = Mapping[str, TableState]
"""Table → its state."""

Decide = Callable[[States], Mapping[str, Change]]
"""What to do, given the states; asked again after a lost compare-and-set."""


class Registry:
    """Reads and writes the nodes of served tables. zk: started."""

    def __init__(self, zk: KazooClient) -> None:
        self._zk = zk

    def tables(self) -> list[str]:
        """All tables that were ever pushed, by name. Nodes of other names are not of these, and left out."""
        try:
            return sorted(filter(is_table, self._zk.retry(self._zk.get_children, LINEAGE)))
        except NoNodeError:
            return []

    def sync(self) -> None:
        """What this client reads from here on is no older than what anybody wrote before."""
        self._zk.retry(self._zk.sync, "/")

    def read(self, *tables: str) -> States:
        """The states of tables at one moment: none of them changed while they were read. `LineageBusy`."""
        for name in tables:
            checked_table(name)
        for _ in range(TRIES):
            before, children, after = self._zk.retry(self._look, tables)
            if before == [node and node[1] for node in after]:
                return {
                    name: TableState(_lineage(name, node), node[1].version if node else None, frozenset(children[i]))
                    for i, (name, node) in enumerate(zip(tables, after, strict=True))
                }
        raise LineageBusy(tables, TRIES)

    def update(self, decide: Decide, *tables: str) -> Mapping[str, Change]:
        """Writes what `decide` makes of the tables' states, of all tables or of none, and returns what was written.

        After a lost compare-and-set all is read and decided anew. What an error of `decide` stops is not written.
        Raises that error, and `LineageBusy`.
        """
        for _ in range(TRIES):
            states = self.read(*tables)
            changes = decide(states)
            if self._commit(states, changes):
                return changes
            if self._was_written(changes):
                return changes
            self._zk.handler.sleep_func(random.uniform(0, PAUSE_SECONDS))
        raise LineageBusy(tables, TRIES)

    def register(self, table: str, entry_id: str, infos: Sequence[SegmentInfo]) -> None:
        """Makes uploaded segments known, each once. `EntryReverted`, `TargetTaken`, `UnknownEntry`, `LineageBusy`."""
        self._zk.ensure_path(f"{SEGMENTS}/{table}")
        for start in range(0, len(infos), BATCH):
            self._register(table, entry_id, infos[start : start + BATCH])

    def check_in_progress(self, table: str, entry_id: str) -> None:
        """Raises `EntryReverted` or `UnknownEntry` if somebody took a push its entry. Reads the lineage alone."""
        node = self._zk.retry(lambda: _found(self._zk.get_async(f"{LINEAGE}/{table}")))
        _refuse_ended(_lineage(table, node), entry_id)

    def infos(self, table: str, segments: Iterable[str]) -> Iterator[SegmentInfo]:
        """What is known of segments; those that are gone are left out."""
        paths = [_segment_path(table, name) for name in segments]
        for path, answer in [(path, self._zk.get_async(path)) for path in paths]:
            try:
                yield decode_segment(answer.get()[0], path)
            except NoNodeError:
                continue

    def read_by(self, table: str, segments: Iterable[str], moment: datetime) -> dict[str, datetime]:
        """Those segments whose rows were read by a moment, inclusive, and when they were."""
        return {info.name: info.as_of for info in self.infos(table, segments) if info.as_of <= moment}

    def _look(self, tables: Iterable[str]) -> tuple[list[Any], list[list[str]], list[Any]]:
        """Status of the lineages, segments, and the lineages; asked for at once: a server answers a client in order."""
        lineages = [f"{LINEAGE}/{name}" for name in tables]
        status = [self._zk.exists_async(path) for path in lineages]
        segments = [self._zk.get_children_async(f"{SEGMENTS}/{name}") for name in tables]
        nodes = [self._zk.get_async(path) for path in lineages]
        return [a.get() for a in status], [_found(a) or [] for a in segments], [_found(a) for a in nodes]

    def _commit(self, states: States, changes: Mapping[str, Change]) -> bool:
        """Whether all was written, in one transaction. What is as it was needs no write."""
        transaction = self._zk.transaction()
        for name, change in changes.items():
            state, gone = states[name], change.deletions & states[name].segments
            if change.lineage == state.lineage and not gone:
                continue
            self._store(transaction, name, change.lineage, state.version)
            for segment in sorted(gone):
                transaction.delete(_segment_path(name, segment))
        return not transaction.operations or _carried_out(transaction)

    def _store(self, transaction: TransactionRequest, table: str, lineage: SegmentLineage, version: int | None) -> None:
        """A first write is a create: of two at once, one would be lost if both were to set any version."""
        data = encode_lineage(lineage)
        if version is None:
            self._zk.ensure_path(LINEAGE)
            transaction.create(f"{LINEAGE}/{table}", data)
        else:
            transaction.set_data(f"{LINEAGE}/{table}", data, version)

    def _was_written(self, changes: Mapping[str, Change]) -> bool:
        """Whether a write whose reply was lost has been carried out: times and ids make a lineage like no other."""
        found = self.read(*changes)
        return all(
            found[name].lineage == change.lineage and not found[name].segments & change.deletions
            for name, change in changes.items()
        )

    def _register(self, table: str, entry_id: str, infos: Sequence[SegmentInfo]) -> None:
        for _ in range(TRIES):
            state = self.read(table)[table]
            _refuse_ended(state.lineage, entry_id)
            new = [info for info in infos if info.name not in state.segments]
            self._refuse_others(table, [info for info in infos if info.name in state.segments])
            if not new:
                return
            transaction = self._zk.transaction()
            self._store(transaction, table, state.lineage, state.version)
            for info in new:
                transaction.create(_segment_path(table, info.name), encode_segment(info))
            if _carried_out(transaction):
                return
        raise LineageBusy([table], TRIES)

    def _refuse_others(self, table: str, infos: Sequence[SegmentInfo]) -> None:
        """A segment that is there must be this very one: its reply was lost."""
        if list(self.infos(table, [info.name for info in infos])) != list(infos):
            raise TargetTaken(table, [info.name for info in infos], "they are there already, and are others")


def _segment_path(table: str, segment: str) -> str:
    return f"{SEGMENTS}/{table}/{checked_segment(segment)}"


def _found(answer: Any) -> Any:
    """What was asked for; None if there is no such node."""
    try:
        return answer.get()
    except NoNodeError:
        return None


def _lineage(table: str, node: Any) -> SegmentLineage:
    return decode_lineage(node[0], f"{LINEAGE}/{table}") if node else SegmentLineage(table)


def _refuse_ended(lineage: SegmentLineage, entry_id: str) -> None:
    if lineage.entry(entry_id).state is not State.IN_PROGRESS:
        raise EntryReverted(lineage.table, entry_id)


def _carried_out(transaction: TransactionRequest) -> bool:
    """Whether all operations were; False also if it is not known."""
    try:
        results = transaction.commit()
    except (ConnectionLoss, OperationTimeoutError):
        return False
    for result in results:
        if isinstance(result, Exception) and not isinstance(result, _REFUSALS):
            raise result
    return not any(isinstance(result, Exception) for result in results)
