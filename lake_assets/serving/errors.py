"""The errors of serving. An operation that raises one of them has changed nothing, unless the error says otherwise.

ServingError
├── ReplaceRefused          the lineage does not allow it
│   ├── EmptyReplace        neither a source nor a target
│   ├── SourceNotRouted     a source that readers do not see
│   ├── SourceTaken         a source that another entry is replacing, or has replaced
│   ├── TargetTaken         a target that readers see already, or that another live entry names
│   ├── UnknownEntry
│   ├── EntryReverted
│   ├── SourceGone          a source that no longer exists
│   ├── TargetNotReady      a target that was not uploaded, or is not readable
│   ├── TargetReplaced      a target that another entry has replaced since
│   ├── StillInProgress     a revert of an entry whose push may be running
│   └── SegmentHeld         a deletion of a segment that the lineage needs
├── PushFailed              a push that was reverted, or not started
│   ├── ColumnsChanged
│   ├── QuotaExceeded
│   └── UploadDamaged
├── TokenNeeded             a call that would change a table, of an endpoint without a token
├── PinotRefused            a call that the controller of a Pinot cluster did not carry out
├── ErasedSince             a revert that would restore rows of an erased person
├── LineageDamaged          a node that serving cannot have written
├── LineageBusy             other clients kept writing the lineage
├── SegmentDamaged          a segment whose file is gone, or is not what was pushed
├── TableNotServed
├── QueryRefused            a query that is not allowed
└── QueryStopped            a query that exceeded its limits, or lost its lease

UsageError
└── UnknownSegment
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from lake_assets.errors import ServingError, UsageError, named, suggestion

MAX_ANSWER_CHARACTERS = 500
"""Of another service's answer, in a message."""


class ReplaceRefused(ServingError):
    """The lineage does not allow the operation."""


class EmptyReplace(ReplaceRefused):
    """A replacement has neither a source nor a target."""

    def __init__(self, table: str) -> None:
        super().__init__(
            f"A replacement in {table} names neither a source nor a target.", remedy="Name a source or a target."
        )


class SourceNotRouted(ReplaceRefused):
    """Readers do not see a source."""

    def __init__(self, table: str, segments: Iterable[str]) -> None:
        super().__init__(
            f"Readers of {table} do not see {named(segments)}, so it cannot be replaced.",
            remedy=f"Replace only segments that readers see: `lake serving list {table}`.",
        )


class SourceTaken(ReplaceRefused):
    """Another live entry replaces a source. by: its id. state: its state."""

    def __init__(self, table: str, segments: Iterable[str], *, by: str, state: str) -> None:
        super().__init__(
            f"Entry {by} of {table}, {state}, already replaces {named(segments)}.",
            remedy=f"Wait for its push. If that has died, push with --force, or run `lake serving revert {table} {by} "
            "--force` first.",
        )


class TargetTaken(ReplaceRefused):
    """A target's name is in use. why: a clause."""

    def __init__(self, table: str, segments: Iterable[str], why: str) -> None:
        super().__init__(
            f"{named(segments)} of {table} cannot be pushed: {why}.",
            remedy="Each name can be used once: choose another.",
        )


class UnknownEntry(ReplaceRefused):
    """The lineage has no such entry."""

    def __init__(self, table: str, entry_id: str) -> None:
        super().__init__(
            f"The lineage of {table} has no entry {entry_id}.", remedy=f"See `lake serving lineage {table}`."
        )


class EntryReverted(ReplaceRefused):
    """The entry was reverted."""

    def __init__(self, table: str, entry_id: str) -> None:
        super().__init__(f"Entry {entry_id} of {table} was reverted.", remedy="Push again.")


class SourceGone(ReplaceRefused):
    """A source no longer exists."""

    def __init__(self, table: str, entry_id: str, segments: Iterable[str]) -> None:
        super().__init__(
            f"Entry {entry_id} of {table} replaces {named(segments)}, which no longer exists.",
            remedy="A deleted snapshot cannot be restored. An entry in progress can be reverted with --force.",
        )


class TargetNotReady(ReplaceRefused):
    """A target was not uploaded, or is not readable."""

    def __init__(self, table: str, entry_id: str, segments: Iterable[str]) -> None:
        super().__init__(
            f"Entry {entry_id} of {table} adds {named(segments)}, which was not uploaded or is not readable.",
            remedy="Upload all of its targets, then end it; or revert it with --force.",
        )


class TargetReplaced(ReplaceRefused):
    """Another live entry replaces a target. by: its id."""

    def __init__(self, table: str, entry_id: str, segments: Iterable[str], *, by: str) -> None:
        super().__init__(
            f"Entry {entry_id} of {table} added {named(segments)}, which entry {by} replaces.",
            remedy=f"Revert {by} first, or revert this one with --later.",
        )


class StillInProgress(ReplaceRefused):
    """The entry is in progress."""

    def __init__(self, table: str, entry_id: str) -> None:
        super().__init__(
            f"Entry {entry_id} of {table} is in progress: its push may still run.",
            remedy="Wait for its push. If that has died, revert the entry with --force.",
        )


