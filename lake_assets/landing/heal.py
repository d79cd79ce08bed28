"""Verification and repair of landed files, and decisions on quarantined ones.

Verification repeats every check that was made when files were added, and checks the manifest against itself: it reads
each file and changes nothing. Repair mends what needs no decision, from the other zone's files and from the folders.
The manifest has the checksum of a file's records. Whatever files of the other zone hold these records by now, they are
the right ones if they have that checksum, so nothing has to be trusted. A file that the manifest does not name is added
to it if its name proves what it is, else put in quarantine.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain, combinations
from multiprocessing import get_context
from typing import Literal

from lake_assets.errors import FileDamaged, LakeError, LandingError, MessagesLost, ServiceError
from lake_assets.landing import formats
from lake_assets.landing.coverage import Cover, uncovered
from lake_assets.landing.files import DRAFT, Zone, remove_draft
from lake_assets.landing.manifest import (
    ALL_STAGES,
    ALL_VERDICTS,
    CURRENT_STAGES,
    Entry,
    FileRows,
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
    KINDS,
    NAME,
    DataFile,
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
    union,
)
from lake_assets.landing.state import Ledger, SharedState, Stops
from lake_assets.landing.zone_tailer import copy_file, gone_files, missing_files
from lake_assets.landing.zones import ZoneWriter, no_such_zone

PROCESS_BYTES = 32 << 20
"""Reading so many bytes of records takes as long as it takes to start a process."""

_FILE_BYTES = 64 << 10
"""A file takes as long as so many bytes, at least."""

REPAIR = "`lake landing repair`"
GONE = "the folder of the zone and the manifest do not belong together"

Decision = Literal["release", "discard"]
Stored = tuple[Zone, DataFile]
Check = Callable[[Stored], str | None]

Progress = Callable[[int, int], None]
"""Is called with the bytes read so far, and all bytes."""


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
    writers: Sequence[ZoneWriter],
    *,
    now: datetime,
    deadline: timedelta,
    processes: int = 1,
    progress: Progress = lambda done, of: None,
    beside: Iterable[Finding] = (),
) -> Verification:
    """Read every live and staged file of zones and return what is wrong.

    Args:
        writers: Of the zones to verify.
        now: The present time.
        deadline: How long a file may wait for the other zone's file, or lie in its folder before it is added.
        processes: The most processes that read at the same time.
        progress: Called after each file.
        beside: What other checks have found; it comes first.
    """
    by_name = {writer.zone.name: writer for writer in writers}
    findings = list(beside)
    sound = []
    for writer in writers:
        mismatch = writer.storage_problem()
        if mismatch is None:
            sound.append(writer)
        else:  # its files are not read
            findings += gone({writer.zone.name: mismatch}, writer.zone.storage.address)
    entries = [entry for writer in writers for entry in writer.entries(stages=CURRENT_STAGES)]
    readable = [entry for writer in sound for entry in writer.entries(stages=CURRENT_STAGES)]
    sizes = sum(max(entry.file.size, _FILE_BYTES) for entry in readable)
    findings += _damaged(by_name, readable, min(processes, len(readable), 1 + sizes // PROCESS_BYTES), progress)
    for writer in sound:
        findings += _strays(writer, now - deadline)
    findings += _differing(entries)
    findings += _overlapping(entries)
    for writer in writers:
        findings += _unequal_to_their_origin(writer)
    for writer in writers:
        findings += _manifest_findings(writer.manifest)
    for entry in entries:
        if entry.overdue(now, deadline):
            waited = int((now - entry.added_at).total_seconds())
            problem = (
                f"({offsets(entry.file)}) has waited {waited} s for the other zone's file: "
                "that zone lags, or a manifest write was lost"
            )
            remedy = "`lake landing run`, in all zones"
            findings.append(_finding(entry.file, problem, "waits for the other zone's file", remedy))
    for writer in writers:
        for entry in writer.entries(stages=ALL_STAGES, verdicts=("quarantined",)):
            command = f"`lake landing quarantine release {entry.file.zone} {entry.file.name}`"
            problem = f"is quarantined: {entry.reason}".rstrip(".")
            findings.append(
                _finding(entry.file, problem, "is quarantined", f"{command}, or `discard` instead of `release`")
            )
        for stop in Stops(writer.manifest).all():
            if stop.zone == writer.zone.name:
                findings.append(Finding(stop.zone, f"{stop.topic} p{stop.partition}", stop.problem, stop.remedy))
    files = files_of(readable)
    return Verification(
        files=len(files),
        records=sum(file.count for file in files),
        bytes=sum(file.size for file in files),
        findings=findings,
    )


def gone(away: Mapping[str, LakeError], name: str = "the manifest") -> list[Finding]:
    """Return the findings of zones that cannot be read. away: zone → why. name: of what cannot be read."""
    return [Finding(zone, name, error.problem.rstrip("."), error.remedy, GONE) for zone, error in away.items()]


def _finding(file: DataFile, problem: str, cause: str, remedy: str = "") -> Finding:
    """Return a finding of a file; by default the zone has to land it again."""
    return Finding(file.zone, file.name, problem, remedy or _discard_and_run(file), cause)


def _discard_and_run(file: DataFile) -> str:
    return f"`lake landing quarantine discard {file.zone} {file.name}`, then `lake landing run`"


def _damaged(
    writers: Mapping[str, ZoneWriter], entries: Sequence[Entry], processes: int, progress: Progress
) -> Iterator[Finding]:
    stored = [(writers[entry.file.zone].zone, entry.file) for entry in entries]
    done, all_bytes = 0, sum(entry.file.size for entry in entries)
    with _mapping(processes) as mapped:
        for entry, problem in zip(entries, mapped(_problem, stored), strict=True):
            file = entry.file
            done += file.size
            progress(done, all_bytes)
            # A file that was replaced and swept meanwhile is no finding.
            if problem and writers[file.zone].entry(file.name) == entry:
                yield Finding(file.zone, file.name, problem, f"{REPAIR}; or {_discard_and_run(file)}")


@contextmanager
def _mapping(processes: int) -> Iterator[Callable[[Check, Iterable[Stored]], Iterable[str | None]]]:
    """Yield `map`, or a `map` over several processes. Threads would block each other when they hash small records."""
    if processes <= 1:
        yield map
        return
    # Ctrl-C reaches all processes, and is left to the parent.
    with ProcessPoolExecutor(processes, get_context("spawn"), signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
        yield pool.map


def _problem(stored: Stored) -> str | None:
    zone, file = stored
    try:
        damaged: FileDamaged | ServiceError | None = zone.damage(file)
    except ServiceError as error:
        damaged = error
    return None if damaged is None else damaged.problem.removeprefix(f"{file.name} ").rstrip(".")


def _unnamed(writer: ZoneWriter, before: datetime) -> list[str]:
    """Return the files older than a time that the manifest does not name. Younger ones may be about to be added."""
    # The folder is read first: a file that is added in between is then known.
    names = writer.zone.names(before)
    known = set(names_of(files_of(writer.entries(stages=ALL_STAGES, verdicts=ALL_VERDICTS))))
    return [name for name in names if name not in known]


def _strays(writer: ZoneWriter, before: datetime) -> Iterator[Finding]:
    for name in _unnamed(writer, before):
        problem = "is a draft that nobody finished" if name.startswith(DRAFT) else "is not in the manifest"
        yield Finding(writer.zone.name, name, problem, REPAIR)


def _differing(entries: Iterable[Entry]) -> Iterator[Finding]:
    """Yield comparable files that are not equal according to the manifest."""
    comparable: dict[str, list[DataFile]] = {}
    for file in files_of(entries):
        comparable.setdefault(identity_of(file), []).append(file)
    for files in comparable.values():
        for one, other in combinations(files, 2):
            if compare(one, other) == "corrupt":
                sums = f"has the checksum {one.checksum}, that of zone {other.zone} {other.checksum}"
                yield _finding(one, f"({offsets(one)}) {sums}", "differs from the other zone's file")


def _overlapping(entries: Iterable[Entry]) -> Iterator[Finding]:
    shards: dict[tuple[str, str], list[DataFile]] = {}
    for file in files_of(entries):
        shards.setdefault((file.zone, file.shard), []).append(file)
    for (zone, shard), files in sorted(shards.items()):
        try:
            graph(files)
        except LandingError as overlap:
            yield Finding(zone, shard, overlap.problem.rstrip("."), overlap.remedy, "two files have the same offset")


def _unequal_to_their_origin(writer: ZoneWriter) -> Iterator[Finding]:
    """Yield compacted files whose checksum is not the sum of their origin's, if the manifest has all of the origin."""
    known = {file.name: file for file in files_of(writer.entries(stages=ALL_STAGES))}
    for file in files_of(writer.entries(stages=CURRENT_STAGES)):
        origin = [known.get(name) for name in file.made_from]
        # With other shards or deletions, it was a reshard or a scrub.
        parts = [part for part in origin if part and (part.shard, part.deletions) == (file.shard, file.deletions)]
        expected = total(part.checksum for part in parts)
        if parts and len(parts) == len(origin) and expected != file.checksum:
            problem = f"has the checksum {file.checksum}, but the files that it was made from have {expected}"
            yield _finding(file, problem, "is not the sum of its origin")


