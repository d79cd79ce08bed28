"""Verification and repair of landed files, and decisions on quarantined ones.

The checks of verification that need no file: what the manifest says of offsets, names and requests. Pure.

Each of them sees rows that were lost or changed in the manifest itself.

Quarantine: the files that differ from the other zone's files, and the decisions on them.

Verification: repeats every check that was made when files were added, and checks the manifest against itself.

It reads each file and changes nothing.

Writing a damaged or missing file again, from the records of the other zone.

The manifest has the checksum of the file's records. Whatever files of the other zone hold these records by now, they
are the right ones if they have that checksum, so nothing has to be trusted.

Files that the manifest does not name: added to it if their names prove what they are, else put in quarantine.

Repair: what can be mended without a decision, from the other zone's files and from the folders.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain, combinations, permutations
from multiprocessing import get_context
from typing import Literal

import sqlalchemy as sa

from lake_assets.errors import FileDamaged, LandingError, OffsetsOverlap
from lake_assets.landing import formats
from lake_assets.landing.coverage import Cover, uncovered
from lake_assets.landing.files import DRAFT, Draft, Zone, digest_of
from lake_assets.landing.manifest import (
    ALL_STAGES,
    ALL_VERDICTS,
    CURRENT_STAGES,
    FILES,
    Entry,
    Manifest,
    Verdict,
    begun_offsets,
    files_of,
    landed_topics,
    lost_dead_letters,
    misfits,
    rebuild,
    recorded_ends,
    shards_of,
)
from lake_assets.landing.operations import graph, unfinished_rounds
from lake_assets.landing.records import (
    NAME,
    SUFFIXES,
    DataFile,
    Kind,
    RangeIndex,
    Ranges,
    Record,
    Shard,
    Tally,
    compare,
    file_name,
    identity_of,
    names_of,
    next_offsets,
    offsets,
    parse_shard,
    total,
)
from lake_assets.landing.state import Ledger, SharedState, Stops
from lake_assets.landing.zone_tailer import copy_file, is_verified, missing_files
from lake_assets.landing.zones import ZoneWriter, no_such_zone


@dataclass(frozen=True)
class Finding:
    """Something that is wrong with a file.

    Attributes:
        problem: In words, with offsets and checksums.
        remedy: The command that mends it.
        cause: The problem without names, offsets and checksums: findings of one cause are shown as one.
    """

    zone: str
    name: str
    problem: str
    remedy: str = ""
    cause: str = ""


@dataclass(frozen=True)
class TopicRows:
    """What the manifest has of a topic.

    Attributes:
        topic: The topic.
        entries: Its files at any stage and with any verdict.
        lost: Offsets that are lost for good.
        begun: Partition → the first offset that any zone has landed.
        ends: Zone → partition → the offset after the last one that it has landed.
    """

    topic: str
    entries: Sequence[Entry]
    lost: Sequence[Cover]
    begun: Mapping[int, int]
    ends: Mapping[str, Mapping[int, int]]


def misnamed(entries: Iterable[Entry]) -> Iterator[Finding]:
    """Yield files whose name does not follow from their shard, offsets, deletions and format."""
    for file in files_of(entries):
        if is_misnamed(file):
            problem = f"({offsets(file)}) has a name that is not that of these offsets"
            yield Finding(
                file.zone, file.name, problem, discard_and_run(file), "has a name that is not that of its offsets"
            )


def is_misnamed(file: DataFile) -> bool:
    """Return whether the name of a file does not fit its description."""
    return file.name != file_name(file.shard, file.ranges, file.deletions, file.kind)


def unrequested(entries: Iterable[Entry], requests: Collection[str]) -> Iterator[Finding]:
    """Yield files that were scrubbed for requests that are not recorded. requests: the ids of all requests."""
    for file in files_of(entries):
        unknown = sorted(file.deletions.difference(requests))
        if unknown:
            topic = parse_shard(file.shard).topic
            yield Finding(
                file.zone,
                file.name,
                f"was scrubbed for {', '.join(unknown)}, which the manifest does not have",
                f"`lake landing scrub {topic} ID --request {unknown[0]}`",
                "was scrubbed for a request that the manifest does not have",
            )


def not_landed(rows: TopicRows, zone: str, missing: Sequence[Ranges]) -> Iterator[Finding]:
    """Yield the offsets that are in no live file of a zone, although it has landed later ones, or these.

    Args:
        rows: Of the topic.
        zone: The zone.
        missing: The ranges of files that are already reported as missing in the zone.
    """
    whole = [entry for entry in rows.entries if not entry.file.holds_dead_letters]
    own = [entry for entry in whole if entry.file.zone == zone]
    covers = [*map(_cover, filter(_counts, own)), *rows.lost]
    ends = _max_ends(next_offsets(files_of(own)), rows.ends.get(zone, {}))
    holes = uncovered(covers, rows.begun, ends)
    reported = RangeIndex(missing)
    for partition, spans in holes.items():
        for span in spans:
            if not reported.overlaps({partition: span}):
                yield _hole(rows.topic, zone, partition, span)


def _counts(entry: Entry) -> bool:
    """Return whether a file is read, or is reported by itself."""
    return entry.stage == "live" or entry.verdict == "quarantined"


def _cover(entry: Entry) -> Cover:
    return Cover(entry.file.ranges, True, parse_shard(entry.file.shard))


def without_partner(rows: TopicRows, zone: str) -> list[DataFile]:
    """Return the verified files of other zones at whose offsets a zone has nothing any more, at any stage."""
    indexes = {dead: _index(rows, zone, dead_letters=dead) for dead in (False, True)}
    found = []
    for entry in rows.entries:
        file = entry.file
        is_verified = entry.verdict == "verified" and entry.stage == "live" and file.zone != zone
        if is_verified and not indexes[file.holds_dead_letters].overlaps(file.ranges):
            found.append(file)
    return found


def overlapping_specifications(zone: str, entries: Iterable[Entry]) -> Iterator[Finding]:
    """Yield live files that share records with a live file of another sharding specification."""
    shards = _live_by_shard(zone, entries)
    indexes = {shard: RangeIndex(file.ranges for file in files) for shard, files in shards.items()}
    for shard, files in shards.items():
        finer = [index for other, index in indexes.items() if other.of > shard.of and shard.overlaps(other)]
        yield from _held_twice(files, finer)


def _live_by_shard(zone: str, entries: Iterable[Entry]) -> dict[Shard, list[DataFile]]:
    shards: dict[Shard, list[DataFile]] = {}
    for entry in entries:
        if entry.stage == "live" and entry.file.zone == zone:
            shards.setdefault(parse_shard(entry.file.shard), []).append(entry.file)
    return shards


def _held_twice(files: Iterable[DataFile], finer: Sequence[RangeIndex]) -> Iterator[Finding]:
    for file in files:
        if any(index.overlaps(file.ranges) for index in finer):
            problem = f"({offsets(file)}) holds records that files of other shards hold, too"
            yield Finding(
                file.zone, file.name, problem, discard_and_run(file), "holds records that other files hold, too"
            )


def discard_and_run(file: DataFile) -> str:
    """Return the commands that let a zone land a file again."""
    return f"`lake landing quarantine discard {file.zone} {file.name}`, then `lake landing run`"


def _hole(topic: str, zone: str, partition: int, span: tuple[int, int]) -> Finding:
    first, last = span
    problem = f"p{partition}:[{first}:{last}] is in no file of this zone"
    remedy = f"`lake landing repair`; then `lake landing run`; if Kafka has forgotten it, `lake landing accept {topic}`"
    return Finding(zone, topic, problem, remedy, "offsets are in no file of this zone")


def _index(rows: TopicRows, zone: str, *, dead_letters: bool) -> RangeIndex:
    own = [file for file in files_of(rows.entries) if file.zone == zone]
    return RangeIndex(file.ranges for file in own if file.holds_dead_letters == dead_letters)


def _max_ends(*several: Mapping[int, int]) -> dict[int, int]:
    found: dict[int, int] = {}
    for ends in several:
        for partition, end in ends.items():
            found[partition] = max(end, found.get(partition, 0))
    return found


Decision = Literal["release", "discard"]


def quarantined(manifest: Manifest) -> list[Entry]:
    """Return the files that differ from another zone's file and wait for a decision."""
    return manifest.entries(stages=ALL_STAGES, verdicts=("quarantined",))


