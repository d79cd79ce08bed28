"""Erasing subjects from landed files of every topic, and the files that a certificate of it names.

Erasing subjects from landed files of every topic, in both zones: the part of `lake erase` outside the tables.

The deletion requests follow from `etl.erasure`: the hash of the id, the time of the erasure, and a request id made of
both. So another call after a crash finds the same requests, and the files that were not scrubbed for them. Files that
land late are scrubbed for subjects erased before, without their ids.

Landed files for the certificate of an erasure: the folders of both zones, with drafts, quarantine and strays.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial
from typing import TYPE_CHECKING

from lake_assets.base.failpoints import reach
from lake_assets.base.hours import milliseconds
from lake_assets.connections.addresses import kafka_address
from lake_assets.connections.catalog import file_io
from lake_assets.errors import ErasureStopped, ServiceError
from lake_assets.incremental.declaration import Pipeline
from lake_assets.incremental.engine.erasures import Erasure
from lake_assets.incremental.erasure.certificate import FileFacts, FileSource, Kind, Reference
from lake_assets.incremental.erasure.erase import GRACE, Elsewhere
from lake_assets.landing.files import DRAFT, QUARANTINE, ZONES, Zone
from lake_assets.landing.manifest import (
    ALL_STAGES,
    ALL_VERDICTS,
    CURRENT_STAGES,
    Entry,
    Manifest,
    files_of,
    has_landed,
    open_manifest,
    shards_of,
)
from lake_assets.landing.messages import Feed, Scrub, feeds
from lake_assets.landing.operations import drop_leftovers, merge, remove_unscrubbed, scrub
from lake_assets.landing.records import NAME, Record
from lake_assets.landing.state import DeletionRequest, SharedState
from lake_assets.landing.zones import ZoneWriter, is_locked, landed_without_manifest, present_zones
from lake_assets.settings import Settings

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

PATIENCE = timedelta(seconds=60)
"""How long an erasure waits for zones that are tailed to land what it has scrubbed in the other zone."""

_PAUSE_SECONDS = 0.5
_LOOKS = 6
"""How often open files are looked at until they have what Kafka has."""

MAX_PASSES = 3
"""How often both zones are scrubbed at the most, to include files that land while earlier files are scrubbed."""

_HASH_PREFIX = 16
"""Hexadecimal digits of the id's hash in the id of a request."""


@dataclass(frozen=True)
class LandedErasure:
    """The result of an erasure from landed files, of both zones together.

    Attributes:
        scrubbed: Number of files rewritten.
        removed: Number of replaced files and drafts removed.
        waits: Why files that may hold an erased subject still exist, one reason an entry; empty if none does.
    """

    scrubbed: int = 0
    removed: int = 0
    waits: tuple[str, ...] = ()

    def __add__(self, other: LandedErasure) -> LandedErasure:
        return LandedErasure(
            self.scrubbed + other.scrubbed,
            self.removed + other.removed,
            self.waits + other.waits,
        )

    def require_done(self) -> None:
        """Raise `ErasureStopped` if files that may hold an erased subject still exist."""
        if self.waits:
            raise ErasureStopped(
                f"Landed files may still hold who was erased: {'; '.join(self.waits)}.",
                remedy="Let both zones land what they lack (`lake landing run`), decide on what is in quarantine "
                "(`lake landing quarantine list`), then erase again: what is done is not done twice.",
            )


def erase_landed(
    settings: Settings, pipeline: Pipeline, erasures: Iterable[Erasure], *, now: datetime
) -> LandedErasure:
    """Scrub all landed files for erasures and for all earlier requests, then remove the files that this replaces.

    The next call scrubs the files of a zone that is away now. Old drafts of processes that died are removed too. No
    manifest is created in a home that never landed anything.

    Args:
        settings: Of the home.
        pipeline: Declares the topics and the subjects.
        erasures: Of any subjects.
        now: The present time.

    Raises:
        LandingError: What `scrub` raises.
    """
    if not has_landed(settings) and not landed_without_manifest(settings):
        return LandedErasure()
    writers, away = present_zones(settings)
    requested = list(erasures)
    done = LandedErasure(waits=tuple(f"zone {zone} is away: {each.problem.rstrip('.')}" for zone, each in away.items()))
    for writer in writers:
        done += LandedErasure(removed=len(drop_leftovers(writer, before=now - GRACE)))
    for feed in feeds(pipeline, prefix=settings.landing_prefix):
        concerned = [erasure for erasure in requested if erasure.subject == feed.subject]
        topic = _TopicErasure(settings, writers, feed)
        topic.record(concerned, now=now)
        done += topic.scrub(patience=timedelta(0) if away else PATIENCE)
    return done


def request_erasure(settings: Settings, pipeline: Pipeline, erasures: Sequence[Erasure], *, now: datetime) -> None:
    """Record the deletion requests of erasures, with what Kafka has now: what is sent later stays.

    From then on zones land files without the records that the requests name. `erase_landed` does the rest.

    Raises:
        ServiceError: No zone can be worked on.
        ZoneMismatch: Likewise.
    """
    if not has_landed(settings) and not landed_without_manifest(settings):
        return
    writers, _ = present_zones(settings)
    for feed in feeds(pipeline, prefix=settings.landing_prefix):
        concerned = [erasure for erasure in erasures if erasure.subject == feed.subject]
        _TopicErasure(settings, writers, feed).record(concerned, now=now)


