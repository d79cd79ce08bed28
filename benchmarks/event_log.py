"""Task time of Spark from its event log. A job belongs to the period in which it was submitted."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lake_assets.services.service import Service
from lake_assets.services.spark import conf_options

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