def decide(writers: Sequence[ZoneWriter], zone: str, name: str, decision: Decision, *, now: datetime) -> list[Entry]:
    """Release or discard a quarantined file. If it dies, another call finishes it.

    A provisional file can be discarded too, and a verified one that is damaged, misnamed, or overlaps another one.

    Args:
        writers: Of all zones.
        zone: The zone of the file.
        name: Of the file.
        decision: `release` takes the file as right and the other zone's file as wrong; `discard` removes it.
        now: The present time.

    Returns:
        The files of other zones that a release has put in quarantine.

    Raises:
        UsageError: There is no such zone or file, or its verdict does not allow the decision.
    """
    by_name = {writer.zone.name: writer for writer in writers}
    if zone not in by_name:
        raise no_such_zone(zone)
    if decision == "discard":
        _discard(by_name[zone], name)
        return []
    # Restored first: a file that the manifest calls verified must be in its place.
    by_name[zone].zone.restore(name)
    others = by_name[zone].manifest.release(zone, name, now=now)
    for other in others:
        by_name[other.file.zone].zone.quarantine(other.file.name)
    return others


def _discard(writer: ZoneWriter, name: str) -> None:
    removed = writer.manifest.discard(writer.zone.name, name, verdicts=_discardable(writer, name))
    for each in removed:
        writer.zone.drop(each)


