"""How far a topic is loaded, as the properties of its raw table tell it: they are committed with the rows.

Files change their names when they are compacted, and summaries of snapshots expire; offsets and properties stay.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError

from lake_assets.base.hours import hour_of

OFFSETS = "lake.landing.offsets"
"""Table property: JSON, topic → partition → the next offset to load."""

HEARTBEATS = "lake.landing.heartbeats"
"""Table property: JSON, topic → partition → the latest heartbeat that was loaded, in ISO 8601."""

BATCH = "lake.landing.batch"
"""Table property: the number of the last batch that was loaded."""


BATCH_PREFIX = "landing-"
"""Of the `batch_id` of rows that were landed: others were written to the raw table past the zones."""


@dataclass(frozen=True)
class Progress:
    """What of a topic is in its raw table.

    offsets: partition → next offset. heartbeats: partition → the latest time. batch: the number of the last batch.
    """

    topic: str
    offsets: Mapping[int, int] = field(default_factory=dict)
    heartbeats: Mapping[int, datetime] = field(default_factory=dict)
    batch: int = 0

    @property
    def batch_id(self) -> str:
        """What the rows of the last batch carry."""
        return f"{BATCH_PREFIX}{self.batch:09}"

    def after(self, offsets: Mapping[int, int], heartbeats: Mapping[int, datetime]) -> Progress:
        """After one more batch, which ends before these offsets and brought these heartbeats. None goes back."""
        latest = {p: max(at, self.heartbeats.get(p, at)) for p, at in heartbeats.items()}
        return replace(
            self,
            offsets={**self.offsets, **offsets},
            heartbeats={**self.heartbeats, **latest},
            batch=self.batch + 1,
        )

    def complete_through(self, partitions: Iterable[int]) -> int | None:
        """The hour before the least heartbeat; None as long as a partition has none.

        partitions: all of the topic. A message's own time does not count: one dated 2099 completes nothing.
        """
        times = [self.heartbeats.get(partition) for partition in partitions]
        known = [at for at in times if at is not None]
        return hour_of(min(known)) - 1 if known and len(known) == len(times) else None


def read_progress(properties: Mapping[str, str], topic: str) -> Progress:
    """What a table's properties say of a topic; of one that was never loaded, nothing."""
    offsets = _of_topic(properties.get(OFFSETS), topic)
    heartbeats = _of_topic(properties.get(HEARTBEATS), topic)
    return Progress(
        topic,
        {int(partition): int(offset) for partition, offset in offsets.items()},
        {int(partition): datetime.fromisoformat(str(at)) for partition, at in heartbeats.items()},
        int(properties.get(BATCH, "0")),
    )


def progress_of(catalog: Catalog, table: str, topic: str) -> Progress:
    """The same of a table as it stands; nothing, too, of a table that is not there."""
    try:
        return read_progress(catalog.load_table(table).metadata.properties, topic)
    except NoSuchTableError:
        return Progress(topic)


def written(progress: Progress, properties: Mapping[str, str]) -> dict[str, str]:
    """The properties that tell of a progress; what `properties`, those of now, tell of other topics stays."""
    heartbeats = {partition: at.isoformat() for partition, at in progress.heartbeats.items()}
    return {
        OFFSETS: _with_topic(properties.get(OFFSETS), progress.topic, progress.offsets),
        HEARTBEATS: _with_topic(properties.get(HEARTBEATS), progress.topic, heartbeats),
        BATCH: str(progress.batch),
    }


def _of_topic(text: str | None, topic: str) -> dict[str, int | str]:
    found: dict[str, dict[str, int | str]] = json.loads(text or "{}")
    return found.get(topic, {})


def _with_topic(text: str | None, topic: str, values: Mapping[int, int] | Mapping[int, str]) -> str:
    ordered = {str(partition): value for partition, value in sorted(values.items())}
    return json.dumps({**json.loads(text or "{}"), topic: ordered}, sort_keys=True, separators=(",", ":"))
