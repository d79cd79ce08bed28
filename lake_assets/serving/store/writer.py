"""Who changes served tables: push, revert, clean-up. Each decision is `lineage`'s; here it is carried out.

A push is started, naming all its segments, before any is uploaded: what no lineage names would be routed at once. Files
go after the lineage that gives them up was written, and after the leases of that time have ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

import pyarrow as pa
from kazoo.exceptions import KazooException

from lake_assets.base.failpoints import reach
from lake_assets.errors import LakeError, UsageError
from lake_assets.serving.errors import (
    EntryReverted,
    ErasedSince,
    LineageGone,
    PushOvertaken,
    QuotaExceeded,
    UnknownEntry,
    UploadStopped,
)
from lake_assets.serving.lineage.lineage import (
    SNAPSHOTS,
    Change,
    Retention,
    State,
    clean_up,
    delete_segments,
    end_replace,
    revert_replace,
    roll_back,
    routed,
    start_replace,
)
from lake_assets.serving.lineage.registry import Registry, States, TableState
from lake_assets.serving.store.drafts import FOLDER, SEGMENT_ROWS, Draft, write_drafts
from lake_assets.serving.store.files import SegmentFiles, checksum
from lake_assets.serving.store.leases import Leases

Rows: TypeAlias = pa.Table | pa.RecordBatchReader


@dataclass(frozen=True)
class PushReport:
    """A push that was switched to. replaced: what readers saw before. removed: files that went before the upload.

    checksum: of all its segments' files, as `files.checksum` makes it.
    """

    table: str
    entry_id: str
    segments: tuple[str, ...]
    rows: int
    size_bytes: int
    checksum: str
    replaced: tuple[str, ...]
    removed: tuple[str, ...]


@dataclass(frozen=True)
class Policy:
    """What a table may take. snapshots: kept, the newest included. quota_bytes: of all its segments; None: no limit."""

    snapshots: int = SNAPSHOTS
    quota_bytes: int | None = None
    segment_rows: int = SEGMENT_ROWS


class Writer:
    """Changes served tables. Raises errors of `lake_assets.serving.errors`. clock: UTC, for the lineage's times."""

    def __init__(
        self,
        registry: Registry,
        files: SegmentFiles,
        leases: Leases,
        *,
        clock: Callable[[], datetime],
        policy: Policy | None = None,
    ) -> None:
        self._registry, self._files, self._leases, self._clock = registry, files, leases, clock
        self._policy = policy or Policy()

    def push(
        self,
        tables: Mapping[str, Rows],
        *,
        push_id: str,
        as_of: datetime,
        force: bool = False,
        heads: Mapping[str, str | None] | None = None,
    ) -> list[PushReport]:
        """Replaces tables by new snapshots, all of them in one switch: a push group. Whatever fails reverts by itself.

        push_id: used once. as_of: before the rows were read; the segments' names bear it. force: revert what is in
        progress in these tables, instead of being refused or overtaken: for the push after one that died. heads: table
        → head of its source, to tell later whether that has changed since.
        """
        with TemporaryDirectory(prefix=FOLDER) as folder:
            drafts = {
                name: self._draft(name, rows, Path(folder), push_id=push_id, as_of=as_of, head=(heads or {}).get(name))
                for name, rows in tables.items()
            }
            reach("push-drafted")
            return self._replace(drafts, as_of=as_of, force=force)

    def revert(
        self,
        table: str,
        entry_id: str,
        *,
        force: bool = False,
        later: bool = False,
        erased_at: datetime | None = None,
    ) -> Change:
        """Goes back to what an entry replaced: `revert_all` of one table."""
        return self.revert_all({table: entry_id}, force=force, later=later, erased_at=erased_at)[table]

    def revert_all(
        self,
        entries: Mapping[str, str],
        *,
        force: bool = False,
        later: bool = False,
        erased_at: datetime | None = None,
    ) -> Mapping[str, Change]:
        """Goes back to what entries replaced, in all tables in one switch, or in none. entries: table → entry's id.

        later: the entries that came on top of it are reverted with it. force: also an entry in progress. erased_at:
        when somebody was erased last; going back to rows that were read before raises `ErasedSince`. Files that a query
        may still read stay until the next push or clean-up.
        """
        operation = roll_back if later else revert_replace

        def decide(states: States) -> dict[str, Change]:
            changes = {}
            for table, entry_id in entries.items():
                state = states[table]
                present = state.segments.intersection(self._files.stored(table))
                change = operation(state.lineage, entry_id, present=present, now=self._clock(), force=force)
                self._refuse_erased(table, state, change, erased_at)
                changes[table] = change
            return changes

        changes = self._registry.update(decide, *entries)
        reach("revert-written")
        for table in entries:
            self._tidy(table, wait=False, after_first="revert-half-removed")
        reach("revert-done")
        return changes

    def clean_up(self, table: str, *, retention: Retention, erased_at: datetime | None = None) -> Change:
        """One cycle of retention; removes also the files that killed pushes and reverts have left.

        erased_at: when somebody was erased last: what was replaced and is older than that goes at once.
        """

        def decide(states: States) -> dict[str, Change]:
            state = states[table]
            banned = self._before(table, state.segments - state.routed, erased_at)
            return {
                table: clean_up(
                    state.lineage, present=state.segments, now=self._clock(), retention=retention, banned=banned
                )
            }

        change = self._registry.update(decide, table)[table]
        reach("clean-up-written")
        self._tidy(table, wait=True, gone=change.deletions, after_first="clean-up-half-removed")
        reach("clean-up-done")
        return change

    def delete(self, table: str, segments: Sequence[str]) -> Change:
        """Deletes segments that nothing needs. `SegmentHeld` for others, `UsageError` for what is none."""
        stored = self._files.stored(table)  # before the lineage is read: see `_tidy`
        self._registry.sync()

        def decide(states: States) -> dict[str, Change]:
            state = states[table]
            self._refuse_unknown(table, state, stored)
            _check_there(table, segments, state.segments.union(stored))
            return {table: delete_segments(state.lineage, segments, routed=state.routed)}

        change = self._registry.update(decide, table)[table]
        self._tidy(table, wait=True)
        return change

    def _draft(
        self, table: str, rows: Rows, folder: Path, *, push_id: str, as_of: datetime, head: str | None
    ) -> list[Draft]:
        size = self._policy.segment_rows
        try:
            return write_drafts(table, rows, folder, push_id=push_id, as_of=as_of, segment_rows=size, head=head)
        except OSError as error:
            raise UploadStopped(table, error, folder=folder.parent, variable="TMPDIR") from error

    def _replace(self, drafts: Mapping[str, Sequence[Draft]], *, as_of: datetime, force: bool) -> list[PushReport]:
        self._leases.open(*drafts)
        entries = self._start(drafts, force=force)
        try:
            reach("push-started")
            removed = {table: self._tidy(table, wait=True) for table in drafts}
            reach("push-tidied")
            self._bring(drafts, entries, as_of)
            replaced = self._end(entries)
        except BaseException as error:
            self._give_up(entries, error)
            raise
        reach("push-ended")
        return [
            _report(table, entries[table], segments, replaced[table], removed[table])
            for table, segments in drafts.items()
        ]

    def _start(self, drafts: Mapping[str, Sequence[Draft]], *, force: bool) -> dict[str, str]:
        """Table → the entry that was begun."""
        begun: dict[str, str] = {}
        stored = {table: self._files.stored(table) for table in drafts}  # before the lineage is read: see `_tidy`
        self._registry.sync()

        def decide(states: States) -> dict[str, Change]:
            changes = {}
            for table, segments in drafts.items():
                self._refuse_unknown(table, states[table], stored[table])
                state = self._without_rivals(states[table]) if force else states[table]
                started = start_replace(
                    state.lineage,
                    segments_from=sorted(state.routed),
                    segments_to=[draft.name for draft in segments],
                    routed=state.routed,
                    now=self._clock(),
                    snapshots=self._policy.snapshots,
                )
                begun[table] = started.entry_id
                gone = started.deletions | (states[table].segments - state.segments)
                self._check_quota(table, states[table].segments - gone, segments)
                changes[table] = Change(started.lineage, gone)
            return changes

        self._registry.update(decide, *drafts)
        return begun

    def _without_rivals(self, state: TableState) -> TableState:
        """With what is in progress reverted: of a snapshot's push, any other is a rival."""
        lineage, gone = state.lineage, frozenset[str]()
        for entry in state.lineage.entries.values():
            if entry.state is State.IN_PROGRESS:
                change = revert_replace(lineage, entry.id, present=state.segments, now=self._clock(), force=True)
                lineage, gone = change.lineage, gone | change.deletions
        return TableState(lineage, state.version, state.segments - gone)

    def _check_quota(self, table: str, staying: frozenset[str], segments: Sequence[Draft]) -> None:
        quota, new = self._policy.quota_bytes, sum(draft.size_bytes for draft in segments)
        stored = sum(size for name, size in self._files.stored(table).items() if name in staying)
        if quota is not None and stored + new > quota:
            raise QuotaExceeded(table, stored=stored, new=new, quota=quota)

    def _bring(self, drafts: Mapping[str, Sequence[Draft]], entries: Mapping[str, str], as_of: datetime) -> None:
        """Uploads and registers. Who reverts it meanwhile may have tidied before the last file came: it goes here."""
        try:
            for table, segments in drafts.items():
                self._upload(table, segments, entries[table])
            reach("push-uploaded")
            for table, segments in drafts.items():
                self._register(table, segments, entries[table], as_of)
            reach("push-registered")
        except (EntryReverted, UnknownEntry):
            for table, state in self._registry.read(*drafts).items():
                no_segments = {draft.name for draft in drafts[table]} - state.segments
                self._files.remove(table, no_segments)  # at once: no reader can have seen them
            raise

    def _upload(self, table: str, segments: Sequence[Draft], entry_id: str) -> None:
        """Stops after the file during which its entry was reverted: who did that may be uploading himself by now."""
        try:
            for number, draft in enumerate(segments):
                if number == len(segments) // 2:
                    reach("push-half-uploaded")
                self._files.upload(table, draft.name, draft.path)
                self._registry.check_in_progress(table, entry_id)
        except OSError as error:
            raise UploadStopped(table, error, folder=self._files.folder, variable="LAKE_SERVING_FOLDER") from error

    def _register(self, table: str, segments: Sequence[Draft], entry_id: str, as_of: datetime) -> None:
        """Only what was read back is registered; so what is there is readable."""
        infos = [draft.info(entry_id, as_of) for draft in segments]
        for info in infos:
            self._files.verify(table, info)
        self._registry.register(table, entry_id, infos)

    def _end(self, entries: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
        """Switches all tables at once; table → the segments that were replaced."""

        def decide(states: States) -> dict[str, Change]:
            return {table: self._ended(table, states[table], entry_id) for table, entry_id in entries.items()}

        changes = self._registry.update(decide, *entries)
        return {table: changes[table].lineage.entry(entry_id).segments_from for table, entry_id in entries.items()}

    def _ended(self, table: str, state: TableState, entry_id: str) -> Change:
        entry = state.lineage.entry(entry_id)
        if entry.state is State.IN_PROGRESS and state.routed != set(entry.segments_from):
            raise PushOvertaken(table, entry_id)
        lost = set(entry.segments_to).difference(self._files.stored(table))
        return end_replace(state.lineage, entry_id, ready=state.segments - lost, now=self._clock())

    def _give_up(self, entries: Mapping[str, str], error: BaseException) -> None:
        """Reverts a push that failed. If that fails too, its error says so, and a forced push or clean-up does it."""

        def decide(states: States) -> dict[str, Change]:
            return {
                table: revert_replace(
                    states[table].lineage, entry_id, present=states[table].segments, now=self._clock(), force=True
                )
                for table, entry_id in entries.items()
                if (entry := states[table].lineage.entries.get(entry_id)) and entry.state is State.IN_PROGRESS
            }

        try:
            for table, change in self._registry.update(decide, *entries).items():
                self._files.remove(table, change.deletions)  # at once: no reader can have seen them
            for table in entries:
                self._tidy(table, wait=False)
        except (LakeError, KazooException, OSError) as second:
            error.add_note(f"It could not be reverted: {second}")

    def _refuse_erased(self, table: str, state: TableState, change: Change, erased_at: datetime | None) -> None:
        back = routed(change.lineage, state.segments - change.deletions) - state.routed
        if erased_at is not None and (banned := self._before(table, back, erased_at)):
            raise ErasedSince(table, pushed_at=min(banned.values()), erased_at=erased_at)

    def _before(self, table: str, segments: Iterable[str], erased_at: datetime | None) -> dict[str, datetime]:
        """Those segments whose rows were read before somebody was erased, and when they were."""
        return {} if erased_at is None else self._registry.read_by(table, segments, erased_at)

    def _refuse_unknown(self, table: str, state: TableState, stored: Mapping[str, int]) -> None:
        """Raises `LineageGone`. stored: files that were there before a client that was in sync then read the state."""
        if state.version is None and stored:
            raise LineageGone(table, stored, folder=self._files.folder)

    def _tidy(
        self, table: str, *, wait: bool, gone: frozenset[str] = frozenset(), after_first: str | None = None
    ) -> tuple[str, ...]:
        """Removes the files that are no segment, nor become one; the segments that were removed. `LineageGone`.

        wait: for the leases of this moment; without it, nothing is removed while there are any. gone: segments that an
        entry in progress names, and that were given up all the same.
        """
        stored = self._files.stored(table)  # before the lineage is read: who uploads has started before
        self._registry.sync()
        state = self._registry.read(table)[table]
        self._refuse_unknown(table, state, stored)
        coming = [e.segments_to for e in state.lineage.entries.values() if e.state is State.IN_PROGRESS]
        garbage = sorted(set(stored) - (state.segments.union(*coming) - gone))
        if not garbage or (not wait and self._leases.held(table)):
            return ()
        if wait:
            self._leases.drain(table)
        self._files.remove(table, garbage[:1])
        if after_first:
            reach(after_first)
        self._files.remove(table, garbage[1:])
        return tuple(garbage)


def _check_there(table: str, segments: Iterable[str], there: frozenset[str]) -> None:
    if missing := sorted(set(segments) - there):
        raise UsageError(
            f"{table} has no segment {missing[0]!r}.", remedy=f"See `lake serving lineage {table} --json`."
        )


def _report(
    table: str, entry_id: str, segments: Sequence[Draft], replaced: tuple[str, ...], removed: tuple[str, ...]
) -> PushReport:
    return PushReport(
        table=table,
        entry_id=entry_id,
        segments=tuple(draft.name for draft in segments),
        rows=sum(draft.rows for draft in segments),
        size_bytes=sum(draft.size_bytes for draft in segments),
        checksum=checksum(draft.sha256 for draft in segments),
        replaced=replaced,
        removed=removed,
    )
