"""Operations on landed files of a zone: compaction, scrub, sweep, and the upkeep that does them all.

The choice of the files to compact together. Both zones choose the same, and a later choice stays possible.

The files of a shard form a graph: an edge goes from a file to the next one of a partition that they share. Two rules
hold for a group. R1: it is consecutive in each of its partitions. R2: replacing it by one file leaves no cycle, that
is, the group is convex: no path leaves it and returns. R2 implies R1, but not the other way round. Consecutive files
of a topological order are convex, and so are all groups of such an order together; so the order is cut into groups.

The rounds of a shard, compactions and reshards alike: opening them, and the files that a zone has for them.

Replacing files of a zone by one new file. Compaction and scrub share it.

Compaction: append files become columnar files with the same records, one by one or several together.

Both zones make the same files. Before a zone begins a round, the manifest records its cut and the groups chosen up to
it. A zone works on the rounds of a shard in order, on each as soon as it has the files.

Sweep: removing files that were replaced some time ago.

Scrub: the records that deletion requests name are removed from every file of a topic.

A file without such a record is rewritten too: its list of processed requests is part of what the zones compare.
Requests are recorded first, so a zone that lags and a file that lands late are scrubbed for all of them later.

The regular work on a zone's files: finish scrubs, merge small files, remove files that were replaced.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from itertools import chain, pairwise

import networkx as nx

from lake_assets.base.failpoints import reach
from lake_assets.errors import ConfigurationError, offsets_overlap
from lake_assets.landing.coverage import Cover, uncovered
from lake_assets.landing.files import Zone
from lake_assets.landing.formats import read
from lake_assets.landing.manifest import ALL_STAGES, ALL_VERDICTS, CURRENT_STAGES, Entry, Manifest, files_of, shards_of
from lake_assets.landing.messages import Scrub
from lake_assets.landing.records import (
    KINDS,
    NAME,
    DataFile,
    Kind,
    RangeIndex,
    Ranges,
    Record,
    Shard,
    Tally,
    last_offsets,
    merged_ranges,
    names_of,
    parse_shard,
    union,
)
from lake_assets.landing.state import DeletionRequest, Ledger, Round, SharedState
from lake_assets.landing.zones import ZoneWriter

_BEFORE_ALL = -1
"""Less than any offset."""


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """The limits of a group.

    Attributes:
        max_files: Number of files, 2 or more.
        max_bytes: Bytes of all files together (`DataFile.size`), 1 or more.
    """

    max_files: int
    max_bytes: int

    def __post_init__(self) -> None:
        if self.max_files < 2 or self.max_bytes < 1:
            raise ConfigurationError(
                f"Groups of at most {self.max_files} files and {self.max_bytes} bytes are not possible.",
                remedy="Allow 2 files and 1 byte, or more.",
            )


def select(files: Iterable[DataFile], limits: GroupLimits) -> list[list[DataFile]]:
    """Return the groups to compact, each of two or more files of one shard with equal deletions.

    The files are taken in a topological order: among the files that no remaining file precedes, the smallest comes
    first; ties are broken by name. A group ends where the next file does not fit. Replacing each group by one file
    leaves the graphs without a cycle, so repeated rounds come to an end. The cost is linear in the number of files,
    except for the sorting of the files that are free at a time.

    Args:
        files: All files to choose from, in any order. For zones that see different files, pass `candidates`.
        limits: Of each group.

    Raises:
        LandingError: Two files of a shard have an offset in common.
    """
    shards: dict[str, list[DataFile]] = {}
    for file in files:
        shards.setdefault(file.shard, []).append(file)
    selected = []
    for _, members in sorted(shards.items()):
        selected += [group for group in _groups(members, limits) if len(group) > 1]
    return selected


def candidates(files: Iterable[DataFile], cut: Mapping[int, int]) -> list[DataFile]:
    """Return the files of one shard up to a cut.

    Args:
        files: The files of one shard in a zone.
        cut: Partition → last offset, inclusive. Files beyond it are ignored.

    Returns:
        Empty as long as the files do not reach the cut, or one of them lies across it: another zone may see more.
    """
    within = [file for file in files if _is_within(file, cut)]
    reached = last_offsets(within)
    for partition, last in cut.items():
        if reached.get(partition) != last:
            return []
    return within


def _is_within(file: DataFile, cut: Mapping[int, int]) -> bool:
    return all(last <= cut.get(partition, _BEFORE_ALL) for partition, (_, last) in file.ranges.items())


def graph(files: Iterable[DataFile]) -> nx.DiGraph[str]:
    """Return the graph of the files of one shard: names, with an edge to the next file of each partition.

    Raises:
        LandingError: Two files have an offset in common.
    """
    found: nx.DiGraph[str] = nx.DiGraph()
    chains: dict[int, list[tuple[int, int, str]]] = {}
    for file in files:
        found.add_node(file.name)
        for partition, (first, last) in file.ranges.items():
            chains.setdefault(partition, []).append((first, last, file.name))
    for partition, spans in chains.items():
        for (_, last, name), (first, _, following) in pairwise(sorted(spans)):
            if first <= last:
                raise offsets_overlap(partition, first, names=(name, following))
            found.add_edge(name, following)
    return found


def _groups(files: Sequence[DataFile], limits: GroupLimits) -> Iterator[list[DataFile]]:
    """Yield groups of files of one shard; every file is in one of them."""
    order = _TopologicalOrder(files)
    while not order.is_empty():
        yield _next_group(order, limits)


def _next_group(order: _TopologicalOrder, limits: GroupLimits) -> list[DataFile]:
    first = order.take_first()
    group = [first]
    size = first.size
    while len(group) < limits.max_files:
        file = order.take(first.deletions, max_bytes=limits.max_bytes - size)
        if file is None:
            break
        group.append(file)
        size += file.size
    return group


@dataclass
class _TopologicalOrder:
    """A topological order that is taken file by file (Kahn, 1962).

    Files on a cycle are never returned. No choice of ours makes a cycle, and no choice could remove one.
    """

    files: Sequence[DataFile]
    _free: dict[frozenset[str], list[tuple[int, str]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._by_name = {file.name: file for file in self.files}
        self._graph = graph(self.files)
        self._remaining_before = dict(self._graph.in_degree())
        for name, count in self._remaining_before.items():
            if count == 0:
                self._release(name)

    def is_empty(self) -> bool:
        return not any(self._free.values())

    def take_first(self) -> DataFile:
        """Take the smallest free file."""
        heaps = [heap for heap in self._free.values() if heap]
        return self._take(min(heaps, key=lambda heap: heap[0]))

    def take(self, deletions: frozenset[str], *, max_bytes: int) -> DataFile | None:
        """Take the smallest free file with these deletions; None if it is larger than `max_bytes` or there is none."""
        heap = self._free.get(deletions)
        if not heap:
            return None
        size, _ = heap[0]
        if size > max_bytes:
            return None
        return self._take(heap)

    def _take(self, heap: list[tuple[int, str]]) -> DataFile:
        _, name = heapq.heappop(heap)
        for following in self._graph.successors(name):
            self._remaining_before[following] -= 1
            if self._remaining_before[following] == 0:
                self._release(following)
        return self._by_name[name]

    def _release(self, name: str) -> None:
        file = self._by_name[name]
        heap = self._free.setdefault(file.deletions, [])
        heapq.heappush(heap, (file.size, name))


RangesKey = tuple[tuple[int, tuple[int, int]], ...]
"""Ranges as a key of a mapping."""


@dataclass(frozen=True)
class ShardFiles:
    """The files of a shard in a zone, from one read of the manifest: staged and live, without quarantined ones.

    Attributes:
        entries: The files.
        lost: Offsets that are lost for good.
    """

    entries: Sequence[Entry]
    lost: Sequence[Cover] = ()

    @cached_property
    def by_ranges(self) -> Mapping[RangesKey, Entry]:
        """All files by their ranges."""
        return {ranges_key(entry.file.ranges): entry for entry in self.entries}

    @cached_property
    def live(self) -> Sequence[DataFile]:
        """The files that readers read."""
        return files_of(entry for entry in self.entries if entry.stage == "live")

    def find(self, ranges: Ranges) -> Entry | None:
        """Return the file with exactly these ranges, if any."""
        return self.by_ranges.get(ranges_key(ranges))

    def up_to(self, cut: Mapping[int, int]) -> list[DataFile]:
        """Return the live files up to a cut, in order of their add.

        Empty as long as they do not reach it, or as one is missing between them.
        """
        found = candidates(self.live, cut)
        return [] if self._behind_holes(found) else found

    def settled(self) -> list[DataFile]:
        """Return the live files that a round may include.

        They are verified, and follow neither a file that is not, nor a hole where a file was discarded or is in
        quarantine: the round would merge files that the other zone cannot merge without the one between them.
        """
        edges = graph(self.live)
        excluded: set[str] = set()
        for name in self._behind_holes(self.live):
            excluded |= {name, *nx.descendants(edges, name)}
        for entry in self.entries:
            if entry.stage == "live" and entry.verdict != "verified":
                excluded.add(entry.file.name)
                excluded |= nx.descendants(edges, entry.file.name)
        return [file for file in self.live if file.name not in excluded]

    def most_unmerged(self) -> int:
        """Return the number of append files that a round may include, of the partition that has most of them."""
        counts: Counter[int] = Counter()
        for file in self.settled():
            if file.kind == "append":
                counts.update(file.ranges.keys())
        return max(counts.values(), default=0)

    def _behind_holes(self, files: Sequence[DataFile]) -> set[str]:
        """Return the names of the files before whose first offset another file is missing."""
        found = set()
        spans: dict[int, list[tuple[int, int, str]]] = {}
        for file in files:
            for partition, (first, last) in file.ranges.items():
                spans.setdefault(partition, []).append((first, last, file.name))
        for partition, several in spans.items():
            for (_, last, _), (first, _, name) in pairwise(sorted(several)):
                if uncovered(self.lost, {partition: last + 1}, {partition: first}):
                    found.add(name)
        return found

    def has_merged(self, compaction: Round) -> bool:
        """Return whether each group of a compaction round is one file; a later round may merge that file too."""
        return all(self.find(union(group)) for group in compaction.groups)


def shard_files(writer: ZoneWriter, shard: Shard) -> ShardFiles:
    """Return the files that a zone has of a shard now."""
    entries = writer.entries(shard.topic, stages=CURRENT_STAGES)
    lost = Ledger(writer.manifest).gaps(shard.topic)
    return ShardFiles([entry for entry in entries if entry.file.shard == str(shard)], lost)


def unfinished_rounds(writer: ZoneWriter, shard: Shard) -> list[Round]:
    """Return the rounds of a shard that a zone has not finished, in order."""
    state = SharedState(writer.manifest)
    finished = state.finished_rounds(writer.zone.name, shard)
    return [found for found in state.rounds(shard) if found.number not in finished]


def open_reshards(writer: ZoneWriter, topic: str) -> list[Round]:
    """Return the reshards of a topic that a zone has not finished, in order."""
    state, zone = SharedState(writer.manifest), writer.zone.name
    rounds = state.reshards(topic)
    finished = {shard: state.finished_rounds(zone, parse_shard(shard)) for shard in {found.shard for found in rounds}}
    return [found for found in rounds if found.number not in finished[found.shard]]


def open_round(
    writer: ZoneWriter,
    shard: Shard,
    cut: Mapping[int, int],
    *,
    groups: tuple[tuple[Ranges, ...], ...] = (),
    of: int | None = None,
) -> Round:
    """Propose the next round of a shard; return the recorded one, which may be the proposal of the other zone.

    Args:
        writer: Of the zone.
        shard: The shard.
        cut: Partition → last offset, inclusive.
        groups: Of a compaction: for each group the ranges of its files.
        of: Of a reshard: the new number of shards.
    """
    state = SharedState(writer.manifest)
    number = len(state.rounds(shard)) + 1
    recorded = state.propose_round(Round(str(shard), number, cut, groups, of))
    reach("landing-round-opened")
    return recorded


def ranges_key(ranges: Ranges) -> RangesKey:
    """Return ranges as a key of a mapping."""
    return tuple(sorted(ranges.items()))


def rewrite(
    writer: ZoneWriter,
    operation: str,
    taken: Sequence[DataFile],
    records: Iterable[Record],
    *,
    kind: Kind,
    deletions: frozenset[str],
    now: datetime,
    removed: Tally | None = None,
) -> str:
    """Write records of files to a new file of the same shard, which replaces them.

    Args:
        writer: Of the zone.
        operation: Its name, for messages.
        taken: The files that are replaced, of one shard.
        records: The records of the new file.
        kind: Its format.
        deletions: Ids of the deletion requests that it is scrubbed for.
        now: The present time.
        removed: The records that are left out; it must count them while `records` is read. None means no record.

    Returns:
        The name of the new file.

    Raises:
        LandingError: What `Manifest.replace` raises.
    """
    draft = writer.zone.draft(
        taken[0].shard,
        merged_ranges(taken),
        records,
        deletions=deletions,
        kind=kind,
        made_from=tuple(names_of(taken)),
    )
    left_out = removed or Tally()
    writer.replace(operation, taken, draft, removed=left_out.checksum, now=now)
    return draft.file.name


def to_columns(writer: ZoneWriter, topic: str, *, now: datetime) -> list[str]:
    """Rewrite each verified append file of a topic as a columnar file; return the names of the new files."""
    made = []
    for entry in writer.entries(topic, verdicts=("verified",)):
        if entry.file.kind == "append":
            made.append(_compact(writer, [entry.file], now=now))
    return made


def merge(writer: ZoneWriter, shard: Shard, limits: GroupLimits | None, *, now: datetime) -> list[str]:
    """Work on the rounds of a shard that this zone has not finished, or else on a new one.

    It stops where files are missing or are not scrubbed for the same requests; the next call continues there.

    Args:
        writer: Of the zone.
        shard: The shard.
        limits: Of the groups of a new round; None: there is to be none.
        now: The present time.

    Returns:
        The names of the new files.
    """
    made: list[str] = []
    rounds = unfinished_rounds(writer, shard)
    if limits is not None and not rounds and not open_reshards(writer, shard.topic):
        rounds = _open_rounds(writer, shard, limits)
    for compaction in rounds:
        if compaction.of is not None:
            break
        for group in _ready_groups(shard_files(writer, shard), compaction):
            made.append(_compact(writer, group, now=now))
        if not shard_files(writer, shard).has_merged(compaction):
            break
        SharedState(writer.manifest).finish_round(writer.zone.name, compaction)
    return made


def _open_rounds(writer: ZoneWriter, shard: Shard, limits: GroupLimits) -> list[Round]:
    """Open the next round, up to all files that this zone has verified; empty if there is nothing to merge."""
    settled = shard_files(writer, shard).settled()
    groups = []
    for group in select(settled, limits):
        groups.append(tuple(file.ranges for file in group))
    if not groups:
        return []
    return [open_round(writer, shard, last_offsets(settled), groups=tuple(groups))]


def _ready_groups(files: ShardFiles, compaction: Round) -> list[list[DataFile]]:
    """Return the groups of a round that this zone has completely and has not merged.

    The files were verified in the zone that opened the round. Files that this zone has scrubbed since need no new
    verification: the other zone only has the merged file to compare with.
    """
    ready = []
    for group in compaction.groups:
        live = _live_files(files, group)
        is_complete = len(live) == len(group)
        scrubbed_alike = len({file.deletions for file in live}) == 1
        if is_complete and scrubbed_alike:
            ready.append(live)
    return ready


def _compact(writer: ZoneWriter, taken: Sequence[DataFile], *, now: datetime) -> str:
    return rewrite(
        writer,
        "compaction",
        taken,
        chain.from_iterable(map(writer.records, taken)),
        kind="columnar",
        deletions=taken[0].deletions,
        now=now,
    )


def _live_files(files: ShardFiles, group: Iterable[Ranges]) -> list[DataFile]:
    entries = [files.find(ranges) for ranges in group]
    return [entry.file for entry in entries if entry and entry.stage == "live"]


def sweep(
    manifest: Manifest,
    zone: Zone,
    *,
    retired_before: datetime,
    topic: str | None = None,
    keep: Callable[[DataFile], bool] = lambda _: False,
) -> list[str]:
    """Remove the files of a zone that were replaced before a time, when no reader has them open any more.

    The files are removed before their entries, so another call finishes a sweep that died.

    Args:
        manifest: The manifest.
        zone: The zone.
        retired_before: Exclusive.
        topic: Of this topic; None means all.
        keep: Returns whether a file must stay.

    Returns:
        The names of the removed files.
    """
    names = []
    for entry in manifest.entries(zone.name, topic, stages=("retired",)):
        is_old = entry.retired_at is not None and entry.retired_at < retired_before
        if is_old and not keep(entry.file):
            names.append(entry.file.name)
    for name in names:
        zone.drop(name)
    reach("landing-swept")
    manifest.forget(zone.name, names)
    return names


_ADDED_WITHIN = timedelta(hours=1)
"""A process that lives adds a file to the manifest long before, after it has put it in its place."""


def drop_leftovers(writer: ZoneWriter, *, before: datetime) -> list[str]:
    """Remove what processes that died have left in the folder of a zone, last written before a time.

    That is drafts, and files that were put in their place an hour earlier and never added, if the zone has all their
    offsets in verified files. Other files that the manifest does not name stay: its rows may be lost, and `lake landing
    repair` adds them again.

    Returns:
        The names of the removed files.
    """
    removed = writer.zone.drop_drafts(before)
    names = writer.zone.names(before - _ADDED_WITHIN)
    known = names_of(files_of(writer.entries(stages=ALL_STAGES, verdicts=ALL_VERDICTS)))
    for name in sorted(set(names).difference(known)):
        named = NAME.fullmatch(name)
        if named is None:
            continue
        topic, is_dead = name[: named.start(1) - 1], named[1] == "dead-letters"
        landed = files_of(writer.entries(topic, verdicts=("verified",)))
        own = [file for file in landed if file.holds_dead_letters == is_dead]
        covers = [Cover(file.ranges, readable=True, shard=parse_shard(file.shard)) for file in own]
        # fastavro and pyarrow raise many types for a damaged file
        with suppress(Exception), writer.zone.open(name) as opened:
            offsets = ({record.partition: (record.offset, record.offset)} for record in read(KINDS[named[2]], opened))
            held = union(offsets)
            ends = {partition: last + 1 for partition, (_, last) in held.items()}
            if not uncovered(covers, {partition: first for partition, (first, _) in held.items()}, ends):
                writer.zone.drop(name)
                removed.append(name)
    return removed


_CLOCK_TICK = timedelta(milliseconds=1)
"""The precision of times in the manifest."""


def scrub(writer: ZoneWriter, topic: str, by: Scrub, *, now: datetime) -> list[str]:
    """Scrub the live and staged files of a topic for all requests that they were not scrubbed for.

    Args:
        writer: Of the zone.
        topic: The topic.
        by: The rules.
        now: The present time.

    Returns:
        The names of the new files.

    Raises:
        LandingError: What `Manifest.replace` raises.
    """
    requests = SharedState(writer.manifest).deletions(topic)
    made = []
    for entry in writer.entries(topic, stages=CURRENT_STAGES):
        due = [request for request in requests if request.request_id not in entry.file.deletions]
        if due:
            made.append(_scrub_file(writer, entry.file, due, by, now=now))
    return made


def remove_unscrubbed(writer: ZoneWriter, topic: str, *, now: datetime) -> list[str] | None:
    """Remove the replaced files of a topic that are not scrubbed for every request.

    A file stays as long as a current file with one of its offsets is not scrubbed for every request or is not verified,
    for example because it is in quarantine. A file that lands meanwhile replaces nothing and delays nothing.

    Returns:
        The names of the removed files; None if any file had to stay.
    """
    requests = {request.request_id for request in SharedState(writer.manifest).deletions(topic)}
    unfinished = []
    for entry in writer.entries(topic, stages=CURRENT_STAGES, verdicts=ALL_VERDICTS):
        if entry.verdict != "verified" or entry.file.deletions != requests:
            unfinished.append(entry.file.ranges)
    waiting = RangeIndex(unfinished)

    def must_stay(file: DataFile) -> bool:
        return file.deletions >= requests or waiting.overlaps(file.ranges)

    removed = sweep(
        writer.manifest,
        writer.zone,
        retired_before=now + _CLOCK_TICK,
        topic=topic,
        keep=must_stay,
    )
    for entry in writer.entries(topic, stages=("retired",)):
        if not entry.file.deletions >= requests:
            return None
    return removed


def _scrub_file(writer: ZoneWriter, file: DataFile, due: Sequence[DeletionRequest], by: Scrub, *, now: datetime) -> str:
    removed = Tally()
    kept = by.kept(writer.records(file), due, removed, dead_letters=file.holds_dead_letters)
    return rewrite(
        writer,
        "scrub",
        [file],
        kept,
        kind=file.kind,
        deletions=file.deletions | {request.request_id for request in due},
        now=now,
        removed=removed,
    )


@dataclass(frozen=True)
class Upkeep:
    """What was done in a zone: the names of files.

    Attributes:
        scrubbed: Files that were scrubbed for a request that the zone had not finished.
        merged: Columnar files that were made from several files.
        removed: Files that were replaced long ago, and drafts of processes that died.
    """

    zone: str
    scrubbed: tuple[str, ...]
    merged: tuple[str, ...]
    removed: tuple[str, ...]


def keep_up(
    writer: ZoneWriter, rules: Mapping[str, Scrub], limits: GroupLimits, *, keep: timedelta, now: datetime
) -> Upkeep:
    """Do the regular work on the files of a zone. Safe to repeat; other zones follow when it is their turn.

    Args:
        writer: Of the zone.
        rules: Topic → how its deletion requests find their records.
        limits: Of the files that become one file.
        keep: For how long files that were replaced are kept for readers.
        now: The present time.

    Raises:
        LandingError: An operation is refused; what was done before it stays.
    """
    scrubbed: list[str] = []
    merged: list[str] = []
    for topic, by in rules.items():
        if SharedState(writer.manifest).deletions(topic):
            scrubbed += scrub(writer, topic, by, now=now)
    for shard in shards_of(writer.manifest):
        merged += merge(writer, shard, limits, now=now)
    oldest = now - keep
    removed = [*sweep(writer.manifest, writer.zone, retired_before=oldest), *drop_leftovers(writer, before=oldest)]
    return Upkeep(writer.zone.name, tuple(scrubbed), tuple(merged), tuple(removed))