def erases_landed(
    settings: Settings,
    pipeline: Pipeline,
    clock: Callable[[], datetime],
    *,
    report: Callable[[LandedErasure], None] = lambda _: None,
) -> Elsewhere:
    """Return `erase_landed` as a part of an erasure or a sweep; it raises `ErasureStopped` if it cannot finish.

    Args:
        settings: Of the home.
        pipeline: Declares the topics and the subjects.
        clock: Returns the present time, in UTC.
        report: Called with the result if the erasure is finished.
    """

    def erase(erasures: Sequence[Erasure]) -> None:
        done = erase_landed(settings, pipeline, erasures, now=clock())
        done.require_done()
        report(done)

    return erase


@dataclass(frozen=True)
class _TopicErasure:
    """The erasure from the files of one topic, in all zones."""

    settings: Settings
    writers: Sequence[ZoneWriter]
    feed: Feed

    @property
    def topic(self) -> str:
        return self.feed.topic

    @property
    def state(self) -> SharedState:
        return SharedState(self.writers[0].manifest)

    @cached_property
    def by(self) -> Scrub:
        from lake_assets.landing.zone_tailer import scrub_by  # needs Kafka's client, which is an extra

        return scrub_by(self.settings, self.feed)

    def record(self, erasures: Sequence[Erasure], *, now: datetime) -> None:
        """Record the requests of erasures."""
        if erasures:
            cut = cut_of(self.settings, self.writers[0].manifest, self.topic)
            self.state.request_deletions(self.topic, self._requests_to_record(erasures, cut), now=now)
            reach("erasing-requested")

    def scrub(self, *, patience: timedelta) -> LandedErasure:
        """Scrub all files, again as long as tailers of the zones land or finish what is missing, up to a limit."""
        scrubbed = 0
        ends_at = time.monotonic() + patience.total_seconds()
        while True:
            scrubbed += self._scrub()
            reach("erasing-scrubbed")
            done = LandedErasure(scrubbed=scrubbed)
            for writer in self.writers:
                done += self._remove_unscrubbed(writer, datetime.now(UTC))
                done += self._wait_for_open_files(writer.zone)
            zones = [writer.zone.name for writer in self.writers]
            is_tailed = any(is_locked(self.settings.landing_folder, zone) for zone in zones)
            if not done.waits or not is_tailed or time.monotonic() > ends_at:
                return done
            time.sleep(_PAUSE_SECONDS)

    def _wait_for_open_files(self, zone: Zone) -> LandedErasure:
        """Remove the open files that hold what is deleted, or let the process that tails the zone write them again."""
        from lake_assets.landing.tail import holding

        requests = self.state.deletions(self.topic)
        held = holding(zone, self.topic, self.by, requests) if requests else []
        if held and is_locked(self.settings.landing_folder, zone.name):
            return LandedErasure(waits=(f"{len(held)} open files of {self.topic} in zone {zone.name} hold it",))
        for name in held:
            zone.drop_open(name)  # Kafka has these messages
        return LandedErasure(removed=len(held))

    def _remove_unscrubbed(self, writer: ZoneWriter, now: datetime) -> LandedErasure:
        zone = writer.zone.name
        waits = []
        removed = remove_unscrubbed(writer, self.topic, now=now)
        if removed is None:
            waits.append(f"the replaced files of {self.topic} in zone {zone} stay until the other zone's are the same")
        quarantined = writer.entries(self.topic, stages=ALL_STAGES, verdicts=("quarantined",))
        if quarantined:
            waits.append(f"{len(quarantined)} of {self.topic} in zone {zone} are in quarantine")
        return LandedErasure(removed=len(removed or ()), waits=tuple(waits))

    def _scrub(self) -> int:
        """Scrub all files, and let a zone that was away follow the rounds of the other one: else they never compare."""
        from lake_assets.landing.reshard import bring_to_its_shards  # needs Kafka's client

        total = 0
        for _ in range(MAX_PASSES):
            scrubbed, merged = 0, 0
            for writer in self.writers:
                scrubbed += len(scrub(writer, self.topic, self.by, now=datetime.now(UTC)))
                for shard in shards_of(writer.manifest, self.topic):
                    merged += len(merge(writer, shard, None, now=datetime.now(UTC)))
            bring_to_its_shards(self.writers, self.topic, lambda: [self.feed], partial(datetime.now, UTC))
            total += scrubbed
            if not scrubbed + merged:
                break
        return total

    def _requests_to_record(self, erasures: Sequence[Erasure], cut: Mapping[int, int]) -> Iterator[DeletionRequest]:
        """Yield the requests of erasures, but none if an earlier request covers every record that was sent."""
        from lake_assets.landing.kafka import landed_ends
        from lake_assets.landing.tail import open_records

        recorded = self.state.deletions(self.topic)
        read: list[Record] = []
        for _ in range(_LOOKS):
            landed = landed_ends(self.writers[0].manifest, self.topic)
            read = [
                record
                for writer in self.writers
                for _, found in open_records(writer.zone, self.topic)
                for record in found
            ]
            for record in read:
                landed[record.partition] = max(record.offset + 1, landed.get(record.partition, 0))
            has_more = any(end > landed.get(partition, 0) for partition, end in cut.items())
            if not has_more or not recorded:
                break
            time.sleep(_PAUSE_SECONDS)  # a zone that is tailed has written them by then
        of_hash: defaultdict[str, list[DeletionRequest]] = defaultdict(list)
        for found in recorded:
            of_hash[found.id_hash].append(found)
        for erasure in erasures:
            request = replace(_request(self.topic, erasure), cut=cut)
            earlier = of_hash.get(request.id_hash, [])
            if any(found.sent_through >= request.sent_through for found in earlier):
                continue
            if not earlier or has_more or self._has_records_since(earlier, request, read):
                yield request

    def _has_records_since(
        self, earlier: Sequence[DeletionRequest], request: DeletionRequest, read: Sequence[Record]
    ) -> bool:
        """Return whether a file, or what was read into open ones, has a record that only this request deletes."""
        for record in read:
            for rule in (self.by.is_named, self.by.is_mentioned):
                if rule(record, [request]) and not rule(record, earlier):
                    return True
        for writer in self.writers:
            for file in files_of(writer.entries(self.topic, stages=CURRENT_STAGES)):
                is_deleted = self.by.rule_for(dead_letters=file.holds_dead_letters)
                for record in writer.records(file):
                    if is_deleted(record, [request]) and not is_deleted(record, earlier):
                        return True
        return False


