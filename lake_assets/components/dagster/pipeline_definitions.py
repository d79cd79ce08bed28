"""The definitions that a pipeline needs beside its tables: maintenance, freshness, alerts and comparisons."""

from __future__ import annotations

from functools import partial

import dagster as dg

from lake_assets.connections.addresses import dagster_folder, kafka_address
from lake_assets.connections.catalog import open_catalog
from lake_assets.incremental.dagster.sensors import SensorTiming
from lake_assets.incremental.dagster.watch.maintenance_job import maintenance_definitions
from lake_assets.incremental.dagster.watch.verification_checks import verification_definitions
from lake_assets.incremental.dagster.watch.watch_sensors import watch_definitions
from lake_assets.incremental.declaration import Pipeline
from lake_assets.incremental.engine.engine import utc_now
from lake_assets.incremental.from_settings import maintenance_policy
from lake_assets.incremental.operations.alerts import Webhook
from lake_assets.incremental.operations.health import OF_LANDING, OF_SERVING, Problem
from lake_assets.landing.erasure import erases_landed
from lake_assets.landing.messages import feeds
from lake_assets.settings import Settings


def watching_definitions(pipeline: Pipeline, settings: Settings) -> dg.Definitions:
    """Return the maintenance of all tables of a pipeline, their checks, their alerts, and the comparisons.

    Args:
        pipeline: Declares raw tables and targets.
        settings: Schedules, limits and the address of alerts.
    """
    webhook = Webhook(settings.alert_webhook) if settings.alert_webhook else None
    return dg.Definitions.merge(
        maintenance_definitions(
            pipeline,
            clock=utc_now,
            policy=maintenance_policy(settings),
            cron=settings.maintenance_cron,
            folder=dagster_folder(settings.home),
            days=settings.run_days,
            elsewhere=erases_landed(settings, pipeline, utc_now),
        ),
        watch_definitions(
            pipeline,
            clock=utc_now,
            webhook=webhook,
            elsewhere={
                OF_LANDING: partial(_landing_problems, pipeline, settings),
                OF_SERVING: partial(_push_problems, pipeline, settings),
            },
        ),
        verification_definitions(
            pipeline,
            clock=utc_now,
            hours=settings.verify_hours,
            cron=settings.verify_cron,
        ),
    )


def _landing_problems(pipeline: Pipeline, settings: Settings) -> list[Problem]:
    """Return what is wrong with landing now."""
    declared = feeds(pipeline, prefix=settings.landing_prefix, max_bytes=settings.landing_message_bytes)
    if not declared:
        return []
    from lake_assets.landing.problems import problems  # needs Kafka's client, which only landing installs

    return problems(settings, declared, now=utc_now(), catalog=open_catalog(settings), servers=kafka_address(settings))


def _push_problems(pipeline: Pipeline, settings: Settings) -> list[Problem]:
    """Return the served tables whose last push failed."""
    if not settings.has_segments and not any(target.served for target in pipeline.targets):
        return []
    from lake_assets.serving.served_tables import push_problems

    return push_problems(settings)


def timing_of(settings: Settings) -> SensorTiming:
    """Return how often sensors are evaluated, and how long targets wait for each other."""
    return SensorTiming(tick_seconds=settings.tick_seconds, settle_seconds=settings.settle_seconds)
