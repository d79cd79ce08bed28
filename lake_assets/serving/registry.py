"""The nodes of served tables in ZooKeeper: the lineage of each table, and its registered segments.

    <cluster>/PROPERTYSTORE/SEGMENT_LINEAGE/<table>      the lineage, changed by compare-and-set on the node's version
    <cluster>/PROPERTYSTORE/SEGMENTS/<table>/<segment>   a segment that was uploaded and verified
    <cluster>/serving/uploads/<table>/<segment>          while a client uploads it; ephemeral
    <cluster>/serving/failed/<table>                     what the last push failed on; none after one that went through

A file without a node is not a segment. A node is created only while its entry is in progress, in one transaction that
also writes the unchanged lineage again, for a new version. It is deleted only together with the lineage write that
gives the segment up. So a version of the lineage determines the segments, too; of one table or of several.

Nodes have the format of Apache Helix and Pinot: a ZNRecord in JSON, compressed if long (Helix `ZNRecord` and
`ZNRecordSerializer`; Pinot `SegmentLineage.toZNRecord`). Each entry is a list field: its sources and its targets, each
joined by commas, its state, and its time in milliseconds.
"""

from __future__ import annotations

import gzip
import json
import random
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from kazoo.exceptions import (
    BadVersionError,
    ConnectionLoss,
    KazooException,
    NodeExistsError,
    NoNodeError,
    OperationTimeoutError,
    RolledBackError,
    RuntimeInconsistency,
)

from lake_assets.base.hours import from_milliseconds, is_moment, milliseconds
from lake_assets.connections.zookeeper import COMMAND_SECONDS, answer, retry_for
from lake_assets.errors import ErrorText, ServingError, UsageError, lineage_busy, lineage_damaged, target_taken
from lake_assets.serving.lineage import Change, LineageEntry, SegmentLineage, State, routed
from lake_assets.settings import SERVED_TABLE

if TYPE_CHECKING:
    from kazoo.client import KazooClient, TransactionRequest
    from kazoo.protocol.states import ZnodeStat


CUSTOM_MAP = "custom.map"
ROWS = "segment.total.docs"
SIZE_BYTES = "segment.size.in.bytes"
SHA256 = "sha256"
AS_OF = "as.of"
LINEAGE_ENTRY = "lineage.entry"
HEAD = "source.head"

COMPRESS_BYTES = 250_000
"""Longer content is compressed. A server accepts 1 MB per request; segment names shrink to a tenth."""

SHOWN_BYTES = 80
"""How much of a damaged node an error message quotes."""

_GZIP = b"\x1f\x8b"
_SEGMENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_DECODING_ERRORS = (KeyError, TypeError, ValueError, AttributeError, OverflowError)


@dataclass(frozen=True)
class SegmentInfo:
    """What is registered of an uploaded segment.

    Attributes:
        name: The segment.
        rows: Their number.
        size_bytes: Of its file.
        sha256: Of its file, hexadecimal.
        as_of: Its rows were read at that time or later.
        entry_id: The lineage entry of its push.
        head: Of its source when the rows were read, as `Source.head` returns it; None if the lake has no source of it.
    """

    name: str
    rows: int
    size_bytes: int
    sha256: str
    as_of: datetime
    entry_id: str
    head: str | None = None


def is_table(name: str) -> bool:
    """Return whether the name is valid for a served table."""
    return SERVED_TABLE.fullmatch(name) is not None


def checked_table(name: str) -> str:
    """Return the name if it is valid for a served table. It becomes a part of paths and queries.

    Raises:
        UsageError: It is not valid.
    """
    if not is_table(name):
        raise UsageError(
            f"{name!r} is not a valid name for a table.",
            remedy="Use letters, digits, _ and -, and at most one database before a dot, without a type at the end "
            "(_OFFLINE): airlineStats, orders-eu, sales.orders.",
        )
    return name


def is_segment(name: str) -> bool:
    """Return whether the name is valid for a segment."""
    return _SEGMENT.fullmatch(name) is not None


