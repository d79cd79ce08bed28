"""Verification: repeats every check that was made when files were added, and checks the manifest against itself.

It reads each file and changes nothing.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import combinations
from multiprocessing import get_context

from lake_assets.errors import OffsetsOverlap
from lake_assets.landing.files.checksum import total
from lake_assets.landing.files.entries import DataFile, compare, identity_of, names_of, offsets
from lake_assets.landing.files.zone_folder import DRAFT, Zone
from lake_assets.landing.manifest.compaction_choice import graph
from lake_assets.landing.manifest.index_rows import (
    begun_offsets,
    landed_topics,
    lost_dead_letters,
    misfits,
    recorded_ends,
)
from lake_assets.landing.manifest.schema import ALL_STAGES, ALL_VERDICTS, CURRENT_STAGES, Entry, files_of
from lake_assets.landing.manifest.shared_state import SharedState
from lake_assets.landing.manifest.store import Manifest
from lake_assets.landing.manifest.zone_writer import ZoneWriter
from lake_assets.landing.operations.coverage_checks import (
    Finding,
    TopicRows,
    discard_and_run,
    misnamed,
    not_landed,
    overlapping_specifications,
    unrequested,
    without_partner,
)
from lake_assets.landing.operations.quarantine import quarantined
from lake_assets.landing.tailing.refetch import missing_files
from lake_assets.landing.topics.ledger import Ledger
from lake_assets.landing.topics.stops import Stops

REPAIR = "`lake landing repair`"
GONE = "the folder of the zone and the manifest do not belong together"

Stored = tuple[Zone, DataFile]
Check = Callable[[Stored], str | None]

Progress = Callable[[int, int], None]
"""Is called with the bytes read so far, and all bytes."""


@dataclass(frozen=True)
class Verification:
    """The result of a verification.

    Attributes:
        files: Number of files read.
        records: Number of their records.
        bytes: Bytes of their records, as in `DataFile.size`.
        findings: In a fixed order; empty if nothing is wrong.
    """

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
    progress: Progress = lambda done, of: None,
    beside: Iterable[Finding] = (),
) -> Verification:
    """Read every live and staged file of zones and return what is wrong.

    Args:
        manifest: The manifest.
        zones: The zones to verify.
        now: The present time.
        deadline: How long a file may wait for the other zone's file, or lie in its folder before it is added.
        processes: How many processes read at the same time.
        progress: Called after each file.
        beside: What other checks have found; it comes first.
    """
    by_name = {zone.name: zone for zone in zones}
    entries = _of_zones(by_name, manifest.entries(stages=CURRENT_STAGES))
    findings = [*beside, *_mismatches(manifest, zones)]
    gone = {found.zone for found in findings if found.cause == GONE}
    readable = [entry for entry in entries if entry.file.zone not in gone]
    findings += _damaged(manifest, by_name, readable, min(processes, len(readable)), progress)
    for zone in zones:
        if zone.name in gone:
            continue
        findings += _strays(manifest, zone, now - deadline)
    findings += _differing(entries)
    findings += _overlapping(entries)
    findings += _unequal_to_their_origin(manifest, entries)
    findings += manifest_findings(manifest, list(by_name))
    for entry in _of_zones(by_name, manifest.overdue(now, deadline)):
        findings.append(_overdue(entry, now))
    for entry in _of_zones(by_name, quarantined(manifest)):
        findings.append(_quarantined(entry))
    findings += _stopped(manifest, by_name)
    files = files_of(readable)
    return Verification(
        files=len(files),
        records=sum(file.count for file in files),
        bytes=sum(file.size for file in files),
        findings=findings,
    )


def _mismatches(manifest: Manifest, zones: Iterable[Zone]) -> Iterator[Finding]:
    """Yield the zones whose folder and the manifest do not belong together; their files are not read."""
    for zone in zones:
        mismatch = ZoneWriter(zone, manifest).storage_problem()
        if mismatch is not None:
            yield Finding(zone.name, str(zone.folder), mismatch.problem.rstrip("."), mismatch.remedy, GONE)


def _stopped(manifest: Manifest, zones: Collection[str]) -> Iterator[Finding]:
    for stop in Stops(manifest).all():
        if stop.zone in zones:
            yield Finding(stop.zone, f"{stop.topic} p{stop.partition}", stop.problem, stop.remedy)


def _of_zones(zones: Collection[str], entries: Iterable[Entry]) -> list[Entry]:
    return [entry for entry in entries if entry.file.zone in zones]


def _damaged(
    manifest: Manifest,
    zones: Mapping[str, Zone],
    entries: Sequence[Entry],
    processes: int,
    progress: Progress,
) -> Iterator[Finding]:
    stored = [(zones[entry.file.zone], entry.file) for entry in entries]
    done = 0
    all_bytes = sum(entry.file.size for entry in entries)
    with _mapping(processes) as mapped:
        for entry, problem in zip(entries, mapped(_problem, stored), strict=True):
            file = entry.file
            done += file.size
            progress(done, all_bytes)
            # A file that was replaced and swept meanwhile is no finding.
            if problem and manifest.entry(file.zone, file.name) == entry:
                yield Finding(file.zone, file.name, problem, f"{REPAIR}; or {discard_and_run(file)}")


@contextmanager
def _mapping(processes: int) -> Iterator[Callable[[Check, Iterable[Stored]], Iterable[str | None]]]:
    """Yield `map`, or a `map` over several processes. Threads would block each other when they hash small records."""
    if processes <= 1:
        yield map
        return
    with ProcessPoolExecutor(processes, get_context("spawn"), _ignore_interrupts) as pool:
        yield pool.map


def _ignore_interrupts() -> None:
    """Leave Ctrl-C, which reaches all processes, to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _problem(stored: Stored) -> str | None:
    zone, file = stored
    damaged = zone.damage(file)
    if damaged is None:
        return None
    return damaged.problem.removeprefix(f"{file.name} ").rstrip(".")


