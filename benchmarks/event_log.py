"""Task time of Spark from its event log. A job belongs to the period in which it was submitted."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lake_assets.services.servers import conf_options
from lake_assets.services.service import Service

Span = tuple[float, float]
"""Start and end, both inclusive, in seconds since 1970-01-01 UTC."""


def logged(service: Service, folder: Path) -> Service:
    """Return a Spark service that writes its event log into a folder, which must exist."""
    conf = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file://{folder}",
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
    }
    place = service.command.index("--class")
    submit = service.command[:place]
    program = service.command[place:]
    return replace(service, command=(*submit, *conf_options(conf), *program))


RUN, CPU = "Executor Run Time", "Executor CPU Time"
SECONDS = {RUN: 1e-3, CPU: 1e-9}
"""Metrics of a task with their unit in seconds: wall time, which other programs prolong, and processor time."""


def task_seconds(folder: Path, spans: Mapping[str, Sequence[Span]], metric: str = RUN) -> dict[str, float]:
    """Return the executor time of the jobs that were submitted in the spans of each name.

    Args:
        folder: The event log of a Spark that has ended.
        spans: Name → spans. They must not overlap.
        metric: A metric of `SECONDS`.

    Returns:
        Name → seconds. A name without tasks has 0.
    """
    name_of_stage: dict[int, str] = {}
    found: dict[str, float] = defaultdict(float)
    for event in _events(folder):
        if event["Event"] == "SparkListenerJobStart":
            name = _name_at(spans, event["Submission Time"] / 1000)
            if name is not None:
                name_of_stage.update(dict.fromkeys(event["Stage IDs"], name))
        elif event["Event"] == "SparkListenerTaskEnd":
            name = name_of_stage.get(event["Stage ID"])
            metrics = event.get("Task Metrics")
            if name is not None and metrics:
                found[name] += metrics[metric] * SECONDS[metric]
    return found


@dataclass
class Work:
    """The work of Spark in some spans.

    Attributes:
        seconds: Wall time of the tasks.
        longest: That of the longest one, in seconds.
        largest_result: Bytes that a task sent to the driver, at most.
        cpu: Processor time of the tasks, in seconds.
        longest_cpu: That of the task that used most.
        most_rows: Rows that a task read from files, from a shuffle or from what is kept, at most.
        spilled: Bytes that tasks wrote to disk because they had no memory for them.
    """

    jobs: int = 0
    tasks: int = 0
    seconds: float = 0.0
    longest: float = 0.0
    largest_result: int = 0
    cpu: float = 0.0
    longest_cpu: float = 0.0
    most_rows: int = 0
    spilled: int = 0

    def add(self, metrics: Mapping[str, Any]) -> None:
        """Count a task that has ended, with its metrics."""
        seconds = metrics[RUN] * SECONDS[RUN]
        cpu = metrics[CPU] * SECONDS[CPU]
        self.tasks += 1
        self.seconds += seconds
        self.longest = max(self.longest, seconds)
        self.largest_result = max(self.largest_result, metrics["Result Size"])
        self.cpu += cpu
        self.longest_cpu = max(self.longest_cpu, cpu)
        rows = metrics["Input Metrics"]["Records Read"] + metrics["Shuffle Read Metrics"]["Total Records Read"]
        self.most_rows = max(self.most_rows, rows)
        self.spilled += metrics["Disk Bytes Spilled"]


def work(folder: Path, spans: Mapping[str, Sequence[Span]]) -> dict[str, Work]:
    """Return the jobs that were submitted in the spans of each name, and their tasks.

    Args:
        folder: The event log of a Spark that has ended, or whose jobs have.
        spans: Name → spans. They must not overlap.
    """
    of_stage: dict[int, Work] = {}
    found = {name: Work() for name in spans}
    for event in _events(folder):
        if event["Event"] == "SparkListenerJobStart":
            name = _name_at(spans, event["Submission Time"] / 1000)
            if name is not None:
                found[name].jobs += 1
                of_stage.update(dict.fromkeys(event["Stage IDs"], found[name]))
        elif event["Event"] == "SparkListenerTaskEnd":
            own = of_stage.get(event["Stage ID"])
            metrics = event.get("Task Metrics")
            if own is not None and metrics:
                own.add(metrics)
    return found


def _events(folder: Path) -> Iterator[Any]:
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        with file.open() as lines:
            yield from map(json.loads, lines)


def _name_at(spans: Mapping[str, Sequence[Span]], moment: float) -> str | None:
    for name, own in spans.items():
        for begin, end in own:
            if begin <= moment <= end:
                return name
    return None


SCANNED_FILES = "number of result data files"
SCANNED_MANIFESTS = "number of scanned data manifests"
"""Metrics of Iceberg's scans."""


def scan_metric(folder: Path, spans: Mapping[str, Sequence[Span]], metric: str = SCANNED_FILES) -> dict[str, int]:
    """Return the sum of a metric of Iceberg's scans in the queries that were started in the spans of each name.

    Args:
        folder: The event log of a Spark that has ended.
        spans: Name → spans. They must not overlap.
        metric: Its name in the plans.

    Returns:
        Name → sum. A name without scans has 0.
    """
    name_of_query: dict[int, str] = {}
    counted: set[int] = set()
    found: dict[str, int] = defaultdict(int)
    for event in _events(folder):
        kind = event["Event"].rpartition(".")[2]
        if kind == "SparkListenerSQLExecutionStart":
            name = _name_at(spans, event["time"] / 1000)
            if name is not None:
                name_of_query[event["executionId"]] = name
        if "sparkPlanInfo" in event:
            counted.update(_accumulators(event["sparkPlanInfo"], metric))
        elif kind == "SparkListenerDriverAccumUpdates" and event["executionId"] in name_of_query:
            for accumulator, value in event["accumUpdates"]:
                if accumulator in counted:
                    found[name_of_query[event["executionId"]]] += value
    return found


def _accumulators(plan: Mapping[str, Any], metric: str) -> Iterator[int]:
    for each in plan["metrics"]:
        if each["name"] == metric:
            yield each["accumulatorId"]
    for child in plan["children"]:
        yield from _accumulators(child, metric)
