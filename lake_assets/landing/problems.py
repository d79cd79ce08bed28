"""What is wrong with landing now: the one list that `lake status`, `lake doctor`, the report, checks and alerts show.

It reads the manifest, the markers of the zones' folders, and what raw tables and Kafka tell; it changes nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from confluent_kafka import TopicPartition
from confluent_kafka.admin import OffsetSpec

from lake_assets.base.hours import milliseconds
from lake_assets.connections.catalog import safe_address
from lake_assets.connections.kafka import END, asking, offsets
from lake_assets.errors import LakeError, ServiceError
from lake_assets.incremental.operations.health import Kind, Problem
from lake_assets.landing.dead_letters import dead_letters
from lake_assets.landing.files import ZONES, zone_of
from lake_assets.landing.kafka import existing_partitions
from lake_assets.landing.loading import progress_of
from lake_assets.landing.manifest import ALL_VERDICTS, CURRENT_STAGES, Entry, files_of, has_landed, open_manifest
from lake_assets.landing.messages import Feed
from lake_assets.landing.records import last_offsets, next_offsets, parse_shard
from lake_assets.landing.state import Ledger, Stops, idle_spans, with_idle
from lake_assets.landing.zones import ZoneWriter, landed_without_manifest

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from lake_assets.landing.manifest import Manifest
    from lake_assets.settings import Settings


_RECENTLY = timedelta(hours=1)
"""How long a wrong timestamp is reported."""

RUN = "Start what lands it: `lake up`, or `lake landing run`"


def problems(
    settings: Settings,
    feeds: Sequence[Feed],
    *,
    now: datetime,
    catalog: Catalog | None = None,
    servers: str | None = None,
) -> list[Problem]:
    """Return what is wrong with landing; nothing if nothing ever landed.

    Args:
        settings: Of the home.
        feeds: The topics of the pipeline.
        now: The present time, in UTC.
        catalog: Of the raw tables; None leaves out dead letters.
        servers: Of Kafka; None leaves out messages that no zone lands. So does a Kafka that does not answer.
    """
    without: dict[str, int] = {}
    with suppress(ServiceError):  # nothing has landed, or nobody can tell
        without = landed_without_manifest(settings)
    if not has_landed(settings):
        return [_manifest_gone(zone, settings, count) for zone, count in without.items()]
    manifest = open_manifest(settings)
    for name in ZONES:
        if not has_landed(settings, name) and (known := len(manifest.entries(name))):  # by its publications
            without[name] = max(known, without.get(name, 0))
    found = [_manifest_gone(zone, settings, count) for zone, count in sorted(without.items())]
    zones = [zone_of(settings, name) for name in ZONES]
    deadline = timedelta(seconds=settings.landing_deadline_seconds)
    gone = set(without)
    for zone in zones:
        if not has_landed(settings, zone.name):
            continue
        problem: LakeError | None
        try:
            problem = ZoneWriter(zone, open_manifest(settings, zone.name)).storage_problem()
        except ServiceError as error:
            problem = error
        if problem is not None:
            gone.add(zone.name)
            found.append(Problem(f"zone {zone.name}", "zone_gone", problem.problem, problem.remedy))
    for stop in Stops(manifest).all():
        where = f"{stop.topic} partition {stop.partition}, zone {stop.zone}"
        found.append(Problem(where, "partition_stopped", f"{where}, has stopped: {stop.problem}", stop.remedy))
    entries = manifest.entries(stages=CURRENT_STAGES, verdicts=ALL_VERDICTS)
    found += _differing(entries)
    found += _behind(entries, gone, now=now, deadline=deadline)
    for feed in feeds if catalog is not None else ():
        assert catalog is not None
        progress = progress_of(catalog, feed.raw.table, feed.topic)
        readable = [zone for zone in zones if zone.name not in gone]
        letters = dead_letters(manifest, readable, progress, feed, limit=settings.landing_dead_letter_share)
        if letters.unsettled or letters.over_limit:
            kind: Kind = "dead_letters" if letters.over_limit else "few_dead_letters"
            found.append(Problem(feed.topic, kind, letters.sentence, letters.remedy))
        wrong = progress.wrong
        if wrong is not None and wrong.at > now - _RECENTLY:
            what = f"{wrong.messages:,} messages of {feed.topic} have a timestamp that cannot be right, the last one "
            what += f"{wrong.cause}. `landed_at` of these rows is the time of their load."
            found.append(Problem(feed.topic, "wrong_timestamps", what, "Correct the producer, or its clock."))
    if servers is not None:
        with suppress(ServiceError):  # a Kafka that does not answer is reported as a service
            found += _not_landed(manifest, servers, feeds, gone, before=now - deadline)
    return found


def _manifest_gone(zone: str, settings: Settings, count: int) -> Problem:
    return Problem(
        f"zone {zone}",
        "zone_gone",
        f"The manifest of zone {zone} is gone ({safe_address(settings.landing_manifest_address(zone))}), and the zone "
        f"has landed {count:,} files.",
        "Restore it from a backup, or correct LAKE_LANDING_MANIFEST_URI. Or run `lake landing repair`, which writes it "
        "again from what the zone has published.",
    )


def _differing(entries: Iterable[Entry]) -> Iterator[Problem]:
    counts: Counter[tuple[str, str]] = Counter()
    for entry in entries:
        if entry.verdict == "quarantined":
            counts[parse_shard(entry.file.shard).topic, entry.file.zone] += 1
    for (topic, zone), count in sorted(counts.items()):
        what = f"{count:,} files of {topic} in zone {zone} differ from those of the other zone, and are in quarantine."
        yield Problem(f"{topic}, zone {zone}", "files_differ", what, "Decide on them: `lake landing quarantine list`.")


def _behind(entries: Sequence[Entry], gone: set[str], *, now: datetime, deadline: timedelta) -> Iterator[Problem]:
    """Yield each zone that has not landed what the other zone has, for longer than the deadline."""
    overdue: dict[tuple[str, str], list[Entry]] = defaultdict(list)
    ends: dict[tuple[str, str], dict[int, int]] = {}
    of_topic: dict[tuple[str, str], list[Entry]] = defaultdict(list)
    for entry in entries:
        topic = parse_shard(entry.file.shard).topic
        of_topic[topic, entry.file.zone].append(entry)
        if entry.overdue(now, deadline):
            overdue[topic, entry.file.zone].append(entry)
    for place, several in of_topic.items():
        ends[place] = next_offsets(entry.file for entry in several if not entry.file.holds_dead_letters)
    for (topic, zone), waiting in sorted(overdue.items()):
        for other in ZONES:
            if other == zone or other in gone:
                continue
            landed = ends.get((topic, other), {})
            missing = [entry for entry in waiting if _lies_beyond(entry, landed)]
            where = f"{topic}, zone {other}"
            if missing:
                since = min(entry.added_at for entry in missing)
                what = f"Zone {other} has not landed {len(missing):,} files of {topic} that zone {zone} has since "
                what += f"{since:%Y-%m-%d %H:%M:%S} UTC."
                yield Problem(where, "zone_behind", what, f"{RUN}.")
            elif len(missing) < len(waiting):
                what = f"{len(waiting):,} files of {topic} in zone {zone} cannot be compared: zone {other} has these "
                what += "offsets in other files, or scrubbed for other requests."
                remedy = "Run `lake landing compact` and `lake erase --sweep`; `lake landing verify` names the files."
                yield Problem(f"{topic}, zone {zone}", "zone_behind", what, remedy)


def _lies_beyond(entry: Entry, ends: dict[int, int]) -> bool:
    return any(last >= ends.get(partition, 0) for partition, last in last_offsets([entry.file]).items())


def _not_landed(
    manifest: Manifest, servers: str, feeds: Sequence[Feed], gone: set[str], *, before: datetime
) -> Iterator[Problem]:
    """Yield each topic that is gone, and each zone that has not landed messages that were sent before a time."""
    by_topic = {feed.topic: feed for feed in feeds}
    numbers = existing_partitions(servers, by_topic)
    for topic in by_topic:
        if topic not in numbers and Ledger(manifest).epoch(topic) is not None:
            what = f"The topic {topic}, of which messages have landed, is gone from Kafka at {servers}."
            remedy = "Restore it; or create another one, and run `lake landing accept`; or set feed=False of "
            yield Problem(topic, "not_landed", what, f"{remedy}{by_topic[topic].raw.table}.")
    places = [TopicPartition(topic, number) for topic, several in numbers.items() for number in several]
    if not places:
        return
    spec = OffsetSpec.for_timestamp(milliseconds(before))
    with asking(servers) as admin:
        ends = offsets(admin, places, END)
        later = offsets(admin, places, spec)
    stopped = {(stop.zone, stop.topic, stop.partition) for stop in Stops(manifest).all()}
    for topic in numbers:
        epoch = Ledger(manifest).epoch(topic)
        for zone in ZONES:
            if zone in gone:
                continue
            files = files_of(manifest.entries(zone, topic, stages=CURRENT_STAGES, verdicts=ALL_VERDICTS))
            landed = with_idle(next_offsets(files), idle_spans(manifest, topic).get(zone, {}))
            waiting = 0
            for partition in numbers[topic]:
                if (zone, topic, partition) in stopped:
                    continue
                place = topic, partition
                end = later[place] if later[place] >= 0 else ends[place]
                base = epoch.base(partition) if epoch else 0
                waiting += max(0, end + base - landed.get(partition, base))
            if waiting:
                what = f"Zone {zone} has not landed {waiting:,} offsets of {topic} that Kafka has since "
                what += f"{before:%Y-%m-%d %H:%M:%S} UTC or longer."
                yield Problem(f"{topic}, zone {zone}", "not_landed", what, f"{RUN}.")