def checked_segment(name: str) -> str:
    """Return the name if it is valid for a segment. It becomes a part of a path.

    Raises:
        UsageError: It is not valid.
    """
    if not is_segment(name):
        raise UsageError(f"{name!r} is not a valid name for a segment.", remedy="Use letters, digits, _, . and -.")
    return name


def encode_lineage(lineage: SegmentLineage) -> bytes:
    """Return the content of a lineage's node.

    Raises:
        UsageError: A segment's name is not valid.
    """
    maps = {}
    if lineage.custom_map is not None:
        maps[CUSTOM_MAP] = dict(lineage.custom_map)
    lists = {entry.id: _encode_entry(entry) for entry in lineage.entries.values()}
    return _encode(lineage.table, maps=maps, lists=lists)


def decode_lineage(data: bytes, path: str) -> SegmentLineage:
    """Return the lineage that `encode_lineage` or Pinot wrote; its entries in the order of their timestamps.

    Raises:
        ServingError: The node at `path` contains something else.
    """
    record = _decode(data, path)
    try:
        entries = [_decode_entry(entry_id, *fields) for entry_id, fields in record["listFields"].items()]
        entries.sort(key=lambda entry: (entry.timestamp, entry.id))
        return SegmentLineage(
            table=record["id"],
            entries={entry.id: entry for entry in entries},
            custom_map=record["mapFields"].get(CUSTOM_MAP),
        )
    except _DECODING_ERRORS as error:
        raise lineage_damaged(path, f"does not contain a lineage: {error!r}") from error


def encode_segment(info: SegmentInfo) -> bytes:
    """Return the content of a segment's node. Fields that Pinot has bear Pinot's names."""
    fields = {
        ROWS: str(info.rows),
        SIZE_BYTES: str(info.size_bytes),
        SHA256: info.sha256,
        AS_OF: str(milliseconds(info.as_of)),
        LINEAGE_ENTRY: info.entry_id,
    }
    if info.head is not None:
        fields[HEAD] = info.head
    return _encode(info.name, simple=fields)


def decode_segment(data: bytes, path: str) -> SegmentInfo:
    """Return what `encode_segment` wrote.

    Raises:
        ServingError: The node at `path` contains something else.
    """
    record = _decode(data, path)
    try:
        fields = record["simpleFields"]
        return SegmentInfo(
            name=record["id"],
            rows=int(fields[ROWS]),
            size_bytes=int(fields[SIZE_BYTES]),
            sha256=fields[SHA256],
            as_of=_moment(fields[AS_OF]),
            entry_id=fields[LINEAGE_ENTRY],
            head=fields.get(HEAD),
        )
    except _DECODING_ERRORS as error:
        raise lineage_damaged(path, f"does not describe a segment: {error!r}") from error


def _encode_entry(entry: LineageEntry) -> list[str]:
    names = (",".join(map(checked_segment, segments)) for segments in (entry.segments_from, entry.segments_to))
    return [*names, entry.state.value, str(milliseconds(entry.timestamp))]


def _decode_entry(entry_id: str, sources: str, targets: str, state: str, timestamp: str) -> LineageEntry:
    segments_from, segments_to = (tuple(filter(None, names.split(","))) for names in (sources, targets))
    return LineageEntry(entry_id, segments_from, segments_to, State(state), _moment(timestamp))


def _encode(
    record_id: str,
    *,
    simple: dict[str, str] | None = None,
    maps: dict[str, dict[str, str]] | None = None,
    lists: dict[str, list[str]] | None = None,
) -> bytes:
    record = {"id": record_id, "simpleFields": simple or {}, "mapFields": maps or {}, "listFields": lists or {}}
    data = json.dumps(record).encode()
    if len(data) > COMPRESS_BYTES:
        return gzip.compress(data, mtime=0)
    return data