def _manifest_findings(manifest: Manifest) -> Iterator[Finding]:
    """Yield what the rows of the manifest contradict, or what they say is missing in its zone. Reads no file."""
    zone = manifest.zone
    for file in misfits(manifest):
        yield _finding(file, "is not found by its offsets: rows of the manifest were lost", "", REPAIR)
    for topic in landed_topics(manifest):
        entries = manifest.entries(topic=topic, stages=ALL_STAGES, verdicts=ALL_VERDICTS)
        requests = {request.request_id for request in SharedState(manifest).deletions(topic)}
        for partition, first, last in lost_dead_letters(manifest, topic):
            cause = "dead letters are in no file of any zone any more"
            problem = f"dead letters of p{partition}:[{first}:{last}] are in no file of any zone any more"
            again = f"`lake landing run --zone {zone}`; if Kafka has forgotten them, `lake landing accept {topic}`"
            yield Finding(zone, topic, problem, again, cause)
        own = [entry for entry in entries if entry.file.zone == zone]
        yield from _contradictions(files_of(entry for entry in own if entry.stage != "retired"), requests)
        yield from _held_twice(files_of(entry for entry in own if entry.stage == "live"))
        yield from _missing(manifest, topic, entries)


def _contradictions(files: Iterable[DataFile], requests: Collection[str]) -> Iterator[Finding]:
    """Yield files with another name than follows from what they are, or scrubbed for what nobody requested."""
    for file in files:
        if _is_misnamed(file):
            problem = f"({offsets(file)}) has a name that is not that of these offsets"
            yield _finding(file, problem, "has a name that is not that of its offsets")
        unknown = sorted(file.deletions.difference(requests))
        if unknown:
            yield _finding(
                file,
                f"was scrubbed for {', '.join(unknown)}, which the manifest does not have",
                "was scrubbed for a request that the manifest does not have",
                f"`lake landing scrub {parse_shard(file.shard).topic} ID --request {unknown[0]}`",
            )


