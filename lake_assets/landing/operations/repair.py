"""Repair: what can be mended without a decision, from the other zone's files and from the folders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain, permutations

from lake_assets.errors import LandingError
from lake_assets.landing.files.entries import DataFile, file_name, names_of
from lake_assets.landing.files.offset_ranges import RangeIndex, Ranges
from lake_assets.landing.files.sharding import Shard
from lake_assets.landing.files.zone_folder import DRAFT, Zone
from lake_assets.landing.manifest.coverage import Cover, uncovered
from lake_assets.landing.manifest.index_rows import landed_topics, rebuild
from lake_assets.landing.manifest.schema import ALL_STAGES, ALL_VERDICTS, CURRENT_STAGES, files_of
from lake_assets.landing.manifest.status import shards_of
from lake_assets.landing.manifest.zone_writer import ZoneWriter
from lake_assets.landing.operations.compaction_rounds import unfinished_rounds
from lake_assets.landing.operations.coverage_checks import TopicRows, without_partner
from lake_assets.landing.repair.copying import copy_file, is_verified
from lake_assets.landing.repair.restoring import live_files_within, records_within, restore
from lake_assets.landing.repair.strays import adopt
from lake_assets.landing.tailing.refetch import missing_files


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
            yield Repaired(zone, file.name, problem=error.problem, remedy=_discard(file))
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
    for file in _missing(writer):
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


def _missing(writer: ZoneWriter) -> list[DataFile]:
    found: dict[str, DataFile] = {}
    for topic in landed_topics(writer.manifest):
        entries = writer.manifest.entries(topic=topic, stages=ALL_STAGES, verdicts=ALL_VERDICTS)
        missing = missing_files(writer.manifest, writer.zone.name, topic)
        for file in (*missing, *without_partner(TopicRows(topic, entries, (), {}, {}), writer.zone.name)):
            found[file.name] = file
    return list(found.values())


def _discard(file: DataFile) -> str:
    command = f"`lake landing quarantine discard {file.zone} {file.name}`"
    return f"{command} gives the file up; the zone lands its offsets again if Kafka has them."