def _discardable(writer: ZoneWriter, name: str) -> Sequence[Verdict]:
    """Return the verdicts with which a file may be discarded: `verified` only if something is wrong with it."""
    entry = writer.entry(name)
    if entry is not None and entry.verdict == "verified" and _is_wrong(writer, entry.file):
        return ALL_VERDICTS
    return ("quarantined", "provisional")


def _is_wrong(writer: ZoneWriter, file: DataFile) -> bool:
    """Return whether a file is damaged, is not what its name says, or has an offset of another live file."""
    if is_misnamed(file) or writer.zone.damage(file):
        return True
    others = files_of(writer.entries(parse_shard(file.shard).topic))
    index = RangeIndex(other.ranges for other in others if _shares_records(file, other))
    return index.overlaps(file.ranges)


def _shares_records(file: DataFile, other: DataFile) -> bool:
    return other.name != file.name and parse_shard(other.shard).overlaps(parse_shard(file.shard))


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


_NO_OFFSETS = (0, -1)


def restore(writer: ZoneWriter, others: Iterable[Zone], file: DataFile) -> None:
    """Write a file of a zone again. If it dies, another call finishes it.

    Args:
        writer: Of the zone.
        others: The other zones.
        file: As the manifest describes it.

    Raises:
        FileDamaged: No other zone has its records undamaged.
    """
    reasons = []
    for other in others:
        try:
            draft = _draft(writer, other, file)
        except FileDamaged as error:
            reasons.append(f"zone {other.name}: {error.problem}")
            continue
        if draft.file.checksum == file.checksum:
            draft.put(writer.zone.path(file.name))
            _set_digest(writer, file.name, draft.file.digest)
            return
        draft.path.unlink()
        reasons.append(f"zone {other.name} has the checksum {draft.file.checksum} at its offsets, not {file.checksum}")
    raise FileDamaged(file.name, f"cannot be restored ({'; '.join(reasons) or 'no other zone'})")


def _draft(writer: ZoneWriter, other: Zone, file: DataFile) -> Draft:
    sources = _sources(writer, other, file)
    return writer.zone.draft(
        file.shard,
        file.ranges,
        records_within(other, sources, file.ranges),
        deletions=file.deletions,
        kind=file.kind,
        made_from=file.made_from,
    )


def _sources(writer: ZoneWriter, other: Zone, file: DataFile) -> Sequence[DataFile]:
    """Return the equal file of another zone, at any stage; else its live files of the same shard that overlap."""
    equal = writer.manifest.entry(other.name, file.name)
    if equal is not None and equal.file.checksum == file.checksum:
        return [equal.file]
    return live_files_within(writer.manifest, other, parse_shard(file.shard), file.ranges)


def live_files_within(manifest: Manifest, zone: Zone, shard: Shard, ranges: Ranges) -> list[DataFile]:
    """Return the live files of a shard, in a zone, that have an offset of ranges."""
    wanted = RangeIndex([ranges])
    live = files_of(manifest.entries(zone.name, shard.topic))
    return [file for file in live if file.shard == str(shard) and wanted.overlaps(file.ranges)]


def records_within(zone: Zone, sources: Iterable[DataFile], ranges: Ranges) -> Iterator[Record]:
    """Yield the records of files of a zone that lie in ranges. Raises `FileDamaged`."""
    for source in sources:
        for record in zone.records(source):
            first, last = ranges.get(record.partition, _NO_OFFSETS)
            if first <= record.offset <= last:
                yield record


