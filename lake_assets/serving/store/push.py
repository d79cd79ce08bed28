"""A push: new snapshots replace served tables, all of them in one switch.

A push is started, with the names of all its segments, before any of them is uploaded: a segment that no entry names
would be routed at once. Any failure reverts the push.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from kazoo.exceptions import KazooException

from lake_assets.base.failpoints import reach
from lake_assets.errors import LakeError
from lake_assets.serving.errors import (
    EntryReverted,
    PushOvertaken,
    QuotaExceeded,
    UnknownEntry,
    UploadStopped,
)
from lake_assets.serving.lineage.lineage import Change, State, missing
from lake_assets.serving.lineage.protocol import (
    MIN_SNAPSHOTS,
    end_replace,
    retired_segments,
    revert_replace,
    start_replace,
)
from lake_assets.serving.lineage.registry import States, TableState
from lake_assets.serving.store.drafts import SEGMENT_ROWS, Draft
from lake_assets.serving.store.files import checksum
from lake_assets.serving.store.table_store import TableStore

SegmentNames = tuple[str, ...]


@dataclass(frozen=True)
class PushReport:
    """A completed push of a table.

    Attributes:
        table: The served table.
        entry_id: Its lineage entry.
        segments: The pushed segments.
        rows: Of all segments.
        size_bytes: Of all segments' files.
        checksum: Of all segments' files, as `files.checksum` returns it.
        replaced: The segments that readers saw before.
        removed: The segments whose files were removed, before the upload or after the switch.
    """

    table: str
    entry_id: str
    segments: SegmentNames
    rows: int
    size_bytes: int
    checksum: str
    replaced: SegmentNames
    removed: SegmentNames


@dataclass(frozen=True)
class Policy:
    """Limits of a served table.

    Attributes:
        snapshots: How many are kept, including the newest.
        quota_bytes: Of all its segments' files; None: no limit.
        segment_rows: Rows of a segment, at most.
    """

    snapshots: int = MIN_SNAPSHOTS
    quota_bytes: int | None = None
    segment_rows: int = SEGMENT_ROWS


class Push:
    """One push of tables."""

    def __init__(
        self,
        store: TableStore,
        policy: Policy,
        drafts: Mapping[str, Sequence[Draft]],
        *,
        as_of: datetime,
        force: bool,
        new_schema: bool = False,
        quotas: Mapping[str, int | None] | None = None,
    ) -> None:
        """Change nothing yet.

        Args:
            store: Where to push.
            policy: Limits of each table.
            drafts: The segments of each table.
            as_of: A time before the rows were read; UTC.
            force: Whether to revert what is in progress in these tables, instead of being refused.
            new_schema: Whether the columns may differ from those that readers see.
            quotas: Table → most bytes of all its segments' files; otherwise that of the policy.
        """
        self._new_schema = new_schema
        self._quotas = quotas or {}
        self._store = store
        self._policy = policy
        self._drafts = drafts
        self._as_of = as_of
        self._force = force
        self._entries: dict[str, str] = {}

    def run(self) -> list[PushReport]:
        """Start the entries, upload and register the segments, and switch all tables at once.

        Raises:
            ServingError: What stopped the push. It was reverted; a note of the error says if that failed, too.
        """
        self._store.leases.open(*self._drafts)
        self._start()
        try:
            reach("push-started")
            removed = {table: self._store.remove_unreferenced(table, wait=True) for table in self._drafts}
            reach("push-tidied")
            self._upload_and_register()
            replaced = self._end()
        except BaseException as error:
            self._give_up(error)
            raise
        reach("push-ended")
        for table in self._drafts:
            with suppress(LakeError, KazooException, OSError):  # the push is done; a clean-up repeats it
                removed[table] += self._store.remove_unreferenced(table, wait=True)
        return [self._report(table, replaced[table], removed[table]) for table in self._drafts]

    def _start(self) -> None:
        """Start an entry for each table."""
        files_before = {table: self._store.files.stored(table) for table in self._drafts}
        self._store.registry.sync()  # after the files were listed: see `check_lineage_exists`

        def decide(states: States) -> dict[str, Change]:
            changes = {}
            for table, state in states.items():
                self._store.check_lineage_exists(table, state, files_before[table])
                changes[table] = self._started(table, state)
            return changes

        self._store.refuse_similar(self._drafts)
        self._store.registry.update(decide, *self._drafts)

    def _started(self, table: str, state: TableState) -> Change:
        """The oldest snapshot goes with the switch, so a push that dies has deleted nothing; earlier for a quota."""
        before = self._without_others(state) if self._force else state
        if not self._new_schema:
            self._store.check_columns(table, before.routed, self._drafts[table][0].path)
        started = start_replace(
            before.lineage,
            segments_from=sorted(before.routed),
            segments_to=[draft.name for draft in self._drafts[table]],
            routed=before.routed,
            now=self._store.clock(),
            snapshots=self._policy.snapshots + 1,
        )
        deletions = started.deletions | (state.segments - before.segments)
        if self._over_quota(table, state.segments - deletions):
            deletions |= retired_segments(before.lineage, before.routed, kept=self._policy.snapshots - 1)
            over = self._over_quota(table, state.segments - deletions)
            if over is not None:
                raise over
        self._entries[table] = started.entry_id
        return Change(started.lineage, deletions)

    def _without_others(self, state: TableState) -> TableState:
        """The table with all entries in progress reverted: each of them conflicts with the push of a whole snapshot."""
        lineage = state.lineage
        deletions: set[str] = set()
        for entry in state.lineage.in_state(State.IN_PROGRESS):
            reverted = revert_replace(lineage, entry.id, present=state.segments, now=self._store.clock(), force=True)
            lineage = reverted.lineage
            deletions |= reverted.deletions
        return TableState(lineage, state.version, state.segments - deletions)

    def _over_quota(self, table: str, kept: frozenset[str]) -> QuotaExceeded | None:
        quota = self._quotas.get(table) or self._policy.quota_bytes
        if quota is None:
            return None
        new = sum(draft.size_bytes for draft in self._drafts[table])
        stored = sum(size for name, size in self._store.files.stored(table).items() if name in kept)
        if stored + new > quota:
            return QuotaExceeded(table, stored=stored, new=new, quota=quota)
        return None

    def _upload_and_register(self) -> None:
        try:
            for table in self._drafts:
                self._upload(table)
            reach("push-uploaded")
            for table in self._drafts:
                self._register(table)
            reach("push-registered")
        except (EntryReverted, UnknownEntry):
            # The client that reverted the push may have removed its files before the last one was uploaded.
            self._remove_unregistered()
            raise

    def _upload(self, table: str) -> None:
        """Stop after the file during which the entry was reverted: that client may be uploading its own by now."""
        drafts = self._drafts[table]
        try:
            for number, draft in enumerate(drafts):
                if number == len(drafts) // 2:
                    reach("push-half-uploaded")
                self._store.files.upload(table, draft.name, draft.path)
                self._store.registry.check_in_progress(table, self._entries[table])
        except OSError as error:
            folder = self._store.files.folder
            raise UploadStopped(table, error, folder=folder, variable="LAKE_SERVING_FOLDER") from error

    def _register(self, table: str) -> None:
        """Only segments that were read back are registered, so each registered one is readable."""
        entry_id = self._entries[table]
        infos = [draft.info(entry_id, self._as_of) for draft in self._drafts[table]]
        for info in infos:
            self._store.files.verify(table, info)
        self._store.registry.register(table, entry_id, infos)

    def _remove_unregistered(self) -> None:
        """Without waiting for leases: no reader can have seen these files."""
        for table, state in self._store.registry.read(*self._drafts).items():
            names = [draft.name for draft in self._drafts[table]]
            self._store.files.remove(table, missing(names, state.segments))

    def _end(self) -> dict[str, SegmentNames]:
        """Switch all tables at once; return the segments that were replaced, by table."""

        def decide(states: States) -> dict[str, Change]:
            return {table: self._ended(table, state) for table, state in states.items()}

        changes = self._store.registry.update(decide, *self._entries)
        replaced = {}
        for table, entry_id in self._entries.items():
            replaced[table] = changes[table].lineage.entry(entry_id).segments_from
        return replaced

    def _ended(self, table: str, state: TableState) -> Change:
        entry = state.lineage.entry(self._entries[table])
        if entry.state is State.IN_PROGRESS and state.routed != set(entry.segments_from):
            raise PushOvertaken(table, entry.id)
        lost = missing(entry.segments_to, self._store.files.stored(table))
        ended = end_replace(state.lineage, entry.id, ready=state.segments - lost, now=self._store.clock())
        retired = retired_segments(ended.lineage, entry.segments_to, kept=self._policy.snapshots)
        return Change(ended.lineage, ended.deletions | (retired & state.segments))

    def _give_up(self, error: BaseException) -> None:
        """Revert the push. If that fails, the error gets a note; a forced push or a clean-up repeats it."""

        def decide(states: States) -> dict[str, Change]:
            changes = {}
            for table, state in states.items():
                entry = state.lineage.entries.get(self._entries[table])
                if entry is not None and entry.state is State.IN_PROGRESS:
                    changes[table] = revert_replace(
                        state.lineage, entry.id, present=state.segments, now=self._store.clock(), force=True
                    )
            return changes

        try:
            changes = self._store.registry.update(decide, *self._entries)
            for table, change in changes.items():
                self._store.files.remove(table, change.deletions)  # no reader can have seen them
            for table in self._entries:
                self._store.remove_unreferenced(table, wait=False)
        except (LakeError, KazooException, OSError) as second:
            error.add_note(f"The push could not be reverted: {second}")

    def _report(self, table: str, replaced: SegmentNames, removed: SegmentNames) -> PushReport:
        drafts = self._drafts[table]
        return PushReport(
            table=table,
            entry_id=self._entries[table],
            segments=tuple(draft.name for draft in drafts),
            rows=sum(draft.rows for draft in drafts),
            size_bytes=sum(draft.size_bytes for draft in drafts),
            checksum=checksum(draft.sha256 for draft in drafts),
            replaced=replaced,
            removed=removed,
        )
