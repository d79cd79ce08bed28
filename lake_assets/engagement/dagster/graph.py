"""Keys, groups, and the parts of a lake that no run of Dagster materializes: its Kafka topics and its tables.

    kafka/<stream> → <stream> → engagement → notification → engagement_metrics → serving

Each lake is a group of its own, to which its maintenance belongs.
"""

from __future__ import annotations

import dagster as dg

from lake_assets.engagement.dagster.delta_tables import IO_MANAGER, table_metadata
from lake_assets.engagement.model.lake import STREAMS, EngagementLake, StreamName
from lake_assets.engagement.model.table_schemas import ENGAGEMENT, NOTIFICATION, spark_tables

PREFIX = "engagement"


def engagement_key(lake: EngagementLake, *name: str) -> dg.AssetKey:
    """Return the key of a part of a lake: engagement/<lake>/<name>."""
    return dg.AssetKey([PREFIX, lake.name, *name])


def topic_key(lake: EngagementLake, stream: StreamName) -> dg.AssetKey:
    """Return the key of the topic that a stream reads."""
    return engagement_key(lake, "kafka", stream)


def group_of(lake: EngagementLake) -> str:
    """Return the group of a lake."""
    return f"{PREFIX}_{lake.name}"


def external_specs(lake: EngagementLake) -> list[dg.AssetSpec]:
    """Return the topics and tables of a lake, each with what it comes from."""
    specs = []
    for stream in STREAMS:
        topic = lake.topic(stream)
        told = f"The Kafka topic {topic}, which the {stream} of {lake.name} reads. Other programs send its messages."
        specs.append(
            dg.AssetSpec(topic_key(lake, stream), group_name=group_of(lake), kinds={"kafka"}, description=told)
        )
    streams = [engagement_key(lake, stream) for stream in STREAMS]
    rows = engagement_key(lake, ENGAGEMENT)
    specs.append(_table(lake, ENGAGEMENT, streams, "The rows that the streams append, change and delete."))
    specs.append(_table(lake, NOTIFICATION, [rows], "Which orgs each data commit changed. Readers poll it."))
    return specs


def _table(lake: EngagementLake, name: str, deps: list[dg.AssetKey], description: str) -> dg.AssetSpec:
    (columns,) = (schema.columns for schema in spark_tables(lake) if schema.name == name)
    return dg.AssetSpec(
        engagement_key(lake, name),
        deps=deps,
        group_name=group_of(lake),
        kinds={"delta"},
        description=description,
        metadata=table_metadata(lake, name, columns),
    ).with_io_manager_key(IO_MANAGER)