def _is_misnamed(file: DataFile) -> bool:
    return file.name != file_name(file.shard, file.ranges, file.deletions, file.kind)


def _held_twice(files: Iterable[DataFile]) -> Iterator[Finding]:
    """Yield live files that share records with a live file of another sharding specification."""
    shards: dict[Shard, list[DataFile]] = {}
    for file in files:
        shards.setdefault(parse_shard(file.shard), []).append(file)
    indexes = {shard: RangeIndex(file.ranges for file in several) for shard, several in shards.items()}
    for shard, several in shards.items():
        finer = [index for other, index in indexes.items() if other.of > shard.of and shard.overlaps(other)]
        for file in several:
            if any(index.overlaps(file.ranges) for index in finer):
                problem = f"({offsets(file)}) holds records that files of other shards hold, too"
                yield _finding(file, problem, "holds records that other files hold, too")


def _missing(manifest: Manifest, topic: str, entries: Sequence[Entry]) -> Iterator[Finding]:
    """Yield what the zone has not landed, although it has landed later offsets, or these. entries: all of the topic."""
    zone = manifest.zone
    run = f"`lake landing run --zone {zone}`"
    missing = missing_files(manifest, topic)
    for file in missing:
        problem = f"({offsets(file)}) of zone {file.zone} is missing here; the zone lands it again when it starts"
        yield Finding(zone, file.name, problem, run, "is missing in this zone")
    paired = [file for file in gone_files(manifest, topic) if file not in missing]
    for file in paired:
        problem = f"({offsets(file)}) is verified in zone {file.zone}, and this zone has nothing there any more"
        yield Finding(zone, file.name, problem, f"{REPAIR}, or {run}", "is verified in the other zone, and gone here")
    whole = [entry for entry in entries if not entry.file.holds_dead_letters]
    own = [entry for entry in whole if entry.file.zone == zone]
    # A file in quarantine is reported by itself.
    read = [entry.file for entry in own if entry.stage == "live" or entry.verdict == "quarantined"]
    covers = [Cover(file.ranges, True, parse_shard(file.shard)) for file in read]
    ends = next_offsets(files_of(own))
    for partition, end in recorded_ends(manifest, topic).get(zone, {}).items():
        ends[partition] = max(end, ends.get(partition, 0))
    begun = begun_offsets(manifest, topic, files_of(entries))
    reported = RangeIndex(file.ranges for file in (*missing, *paired))
    accept = f"`lake landing accept {topic}`"
    for partition, spans in uncovered([*covers, *Ledger(manifest).gaps(topic)], begun, ends).items():
        for first, last in spans:
            if not reported.overlaps({partition: (first, last)}):
                problem = f"p{partition}:[{first}:{last}] is in no file of this zone"
                remedy = f"{REPAIR}; then `lake landing run`; if Kafka has forgotten it, {accept}"
                yield Finding(zone, topic, problem, remedy, "offsets are in no file of this zone")


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
    writer = by_name[zone]
    if decision == "discard":
        entry = writer.entry(name)
        is_wrong = entry is not None and entry.verdict == "verified" and _is_wrong(writer, entry.file)
        allowed: Sequence[Verdict] = ALL_VERDICTS if is_wrong else ("quarantined", "provisional")
        for each in writer.manifest.discard(zone, name, verdicts=allowed):
            writer.zone.drop(each)
        return []
    # Restored first: a file that the manifest calls verified must be in its place.
    writer.zone.restore(name)
    others = writer.manifest.release(zone, name, now=now)
    for other in writers:
        other.manifest.refresh()  # the files that differ go to quarantine
    return others


