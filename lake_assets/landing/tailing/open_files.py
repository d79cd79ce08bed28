"""Open files: what a zone has read of a partition since its last file is on disk within a second.

`<zone>/open/<topic>.<partition>` is Avro with every message as it came, a block for each write. Readers stop at a torn
block. A process that starts goes on in the file: it cuts a torn block off and reads Kafka from there. The file goes
when what it becomes has landed.

A request to delete has the file written again without what it covers. That file is for readers alone: a process that
starts reads these messages from Kafka again, because deleted ones count where a file is cut, too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from time import monotonic

from lake_assets.errors import DiskFull
from lake_assets.landing.consume.deletions import Scrub
from lake_assets.landing.consume.kafka_reader import Place
from lake_assets.landing.files import formats
from lake_assets.landing.files.records import Record
from lake_assets.landing.files.zone_folder import NO_SPACE, OPEN, Zone
from lake_assets.landing.manifest.shared_state import DeletionRequest, SharedState
from lake_assets.landing.manifest.zone_writer import ZoneWriter
from lake_assets.landing.tailing.tailer import Tail
from lake_assets.landing.topics.ledger import Epoch

EVERY_SECONDS = 1.0
"""How often the messages that were read are written."""


def open_records(zone: Zone, topic: str) -> Iterator[tuple[Path, list[Record]]]:
    """Yield the open files of a topic in a zone, which another process may write, and their messages.

    Those of a file are of one partition, in order of offset; dead letters and heartbeats are among them.
    """
    for path in sorted((zone.folder / OPEN).glob(f"{topic}.*")):
        if path.name.removeprefix(f"{topic}.").isdigit():
            _, records, _ = _content(path)
            yield path, records


def holding(zone: Zone, topic: str, scrub: Scrub, requests: Sequence[DeletionRequest]) -> list[Path]:
    """Return the open files of a topic in a zone that hold a record that a request deletes."""

    def is_deleted(record: Record) -> bool:
        makes_row = scrub.distinct_id(record) is not None
        return scrub.is_named(record, requests) or (not makes_row and scrub.is_mentioned(record, requests))

    return [path for path, records in open_records(zone, topic) if any(map(is_deleted, records))]


@dataclass(frozen=True)
class _Written:
    """The requests that an open file was written for, and whether it has all messages nevertheless."""

    requests: Sequence[DeletionRequest]
    is_whole: bool = True


@dataclass
class OpenFiles:
    """The open files of a zone, written by the process that tails it.

    Attributes:
        writer: Of the zone.
        scrubs: Topic → how its deletion requests find their records.
        epochs: Topic → its epoch, as it was when its messages were read.
    """

    writer: ZoneWriter
    scrubs: Mapping[str, Scrub]
    epochs: Mapping[str, Epoch]
    _files: dict[Place, _Written] = field(default_factory=dict, init=False)
    _written_at: float = field(default=0.0, init=False)

    def resume(self, place: Place, begin: int | None) -> list[Record]:
        """Return the messages of the open file of a partition, if it is whole and of this topic; else remove it.

        Args:
            place: The partition.
            begin: The offset after the last file of the zone; None if there is none.
        """
        path = self._path(place)
        metadata, records, end = _content(path)
        known = {"topic_id": self.epochs[place.topic].topic_id, "whole": "yes"}
        if begin is not None:
            known["first"] = str(begin)
        is_ordered = all(one.offset < other.offset for one, other in pairwise(records))
        if not records or not is_ordered or known.items() - metadata.items():
            path.unlink(missing_ok=True)
            return []
        os.truncate(path, end)
        self._files[place] = _Written(())
        return records

    @property
    def is_due(self) -> bool:
        """Whether what tails have taken should be written."""
        return monotonic() >= self._written_at + EVERY_SECONDS

    def write(self, tails: Mapping[Place, Tail]) -> None:
        """Write what tails have taken. Raises `DiskFull`."""
        self._written_at = monotonic()
        state = SharedState(self.writer.manifest)
        requests = {topic: state.deletions(topic) for topic in {place.topic for place in tails} & self.scrubs.keys()}
        for place, tail in tails.items():
            self._write(place, tail, requests.get(place.topic, ()))

    def drop(self, place: Place) -> None:
        """Remove the open file of a partition. Safe to repeat."""
        self._path(place).unlink(missing_ok=True)
        self._files.pop(place, None)

    def _write(self, place: Place, tail: Tail, requests: Sequence[DeletionRequest]) -> None:
        written = self._files.get(place)
        if written is not None and list(written.requests) == list(requests):
            unwritten = tail.messages[tail.written :]
            kept = self._kept(place.topic, unwritten, requests)
            if len(kept) == len(unwritten) or not written.is_whole:
                self._append(place, tail, kept)
                return
        self._path(place).unlink(missing_ok=True)
        kept = self._kept(place.topic, tail.messages, requests)
        self._files[place] = _Written(requests, is_whole=len(kept) == len(tail.messages))
        self._append(place, tail, kept)

    def _kept(
        self, topic: str, messages: Sequence[tuple[Record, bool]], requests: Sequence[DeletionRequest]
    ) -> list[Record]:
        if not requests:
            return [record for record, _ in messages]
        rules = [self.scrubs[topic].rule_for(dead_letters=dead_letters) for dead_letters in (False, True)]
        return [record for record, is_dead in messages if not rules[is_dead](record, requests)]

    def _append(self, place: Place, tail: Tail, records: Sequence[Record]) -> None:
        tail.written = len(tail.messages)
        if not records:
            return
        path, whole = self._path(place), "yes" if self._files[place].is_whole else "no"
        metadata = {"first": str(tail.begin), "topic_id": self.epochs[place.topic].topic_id, "whole": whole}
        try:
            path.parent.mkdir(exist_ok=True)
            with path.open("a+b") as opened:
                formats.append(opened, records, metadata)
        except FileNotFoundError:  # the folder of the zone is gone, which the next file says
            self._files.pop(place, None)  # so that the file is written as a whole once the folder is back
        except OSError as error:
            if error.errno in NO_SPACE:
                raise DiskFull(path.parent, error.strerror or "no space left") from error
            raise

    def _path(self, place: Place) -> Path:
        return self.writer.zone.folder / OPEN / f"{place.topic}.{place.partition}"


def _content(path: Path) -> tuple[dict[str, str], list[Record], int]:
    try:
        with path.open("rb") as opened:
            return formats.read_appended(opened)
    except FileNotFoundError:
        return {}, [], 0
