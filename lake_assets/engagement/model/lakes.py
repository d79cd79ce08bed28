"""The lakes of this platform: one for each kind of activity."""

from __future__ import annotations

from lake_assets.engagement.model.lake import EngagementLake
from lake_assets.engagement.model.table_schemas import ENGAGEMENT_METRICS
from lake_assets.engagement.model.tables import open_tables
from lake_assets.errors import UsageError
from lake_assets.settings import Settings

EMAIL_EVENT = EngagementLake(
    "email_event",
    {
        "subject": "string",
        "mailbox": "string",
        "opens": "int",
        "clicks": "int",
        "replied": "boolean",
    },
)
MEETING_EVENT = EngagementLake(
    "meeting_event",
    {
        "title": "string",
        "starts_at": "timestamp",
        "minutes": "int",
        "attendees": "int",
    },
)
VOICE_INSIGHT = EngagementLake(
    "voice_insight",
    {
        "call_id": "string",
        "seconds": "double",
        "talk_ratio": "double",
        "sentiment": "string",
        "recorded": "boolean",
    },
)
LAKES = (EMAIL_EVENT, MEETING_EVENT, VOICE_INSIGHT)


def metrics_locations(settings: Settings) -> dict[str, str]:
    """Return lake → address of its metrics table, for readers without Spark."""
    return {lake.name: open_tables(settings, lake).location(ENGAGEMENT_METRICS) for lake in LAKES}


def lake_named(name: str) -> EngagementLake:
    """Return the lake of this name.

    Raises:
        UsageError: There is no such lake.
    """
    by_name = {lake.name: lake for lake in LAKES}
    if name not in by_name:
        raise UsageError(f"There is no engagement lake {name!r}.", remedy=f"Name one of {', '.join(by_name)}.")
    return by_name[name]