def _strays(manifest: Manifest, zone: Zone, before: datetime) -> Iterator[Finding]:
    """Yield files older than a time that the manifest does not name. Younger ones may be about to be added."""
    # The folder is read first: a file that is added in between is then known.
    names = zone.names(before)
    entries = manifest.entries(zone.name, stages=ALL_STAGES, verdicts=ALL_VERDICTS)
    known = set(names_of(files_of(entries)))
    for name in names:
        if name in known:
            continue
        if name.startswith(DRAFT):
            yield Finding(zone.name, name, "is a draft that nobody finished", REPAIR)
        else:
            yield Finding(zone.name, name, "is not in the manifest", REPAIR)


def _differing(entries: Iterable[Entry]) -> Iterator[Finding]:
    """Yield comparable files that are not equal according to the manifest."""
    comparable: dict[str, list[DataFile]] = {}
    for file in files_of(entries):
        comparable.setdefault(identity_of(file), []).append(file)
    for files in comparable.values():
        for one, other in combinations(files, 2):
            if compare(one, other) == "corrupt":
                problem = (
                    f"({offsets(one)}) has the checksum {one.checksum}, that of zone {other.zone} {other.checksum}"
                )
                yield Finding(one.zone, one.name, problem, discard_and_run(one), "differs from the other zone's file")


def _overlapping(entries: Iterable[Entry]) -> Iterator[Finding]:
    shards: dict[tuple[str, str], list[DataFile]] = {}
    for file in files_of(entries):
        shards.setdefault((file.zone, file.shard), []).append(file)
    for (zone, shard), files in sorted(shards.items()):
        try:
            graph(files)
        except OffsetsOverlap as overlap:
            yield Finding(zone, shard, overlap.problem.rstrip("."), overlap.remedy, "two files have the same offset")


def _unequal_to_their_origin(manifest: Manifest, entries: Iterable[Entry]) -> Iterator[Finding]:
    """Yield compacted files whose checksum is not the sum of their origin's, if the manifest has all of the origin."""
    every = files_of(manifest.entries(stages=ALL_STAGES))
    known = {(file.zone, file.name): file for file in every}
    for file in files_of(entries):
        parts = _compacted_parts(file, known)
        if not parts or len(parts) < len(file.made_from):
            continue
        expected = total(part.checksum for part in parts)
        if expected != file.checksum:
            problem = f"has the checksum {file.checksum}, but the files that it was made from have {expected}"
            yield Finding(file.zone, file.name, problem, discard_and_run(file), "is not the sum of its origin")


