"""The processes of landing: one for each zone, and one that loads files into raw tables and sends heartbeats."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lake_assets.errors import LakeError
from lake_assets.services.dagster_services import dagster_environment
from lake_assets.services.service import Service, log_says, python_module
from lake_assets.settings import pipeline_names

if TYPE_CHECKING:
    from lake_assets.settings import Settings

ZONES = ("a", "b")

STARTED = "Landing has started"
"""Begins a line that each process prints when it is connected."""

SIMULATED = "lake_assets.membership:"
"""Begins the names of the demo's pipeline. Heartbeats of now would complete its simulated hours too early."""


def landing_processes(settings: Settings, *, kafka_port: int | None) -> list[Service]:
    """Return the processes of landing; none if the pipeline declares no feed, or is the demo's.

    Each of them uses about 175 MB before the first message.

    Args:
        settings: With the address of Kafka.
        kafka_port: The port of the local broker, for which they wait; None if somebody else runs Kafka.
    """
    if not _declares_feeds(settings):
        return []
    services = [_process(settings, f"landing-{zone}", ("tail", zone), kafka_port) for zone in ZONES]
    return [*services, _process(settings, "landing-load", ("load",), kafka_port)]


def _declares_feeds(settings: Settings) -> bool:
    from lake_assets.incremental.declaration import Topic
    from lake_assets.incremental.from_settings import open_pipeline

    if any(name.startswith(SIMULATED) for name in pipeline_names(settings.pipelines)):
        return False
    try:
        pipeline = open_pipeline(settings)
    except LakeError:  # the code server reports it
        return False
    return any(isinstance(raw.feed, Topic) for raw in pipeline.raw)


def _process(settings: Settings, name: str, command: tuple[str, ...], kafka_port: int | None) -> Service:
    log = settings.home / "logs" / f"{name}.log"
    return Service(
        name=name,
        command=python_module("lake_assets.cli.main", "landing", *command),
        home=settings.home,
        after=kafka_port,
        environment=dagster_environment(settings),
        ready=log_says(log, STARTED),
        remedy="Correct what the log names, such as LAKE_KAFKA, or the feeds of the pipeline.",
    )
