"""Which snapshots maintenance expires, and which partitions it compacts. Pure: no table, no clock.

The planner walks from the head of main to a watermark by parent id. So a snapshot that a process needs is kept together
with all later snapshots of main: a gap would make the watermark unreachable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True)
class Policy:
    """How much maintenance keeps, and when it rewrites.

    Attributes:
        retain: Snapshots younger than this are kept.
        newest: How many of main's newest snapshots are kept, however old they are.
        orphan_age: Files that nothing refers to are removed when they are older; no writer takes longer than this to
            commit its files. Iceberg refuses less than a day.
        compact_files: Number of small data files from which on a partition is compacted.
        small_bytes: Data files below this size are small.
        target_bytes: Size of the files that a compaction writes.
        many_manifests: A head with more small manifests than this gets its manifests rewritten.
    """

    retain: timedelta = timedelta(days=3)
    newest: int = 10
    orphan_age: timedelta = timedelta(days=3)
    compact_files: int = 5
    small_bytes: int = 96 * 1024 * 1024
    target_bytes: int = 128 * 1024 * 1024
    many_manifests: int = 20


@dataclass(frozen=True)
class Link:
    """A snapshot in the history of a table.

    Attributes:
        snapshot_id: Its id.
        parent_id: Id of its parent; None for the first snapshot.
        committed_at_ms: When it was committed, in milliseconds since 1970-01-01 UTC.
    """

    snapshot_id: int
    parent_id: int | None
    committed_at_ms: int


def snapshots_to_expire(
    links: Sequence[Link],
    main: int | None,
    pinned: Collection[int],
    *,
    young_ms: int,
    newest: int,
) -> tuple[int, ...]:
    """Return the snapshots that nothing needs any more, in the order of `links`.

    The kept part of main has no gap: it goes from the head to the oldest snapshot that is pinned, young or among the
    newest.

    Args:
        links: All snapshots of the table.
        main: Head of main, which is always kept; None if main has no snapshot.
        pinned: Ids that watermarks, sessions, branches and tags name; ids of snapshots that are gone do no harm.
        young_ms: Snapshots committed at this moment or later are kept, in milliseconds since 1970-01-01 UTC.
        newest: How many snapshots of main are kept, counted from its head.
    """
    needed = {link.snapshot_id for link in links if link.snapshot_id in pinned or link.committed_at_ms >= young_ms}
    chain = list(_ancestors(links, main))
    length = min(len(chain), max(1, newest))
    for position, snapshot_id in enumerate(chain):
        if snapshot_id in needed:
            length = max(length, position + 1)
    kept = needed.union(chain[:length])
    return tuple(link.snapshot_id for link in links if link.snapshot_id not in kept)


def partitions_to_compact(
    files: Iterable[tuple[Hashable, int]], *, small_bytes: int, min_files: int
) -> Mapping[Hashable, int]:
    """Return the partitions with at least `min_files` small data files, but not fewer than two.

    Args:
        files: The partition and the size in bytes of each data file.
        small_bytes: Data files below this size are small.
        min_files: Number of small files from which on a partition is compacted.

    Returns:
        Partition → number of its small files.
    """
    small = Counter(partition for partition, size in files if size < small_bytes)
    return {partition: count for partition, count in small.items() if count >= max(2, min_files)}


def _ancestors(links: Sequence[Link], main: int | None) -> Iterator[int]:
    """Yield the snapshots of main that still exist, newest first."""
    parents = {link.snapshot_id: link.parent_id for link in links}
    current = main
    while current is not None and current in parents:
        yield current
        current = parents[current]