def cut_of(settings: Settings, manifest: Manifest, topic: str) -> dict[int, int]:
    """Return, for each partition of a topic, the landed offset after the last message that Kafka has now.

    If Kafka cannot be asked, it is the one after the last landed message: a record that has not landed then goes by its
    own timestamp.
    """
    from lake_assets.landing.kafka import landed_ends, logical_ends

    cut = landed_ends(manifest, topic)
    servers = kafka_address(settings)
    if servers is not None:
        with suppress(ServiceError):
            for partition, end in logical_ends(manifest, servers, topic).items():
                cut[partition] = max(end, cut.get(partition, 0))
    return cut


def _request(topic: str, erasure: Erasure) -> DeletionRequest:
    """Return the request of an erasure; another call gives the same."""
    through = milliseconds(erasure.erased_at)
    request_id = f"erasure-{erasure.id_hash[:_HASH_PREFIX]}-{through}"
    return DeletionRequest(request_id, topic, erasure.id_hash, through)


def landed_folders(settings: Settings) -> Iterator[FileSource]:
    """Yield the folder of all zones, and zones elsewhere. If nothing has ever landed, no manifest is created."""
    entries = {}
    if has_landed(settings):
        for entry in open_manifest(settings).entries(stages=ALL_STAGES, verdicts=ALL_VERDICTS):
            entries[entry.file.zone, entry.file.name] = entry
    root = settings.landing_folder.expanduser().absolute()
    yield LandedFiles(str(root), entries)
    for zone in ZONES:
        address = settings.landing_address(zone)
        if isinstance(address, str):
            yield LandedFiles(address.partition("?")[0], entries, file_io(settings, address), zone)
        elif not address.expanduser().absolute().is_relative_to(root):
            yield LandedFiles(str(address.expanduser().absolute()), entries, zone=zone)


class LandedFiles(FileSource):
    """The files in the folder of all zones: `<zone>/<name>`, or `<zone>/<quarantine>/<name>`; or those of one zone.

    Args:
        location: The folder.
        entries: Zone and name of each file in the manifest → its entry.
        io: As in `FileSource`.
        zone: The zone whose storage it is; None: of all.
    """

    id_columns = ("key",)  # of a message: an id, or nothing that an erasure could take for one

    def __init__(
        self,
        location: str,
        entries: Mapping[tuple[str, str], Entry],
        io: FileIO | None = None,
        zone: str | None = None,
    ) -> None:
        super().__init__(location, io)
        self.entries = entries
        self.above = [zone] if zone else []

    def facts(self, path: str) -> FileFacts:
        inside = [*self.above, *self.parts(path)]
        zone = inside[0]
        name = inside[-1]
        if len(inside) == 1:
            return FileFacts(None, "other", "nothing")
        if name.startswith(DRAFT):
            return FileFacts(f"zone {zone}", "draft", "nothing")
        named = NAME.fullmatch(name)
        if not named:
            return FileFacts(f"zone {zone}", "other", "nothing")
        kind: Kind = "dead letters" if named[1] == "dead-letters" else "landed file"
        topic = name[: named.start(1) - 1]
        is_quarantined = QUARANTINE in inside[1:-1]
        reference = "quarantine" if is_quarantined else _reference(self.entries.get((zone, name)))
        return FileFacts(f"{topic}, zone {zone}", kind, reference)


def _reference(entry: Entry | None) -> Reference:
    if entry is None:
        return "nothing"
    return "history" if entry.stage == "retired" else "main"
