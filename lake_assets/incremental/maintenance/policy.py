"""What upkeep may forget, and what it should rewrite. Pure: data in, data out; no table, no clock.

The planner walks from the head of main to a watermark by parent id. So a snapshot that a process needs is kept with all
that came after it on main: one missing in between would cut the way, as if the watermark itself were gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True)
class Policy:
    """How much upkeep keeps, and when it rewrites.

    retain: every snapshot younger than this stays. newest: so many of main's newest snapshots stay, however old.
    orphan_age: a file that nothing refers to is removed when it is older; a writer at work needs no longer than that.
        Iceberg refuses less than a day.
    compact_files, small_bytes: a partition with so many data files below that size is compacted, into files of
        target_bytes. many_manifests: a head with more small ones than that gets its manifests rewritten.
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
    """One snapshot of a table: its id, its parent's (None: the first), when it was committed (ms since 1970)."""

    snapshot_id: int
    parent_id: int | None
    committed_at_ms: int


def snapshots_to_expire(
    links: Sequence[Link], main: int | None, held: Collection[int], *, young_ms: int, newest: int
) -> tuple[int, ...]:
    """The snapshots that nobody needs any more, in the order of `links`.

    main: its head; always kept. held: ids that watermarks, sessions, branches and tags name; those that are gone do not
    matter. young_ms: what was committed then or later stays. newest: so many of main, counted from its head, stay.
    What stays of main has no gap, from the head to the oldest that is held, young or among the newest.
    """
    wanted = {s.snapshot_id for s in links if s.snapshot_id in held or s.committed_at_ms >= young_ms}
    chain = list(_ancestors(links, main))
    last = max((i for i, known in enumerate(chain) if known in wanted or i < max(1, newest)), default=-1)
    kept = wanted | set(chain[: last + 1])
    return tuple(s.snapshot_id for s in links if s.snapshot_id not in kept)


def partitions_to_compact(
    files: Iterable[tuple[Hashable, int]], *, small_bytes: int, min_files: int
) -> Mapping[Hashable, int]:
    """Of data files as (partition, bytes): the partitions with at least `min_files` small ones → how many those are."""
    small = Counter(partition for partition, size in files if size < small_bytes)
    return {partition: count for partition, count in small.items() if count >= max(2, min_files)}


def _ancestors(links: Sequence[Link], main: int | None) -> Iterator[int]:
    """Main's snapshots, newest first, as far as they are there."""
    parents = {s.snapshot_id: s.parent_id for s in links}
    current = main
    while current is not None and current in parents:
        yield current
        current = parents[current]
