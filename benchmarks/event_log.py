"""Task time of Spark, from its event log: what a job cost, told by when it was submitted."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lake_assets.services.service import Service

Span = tuple[float, float]
"""From and to, both inclusive, in seconds since 1970."""


def logged(service: Service, folder: Path) -> Service:
    """The Spark service, writing its event log into a folder, which must be there."""
    conf = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file://{folder}",
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
    }
    words = [word for key, value in conf.items() for word in ("--conf", f"{key}={value}")]
    at = service.command.index("--class")
    return replace(service, command=(*service.command[:at], *words, *service.command[at:]))


RUN, CPU = "Executor Run Time", "Executor CPU Time"
SECONDS = {RUN: 1e-3, CPU: 1e-9}
"""Metrics of a task: the time it took, and what it had of a processor. Other programs slow the first; its unit in s."""


def task_seconds(folder: Path, spans: Mapping[str, Sequence[Span]], metric: str = RUN) -> dict[str, float]:
    """Executor time, seconds, of the jobs submitted within the spans of each name. Spans must not overlap.

    The log is whole only when its Spark has ended.
    """
    name_of_stage: dict[int, str] = {}
    found: dict[str, float] = defaultdict(float)
    for event in _events(folder):
        if event["Event"] == "SparkListenerJobStart":
            name = _name_at(spans, event["Submission Time"] / 1000)
            if name is not None:
                name_of_stage.update(dict.fromkeys(event["Stage IDs"], name))
        elif event["Event"] == "SparkListenerTaskEnd" and event.get("Task Metrics"):
            name = name_of_stage.get(event["Stage ID"])
            if name is not None:
                found[name] += event["Task Metrics"][metric] * SECONDS[metric]
    return found


def _events(folder: Path) -> Iterator[Any]:
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        with file.open() as lines:
            yield from map(json.loads, lines)


def _name_at(spans: Mapping[str, Sequence[Span]], moment: float) -> str | None:
    names = (name for name, known in spans.items() if any(begin <= moment <= end for begin, end in known))
    return next(names, None)
