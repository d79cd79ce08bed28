"""Everything that was checked when it was added, checked again: each file is read, and compared with the other zones'.

Here belongs what only looks. Nothing is changed, and nothing is believed but the bytes that are there.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import reduce
from itertools import combinations
from multiprocessing import get_context
from operator import add

from lake_assets.errors import OffsetsOverlap
from lake_assets.landing.consume.refetch import lacking
from lake_assets.landing.files.checksum import NOTHING
from lake_assets.landing.files.entries import DataFile, compare, identity, offsets
from lake_assets.landing.files.zone_folder import DRAFT, Zone
from lake_assets.landing.manifest.compaction_choice import graph
from lake_assets.landing.manifest.schema import ALL_STAGES, ALL_VERDICTS, Entry
from lake_assets.landing.manifest.store import Manifest
from lake_assets.landing.manifest.zones import topics_of

Stored = tuple[Zone, DataFile]
Check = Callable[[Stored], str | None]


@dataclass(frozen=True)
class Finding:
    """Something that is not as it should be. problem: in words, with offsets and checksums."""

    zone: str
    name: str
    problem: str


@dataclass(frozen=True)
class Verification:
    """files, records, bytes: what was read; bytes as in `DataFile.size`. findings: in a fixed order; none is well."""

    files: int
    records: int
    bytes: int
    findings: Sequence[Finding]


def verify(
    manifest: Manifest,
    zones: Sequence[Zone],
    *,
    now: datetime,
    deadline: timedelta,
    processes: int = 1,
    told: Callable[[int, int], None] = lambda done, of: None,
) -> Verification:
    """Read every file of the zones that readers may read, or that waits to be; and say what is wrong.

    deadline: how long a file may wait for the other zone's, and lie there before it is added. processes: that read at
    the same time. told: hears after each file how many bytes are read, of how many.
    """
    by_zone = {zone.name: zone for zone in zones}
    entries = [e for e in manifest.entries(stages=("staged", "live")) if e.file.zone in by_zone]
    findings = list(_damaged(manifest, by_zone, entries, min(processes, len(entries)), told))
    findings += [f for zone in zones for f in _strays(manifest, zone, now - deadline)]
    findings += _differing(entries)
    findings += _overlapping(entries)
    findings += _unequal_to_their_origin(manifest, entries)
    findings += [f for zone in zones for f in _lacking(manifest, zone.name)]
    findings += [_overdue(e, now) for e in manifest.overdue(now, deadline) if e.file.zone in by_zone]
    findings += [_quarantined(e) for e in quarantined(manifest) if e.file.zone in by_zone]
    files = [e.file for e in entries]
    return Verification(len(files), sum(f.count for f in files), sum(f.size for f in files), findings)


def quarantined(manifest: Manifest) -> list[Entry]:
    """The files that differ from another zone's, and wait for somebody's decision."""
    return manifest.entries(stages=ALL_STAGES, verdicts=("quarantined",))


def _damaged(
    manifest: Manifest,
    zones: Mapping[str, Zone],
    entries: Sequence[Entry],
    processes: int,
    told: Callable[[int, int], None],
) -> Iterator[Finding]:
    stored = [(zones[e.file.zone], e.file) for e in entries]
    done, total = 0, sum(e.file.size for e in entries)
    with _readers(processes) as each:
        for entry, problem in zip(entries, each(_problem, stored), strict=True):
            done += entry.file.size
            told(done, total)
            zone, name = entry.file.zone, entry.file.name
            if problem and manifest.entry(zone, name) == entry:  # else it was replaced meanwhile, and maybe swept
                yield Finding(zone, name, problem)


@contextmanager
def _readers(processes: int) -> Iterator[Callable[[Check, Iterable[Stored]], Iterable[str | None]]]:
    """`map`, or the same by processes of their own: threads would wait for each other when they hash small records."""
    if processes <= 1:
        yield map
        return
    with ProcessPoolExecutor(processes, get_context("spawn"), _leave_interrupts) as pool:
        yield pool.map


def _leave_interrupts() -> None:
    """To the process that waits for this one: Ctrl-C reaches both."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _problem(stored: Stored) -> str | None:
    """What is wrong with a file as it lies in its zone."""
    zone, file = stored
    damaged = zone.damage(file)
    return damaged.problem.removeprefix(f"{file.name} ").rstrip(".") if damaged else None


def _strays(manifest: Manifest, zone: Zone, before: datetime) -> Iterator[Finding]:
    """Files that lie there since before a time, and that no manifest names. Younger ones may be about to be added."""
    names = zone.names(before)
    known = {e.file.name for e in manifest.entries(zone.name, stages=ALL_STAGES, verdicts=ALL_VERDICTS)}
    for name in names:
        if name not in known:
            what = "is a draft that nobody finished" if name.startswith(DRAFT) else "is not in the manifest"
            yield Finding(zone.name, name, what)


def _differing(entries: Iterable[Entry]) -> Iterator[Finding]:
    """Comparable files that are not equal, by what the manifest says of them."""
    alike: dict[str, list[DataFile]] = {}
    for entry in entries:
        file = entry.file
        alike.setdefault(identity(file.shard, file.ranges, file.deletions), []).append(file)
    for files in alike.values():
        for one, other in combinations(files, 2):
            if compare(one, other) == "corrupt":
                problem = (
                    f"({offsets(one)}) has the checksum {one.checksum}, that of zone {other.zone} {other.checksum}"
                )
                yield Finding(one.zone, one.name, problem)


def _overlapping(entries: Iterable[Entry]) -> Iterator[Finding]:
    shards: dict[tuple[str, str], list[DataFile]] = {}
    for entry in entries:
        shards.setdefault((entry.file.zone, entry.file.shard), []).append(entry.file)
    for (zone, shard), files in sorted(shards.items()):
        try:
            graph(files)
        except OffsetsOverlap as overlap:
            yield Finding(zone, shard, overlap.problem.rstrip("."))


def _unequal_to_their_origin(manifest: Manifest, entries: Iterable[Entry]) -> Iterator[Finding]:
    """Compacted files whose sum is not that of the files that they were made from, as far as these are known."""
    known = {(e.file.zone, e.file.name): e.file for e in manifest.entries(stages=ALL_STAGES)}
    for entry in entries:
        file = entry.file
        origin = [known.get((file.zone, name)) for name in file.made_from]
        parts = [f for f in origin if f and f.shard == file.shard and f.deletions == file.deletions]
        if parts and len(parts) == len(origin):
            total = reduce(add, (f.checksum for f in parts), NOTHING)
            if total != file.checksum:
                yield Finding(file.zone, file.name, f"has the checksum {file.checksum}, what it was made from {total}")


def _lacking(manifest: Manifest, zone: str) -> Iterator[Finding]:
    """What another zone has, and this one has nothing of, though it has landed what follows."""
    for topic in topics_of(manifest):
        for file in lacking(manifest, zone, topic):
            problem = (
                f"({offsets(file)}) of zone {file.zone} is missing here: it is landed again when the zone is started"
            )
            yield Finding(zone, file.name, problem)


def _overdue(entry: Entry, now: datetime) -> Finding:
    waited = int((now - entry.added_at).total_seconds())
    problem = (
        f"({offsets(entry.file)}) has waited {waited} s for the other zone's: it lags, or a manifest write was lost"
    )
    return Finding(entry.file.zone, entry.file.name, problem)


def _quarantined(entry: Entry) -> Finding:
    return Finding(entry.file.zone, entry.file.name, f"is quarantined: {entry.reason}".rstrip("."))