def _compacted_parts(file: DataFile, known: Mapping[tuple[str, str], DataFile]) -> list[DataFile]:
    """Return the known files that a file was compacted from. known: zone and name → file."""
    parts = []
    for name in file.made_from:
        part = known.get((file.zone, name))
        if part and _holds_same_records(part, file):
            parts.append(part)
    return parts


def _holds_same_records(origin: DataFile, file: DataFile) -> bool:
    """Return whether the operation was a compaction, neither a reshard nor a scrub."""
    return origin.shard == file.shard and origin.deletions == file.deletions


def manifest_findings(manifest: Manifest, zones: Sequence[str]) -> Iterator[Finding]:
    """Yield what the rows of the manifest contradict, or what they say is missing in zones. Reads no file."""
    for file in misfits(manifest):
        if file.zone in zones:
            yield Finding(file.zone, file.name, "is not found by its offsets: rows of the manifest were lost", REPAIR)
    for topic in landed_topics(manifest):
        entries = manifest.entries(topic=topic, stages=ALL_STAGES, verdicts=ALL_VERDICTS)
        files = [file for file in files_of(entries) if not file.holds_dead_letters]
        begun = begun_offsets(manifest, topic, files)
        rows = TopicRows(topic, entries, Ledger(manifest).gaps(topic), begun, recorded_ends(manifest, topic))
        requests = {request.request_id for request in SharedState(manifest).deletions(topic)}
        for zone in zones:
            yield from _lost_dead_letters(manifest, zone, topic)
            yield from _of_topic(rows, zone, requests)
            yield from _missing(manifest, rows, zone)


def _lost_dead_letters(manifest: Manifest, zone: str, topic: str) -> Iterator[Finding]:
    """Yield dead letters that a zone has landed, and of which no zone has a file any more."""
    for partition, first, last in lost_dead_letters(manifest, zone, topic):
        problem = f"dead letters of p{partition}:[{first}:{last}] are in no file of any zone any more"
        remedy = f"`lake landing run --zone {zone}`; if Kafka has forgotten them, `lake landing accept {topic}`"
        yield Finding(zone, topic, problem, remedy, "dead letters are in no file of any zone any more")


def _of_topic(rows: TopicRows, zone: str, requests: Collection[str]) -> Iterator[Finding]:
    current = [entry for entry in rows.entries if entry.file.zone == zone and entry.stage != "retired"]
    yield from misnamed(current)
    yield from unrequested(current, requests)
    yield from overlapping_specifications(zone, rows.entries)


def _missing(manifest: Manifest, rows: TopicRows, zone: str) -> Iterator[Finding]:
    """Yield files of another zone whose offsets a zone has not landed, although it has landed later ones, or these."""
    missing = missing_files(manifest, zone, rows.topic)
    for file in missing:
        problem = f"({offsets(file)}) of zone {file.zone} is missing here; the zone lands it again when it starts"
        yield Finding(zone, file.name, problem, f"`lake landing run --zone {zone}`", "is missing in this zone")
    paired = without_partner(rows, zone)
    for file in paired:
        if file not in missing:
            problem = f"({offsets(file)}) is verified in zone {file.zone}, and this zone has nothing there any more"
            remedy = f"{REPAIR}, or `lake landing run --zone {zone}`"
            yield Finding(zone, file.name, problem, remedy, "is verified in the other zone, and gone here")
    yield from not_landed(rows, zone, [file.ranges for file in (*missing, *paired)])


def _overdue(entry: Entry, now: datetime) -> Finding:
    waited = int((now - entry.added_at).total_seconds())
    problem = (
        f"({offsets(entry.file)}) has waited {waited} s for the other zone's file: "
        "that zone lags, or a manifest write was lost"
    )
    remedy = "`lake landing run`, in all zones"
    return Finding(entry.file.zone, entry.file.name, problem, remedy, "waits for the other zone's file")


def _quarantined(entry: Entry) -> Finding:
    file = entry.file
    remedy = f"`lake landing quarantine release {file.zone} {file.name}`, or `discard` instead of `release`"
    return Finding(file.zone, file.name, f"is quarantined: {entry.reason}".rstrip("."), remedy, "is quarantined")
