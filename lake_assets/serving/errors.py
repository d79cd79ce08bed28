"""What serving refuses, and why. An operation that raises one of these has changed nothing, unless it says so.

ServingError
├── ReplaceRefused          the lineage does not allow it
│   ├── EmptyReplace        neither a source nor a target
│   ├── SourceNotRouted     a source that readers do not see
│   ├── SourceTaken         a source that another entry is replacing, or has replaced
│   ├── TargetTaken         a target that readers see already, or that another live entry names
│   ├── UnknownEntry
│   ├── EntryReverted
│   ├── SourceGone          a source that is not there any more
│   ├── TargetNotReady      a target that was never uploaded, or is not readable
│   ├── TargetReplaced      what would be taken back has been replaced since
│   ├── StillInProgress     a revert of an entry that somebody may be pushing
│   └── SegmentHeld         a deletion of what lineage holds
├── PushFailed              a push that was reverted by itself, or not begun
│   ├── RowsUnreadable
│   ├── QuotaExceeded
│   ├── UploadStopped
│   ├── UploadDamaged
│   └── PushOvertaken
├── PinotRefused            what the controller of a Pinot cluster did not do
├── ErasedSince             going back would bring an erased person back
├── LineageDamaged          a node that serving cannot have left like this
├── LineageGone             files of a table of which this ZooKeeper knows nothing
├── LineageBusy             others kept writing it
├── TableNotServed
├── QueryRefused            a query that may not be asked
└── QueryStopped            a query beyond its limits, or whose lease was lost
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from lake_assets.errors import ServingError

SHOWN = 3
MOST_WORDS = 500
"""Characters of another service's answer."""


class ReplaceRefused(ServingError):
    """The lineage does not allow it."""


class EmptyReplace(ReplaceRefused):
    def __init__(self, table: str) -> None:
        super().__init__(
            f"A replacement in {table} names neither a source nor a target.", remedy="Name what replaces what."
        )


class SourceNotRouted(ReplaceRefused):
    def __init__(self, table: str, segments: Iterable[str]) -> None:
        super().__init__(
            f"Readers of {table} do not see {_named(segments)}, so it cannot be replaced.",
            remedy=f"Start from what is routed: `lake serving list {table}`.",
        )


class SourceTaken(ReplaceRefused):
    def __init__(self, table: str, segments: Iterable[str], *, by: str, state: str) -> None:
        super().__init__(
            f"Entry {by} of {table}, {state}, replaces {_named(segments)} already.",
            remedy=f"Wait for its push; if that has died, push with --force, or `lake serving revert {table} {by} "
            "--force` first.",
        )


class TargetTaken(ReplaceRefused):
    def __init__(self, table: str, segments: Iterable[str], why: str) -> None:
        super().__init__(
            f"{_named(segments)} of {table} cannot be pushed: {why}.", remedy="Names are used once: choose another."
        )


class UnknownEntry(ReplaceRefused):
    def __init__(self, table: str, entry_id: str) -> None:
        super().__init__(
            f"The lineage of {table} has no entry {entry_id}.", remedy=f"See `lake serving lineage {table}`."
        )


class EntryReverted(ReplaceRefused):
    def __init__(self, table: str, entry_id: str) -> None:
        super().__init__(f"Entry {entry_id} of {table} was reverted.", remedy="Push again.")


class SourceGone(ReplaceRefused):
    def __init__(self, table: str, entry_id: str, segments: Iterable[str]) -> None:
        super().__init__(
            f"Entry {entry_id} of {table} replaces {_named(segments)}, which is not there any more.",
            remedy="A snapshot that was deleted cannot be gone back to; an entry in progress can be reverted by force.",
        )


class TargetNotReady(ReplaceRefused):
    def __init__(self, table: str, entry_id: str, segments: Iterable[str]) -> None:
        super().__init__(
            f"Entry {entry_id} of {table} brings {_named(segments)}, which was not uploaded, or is not readable.",
            remedy="Upload all of its targets, then end it; or revert it by force.",
        )


class TargetReplaced(ReplaceRefused):
    def __init__(self, table: str, entry_id: str, segments: Iterable[str], *, by: str) -> None:
        super().__init__(
            f"Entry {entry_id} of {table} brought {_named(segments)}, which entry {by} replaces.",
            remedy=f"Revert {by} first; or revert this one with --later.",
        )


class StillInProgress(ReplaceRefused):
    def __init__(self, table: str, entry_id: str) -> None:
        super().__init__(
            f"Entry {entry_id} of {table} is in progress: somebody may be pushing it.",
            remedy="Wait for its push; if that has died, revert it with --force.",
        )


