"""Collects the state of all stages for `lake report`."""

from __future__ import annotations

from lake_assets.incremental.engine.engine import Engine
from lake_assets.incremental.operations.overview import Overview
from lake_assets.pages.data_path.engagement import EngagementState
from lake_assets.pages.data_path.kafka import KafkaState
from lake_assets.pages.data_path.landing import LandingState
from lake_assets.pages.data_path.serving import serving_stages
from lake_assets.pages.data_path.stages import DataPath, Stage, read_stage
from lake_assets.pages.data_path.targets import target_facts
from lake_assets.serving.sources import pipeline_sources
from lake_assets.settings import Settings

NOTHING_LANDED = "Nothing has landed: `lake landing run`."
NONE_DECLARED = "None is declared."


def data_path(settings: Settings, engine: Engine, overview: Overview) -> DataPath:
    """Return the state of the stages that the pipelines declare or that are in use.

    Args:
        settings: The settings of the data directory.
        engine: The engine of its pipelines.
        overview: Of the same engine's tables, read just before.
    """
    kafka = KafkaState(settings, engine)
    landing = LandingState(settings, engine, kafka)
    lakes = EngagementState(settings, kafka)
    served, pushes = serving_stages(settings, engine)
    lands = bool(kafka.feeds)
    serves = bool(pipeline_sources(engine.pipeline))
    lake_stage = read_stage("Engagement lakes", lakes.facts, "", beside=True)  # they read Kafka directly
    landed = read_stage("Landing zones", landing.facts, NOTHING_LANDED)
    candidates = (
        (read_stage("Kafka", kafka.facts, kafka.no_facts), lands or bool(lake_stage.facts)),
        (landed, lands),
        (read_stage("Raw tables", lambda: landing.raw_facts(overview), NONE_DECLARED), True),
        (read_stage("Facts and dimensions", lambda: target_facts(engine, overview), NONE_DECLARED), True),
        (lake_stage, False),
        (served, serves),
    )
    return DataPath(
        stages=tuple(stage for stage, is_declared in candidates if is_shown(stage, is_declared)),
        pushes=pushes if is_shown(pushes, serves) else None,
        quarantine=(
            read_stage("Landed files", landing.quarantine_facts, "Empty.") if is_shown(landed, lands) else None
        ),
    )


def is_shown(stage: Stage, is_declared: bool) -> bool:
    """Return whether a stage belongs to the report: it is declared, or in use, or nobody can tell."""
    return is_declared or bool(stage.facts) or stage.broken
