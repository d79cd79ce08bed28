"""Collects the state of all stages for `lake report`."""

from __future__ import annotations

from lake_assets.incremental.execution.engine import Engine
from lake_assets.incremental.monitoring.overview import Overview
from lake_assets.pages.data_path.engagement import EngagementState
from lake_assets.pages.data_path.kafka import KafkaState
from lake_assets.pages.data_path.landing import LandingState
from lake_assets.pages.data_path.serving import serving_stages
from lake_assets.pages.data_path.stages import DataPath, read_stage
from lake_assets.pages.data_path.targets import target_facts
from lake_assets.settings import Settings

NO_FEED = "No raw table is landed from Kafka: none declares a `feed`."
NOTHING_LANDED = "Nothing has landed: `lake landing run`."
NONE_DECLARED = "None is declared."


def data_path(settings: Settings, engine: Engine, overview: Overview) -> DataPath:
    """Return the state of all stages.

    Args:
        settings: The settings of the data directory.
        engine: The engine of its pipelines.
        overview: Of the same engine's tables, read just before.
    """
    kafka = KafkaState(settings, engine)
    landing = LandingState(settings, engine, kafka)
    lakes = EngagementState(settings, kafka)
    served, pushes = serving_stages(settings, engine)
    return DataPath(
        stages=(
            read_stage("Kafka", kafka.facts, kafka.no_facts),
            read_stage("Landing zones", landing.facts, NOTHING_LANDED if kafka.feeds else NO_FEED),
            read_stage("Raw tables", lambda: landing.raw_facts(overview), NONE_DECLARED),
            read_stage("Facts and dimensions", lambda: target_facts(engine, overview), NONE_DECLARED),
            # The engagement lakes read Kafka directly.
            read_stage("Engagement lakes", lakes.facts, lakes.no_facts, beside=True),
            served,
        ),
        pushes=pushes,
        quarantine=read_stage("Landed files", landing.quarantine_facts, "Empty."),
    )
