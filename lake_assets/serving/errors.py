"""The errors of serving. An operation that raises one of them has changed nothing, unless the error says otherwise.

ServingError                 its `status` is that of the endpoint's answer
├── ReplaceRefused           the lineage does not allow it
│   └── EntryEnded           there is no such entry, or it was reverted
├── PushFailed               a push that was reverted, or not started
│   └── UploadDamaged
├── PinotRefused             a call that the controller of a Pinot cluster did not carry out
├── SegmentDamaged           a segment whose file is gone, or is not what was pushed
├── TableNotServed
├── QueryRefused             a query that is not allowed
└── QueryStopped             a query that exceeded its limits, or lost its lease
"""

from __future__ import annotations

from collections.abc import Iterable

from lake_assets.errors import ServingError, named, suggestion

MAX_ANSWER_CHARACTERS = 500
"""Of another service's answer, in a message."""


class ReplaceRefused(ServingError):
    """The lineage does not allow the operation."""

    status = 500  # as Pinot's controller answers


class EntryEnded(ReplaceRefused):
    """The lineage has no such entry, or it was reverted."""


def target_taken(table: str, segments: Iterable[str], why: str) -> ReplaceRefused:
    """Return the error of a target whose name is in use. why: a clause."""
    return ReplaceRefused(
        f"{named(segments)} of {table} cannot be pushed: {why}.",
        remedy="Each name can be used once: choose another.",
        status=409,
    )


class PushFailed(ServingError):
    """A push that did not complete. It was reverted, if it had started."""


def quota_exceeded(table: str, *, stored: int, new: int, quota: int) -> PushFailed:
    """Return the error of a push with which a table would exceed its quota. All in bytes."""
    return PushFailed(
        f"{table} may take {quota:,} bytes; it takes {stored:,}, and the push adds {new:,}.",
        remedy="Raise its quota (or LAKE_SERVING_QUOTA_MB), keep fewer snapshots (LAKE_SERVING_SNAPSHOTS), or push "
        "less.",
        status=403,
    )


class UploadDamaged(PushFailed):
    """A segment that was read back differs from the pushed one."""

    def __init__(self, table: str, segment: str, what: str) -> None:
        super().__init__(
            f"{segment} of {table} is not what was pushed: {what}.",
            remedy="Push again. If it happens again, check the disk.",
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


def lineage_damaged(path: str, what: str) -> ServingError:
    """Return the error of a node that contains what serving cannot have written. what: a clause."""
    return ServingError(
        f"The node {path} {what}.", remedy="Stop all pushes, and restore the node from a backup of ZooKeeper."
    )


def lineage_busy(tables: Iterable[str], tries: int) -> ServingError:
    """Return the error of an operation during which other clients kept writing the lineage."""
    return ServingError(
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


class TableNotServed(ServingError):
    """There is no such served table, or readers see nothing of it."""

    status = 404

    def __init__(self, table: str, served: Iterable[str]) -> None:
        super().__init__(f"No table {table!r} is served.", remedy=suggestion(table, sorted(served)))


class QueryRefused(ServingError):
    """A query that is not allowed, or cannot be parsed. It has no result."""

    status = 400


class QueryStopped(ServingError):
    """A query that exceeded its limits, or that DuckDB could not finish. It has no result."""

    status = 422