def _decode(data: bytes, path: str) -> dict[str, Any]:
    try:
        text = gzip.decompress(data) if data.startswith(_GZIP) else data
        record = json.loads(text)
    except (ValueError, OSError, EOFError, zlib.error) as error:
        raise _no_record(data, path) from error
    if not isinstance(record, dict):
        raise _no_record(data, path)
    return record


def _no_record(data: bytes, path: str) -> ServingError:
    return lineage_damaged(path, f"contains {data[:SHOWN_BYTES]!r}, which is not a record")


def _moment(text: str) -> datetime:
    """Return the moment of milliseconds. Raises `ValueError` if they are none, or beyond the years 1 to 9999."""
    if not is_moment(int(text)):
        raise ValueError(text)
    return from_milliseconds(int(text))


LINEAGE = "/PROPERTYSTORE/SEGMENT_LINEAGE"
SEGMENTS = "/PROPERTYSTORE/SEGMENTS"
UPLOADS = "/serving/uploads"
FAILED = "/serving/failed"

MAX_TRIES = 100
"""Of a read or a write that other clients' writes precede. Each is short, so all of them take some seconds."""

MAX_PAUSE_SECONDS = 0.02
BATCH_SEGMENTS = 500
"""Segments registered in one request: about 200 kB of the 1 MB that a server accepts."""

_REFUSALS = (BadVersionError, NodeExistsError, NoNodeError, RolledBackError, RuntimeInconsistency)


@dataclass(frozen=True)
class TableState:
    """A table at one version of its lineage.

    Attributes:
        lineage: Of the table.
        version: Of the lineage's node; None if the table was never pushed.
        segments: All registered segments.
    """

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
"""Decides on changes, given the states. It is called again after a lost compare-and-set."""


