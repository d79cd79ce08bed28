"""Reshard: the records of a topic come to another number of shards, by distinct id; offsets stay the same.

A topic has one number of shards, that of the last reshard. Files land unsharded, and come to it with the next reshard
or compaction. Files that have offsets in common, or that could not be put in an order otherwise, are a group; a round
records the offsets of groups, and of each group a zone makes a copy in each new shard, whatever files it has there. The
copies are staged until each is verified against the other zone's copy. Then all of them replace the old files at once,
so readers see either the old shards or the new ones.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain

import networkx as nx

from lake_assets.base.failpoints import reach
from lake_assets.errors import UsageError
from lake_assets.landing.coverage import Cover, uncovered
from lake_assets.landing.manifest import CURRENT_STAGES, Entry, files_of, shards_of
from lake_assets.landing.messages import Feed
from lake_assets.landing.operations import (
    RangesKey,
    open_reshards,
    open_round,
    ranges_key,
    shard_files,
    unfinished_rounds,
)
from lake_assets.landing.records import (
    DataFile,
    DistinctId,
    RangeIndex,
    Ranges,
    Shard,
    first_offsets,
    last_offsets,
    names_of,
    parse_shard,
    shards,
    union,
)
from lake_assets.landing.state import Ledger, Round, SharedState
from lake_assets.landing.zone_tailer import missing_files
from lake_assets.landing.zones import ZoneWriter


@dataclass(frozen=True)
class Resharded:
    """The result of a call.

    Attributes:
        copies: Names of the copies that it made.
        waits_for: Why the old shards have not retired yet; None if they have.
    """

    copies: list[str]
    waits_for: str | None


def reshard(writer: ZoneWriter, topic: str, of: int, distinct_id: DistinctId, *, now: datetime) -> Resharded:
    """Copy the verified files of a topic to so many shards, and retire them when all copies are verified.

    Another call continues, or takes what has been verified since.

    Args:
        writer: Of the zone.
        topic: The topic.
        of: The new number of shards.
        distinct_id: Returns the distinct id of a record.
        now: The present time.

    Raises:
        UsageError: The number is less than 1, or differs from that of an unfinished reshard.
    """
    if of < 1:
        raise UsageError(f"{topic} cannot be resharded to {of}.", remedy="Name 1 shard or more.")
    made: list[str] = []
    begun = open_reshards(writer, topic)
    if begun and begun[-1].of != of:
        raise UsageError(
            f"{topic} is being resharded to {begun[-1].of} shards, not to {of}.",
            remedy=f"Finish that first: `lake landing reshard {topic} {begun[-1].of}`.",
        )
    if not begun and (waits_for := _compaction(writer, topic, of)):
        return Resharded(made, waits_for)
    rounds = begun or _open(writer, topic, of)
    is_recorded = [found.of for found in SharedState(writer.manifest).reshards(topic)][-1:] == [of]
    if not rounds and not is_recorded and any(parse_shard(file.shard).of != of for file in _rows(writer, topic)):
        return Resharded(made, "files that both zones have verified")
    for current in rounds:  # a zone that lags finishes earlier ones first
        its_count = current.of or of
        waits_for = _compaction(writer, topic, its_count)
        waits_for = waits_for or _work(writer, topic, current, its_count, distinct_id, made, now=now)
        if waits_for:
            return Resharded(made, waits_for)
    return Resharded(made, None)


def reshard_all(
    writers: Sequence[ZoneWriter], topic: str, of: int, distinct_id: DistinctId, clock: Callable[[], datetime]
) -> Iterator[tuple[str, Resharded]]:
    """Reshard in one zone after the other; yield the zone and the result of each call.

    The copies of the last zone verify those of the others, so the others are called once more.
    """
    for writer in [*writers, *writers[:-1]]:
        yield writer.zone.name, reshard(writer, topic, of, distinct_id, now=clock())


def bring_to_its_shards(
    writers: Sequence[ZoneWriter], topic: str, feeds: Callable[[], Iterable[Feed]], clock: Callable[[], datetime]
) -> None:
    """Bring the files that have landed since the last reshard of a topic to its shards.

    It does nothing if there never was a reshard, or if the topic is not declared any more: nobody knows its ids.
    """
    rounds = SharedState(writers[0].manifest).reshards(topic)
    of_topic = [found.of for found in rounds if found.groups]  # versions before split each shard by itself
    for feed in feeds() if of_topic else ():
        if feed.topic == topic and of_topic[-1] is not None:
            for _ in reshard_all(writers, topic, of_topic[-1], feed.distinct_id_of, clock):
                pass


def _open(writer: ZoneWriter, topic: str, of: int) -> list[Round]:
    """Open the next round, for the groups of files that this zone has verified; none if there is nothing to move."""
    files = _rows(writer, topic)
    settled: set[str] = set()
    for shard in shards_of(writer.manifest, topic):
        settled.update(names_of(shard_files(writer, shard).settled()))
    lost = Ledger(writer.manifest).gaps(topic)
    groups = [group for group in _groups(files) if _is_ready(group, of, settled, lost)]
    if not groups:
        return []
    ranges = [(union(file.ranges for file in group),) for group in groups]
    cut = last_offsets(chain.from_iterable(groups))
    opened = open_round(writer, Shard(topic), cut, groups=tuple(ranges), of=of)
    return [] if opened.of is None else [opened]


def _rows(writer: ZoneWriter, topic: str) -> list[DataFile]:
    return [file for file in files_of(writer.entries(topic)) if not file.holds_dead_letters]


def _groups(files: Sequence[DataFile]) -> list[list[DataFile]]:
    """Return files in groups: those with a common offset, and those that would precede each other as groups.

    Groups are the strongly connected components of the graph whose edges go from a file to the next one of a partition,
    and both ways between files with a common offset. So their offsets have no gap that another group fills, and files
    with the offsets of whole groups have a topological order. Pure.
    """
    edges: nx.DiGraph[str] = nx.DiGraph()
    by_name = {file.name: file for file in files}
    edges.add_nodes_from(by_name)
    spans: dict[int, list[tuple[int, int, str]]] = {}
    for file in files:
        for partition, (first, last) in file.ranges.items():
            spans.setdefault(partition, []).append((first, last, file.name))
    for several in spans.values():
        end, before = -1, ""
        for first, last, name in sorted(several):
            if before:
                edges.add_edge(before, name)
                if first <= end:
                    edges.add_edge(name, before)
            end, before = max(end, last), name
    return [[by_name[name] for name in sorted(names)] for names in nx.strongly_connected_components(edges)]


def _is_ready(group: Sequence[DataFile], of: int, settled: set[str], lost: Sequence[Cover]) -> bool:
    """Return whether files of other shards than the new ones are a whole together, and are verified. Pure."""
    moving = [file for file in group if parse_shard(file.shard).of != of]
    hull = union(file.ranges for file in group)
    return (
        bool(moving)
        and all(file.name in settled for file in moving)
        and _covers(group, hull, lost)
        and not _stands_in_the_way(group, moving, hull, of)
    )


def _stands_in_the_way(group: Sequence[DataFile], moving: Sequence[DataFile], hull: Ranges, of: int) -> bool:
    present = [file for file in group if parse_shard(file.shard).of == of]
    targets = {str(target) for target in _targets(moving, of)}
    return RangeIndex(file.ranges for file in present if file.shard in targets).overlaps(hull)


def _covers(files: Sequence[DataFile], hull: Ranges, lost: Sequence[Cover]) -> bool:
    """Return whether files have all offsets of a hull in all shards. Pure."""
    covers = [Cover(file.ranges, readable=True, shard=parse_shard(file.shard)) for file in files]
    starts = {partition: first for partition, (first, _) in hull.items()}
    ends = {partition: last + 1 for partition, (_, last) in hull.items()}
    return not uncovered([*covers, *lost], starts, ends)


def _targets(moving: Sequence[DataFile], of: int) -> list[Shard]:
    """Return the new shards that records of files may belong to. Pure."""
    old = {parse_shard(file.shard) for file in moving}
    return [new for new in shards(next(iter(old)).topic, of) if any(new.overlaps(shard) for shard in old)]


def _compaction(writer: ZoneWriter, topic: str, of: int) -> str | None:
    """Return the compaction of old shards that the zone has to finish first; None if there is none."""
    for shard in sorted({file.shard for file in _rows(writer, topic)}):
        rounds = unfinished_rounds(writer, parse_shard(shard))  # what was opened after a reshard waits for it
        if parse_shard(shard).of != of and rounds and rounds[0].of is None:
            return f"round {rounds[0].number} of {shard}: compaction"
    return None


def _work(
    writer: ZoneWriter, topic: str, current: Round, of: int, distinct_id: DistinctId, made: list[str], *, now: datetime
) -> str | None:
    """Make the missing copies of a round, and retire the old files; return what this waits for, or None."""
    its_files = f"round {current.number} of {current.shard}: its files"
    if missing_files(writer.manifest, topic):
        return its_files  # one that lands again later would be in the old shard
    files, lost = _rows(writer, topic), Ledger(writer.manifest).gaps(topic)
    moving = [file for file in files if parse_shard(file.shard).of != of]
    hulls: list[Ranges] = [union(group) for group in current.groups]
    if not hulls:  # of a version before: files of one shard, each by itself
        moving = [file for file in moving if file.shard == current.shard]
        up_to = shard_files(writer, parse_shard(current.shard)).up_to(current.cut)
        hulls = [file.ranges for file in up_to] or [_whole(files, current.cut)]
    existing = before = _by_place(writer, topic)
    taken: list[DataFile] = []
    copies: list[tuple[str, RangesKey, frozenset[str]]] = []
    for hull, group in zip(hulls, _within(hulls, moving), strict=True):
        if any(not _lies_within(file.ranges, hull) for file in group):
            return its_files
        if not _covers(group, hull, lost):
            index = RangeIndex([hull])
            if not _covers([file for file in files if index.overlaps(file.ranges)], hull, lost):
                return its_files
        if not group:
            continue  # its records are in the new shards: files that were discarded have landed there again
        deletions = {file.deletions for file in group}
        if len(deletions) > 1:
            return f"a scrub of {topic}"
        taken += group
        for target in _targets(group, of):
            copies.append((str(target), ranges_key(hull), next(iter(deletions))))
            if copies[-1][:2] not in before:
                existing = {}
                made.append(_copy(writer, group, target, hull, distinct_id, now=now))
    return _retire(writer, existing or _by_place(writer, topic), current, taken, copies, now=now)


def _by_place(writer: ZoneWriter, topic: str) -> dict[tuple[str, RangesKey], Entry]:
    """Return shard and ranges → file of the zone, staged or live."""
    entries = writer.entries(topic, stages=CURRENT_STAGES)
    return {(entry.file.shard, ranges_key(entry.file.ranges)): entry for entry in entries}


def _within(hulls: Sequence[Ranges], files: Sequence[DataFile]) -> list[list[DataFile]]:
    """Return, for each of hulls without a common offset, the files that have an offset of it. Pure."""
    spans: dict[int, list[tuple[int, int, int]]] = {}
    for number, hull in enumerate(hulls):
        for partition, (first, last) in hull.items():
            spans.setdefault(partition, []).append((first, last, number))
    for several in spans.values():
        several.sort()
    found: list[list[DataFile]] = [[] for _ in hulls]
    for file in files:
        owners = set()
        for partition, (first, last) in file.ranges.items():
            several = spans.get(partition, [])
            for begin, end, number in several[
                max(0, bisect_left(several, (first,)) - 1) : bisect_left(several, (last + 1,))
            ]:
                if begin <= last and first <= end:
                    owners.add(number)
        for number in owners:
            found[number].append(file)
    return found


def _whole(files: Sequence[DataFile], cut: Mapping[int, int]) -> Ranges:
    begun = first_offsets(files)
    return {partition: (begun[partition], last) for partition, last in cut.items() if partition in begun}


def _lies_within(ranges: Ranges, hull: Ranges) -> bool:
    return all(p in hull and hull[p][0] <= first and last <= hull[p][1] for p, (first, last) in ranges.items())


def _copy(
    writer: ZoneWriter,
    group: Sequence[DataFile],
    target: Shard,
    hull: Ranges,
    distinct_id: DistinctId,
    *,
    now: datetime,
) -> str:
    """Make the copy of a group in one new shard; return its name."""
    draft = writer.zone.draft(
        str(target),
        hull,
        (record for file in group for record in writer.records(file) if target.takes(distinct_id(record))),
        deletions=group[0].deletions,
        kind="columnar" if any(file.kind == "columnar" for file in group) else "append",
        made_from=tuple(names_of(group)),
    )
    name = draft.file.name
    before = writer.entry(name)
    if before is not None and before.stage == "retired":  # of an earlier time with so many shards
        writer.manifest.forget(writer.zone.name, [name])
    writer.land(draft, now=now, stage="staged")
    return name


def _retire(
    writer: ZoneWriter,
    existing: Mapping[tuple[str, RangesKey], Entry],
    current: Round,
    taken: Sequence[DataFile],
    copies: Sequence[tuple[str, RangesKey, frozenset[str]]],
    *,
    now: datetime,
) -> str | None:
    """Replace the old files by the copies; return what this waits for, or None if it is done."""
    found: list[Entry] = []
    for shard, ranges, deletions in copies:
        copy = existing.get((shard, ranges))
        if copy is None or copy.file.deletions != deletions:
            return f"a scrub of {shard}"
        found.append(copy)
    waiting = [copy for copy in found if copy.verdict != "verified"]
    if waiting:
        return f"{len(waiting)} of {len(found)} copies of the other zone"
    if not taken:
        SharedState(writer.manifest).finish_round(writer.zone.name, current)
        return None
    writer.manifest.exchange(
        writer.zone.name,
        taken=names_of(taken),
        given=names_of(files_of(found)),
        finishes=(current.shard, current.number),
        now=now,
    )
    reach("landing-exchanged")
    return None