def _is_wrong(writer: ZoneWriter, file: DataFile) -> bool:
    """Return whether a file is damaged, is not what its name says, or has an offset of another live file."""
    if _is_misnamed(file) or writer.zone.damage(file):
        return True
    shard = parse_shard(file.shard)
    others = [other for other in files_of(writer.entries(shard.topic)) if other.name != file.name]
    index = RangeIndex(other.ranges for other in others if parse_shard(other.shard).overlaps(shard))
    return index.overlaps(file.ranges)


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
    for writer in writers:
        if not writer.manifest.is_of_use() and writer.manifest.recover(whole=True):
            yield Repaired(writer.zone.name, "the manifest", "it was written again from what the zone had published")
    here = []
    for writer in writers:
        problem = writer.storage_problem()
        if isinstance(problem, ServiceError):
            yield Repaired(writer.zone.name, "storage", problem=problem.problem, remedy=problem.remedy)
        else:
            here.append(writer)
    writers = here
    for writer in writers:
        for file in rebuild(writer.manifest):
            yield Repaired(file.zone, file.name, "its rows in the manifest were written again")
        for entry in writer.entries(stages=CURRENT_STAGES):
            if writer.zone.damage(entry.file) is not None and writer.entry(entry.file.name) == entry:
                yield _restored(writer, entry.file)
        for name in writer.zone.drop_drafts(now - deadline):
            yield Repaired(writer.zone.name, name, "the draft was removed")
        for name in _unnamed(writer, now - deadline):
            what = "it was put in the folder `quarantine`: the manifest has no place for it"
            if _adopt(writer, name, now=now):
                what = "it was added to the manifest again"
            yield Repaired(writer.zone.name, name, what)
    for writer in writers:
        for topic in landed_topics(writer.manifest):
            for file in gone_files(writer.manifest, topic):
                with _tried(writer, file.name, f"it was copied from zone {file.zone}") as result:
                    copy_file(writer, file, now=now)
                yield result[0]
    for writer in writers:
        yield from _cut_from_merged(writer, now=now)


@contextmanager
def _tried(writer: ZoneWriter, name: str, what: str) -> Iterator[list[Repaired]]:
    """Yield a list that has the result of a repair afterwards: `what` was done, or the error."""
    result: list[Repaired] = []
    try:
        yield result
    except (LandingError, MessagesLost, ServiceError) as error:
        result.append(Repaired(writer.zone.name, name, problem=error.problem, remedy=error.remedy))
    else:
        result.append(Repaired(writer.zone.name, name, what))


def _restored(writer: ZoneWriter, file: DataFile) -> Repaired:
    """Write a file of a zone again, as the manifest describes it. If it dies, another call finishes it."""
    reasons = []
    for other in writer.manifest.peers:
        equal = writer.manifest.entry(other.name, file.name)  # at any stage
        sources = _live_files_within(writer.manifest, other, parse_shard(file.shard), file.ranges)
        if equal is not None and equal.file.checksum == file.checksum:
            sources = [equal.file]
        try:
            draft = writer.zone.draft(
                file.shard,
                file.ranges,
                _records_within(other, sources, file.ranges),
                deletions=file.deletions,
                kind=file.kind,
                made_from=file.made_from,
            )
        except (FileDamaged, ServiceError) as error:
            reasons.append(f"zone {other.name}: {error.problem}")
            continue
        if draft.file.checksum == file.checksum:
            writer.zone.put(draft)
            with writer.manifest.change() as (connection, _):  # the same records in another order have other bytes
                FileRows(connection).change(file.zone, file.name, digest=draft.file.digest)
            return Repaired(file.zone, file.name, "it was written again with the records of the other zone")
        remove_draft(draft.path)
        reasons.append(f"zone {other.name} has the checksum {draft.file.checksum} at its offsets, not {file.checksum}")
    damaged = FileDamaged(file.name, f"cannot be restored ({'; '.join(reasons)})")
    discard = f"`lake landing quarantine discard {file.zone} {file.name}`"
    remedy = f"{discard} gives the file up; the zone lands its offsets again if Kafka has them."
    return Repaired(file.zone, file.name, problem=damaged.problem, remedy=remedy)


