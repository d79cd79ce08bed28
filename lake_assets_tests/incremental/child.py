"""One run of one target, for a process of its own that a test may let die or stop.

The home and the point at which to die come from the environment, as for any run.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache

from lake_assets.connections.catalog import open_catalog
from lake_assets.connections.spark import open_spark
from lake_assets.errors import LakeError
from lake_assets.incremental.engine.engine import Engine
from lake_assets.incremental.engine.model import SessionReport
from lake_assets.membership import PIPELINE
from lake_assets.settings import settings


def run(target: str) -> str:
    """What became of the run: its status, why it waits, or its error."""
    engine = Engine(
        open_catalog(settings()),
        PIPELINE,
        clock=lambda: datetime(2026, 1, 2, tzinfo=UTC),
        spark=cache(lambda: open_spark(settings())),
    )
    try:
        outcome = engine.run(PIPELINE.target(target))
    except LakeError as error:
        return type(error).__name__
    return outcome.status if isinstance(outcome, SessionReport) else outcome.kind
