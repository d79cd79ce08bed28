"""How far a topic is loaded: properties of its raw table, which are committed together with the rows.

Names of files change under compaction, and summaries of snapshots expire; offsets and table properties stay.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError

from lake_assets.base.hours import hour_of
from lake_assets.landing.files.offset_ranges import with_number_keys, with_text_keys

OFFSETS = "lake.landing.offsets"
"""Table property: JSON, topic → partition → the next offset to load."""

HEARTBEATS = "lake.landing.heartbeats"
"""Table property: JSON, topic → partition → the latest heartbeat that was loaded, in ISO 8601."""

BATCH = "lake.landing.batch"
"""Table property: the number of the last batch that was loaded."""

MAX_AHEAD = timedelta(minutes=10)
"""A heartbeat that is later than the clock by more than this does not count: a clock is wrong."""

BATCH_PREFIX = "landing-"
"""Begins the `batch_id` of landed rows. Rows with another one were written to the raw table without landing."""


@dataclass(frozen=True)
class Progress:
    """The part of a topic that is in its raw table.

    Attributes:
        topic: The topic.
        offsets: Partition → the next offset to load.
        heartbeats: Partition → the latest heartbeat.
        batch: The number of the last batch; 0 if there is none.
    """

    topic: str
    offsets: Mapping[int, int] = field(default_factory=dict)
    heartbeats: Mapping[int, datetime] = field(default_factory=dict)
    batch: int = 0

    @property
    def batch_id(self) -> str:
        """The `batch_id` of the rows of the last batch."""
        return f"{BATCH_PREFIX}{self.batch:09}"

    def after(self, offsets: Mapping[int, int], heartbeats: Mapping[int, datetime]) -> Progress:
        """Return the progress after one more batch. A heartbeat never goes back.

        Args:
            offsets: Partition → the offset after the last one of the batch.
            heartbeats: Partition → the latest heartbeat in the batch.
        """
        latest = dict(self.heartbeats)
        for partition, at in heartbeats.items():
            latest[partition] = max(at, latest.get(partition, at))
        return replace(
            self,
            offsets={**self.offsets, **offsets},
            heartbeats=latest,
            batch=self.batch + 1,
        )

    def without_future(self, now: datetime) -> Progress:
        """Return the progress without heartbeats of the future, which a version before may have stored."""
        counted = {partition: at for partition, at in self.heartbeats.items() if is_credible(at, now)}
        return replace(self, heartbeats=counted)

    def complete_through(self, partitions: Iterable[int]) -> int | None:
        """Return the hour before the earliest of the partitions' latest heartbeats.

        The time of other messages does not count: a message dated 2099 completes nothing.

        Args:
            partitions: All partitions of the topic.

        Returns:
            Hours since 1970-01-01 UTC; None as long as a partition has no heartbeat, or there is no partition.
        """
        times = []
        for partition in partitions:
            at = self.heartbeats.get(partition)
            if at is None:
                return None
            times.append(at)
        return hour_of(min(times)) - 1 if times else None


def is_credible(heartbeat: datetime, now: datetime) -> bool:
    """Return whether a heartbeat is not of the future, with regard to clocks that differ by `MAX_AHEAD`."""
    return heartbeat <= now + MAX_AHEAD


def read_progress(properties: Mapping[str, str], topic: str) -> Progress:
    """Return the progress of a topic according to the properties of its raw table."""
    offsets: dict[int, int] = _of_topic(properties.get(OFFSETS), topic)
    heartbeats: dict[int, str] = _of_topic(properties.get(HEARTBEATS), topic)
    return Progress(
        topic,
        offsets=offsets,
        heartbeats={partition: datetime.fromisoformat(at) for partition, at in heartbeats.items()},
        batch=int(properties.get(BATCH, "0")),
    )


def progress_of(catalog: Catalog, table: str, topic: str) -> Progress:
    """Return the progress of a topic according to a table of the catalog, which may be missing."""
    try:
        properties = catalog.load_table(table).metadata.properties
    except NoSuchTableError:
        return Progress(topic)
    return read_progress(properties, topic)


def progress_properties(progress: Progress, properties: Mapping[str, str]) -> dict[str, str]:
    """Return the table properties of a progress.

    Args:
        progress: Of one topic.
        properties: The present properties of the table; their values of other topics are kept.
    """
    heartbeats = {partition: at.isoformat() for partition, at in progress.heartbeats.items()}
    return {
        OFFSETS: _with_topic(properties.get(OFFSETS), progress.topic, progress.offsets),
        HEARTBEATS: _with_topic(properties.get(HEARTBEATS), progress.topic, heartbeats),
        BATCH: str(progress.batch),
    }


def _of_topic(text: str | None, topic: str) -> dict[int, Any]:
    by_topic = json.loads(text or "{}")
    return with_number_keys(by_topic.get(topic, {}))


def _with_topic(text: str | None, topic: str, values: Mapping[int, object]) -> str:
    by_topic = json.loads(text or "{}")
    by_topic[topic] = with_text_keys(values)
    return json.dumps(by_topic, sort_keys=True, separators=(",", ":"))
