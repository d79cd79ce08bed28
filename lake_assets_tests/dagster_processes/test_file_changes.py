"""Loops that go on when a file was written."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lake_assets.dagster_processes.waking_daemons import (
    FileChanges,
    FollowingChanges,
    Pace,
    PolledChanges,
    WakingStop,
)

LONG_SECONDS = 600.0


class Script:
    """Changes at given moments, with the clock that they are seen by. Waiting lets time pass."""

    def __init__(self, moments: list[float]) -> None:
        self.now = 0.0
        self.moments = sorted(moments)

    def clock(self) -> float:
        return self.now

    def seen(self) -> bool:
        past = [moment for moment in self.moments if moment <= self.now]
        self.moments = self.moments[len(past) :]
        return bool(past)

    def is_set(self) -> bool:
        return False

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.now += timeout
        return False


def rounds(moments: list[float], *, until: float, usual: float, pace: Pace) -> list[float]:
    """The moments at which a loop goes on."""
    script = Script(moments)
    stop = WakingStop(script, script, pace, clock=script.clock)
    found = []
    while script.now < until:
        assert not stop.wait(usual)
        found.append(script.now)
    return found


@settings(deadline=None)  # of a busy machine
@given(st.lists(st.floats(0, 60), max_size=8), st.floats(0, 4), st.floats(0.2, 1))
def test_a_loop_goes_on_soon_after_each_change_and_otherwise_at_its_pace(
    moments: list[float], awake: float, least: float
) -> None:
    usual, look = 5.0, 0.1
    found = rounds(moments, until=70, usual=usual, pace=Pace(least_seconds=least, awake_seconds=awake))
    for before, after in pairwise([0.0, *found]):
        assert least - 1e-9 <= after - before <= usual + 2 * look
    for moment in moments:
        later = [each for each in found if each >= moment]
        assert later[0] - moment <= least + 2 * look
    quiet = [each for each in found if not any(0 <= each - moment <= awake + usual for moment in moments)]
    assert len(quiet) <= 70 / usual + 1


def test_the_time_since_a_change_begins_when_it_was_seen() -> None:
    script = Script([3.0])
    stop = WakingStop(script, script, Pace(), clock=script.clock)
    assert not stop.wait(2.0)
    assert stop.since_change() is None
    assert not stop.wait(5.0)
    seen = script.now
    assert 3.0 <= seen < 3.2
    script.now += 7.0
    assert stop.since_change() == pytest.approx(7.0)


def test_an_idle_loop_keeps_its_usual_time() -> None:
    found = rounds([], until=15, usual=5, pace=Pace())
    assert len(found) == 3
    assert all(5 - 1e-9 <= after - before <= 5.2 for before, after in pairwise([0.0, *found]))


def test_a_commit_of_sqlite_is_a_change_and_a_reader_is_none(tmp_path: Path) -> None:
    file = tmp_path / "runs.db"
    changes = FileChanges([file, tmp_path / "runs.db-wal"])
    with closing(sqlite3.connect(file, isolation_level=None)) as writer:
        writer.execute("PRAGMA journal_mode=WAL")
        writer.execute("CREATE TABLE runs (id INT)")
    assert changes.seen()
    assert not changes.seen()
    for _ in range(3):  # the last reader that leaves removes the log, the next one creates it
        with closing(sqlite3.connect(file)) as reader:
            assert reader.execute("SELECT count(*) FROM runs").fetchone() == (0,)
            assert not changes.seen()
        assert not changes.seen()
    with closing(sqlite3.connect(file)) as reader, closing(sqlite3.connect(file, isolation_level=None)) as writer:
        reader.execute("SELECT count(*) FROM runs").fetchone()
        writer.execute("INSERT INTO runs VALUES (1)")
        assert changes.seen()  # in the log: the file itself is written when the last one leaves


def test_an_answer_that_changes_is_a_change_and_no_answer_is_none() -> None:
    answers: list[int | None] = [None, 1, 1, 2, None, 2, 3]
    asked: list[float] = []
    clock = Script([])

    def ask() -> int:
        asked.append(clock.now)
        answer = answers[len(asked) - 1]
        if answer is None:
            raise ConnectionError
        return answer

    changes = PolledChanges(ask, seconds=0.5, clock=clock.clock)
    found = []
    for tenths in range(1, 31):
        clock.now = tenths / 10
        if changes.seen():
            found.append(clock.now)
    assert asked == [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0]
    assert found == [1.5, 3.0]


def test_runs_count_only_after_a_commit() -> None:
    commits, runs = Script([100]), Script([50, 110, 300])
    clock = Script([])
    found = []
    changes = FollowingChanges(commits, runs, seconds=60, clock=clock.clock)
    for now in range(400):
        for each in (commits, runs, clock):
            each.now = float(now)
        if changes.seen():
            found.append(now)
    assert found == [100, 110]


def test_a_written_file_wakes_and_the_end_ends(tmp_path: Path) -> None:
    file = tmp_path / "catalog.db"
    end = threading.Event()
    stop = WakingStop(end, FileChanges([file]), Pace(least_seconds=0))
    file.write_text("a commit")
    assert not stop.wait(LONG_SECONDS)
    assert not stop.is_set()
    end.set()
    assert stop.wait(LONG_SECONDS)
    assert stop.is_set()