def _live_files_within(manifest: Manifest, zone: Zone, shard: Shard, ranges: Ranges) -> list[DataFile]:
    """Return the live files of a shard, in a zone, that have an offset of ranges."""
    wanted = RangeIndex([ranges])
    live = files_of(manifest.entries(zone.name, shard.topic))
    return [file for file in live if file.shard == str(shard) and wanted.overlaps(file.ranges)]


def _records_within(zone: Zone, sources: Iterable[DataFile], ranges: Ranges) -> Iterator[Record]:
    """Yield the records of files of a zone that lie in ranges. Raises `FileDamaged`."""
    for source in sources:
        for record in zone.records(source):
            first, last = ranges.get(record.partition, (0, -1))
            if first <= record.offset <= last:
                yield record


def _adopt(writer: ZoneWriter, name: str, *, now: datetime) -> bool:
    """Add a file that the manifest does not name to it, or put it in quarantine; return whether it was added."""
    file = _described(writer.zone, name)
    if file is not None:
        try:
            writer.manifest.add(file, now=now)
        except LandingError:  # other files have its offsets, or hold other records
            file = None
    if file is None and NAME.fullmatch(name):
        writer.zone.quarantine(name)
    return file is not None


def _described(zone: Zone, name: str) -> DataFile | None:
    """Return the description of a file if its name, which is a hash of shard and offsets, proves it; else None."""
    named = NAME.fullmatch(name)
    if named is None:
        return None
    kind, tally = KINDS[named[2]], Tally()
    try:
        with zone.open(name) as opened:
            records = tally.of(formats.read(kind, opened))
            spans = union({record.partition: (record.offset, record.offset)} for record in records)
    except Exception:  # fastavro and pyarrow raise many types for a damaged file
        return None
    shard = f"{name[: named.start(1) - 1]}/{named[1]}"
    if not spans or file_name(shard, spans, (), kind) != name:
        return None
    return DataFile(
        name=name,
        size=tally.size,
        shard=shard,
        ranges=spans,
        deletions=frozenset(),
        count=tally.count,
        checksum=tally.checksum,
        zone=zone.name,
        kind=kind,
        digest=zone.digest(name),
    )


def _cut_from_merged(writer: ZoneWriter, *, now: datetime) -> Iterator[Repaired]:
    """Land again the files of unfinished rounds of which a zone has nothing, from the other zone's merged files."""
    for shard in shards_of(writer.manifest):
        for compaction in unfinished_rounds(writer, shard):
            for ranges in chain.from_iterable(compaction.groups if compaction.of is None else ()):
                entries = writer.entries(shard.topic, stages=ALL_STAGES, verdicts=ALL_VERDICTS)
                own = RangeIndex(file.ranges for file in files_of(entries) if file.shard == str(shard))
                if not own.overlaps(ranges):
                    for other in writer.manifest.peers:
                        yield from _cut(writer, other, shard, ranges, now=now)


def _cut(writer: ZoneWriter, other: Zone, shard: Shard, ranges: Ranges, *, now: datetime) -> Iterator[Repaired]:
    sources = _live_files_within(writer.manifest, other, shard, ranges)
    scrubbed = {file.deletions for file in sources}
    firsts = {partition: first for partition, (first, _) in ranges.items()}
    ends = {partition: last + 1 for partition, (_, last) in ranges.items()}
    holes = uncovered([Cover(file.ranges, readable=True) for file in sources], firsts, ends)
    if holes or len(scrubbed) != 1:
        return
    (deletions,) = scrubbed
    name = file_name(str(shard), ranges, deletions, "append")
    with _tried(writer, name, f"it was cut from the merged files of zone {other.name}") as result:
        records = _records_within(other, sources, ranges)
        writer.land(writer.zone.draft(str(shard), ranges, records, deletions=deletions), now=now)
    yield result[0]