class SegmentHeld(ReplaceRefused):
    """The lineage needs a segment. why: a clause."""

    def __init__(self, table: str, segments: Iterable[str], why: str) -> None:
        super().__init__(
            f"{named(segments)} of {table} cannot be deleted: {why}.",
            remedy="Revert the entry, or wait for `lake serving clean-up` to delete them.",
        )


class PushFailed(ServingError):
    """A push that did not complete. It was reverted, if it had started."""


class ColumnsChanged(PushFailed):
    """The rows have other columns than those that readers see. Both: column → type."""

    def __init__(self, table: str, *, seen: Mapping[str, str], pushed: Mapping[str, str]) -> None:
        parts = [f"{name} is gone" for name in sorted(seen.keys() - pushed.keys())]
        parts += [f"{name} is new" for name in sorted(pushed.keys() - seen.keys())]
        for name in sorted(seen.keys() & pushed.keys()):
            if seen[name] != pushed[name]:
                parts.append(f"{name} is {pushed[name]} instead of {seen[name]}")
        super().__init__(
            f"The push of {table} has other columns than readers see: {', '.join(parts)}.",
            remedy="Correct the rows. If readers know of the new columns, push with --new-schema.",
        )


class QuotaExceeded(PushFailed):
    """A table would exceed its quota. All in bytes."""

    def __init__(self, table: str, *, stored: int, new: int, quota: int) -> None:
        super().__init__(
            f"{table} may take {quota:,} bytes; it takes {stored:,}, and the push adds {new:,}.",
            remedy="Raise its quota (or LAKE_SERVING_QUOTA_MB), keep fewer snapshots (LAKE_SERVING_SNAPSHOTS), or push "
            "less.",
        )


class UploadDamaged(PushFailed):
    """A segment that was read back differs from the pushed one."""

    def __init__(self, table: str, segment: str, what: str) -> None:
        super().__init__(
            f"{segment} of {table} is not what was pushed: {what}.",
            remedy="Push again. If it happens again, check the disk.",
        )


class TokenNeeded(ServingError):
    """An endpoint without a token changes no table: any page in a browser could call it."""

    def __init__(self) -> None:
        super().__init__(
            "The endpoint has no token, so it changes no table.",
            remedy="Set LAKE_SERVING_TOKEN, start it again, and send `Authorization: Bearer <token>`.",
        )


class PinotRefused(ServingError):
    """The controller of a Pinot cluster refused a call, or did not answer. A push that this stopped was reverted."""

    def __init__(self, call: str, answer: str) -> None:
        words = " ".join(answer.split())
        super().__init__(
            f"Pinot did not carry out {call}: {words[:MAX_ANSWER_CHARACTERS]}.",
            remedy="See the controller's log. If an earlier push has died, push with --force; "
            "otherwise correct what the answer says, or LAKE_PINOT_CONTROLLER.",
        )


class ErasedSince(ServingError):
    """A revert would restore rows that were read before an erasure. Both times in UTC."""

    def __init__(self, table: str, *, pushed_at: datetime, erased_at: datetime) -> None:
        super().__init__(
            f"{table} would return to rows that were read at {pushed_at:%Y-%m-%d %H:%M:%S} UTC, before a person was "
            f"erased at {erased_at:%Y-%m-%d %H:%M:%S} UTC.",
            remedy="Correct the table and push it again.",
        )


class LineageDamaged(ServingError):
    """A node contains what serving cannot have written. what: a clause."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(
            f"The node {path} {what}.", remedy="Stop all pushes, and restore the node from a backup of ZooKeeper."
        )


class LineageBusy(ServingError):
    """Other clients kept writing the lineage."""

    def __init__(self, tables: Iterable[str], tries: int) -> None:
        super().__init__(
            f"The lineage of {named(tables)} was changed by other clients {tries} times in a row.", remedy="Try again."
        )


class SegmentDamaged(ServingError):
    """The file of a segment is gone, or is not what was pushed. Where it is stays unsaid: the endpoint answers this."""

    def __init__(self, table: str, segment: str) -> None:
        super().__init__(
            f"The file of segment {segment} of {table} is gone, or damaged: it is not what was pushed.",
            remedy=f"`lake serving verify {table} --repair` restores it from its source if that has not changed since. "
            f"Otherwise push {table} again, or revert to an earlier push: `lake serving lineage {table}`.",
        )


class UnknownSegment(UsageError):
    """The table has no such segment."""

    def __init__(self, table: str, segment: str) -> None:
        super().__init__(f"{table} has no segment {segment!r}.", remedy=f"See `lake serving lineage {table} --json`.")


class TableNotServed(ServingError):
    """There is no such served table, or readers see nothing of it."""

    def __init__(self, table: str, served: Iterable[str]) -> None:
        super().__init__(
            f"No table {table!r} is served.",
            remedy=suggestion(table, sorted(served)),
        )


class QueryRefused(ServingError):
    """A query that is not allowed, or cannot be parsed. It has no result."""


class QueryStopped(ServingError):
    """A query that exceeded its limits, or that DuckDB could not finish. It has no result."""
