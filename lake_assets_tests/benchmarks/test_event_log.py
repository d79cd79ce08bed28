"""Task time is told from an event log by when its job was submitted."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from benchmarks.event_log import Work, scan_metric, task_seconds, work

if TYPE_CHECKING:
    from pathlib import Path


def job(at: float, *stages: int) -> dict[str, object]:
    return {"Event": "SparkListenerJobStart", "Submission Time": int(at * 1000), "Stage IDs": list(stages)}


def task(stage: int, milliseconds: int) -> dict[str, object]:
    metrics = {
        "Executor Run Time": milliseconds,
        "Executor CPU Time": 500_000 * milliseconds,
        "Result Size": 10 * milliseconds,
        "Input Metrics": {"Records Read": milliseconds},
        "Shuffle Read Metrics": {"Total Records Read": 1},
        "Disk Bytes Spilled": 7,
    }
    return {"Event": "SparkListenerTaskEnd", "Stage ID": stage, "Task Metrics": metrics}


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
    ours = Work(
        jobs=2,
        tasks=3,
        seconds=1.75,
        longest=1.0,
        largest_result=10_000,
        cpu=0.875,
        longest_cpu=0.5,
        most_rows=1001,
        spilled=21,
    )
    assert work(tmp_path, spans) == {"ours": ours, "theirs": Work()}


def scan(accumulator: int) -> dict[str, object]:
    metrics = [{"name": "number of result data files", "accumulatorId": accumulator}]
    return {"metrics": [], "children": [{"metrics": metrics, "children": []}]}


def test_files_of_a_scan_count_for_whoever_ran_when_its_query_was_started(tmp_path: Path) -> None:
    sql = "org.apache.spark.sql.execution.ui.SparkListener"
    events = [
        {"Event": f"{sql}SQLExecutionStart", "executionId": 1, "time": 10_500, "sparkPlanInfo": scan(7)},
        {"Event": f"{sql}DriverAccumUpdates", "executionId": 1, "accumUpdates": [[7, 40], [8, 1]]},
        {"Event": f"{sql}SQLAdaptiveExecutionUpdate", "executionId": 1, "sparkPlanInfo": scan(9)},
        {"Event": f"{sql}DriverAccumUpdates", "executionId": 1, "accumUpdates": [[9, 2]]},
        {"Event": f"{sql}SQLExecutionStart", "executionId": 2, "time": 20_000, "sparkPlanInfo": scan(11)},
        {"Event": f"{sql}DriverAccumUpdates", "executionId": 2, "accumUpdates": [[11, 500]]},
    ]
    (tmp_path / "app").write_text("\n".join(map(json.dumps, events)))
    assert scan_metric(tmp_path, {"ours": [(10.0, 12.0)]}) == {"ours": 42}
