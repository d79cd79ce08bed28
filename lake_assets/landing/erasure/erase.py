"""Erasing somebody from landed files, of every topic and in both zones: what `lake erase` does beside the tables.

The deletion requests follow from `etl.erasure`: of whom by hash, up to the erasure's time, under an id made of both. So
an erasure that was killed finds its requests, and the files that were not scrubbed for them; and what landed late of
those who were erased before is scrubbed without their ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from lake_assets.base.failpoints import reach
from lake_assets.errors import ErasureStopped
from lake_assets.incremental.declaration import Pipeline
from lake_assets.incremental.erasure.erase import GRACE, Elsewhere
from lake_assets.incremental.metadata.erasure_registry import Erasure, KeyedHash, erasure_key
from lake_assets.landing.consume.messages import Feed, feeds
from lake_assets.landing.manifest.schema import ALL_STAGES, milliseconds
from lake_assets.landing.manifest.shared_state import Agreements, DeletionRequest
from lake_assets.landing.manifest.store import has_landed
from lake_assets.landing.manifest.writing import ZoneWriter
from lake_assets.landing.manifest.zones import open_zones
from lake_assets.landing.operations.scrub import Scrub, forget_unscrubbed, scrub
from lake_assets.settings import Settings

ROUNDS = 3
"""How often both zones are looked through at the most, for what was landed while the files before were scrubbed."""


@dataclass(frozen=True)
class LandedErasure:
    """What became of landed files, of both zones together. scrubbed: written anew. removed: replaced files, and drafts.

    waits: why files that may hold somebody who was erased are still there, topic by topic; empty: none is.
    """

    scrubbed: int = 0
    removed: int = 0
    waits: tuple[str, ...] = ()

    def require_done(self) -> None:
        """Raises `ErasureStopped` if something has to happen before."""
        if self.waits:
            raise ErasureStopped(
                f"Landed files may still hold who was erased: {'; '.join(self.waits)}.",
                remedy="Let both zones land what they lack (`lake landing run`), decide on what is in quarantine "
                "(`lake landing quarantine list`), then erase again: what is done is not done twice.",
            )


def erase_landed(
    settings: Settings, pipeline: Pipeline, erasures: Iterable[Erasure], *, now: datetime
) -> LandedErasure:
    """Scrub all landed files for erasures, and for all requests before them; then let go of those that were replaced.

    Drafts that died go, too. A home that never landed anything is left without a manifest. Raises what `scrub` does.
    """
    if not has_landed(settings):
        return LandedErasure()
    writers, among = open_zones(settings), list(erasures)
    drafts = sum(len(writer.zone.drop_drafts(now - GRACE)) for writer in writers)
    done = [
        _erase_topic(writers, feed.topic, scrub_by(settings, pipeline, feed), _of(pipeline, feed, among), now=now)
        for feed in feeds(pipeline, prefix=settings.landing_prefix)
    ]
    return LandedErasure(
        sum(d.scrubbed for d in done), drafts + sum(d.removed for d in done), tuple(w for d in done for w in d.waits)
    )


def erases_landed(
    settings: Settings,
    pipeline: Pipeline,
    clock: Callable[[], datetime],
    *,
    told: Callable[[LandedErasure], None] = lambda _: None,
) -> Elsewhere:
    """`erase_landed` as a part of an erasure or a sweep, which it stops as long as something has to happen before."""

    def erase(erasures: Sequence[Erasure]) -> None:
        done = erase_landed(settings, pipeline, erasures, now=clock())
        done.require_done()
        told(done)

    return erase


def scrub_by(settings: Settings, pipeline: Pipeline, feed: Feed) -> Scrub:
    """By the distinct id of a feed's messages, hashed as `etl.erasure` has it. The key is read when it is needed."""
    keyed = KeyedHash(partial(erasure_key, settings))
    return Scrub(feed.distinct_id_of, partial(keyed.of, _subject_of(pipeline, feed)), feed.sent)


def _erase_topic(
    writers: Sequence[ZoneWriter], topic: str, by: Scrub, erasures: Sequence[Erasure], *, now: datetime
) -> LandedErasure:
    agreements = Agreements(writers[0].manifest)
    for request in _to_record(writers, topic, by, erasures):
        agreements.request_deletion(request, now=now)
    reach("erasing-requested")
    scrubbed = _scrub(writers, topic, by, now=now)
    reach("erasing-scrubbed")
    gone = {writer.zone.name: forget_unscrubbed(writer, topic, now=now) for writer in writers}
    removed = sum(len(names or ()) for names in gone.values())
    return LandedErasure(scrubbed, removed, tuple(_waits(writers, topic, gone)))


def _scrub(writers: Sequence[ZoneWriter], topic: str, by: Scrub, *, now: datetime) -> int:
    total = 0
    for _ in range(ROUNDS):
        made = sum(len(scrub(writer, topic, by, now=now)) for writer in writers)
        total += made
        if not made:
            break
    return total


def _to_record(
    writers: Sequence[ZoneWriter], topic: str, by: Scrub, erasures: Sequence[Erasure]
) -> Iterator[DeletionRequest]:
    """The requests that erasures need: none where one was made already, and nothing was sent of them since."""
    before = Agreements(writers[0].manifest).deletions(topic)
    for erasure in erasures:
        request = _request(topic, erasure)
        earlier = [r for r in before if r.id_hash == request.id_hash]
        covered = any(r.sent_through >= request.sent_through for r in earlier)
        if not covered and (not earlier or _holds(writers, topic, by, request, earlier)):
            yield request


def _request(topic: str, erasure: Erasure) -> DeletionRequest:
    """The request of an erasure: the same whoever makes it, and however often."""
    through = milliseconds(erasure.erased_at)
    return DeletionRequest(f"erasure-{erasure.id_hash[:16]}-{through}", topic, erasure.id_hash, through)


def _holds(
    writers: Sequence[ZoneWriter], topic: str, by: Scrub, request: DeletionRequest, earlier: Sequence[DeletionRequest]
) -> bool:
    """Whether a file has something that a request names and none of the earlier ones does."""
    for writer in writers:
        for entry in writer.manifest.entries(writer.zone.name, topic, stages=("staged", "live")):
            goes = by.of(entry.file)
            if any(goes(record, [request]) and not goes(record, earlier) for record in writer.records(entry.file)):
                return True
    return False


def _waits(writers: Sequence[ZoneWriter], topic: str, gone: dict[str, list[str] | None]) -> Iterator[str]:
    for writer in writers:
        zone = writer.zone.name
        if gone[zone] is None:
            yield f"the replaced files of {topic} in zone {zone} stay until the other zone's are the same"
        if aside := writer.manifest.entries(zone, topic, stages=ALL_STAGES, verdicts=("quarantined",)):
            yield f"{len(aside)} of {topic} in zone {zone} are in quarantine"


def _of(pipeline: Pipeline, feed: Feed, erasures: Iterable[Erasure]) -> list[Erasure]:
    """The erasures of the subject that a feed's messages are of."""
    return [erasure for erasure in erasures if erasure.subject == _subject_of(pipeline, feed)]


def _subject_of(pipeline: Pipeline, feed: Feed) -> str:
    return next(subject.name for subject in pipeline.subjects if feed.distinct_id in subject.columns)
