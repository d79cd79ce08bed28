"""Task time is told from an event log by when its job was submitted."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from benchmarks.event_log import task_seconds

if TYPE_CHECKING:
    from pathlib import Path


def job(at: float, *stages: int) -> dict[str, object]:
    return {"Event": "SparkListenerJobStart", "Submission Time": int(at * 1000), "Stage IDs": list(stages)}


def task(stage: int, milliseconds: int) -> dict[str, object]:
    return {"Event": "SparkListenerTaskEnd", "Stage ID": stage, "Task Metrics": {"Executor Run Time": milliseconds}}


def test_a_task_counts_for_whoever_ran_when_its_job_was_submitted(tmp_path: Path) -> None:
    events = [
        {"Event": "SparkListenerApplicationStart"},
        job(9.5, 0),
        job(10.0, 1, 2),
        task(0, 700),
        task(1, 250),
        task(2, 500),
        {"Event": "SparkListenerTaskEnd", "Stage ID": 2},
        job(31.0, 3),
        task(3, 1000),
    ]
    (tmp_path / "app").write_text("\n".join(map(json.dumps, events)))
    spans = {"ours": [(10.0, 12.0), (30.0, 32.0)], "theirs": [(20.0, 25.0)]}
    assert task_seconds(tmp_path, spans) == {"ours": 1.75}
