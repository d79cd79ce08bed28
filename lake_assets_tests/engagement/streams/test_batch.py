"""The micro-batch on real Delta tables without Spark: what it asks its guard, what it writes, and how it goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from shutil import rmtree

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from lake_assets.engagement.batch import BatchReport, Stream, run_batch
from lake_assets.engagement.checkpoint import Batch, TopicState
from lake_assets.engagement.delta_log import commit_properties
from lake_assets.engagement.lake import EngagementLake
from lake_assets.engagement.tables import LakeTables
from lake_assets.errors import LakeError, LockLost

LAKE = EngagementLake("mail", {"subject": "string"}, max_records=5)
COMMITS = ("data", "notification")
DEAD_LETTER = pa.schema([("batch_id", pa.int64()), ("topic", pa.string()), ("reason", pa.string())])
TURN = ["claim", "confirm", "confirm", "write data", "confirm", "write notification"]


class Died(BaseException):
    """Instead of the death of a process."""


@dataclass
class Play:
    """A stream of two commits and its guard. lost_at: the confirmation at which the lock is lost, counted from 1."""

    root: str
    end: int = 0
    has_work: bool = False
    lost_at: int = 0
    dies_in: str = ""
    events: list[str] = field(default_factory=list)
    since: list[Mapping[str, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tables = LakeTables(LAKE, self.root)
        self.tables.checkpoints.create()
        for name in (*COMMITS, "read"):
            write_deltalake(self.tables.location(name), pa.table({"batch": pa.array([], pa.int64())}))
        DeltaTable.create(self.tables.location("dead_letter"), DEAD_LETTER)
        commits = tuple(Written(name, self) for name in COMMITS)
        topic = "mail.ingestion"
        self.stream = Stream(
            "ingestion",
            self.tables,
            lambda: TopicState(topic, "t1", {0: 0}, {0: self.end}),
            commits,
            ("read",),
            self.works,
        )

    def works(self, since: Mapping[str, int]) -> bool:
        self.since.append(since)
        return self.has_work

    def claim(self) -> int:
        self.events.append("claim")
        return 0

    def confirm(self) -> None:
        self.events.append("confirm")
        if self.events.count("confirm") == self.lost_at:
            raise LockLost("mail.ingestion", "the test says so")

    def turn(self) -> BatchReport | None:
        self.events.clear()
        return run_batch(self.stream, self)

    def done(self) -> BatchReport:
        report = self.turn()
        assert report is not None
        return report

    def rows(self) -> list[list[int]]:
        """The batches whose rows are in the table of each commit."""
        found = []
        for name in COMMITS:
            rows = DeltaTable(self.tables.location(name)).to_pyarrow_table()
            found.append(sorted(rows["batch"].to_pylist()))
        return found


@dataclass
class Written:
    """A commit that appends a row with the number of its batch."""

    name: str
    play: Play

    @property
    def table(self) -> str:
        return self.name

    def write(self, batch: Batch, done: Mapping[str, int | None], app_id: str) -> None:
        self.play.events.append(f"write {self.name}")
        number = batch.batch_id
        properties = commit_properties(app_id, number)
        rows = pa.table({"batch": pa.array([number], pa.int64())})
        write_deltalake(self.play.tables.location(self.table), rows, mode="append", commit_properties=properties)
        if self.play.dies_in == self.name:
            raise Died


@pytest.fixture
def play(tmp_path: Path) -> Play:
    return Play(f"file://{tmp_path}")


def test_a_batch_is_claimed_before_it_is_chosen_and_confirmed_before_each_write(play: Play) -> None:
    assert (play.turn(), play.events, play.since) == (None, [], [{}])  # nobody is disturbed if no batch is due
    play.end = 7
    first = play.done()
    assert play.events == TURN
    assert (first.batch.batch_id, first.batch.messages.end, first.resumed) == (1, {0: 5}, False)
    assert first.batch.reads == {"data": 0, "notification": 0, "read": 0}
    assert {name: made and made.version for name, made in first.commits.items()} == {"data": 1, "notification": 1}
    second = play.done()
    assert (second.batch.batch_id, second.batch.messages.start, second.batch.messages.end) == (2, {0: 5}, {0: 7})
    assert play.rows() == [[1, 2], [1, 2]]


def test_work_without_messages_is_a_batch_of_its_own(play: Play) -> None:
    play.end = 1
    play.done()
    assert play.turn() is None
    play.has_work = True
    report = play.done()
    assert (report.batch.batch_id, report.batch.messages.count) == (2, 0)
    left = {"data": 1, "notification": 1, "read": 0}
    assert (play.since[-1], report.batch.since) == (left, left)


@pytest.mark.parametrize("lost_at", [1, 2, 3])
def test_who_loses_the_lock_writes_nothing_more_and_the_next_turn_goes_on(play: Play, lost_at: int) -> None:
    play.end = 1
    play.lost_at = lost_at
    with pytest.raises(LockLost):
        play.turn()
    assert [len(batches) for batches in play.rows()] == [int(lost_at > 2), 0]
    play.lost_at, play.end = 0, 3
    report = play.done()
    has_intent = lost_at > 1
    assert (report.resumed, report.batch.messages.end) == (has_intent, {0: 1 if has_intent else 3})
    assert play.events[0] == "claim"
    assert play.rows() == [[1], [1]]


def test_a_commit_that_was_written_and_not_recorded_is_not_written_again(play: Play) -> None:
    play.end = 1
    for name in COMMITS:
        play.dies_in = name
        with pytest.raises(Died):
            play.turn()
    play.dies_in = ""
    assert play.done().resumed
    assert play.events == ["claim", "confirm"]
    assert play.rows() == [[1], [1]]
    assert play.turn() is None


def test_a_checkpoint_that_is_older_than_the_data_is_refused(play: Play, tmp_path: Path) -> None:
    play.end = 1
    play.done()
    rmtree(tmp_path / "mail" / "checkpoint")
    play.tables.checkpoints.create()
    with pytest.raises(LakeError, match="the checkpoint is older than the data"):
        play.turn()
    assert play.rows() == [[1], [1]]