def _set_digest(writer: ZoneWriter, name: str, digest: str) -> None:
    """Record the bytes of the new file: the same records in another order have others."""
    with writer.manifest.change() as (connection, _):
        is_row = (FILES.c.zone == writer.zone.name) & (FILES.c.name == name)
        connection.execute(sa.update(FILES).where(is_row).values(digest=digest))


KINDS: dict[str, Kind] = {suffix: kind for kind, suffix in SUFFIXES.items()}


def adopt(writer: ZoneWriter, name: str, *, now: datetime) -> bool:
    """Add a file of the zone's folder to the manifest, or put it in quarantine.

    Args:
        writer: Of the zone.
        name: Of a file that the manifest does not name.
        now: The present time.

    Returns:
        Whether it was added.
    """
    file = describe(writer.zone, name)
    if file is not None:
        try:
            writer.manifest.add(file, now=now)
        except LandingError:  # other files have its offsets, or hold other records
            file = None
    if file is None and NAME.fullmatch(name):
        writer.zone.quarantine(name)
    return file is not None


def describe(zone: Zone, name: str) -> DataFile | None:
    """Return the description of a file if its name, which is a hash of shard and offsets, proves it; else None."""
    named = NAME.fullmatch(name)
    if named is None:
        return None
    kind = KINDS[f".{named[2]}"]
    tally = Tally()
    spans: dict[int, tuple[int, int]] = {}
    try:
        with zone.path(name).open("rb") as opened:
            for record in tally.of(formats.read(kind, opened)):
                first, last = spans.get(record.partition, (record.offset, record.offset))
                spans[record.partition] = (min(first, record.offset), max(last, record.offset))
    except Exception:  # fastavro and pyarrow raise many types for a damaged file
        return None
    shard = _shard(name[: named.start(1) - 1], named[1])
    if not spans or file_name(str(shard), spans, (), kind) != name:
        return None
    return DataFile(
        name=name,
        size=tally.size,
        shard=str(shard),
        ranges=dict(sorted(spans.items())),
        deletions=frozenset(),
        count=tally.count,
        checksum=tally.checksum,
        zone=zone.name,
        kind=kind,
        digest=digest_of(zone.path(name)),
    )


def _shard(topic: str, number: str) -> Shard:
    if number == "dead-letters":
        return Shard(topic, dead_letters=True)
    at, of = number.split("-of-")
    return Shard(topic, int(at), int(of))


@dataclass(frozen=True)
class Repaired:
    """A repair, or why it was not possible.

    Attributes:
        zone: The zone.
        name: Of the file.
        what: What was done; empty if nothing could be done.
        problem: Why nothing could be done; empty if it was done.
        remedy: What a person can do then.
    """

    zone: str
    name: str
    what: str = ""
    problem: str = ""
    remedy: str = ""


def repair(writers: Sequence[ZoneWriter], *, now: datetime, deadline: timedelta) -> Iterator[Repaired]:
    """Mend the files of all zones; yield each repair. If it dies, another call finishes it.

    Rows that follow from others are written again. Files that are damaged or gone are written again from the records of
    the other zone, which must have the checksum in the manifest. Files that the manifest does not name are added to it,
    or put in quarantine. Missing files are copied if the other zone's file is verified, or if a compaction round names
    them: they were verified when it was opened, and the other zone may only have them merged by now.

    Args:
        writers: Of all zones.
        now: The present time.
        deadline: Younger drafts and files that the manifest does not name are kept: a process may be writing them.
    """
    for file in rebuild(writers[0].manifest):
        yield Repaired(file.zone, file.name, "its rows in the manifest were written again")
    for writer in writers:
        others = [other.zone for other in writers if other is not writer]
        yield from _restore_damaged(writer, others)
        yield from _adopt_strays(writer, now=now, before=now - deadline)
    for writer in writers:
        yield from _copy_missing(writer, [other.zone for other in writers], now=now)
    for writer, other in permutations(writers, 2):
        yield from _cut_from_merged(writer, other, now=now)


