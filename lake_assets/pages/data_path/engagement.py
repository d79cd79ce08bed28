"""The engagement lakes: their streams and their metrics."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lake_assets.engagement.metrics.refresh import metrics_cursor
from lake_assets.engagement.model.lake import STREAMS, EngagementLake, StreamName
from lake_assets.engagement.model.lakes import configured_lakes
from lake_assets.engagement.model.table_schemas import ENGAGEMENT
from lake_assets.engagement.model.tables import LakeTables, open_tables
from lake_assets.engagement.monitoring.status import stream_status
from lake_assets.pages.data_path.kafka import KafkaState
from lake_assets.pages.data_path.stages import Fact
from lake_assets.settings import Settings

NO_LAKE = "No lake was created yet: `lake engagement init LAKE --org ORG`."
NO_LAKE_CONFIGURED = "No lake is configured: LAKE_LAKES names none."


@dataclass(frozen=True)
class EngagementState:
    """The streams of the engagement lakes."""

    settings: Settings
    kafka: KafkaState

    @property
    def no_facts(self) -> str:
        """Why there are no facts, if nothing is wrong."""
        return NO_LAKE if configured_lakes(self.settings) else NO_LAKE_CONFIGURED

    def facts(self) -> Iterator[Fact]:
        """Yield the state of each stream and of the metrics, of the lakes that exist."""
        for lake in configured_lakes(self.settings):
            tables = open_tables(self.settings, lake)
            if tables.exist():
                for name in STREAMS:
                    yield self._stream(lake, tables, name)
                yield _metrics(tables)

    def _stream(self, lake: EngagementLake, tables: LakeTables, name: StreamName) -> Fact:
        app_name = lake.app_name(name)
        if self.kafka.servers and lake.topic(name) in self.kafka.ends:
            status = stream_status(tables, name, self.kafka.servers)
            return _stream_fact(app_name, status.batch_id, status.unfinished, status.lag)
        checkpoint = tables.checkpoints.read(app_name)
        if checkpoint is None:
            return _stream_fact(app_name, None, (), 0)
        return _stream_fact(app_name, checkpoint.batch.batch_id, checkpoint.unfinished, 0)


def _stream_fact(app_name: str, batch_id: int | None, unfinished: tuple[str, ...], offsets_behind: int) -> Fact:
    pending = []
    if unfinished:
        pending.append(f"unfinished: {', '.join(unfinished)}")
    if offsets_behind:
        pending.append(f"{offsets_behind:,} offsets behind")
    batch = "no batch yet" if batch_id is None else f"batch {batch_id}"
    return Fact(app_name, batch, ", ".join(pending))


def _metrics(tables: LakeTables) -> Fact:
    shown = metrics_cursor(tables)
    newest = tables.version(ENGAGEMENT)
    pending = f"{ENGAGEMENT} is at version {newest}" if shown < newest else ""
    return Fact(f"{tables.lake.name}: metrics", f"show version {shown}", pending)