class Registry:
    """Reads and writes the nodes of served tables. zk: a started client. cluster: their folder; None: the root."""

    def __init__(self, zk: KazooClient, cluster: str | None = None) -> None:
        self._zk = zk
        self._root = f"/{cluster}" if cluster else ""

    def tables(self) -> list[str]:
        """Return all tables that were ever pushed, by name. Nodes with names that are not valid are ignored."""
        try:
            names = self._zk.retry(self._zk.get_children, self._root + LINEAGE)
        except NoNodeError:
            return []
        return sorted(name for name in names if is_table(name))

    def sync(self) -> None:
        """Make later reads of this client return at least what any client has written before."""
        self._zk.retry(lambda: answer(self._zk.sync_async("/")))

    def read(self, *tables: str, seconds: float = COMMAND_SECONDS) -> States:
        """Return the states of tables at one moment: none of them changed while they were read.

        Args:
            tables: To be read.
            seconds: How long it is tried again while ZooKeeper does not answer.

        Raises:
            ServingError: Other clients kept writing.
            RetryFailedError: ZooKeeper did not answer.
        """
        again = retry_for(self._zk, seconds)
        for name in tables:
            checked_table(name)
        for _ in range(MAX_TRIES):
            found: States | None = again(self._states, tables)
            if found is not None:
                return found
        raise lineage_busy(tables, MAX_TRIES)

    def update(self, decide: Decide, *tables: str) -> Mapping[str, Change]:
        """Write the changes that `decide` returns for the tables' states, in one transaction.

        After a lost compare-and-set, the states are read again and `decide` is called again.

        Returns:
            The changes that were written.

        Raises:
            ServingError: Other clients kept writing.
            LakeError: What `decide` raises. Nothing is written then.
        """
        for _ in range(MAX_TRIES):
            states = self.read(*tables)
            changes = decide(states)
            if self._commit(states, changes):
                return changes
            if self._was_written(changes):
                return changes
            self._zk.handler.sleep_func(random.uniform(0, MAX_PAUSE_SECONDS))
        raise lineage_busy(tables, MAX_TRIES)

    @contextmanager
    def uploading(self, table: str, segment: str) -> Iterator[None]:
        """Let no other client upload a segment of this name during the block: it would replace the file.

        Raises:
            ServingError: Another client uploads it.
        """
        path = f"{self._root}{UPLOADS}/{checked_table(table)}/{checked_segment(segment)}"
        try:
            answer(self._zk.create_async(path, ephemeral=True, makepath=True))
        except NodeExistsError:
            raise target_taken(table, [segment], "it is being uploaded by another call") from None
        except KazooException:
            self._zk.delete_async(path)  # without an answer it may have been created
            raise
        try:
            yield
        finally:
            self._zk.delete_async(path)

    def register(
        self,
        table: str,
        entry_id: str,
        infos: Sequence[SegmentInfo],
        *,
        check: Callable[[TableState], None] = lambda state: None,
    ) -> None:
        """Register the uploaded segments of an entry in progress. Segments that are registered already are skipped.

        Args:
            table: The table.
            entry_id: The entry.
            infos: Of the segments.
            check: Called with each state to which they are about to be added; it may raise.

        Raises:
            EntryEnded: There is no such entry, or it is not in progress any more.
            ServingError: Another segment has one of the names.
            ServingError: Other clients kept writing.
        """
        self._zk.ensure_path(f"{self._root}{SEGMENTS}/{table}")
        for start in range(0, len(infos), BATCH_SEGMENTS):
            self._register(table, entry_id, infos[start : start + BATCH_SEGMENTS], check)

    def check_in_progress(self, table: str, entry_id: str) -> None:
        """Check that an entry is still in progress. Reads only the lineage.

        Raises:
            EntryEnded: There is no such entry, or it is not in progress any more.
        """
        node = self._zk.retry(lambda: _result(self._zk.get_async(self._lineage_path(table))))
        _refuse_ended(_lineage(table, node, self._lineage_path(table)), entry_id)

    def note_failure(self, table: str, text: ErrorText | None) -> None:
        """Note what the last push of a table failed on, for alerts; None: it went through."""
        path = f"{self._root}{FAILED}/{table}"
        if text is not None:
            answer(self._zk.ensure_path_async(path))
            answer(self._zk.set_async(path, json.dumps([text.problem, text.remedy]).encode()))
        elif answer(self._zk.exists_async(path)):
            answer(self._zk.delete_async(path))

    def failures(self) -> dict[str, ErrorText]:
        """Return the tables whose last push failed, and on what."""
        root = f"{self._root}{FAILED}"
        found = {}
        for table in sorted(_result(self._zk.get_children_async(root)) or []):
            node = _result(self._zk.get_async(f"{root}/{table}"))
            if node is not None:
                found[table] = ErrorText(*json.loads(node[0]))
        return found

    def infos(self, table: str, segments: Iterable[str]) -> Iterator[SegmentInfo]:
        """Yield what is registered of segments. Segments that are not registered are left out."""
        requests = {}
        for name in segments:
            path = self._segment_path(table, name)
            requests[path] = self._zk.get_async(path)
        for path, request in requests.items():
            node = _result(request)
            if node is not None:
                data, _ = node
                yield decode_segment(data, path)

    def read_by(self, table: str, segments: Iterable[str], moment: datetime) -> dict[str, datetime]:
        """Return those segments whose rows were read until a moment, inclusive, with the time they were read."""
        return {info.name: info.as_of for info in self.infos(table, segments) if info.as_of <= moment}

    def _lineage_path(self, table: str) -> str:
        return f"{self._root}{LINEAGE}/{table}"

    def _segment_path(self, table: str, segment: str) -> str:
        return f"{self._root}{SEGMENTS}/{table}/{checked_segment(segment)}"

    def _states(self, tables: Iterable[str]) -> States | None:
        """The states of tables; None if a lineage was written while the segments were read.

        All is requested at once: a server answers the requests of a client in order.
        """
        lineage_paths = {name: self._lineage_path(name) for name in tables}
        statuses = {name: self._zk.exists_async(path) for name, path in lineage_paths.items()}
        segments = {name: self._zk.get_children_async(f"{self._root}{SEGMENTS}/{name}") for name in lineage_paths}
        nodes = {name: self._zk.get_async(path) for name, path in lineage_paths.items()}
        found = {}
        for name, path in lineage_paths.items():
            before, of_table, node = answer(statuses[name]), _result(segments[name]), _result(nodes[name])
            status = None if node is None else node[1]
            if before != status:
                return None
            version = None if status is None else status.version
            found[name] = TableState(_lineage(name, node, path), version, frozenset(of_table or ()))
        return found

    def _commit(self, states: States, changes: Mapping[str, Change]) -> bool:
        """Return whether all changes were written, in one transaction. A table without a change is not written."""
        transaction = self._zk.transaction()
        for name, change in changes.items():
            state = states[name]
            gone = change.deletions & state.segments
            if change.lineage == state.lineage and not gone:
                continue
            self._store(transaction, name, change.lineage, state.version)
            for segment in sorted(gone):
                transaction.delete(self._segment_path(name, segment))
        return not transaction.operations or _carried_out(transaction)

    def _store(self, transaction: TransactionRequest, table: str, lineage: SegmentLineage, version: int | None) -> None:
        """The first write is a create: if two clients set any version at once, one write would be lost."""
        data = encode_lineage(lineage)
        if version is None:
            self._zk.ensure_path(self._root + LINEAGE)
            transaction.create(self._lineage_path(table), data)
        else:
            transaction.set_data(self._lineage_path(table), data, version)

    def _was_written(self, changes: Mapping[str, Change]) -> bool:
        """Whether a write whose reply was lost was carried out. Times and ids make each lineage unique."""
        found = self.read(*changes)
        for name, change in changes.items():
            state = found[name]
            if state.lineage != change.lineage or state.segments & change.deletions:
                return False
        return True

    def _register(
        self, table: str, entry_id: str, infos: Sequence[SegmentInfo], check: Callable[[TableState], None]
    ) -> None:
        for _ in range(MAX_TRIES):
            state = self.read(table)[table]
            _refuse_ended(state.lineage, entry_id)
            new = [info for info in infos if info.name not in state.segments]
            registered = [info for info in infos if info.name in state.segments]
            self._refuse_others(table, registered)
            if not new:
                return
            check(state)
            if self._create_segments(table, state, new):
                return
        raise lineage_busy([table], MAX_TRIES)

    def _create_segments(self, table: str, state: TableState, infos: Iterable[SegmentInfo]) -> bool:
        """Create the nodes of segments, if the lineage is still the one read. Return whether it was done."""
        transaction = self._zk.transaction()
        self._store(transaction, table, state.lineage, state.version)
        for info in infos:
            transaction.create(self._segment_path(table, info.name), encode_segment(info))
        return _carried_out(transaction)

    def _refuse_others(self, table: str, expected: Sequence[SegmentInfo]) -> None:
        """A registered segment must be this one: then the reply to its registration was lost."""
        names = [info.name for info in expected]
        if list(self.infos(table, names)) != list(expected):
            raise target_taken(table, names, "other segments with these names are registered")


def _result(request: Any) -> Any:
    """The answer to a request; None if there is no such node."""
    try:
        return answer(request)
    except NoNodeError:
        return None


def _lineage(table: str, node: tuple[bytes, ZnodeStat] | None, path: str) -> SegmentLineage:
    if node is None:
        return SegmentLineage(table)
    data, _ = node
    return decode_lineage(data, path)


def _refuse_ended(lineage: SegmentLineage, entry_id: str) -> None:
    if lineage.entry(entry_id).state is not State.IN_PROGRESS:
        raise lineage.reverted(entry_id)


def _carried_out(transaction: TransactionRequest) -> bool:
    """Whether all operations were carried out; False also if that is not known."""
    try:
        results = transaction.commit()
    except (ConnectionLoss, OperationTimeoutError):
        return False
    errors = [result for result in results if isinstance(result, Exception)]
    for error in errors:
        if not isinstance(error, _REFUSALS):
            raise error
    return not errors
