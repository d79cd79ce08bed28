"""A stream on Delta tables without Spark, whose data commit fails while the batch has one of some offsets."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from lake_assets.engagement.batch import BatchReport, Stream, run_batch
from lake_assets.engagement.checkpoint import Batch, TopicState
from lake_assets.engagement.delta_log import commit_properties
from lake_assets.engagement.lake import EngagementLake
from lake_assets.engagement.tables import DEAD_LETTER, ENGAGEMENT, MUTATION_REQUEST, NOTIFICATION, LakeTables
from lake_assets.errors import BatchFailed
from lake_assets_tests.engagement.scenario import Alone

ROWS = pa.schema(
    [("batch_id", pa.int64()), ("offset", pa.int64())]
    + [(name, pa.string()) for name in ("topic", "reason", "org_id", "who_id", "old_id", "status")]
)
COMMITS = {"request": MUTATION_REQUEST, "data": ENGAGEMENT, "dead_letter": DEAD_LETTER, "notification": NOTIFICATION}
"""Commit → the table that it writes. All have the same columns, among them those by which a turn tells its effect."""


@dataclass
class Poisoned:
    """The stream. end: of its topic's one partition. poison: offsets at which the data commit fails."""

    root: str
    end: int
    poison: Collection[int] = ()
    error: type[Exception] = ValueError
    tables: LakeTables = field(init=False)

    def __post_init__(self) -> None:
        self.tables = LakeTables(EngagementLake("mail", {"subject": "string"}, max_records=1_000), self.root)

    def create(self) -> None:
        self.tables.checkpoints.create()
        for table in COMMITS.values():
            partitions = ["org_id"] if table == ENGAGEMENT else None
            DeltaTable.create(self.tables.location(table), ROWS, partition_by=partitions)

    @property
    def stream(self) -> Stream:
        def state() -> TopicState:
            return TopicState("mail.mutation", "t1", {0: 0}, {0: self.end})

        return Stream("mutation", self.tables, state, tuple(Write(name, self) for name in COMMITS), ())

    def turn(self) -> BatchReport | None:
        return run_batch(self.stream, Alone())

    def settle(self) -> int:
        """Turns until nothing is left; how many failed."""
        failed = 0
        while True:
            try:
                if self.turn() is None:
                    return failed
            except BatchFailed:
                failed += 1

    def offsets(self, commit: str) -> list[int]:
        return sorted(self._column(commit, "offset"))

    def batches(self, commit: str) -> set[int]:
        return set(self._column(commit, "batch_id"))

    def _column(self, commit: str, name: str) -> list[int]:
        rows = DeltaTable(self.tables.location(COMMITS[commit])).to_pyarrow_table()
        return list(rows[name].to_pylist())


@dataclass
class Write:
    """Appends a row for each offset: requests and rows of valid messages, dead letters of the others."""

    name: str
    of: Poisoned

    @property
    def table(self) -> str:
        return COMMITS[self.name]

    def write(self, batch: Batch, done: Mapping[str, int | None], app_id: str) -> None:
        offsets = range(batch.messages.start[0], batch.messages.end[0])
        found = sorted(set(offsets) & set(self.of.poison))
        if self.name == "data" and found and batch.rejected is None:
            raise self.of.error(f"offset {found[0]} cannot be written")
        is_written = (self.name == "dead_letter") == (batch.rejected is not None)
        common = {"batch_id": batch.batch_id, "topic": batch.messages.topic, "reason": batch.rejected, "org_id": "o1"}
        rows = [{**common, "offset": offset} for offset in offsets if is_written]
        properties = commit_properties(app_id, batch.batch_id)
        place = self.of.tables.location(self.table)
        write_deltalake(place, pa.Table.from_pylist(rows, ROWS), mode="append", commit_properties=properties)


def turn(argument: str) -> str:
    """One turn, in a process of its own. argument: the fields of `Poisoned` as JSON."""
    try:
        Poisoned(**json.loads(argument)).turn()
    except BatchFailed:
        return "failed"
    return "ended"