def _restore_damaged(writer: ZoneWriter, others: Sequence[Zone]) -> Iterator[Repaired]:
    zone = writer.zone.name
    for entry in writer.entries(stages=CURRENT_STAGES):
        file = entry.file
        if writer.zone.damage(file) is None or writer.entry(file.name) != entry:
            continue
        try:
            restore(writer, others, file)
        except LandingError as error:
            remedy = (
                f"`lake landing quarantine discard {zone} {file.name}` gives the file up; the zone lands its offsets "
            )
            yield Repaired(zone, file.name, problem=error.problem, remedy=f"{remedy}again if Kafka has them.")
        else:
            yield Repaired(zone, file.name, "it was written again with the records of the other zone")


def _adopt_strays(writer: ZoneWriter, *, now: datetime, before: datetime) -> Iterator[Repaired]:
    zone = writer.zone
    for name in zone.drop_drafts(before):
        yield Repaired(zone.name, name, "the draft was removed")
    known = set(names_of(files_of(writer.entries(stages=ALL_STAGES, verdicts=ALL_VERDICTS))))
    for name in zone.names(before):
        if name in known or name.startswith(DRAFT):
            continue
        if adopt(writer, name, now=now):
            yield Repaired(zone.name, name, "it was added to the manifest again")
        else:
            yield Repaired(zone.name, name, "it was put in the folder `quarantine`: the manifest has no place for it")


def _copy_missing(writer: ZoneWriter, zones: Sequence[Zone], *, now: datetime) -> Iterator[Repaired]:
    for file in _missing_in_zone(writer):
        if not is_verified(writer, file):
            continue
        try:
            copy_file(writer, zones, file, now=now)
        except LandingError as error:
            yield Repaired(writer.zone.name, file.name, problem=error.problem, remedy=error.remedy)
        else:
            yield Repaired(writer.zone.name, file.name, f"it was copied from zone {file.zone}")


def _cut_from_merged(writer: ZoneWriter, other: ZoneWriter, *, now: datetime) -> Iterator[Repaired]:
    """Land again the files of unfinished rounds of which a zone has nothing, from the other zone's merged files."""
    for shard in shards_of(writer.manifest):
        for compaction in unfinished_rounds(writer, shard):
            for ranges in chain.from_iterable(compaction.groups if compaction.of is None else ()):
                if _has_nothing_of(writer, shard, ranges):
                    yield from _cut(writer, other, shard, ranges, now=now)


def _has_nothing_of(writer: ZoneWriter, shard: Shard, ranges: Ranges) -> bool:
    """Return whether a zone has no file of a shard with an offset of ranges, at any stage and with any verdict."""
    entries = writer.entries(shard.topic, stages=ALL_STAGES, verdicts=ALL_VERDICTS)
    own = [file for file in files_of(entries) if file.shard == str(shard)]
    return not RangeIndex(file.ranges for file in own).overlaps(ranges)


def _cut(writer: ZoneWriter, other: ZoneWriter, shard: Shard, ranges: Ranges, *, now: datetime) -> Iterator[Repaired]:
    sources = live_files_within(other.manifest, other.zone, shard, ranges)
    scrubbed = {file.deletions for file in sources}
    if not _covers_all(sources, ranges) or len(scrubbed) != 1:
        return
    (deletions,) = scrubbed
    name = file_name(str(shard), ranges, deletions, "append")
    try:
        records = records_within(other.zone, sources, ranges)
        draft = writer.zone.draft(str(shard), ranges, records, deletions=deletions)
        writer.land(draft, now=now)
    except LandingError as error:
        yield Repaired(writer.zone.name, name, problem=error.problem, remedy=error.remedy)
    else:
        yield Repaired(writer.zone.name, name, f"it was cut from the merged files of zone {other.zone.name}")


def _covers_all(files: Sequence[DataFile], ranges: Ranges) -> bool:
    """Return whether files have all offsets of ranges. Pure."""
    covers = [Cover(file.ranges, readable=True) for file in files]
    firsts = {partition: first for partition, (first, _) in ranges.items()}
    ends = {partition: last + 1 for partition, (_, last) in ranges.items()}
    return not uncovered(covers, firsts, ends)


def _missing_in_zone(writer: ZoneWriter) -> list[DataFile]:
    found: dict[str, DataFile] = {}
    for topic in landed_topics(writer.manifest):
        entries = writer.manifest.entries(topic=topic, stages=ALL_STAGES, verdicts=ALL_VERDICTS)
        missing = missing_files(writer.manifest, writer.zone.name, topic)
        for file in (*missing, *without_partner(TopicRows(topic, entries, (), {}, {}), writer.zone.name)):
            found[file.name] = file
    return list(found.values())
