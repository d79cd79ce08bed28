"""Spark task time from Spark's event log, told apart by the tags of jobs."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

from lake_assets.local.service import Service, free_port
from lake_assets.local.stack import spark as spark_service
from lake_assets.settings import Settings


def logged(server: Settings, log: Path) -> Service:
    """The Spark service of a home; its events go into the folder `log`."""
    service = spark_service(server, free_port())
    conf = ["--conf", "spark.eventLog.enabled=true", "--conf", f"spark.eventLog.dir=file://{log}"]
    conf += ["--conf", "spark.eventLog.compress=false", "--conf", "spark.eventLog.rolling.enabled=false"]
    at = service.command.index("--class")
    return replace(service, command=(*service.command[:at], *conf, *service.command[at:]))


RUN, CPU = "Executor Run Time", "Executor CPU Time"
SECONDS = {RUN: 1e-3, CPU: 1e-9}
"""Metrics of a task: the time it took, and what it had of a processor. Other programs slow the first; its unit in s."""


def task_seconds(log: Path, metric: str = RUN) -> dict[str, float]:
    """Time of tasks by the tag that a session's jobs were given, seconds."""
    tags_of_stage: dict[int, list[str]] = {}
    found: dict[str, float] = defaultdict(float)
    for file in sorted(log.rglob("*")):
        for line in file.open() if file.is_file() else ():
            event = json.loads(line)
            if event["Event"] == "SparkListenerJobStart":
                # Connect puts who and which session before a tag: SparkConnect_Execute_User_…_Session_…_Tag_<tag>.
                tags = event.get("Properties", {}).get("spark.job.tags", "").split(",")
                own = [tag.rpartition("_Tag_")[2] for tag in tags if "_Tag_" in tag]
                tags_of_stage.update(dict.fromkeys(event["Stage IDs"], own))
            elif event["Event"] == "SparkListenerTaskEnd" and event.get("Task Metrics"):
                for tag in tags_of_stage.get(event["Stage ID"], ()):
                    found[tag] += event["Task Metrics"][metric] * SECONDS[metric]
    return found