class SegmentHeld(ReplaceRefused):
    def __init__(self, table: str, segments: Iterable[str], why: str) -> None:
        super().__init__(
            f"{_named(segments)} of {table} cannot be deleted: {why}.",
            remedy="Revert the entry, or leave it to `lake serving clean-up`.",
        )


class PushFailed(ServingError):
    """A push that did not come to its end. It was reverted by itself, if it had begun."""


class RowsUnreadable(PushFailed):
    """The rows that were to be pushed could not be read to their end."""

    def __init__(self, table: str, why: Exception) -> None:
        super().__init__(
            f"The source of {table} could not be read: {why}.",
            remedy="See that its files are there and can be read, then push again.",
        )


class QuotaExceeded(PushFailed):
    def __init__(self, table: str, *, stored: int, new: int, quota: int) -> None:
        super().__init__(
            f"{table} may take {quota:,} bytes; it holds {stored:,}, and the push brings {new:,}.",
            remedy="Raise LAKE_SERVING_QUOTA_MB, keep fewer snapshots (LAKE_SERVING_SNAPSHOTS), or push less.",
        )


class UploadStopped(PushFailed):
    """folder: that could not be written to. variable: that names it."""

    def __init__(self, table: str, why: OSError, *, folder: Path, variable: str) -> None:
        full = why.errno in (errno.ENOSPC, errno.EDQUOT)
        super().__init__(
            f"{table} could not be written to {folder}: {'its disk is full' if full else why}.",
            remedy=f"{'Make room' if full else 'Give access'} there, or move it ({variable}), and push again.",
        )


class UploadDamaged(PushFailed):
    def __init__(self, table: str, segment: str, what: str) -> None:
        super().__init__(
            f"{segment} of {table} is not what was pushed: {what}.",
            remedy="Push again; if it happens again, look at the disk.",
        )


class PushOvertaken(PushFailed):
    def __init__(self, table: str, entry_id: str) -> None:
        super().__init__(
            f"{table} was switched by somebody else while entry {entry_id} was pushed: both would be seen together.",
            remedy="Nothing to do if the other push is the newer one; else push again.",
        )


class PinotRefused(ServingError):
    """The controller of a Pinot cluster refused a call, or did not answer. A push that it stopped was reverted."""

    def __init__(self, call: str, answer: str) -> None:
        words = " ".join(answer.split())
        super().__init__(
            f"Pinot did not do {call}: {words[:MOST_WORDS]}.",
            remedy="See the controller's log. If a push has died, push with --force; "
            "else correct what it says, or LAKE_PINOT_CONTROLLER.",
        )


class ErasedSince(ServingError):
    def __init__(self, table: str, *, pushed_at: datetime, erased_at: datetime) -> None:
        super().__init__(
            f"{table} would go back to what was pushed at {pushed_at:%Y-%m-%d %H:%M:%S} UTC, before somebody was "
            f"erased at {erased_at:%Y-%m-%d %H:%M:%S} UTC.",
            remedy="Correct the table and push it again.",
        )


class LineageDamaged(ServingError):
    def __init__(self, path: str, what: str) -> None:
        super().__init__(
            f"The node {path} {what}.", remedy="Stop all pushes, and restore it from a backup of ZooKeeper."
        )


class LineageGone(ServingError):
    """Without the lineage nobody knows which files readers see, so none may be deleted. folder: of all tables."""

    def __init__(self, table: str, files: Iterable[str], *, folder: Path) -> None:
        super().__init__(
            f"ZooKeeper knows nothing of {table}, but {folder / table} holds its files: {_named(files)}.",
            remedy="Name the ZooKeeper that has its lineage (LAKE_ZOOKEEPER), or the folder that belongs to this one "
            "(LAKE_SERVING_FOLDER); if the lineage is lost, restore ZooKeeper's data from a backup. To begin anew on "
            f"purpose, move {folder / table} away, and push again.",
        )


class LineageBusy(ServingError):
    def __init__(self, tables: Iterable[str], tries: int) -> None:
        super().__init__(
            f"The lineage of {_named(tables)} was changed by others {tries} times in a row.", remedy="Call again."
        )


class TableNotServed(ServingError):
    def __init__(self, table: str, served: Iterable[str]) -> None:
        super().__init__(
            f"No table {table!r} is served.", remedy=f"Served are: {', '.join(sorted(served)) or 'none yet'}."
        )


class QueryRefused(ServingError):
    """A query that may not be asked, or cannot be understood. It was not run."""


class QueryStopped(ServingError):
    """A query that went beyond its limits, or that DuckDB could not finish. It has no result."""


def _named(names: Iterable[str]) -> str:
    """The first few, and how many more."""
    found = sorted(names)
    more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return ", ".join(found[:SHOWN]) + more
