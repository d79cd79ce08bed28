"""One erasure, for a process of its own that a test may let die."""

from __future__ import annotations

from functools import cache

from lake_assets.connections.catalog import open_catalog
from lake_assets.connections.spark import open_spark
from lake_assets.incremental.engine.engine import Engine
from lake_assets.incremental.erasure.erase import erase
from lake_assets.membership import PIPELINE
from lake_assets.settings import settings
from lake_assets_tests.incremental.scenario import NOW


def erase_account(account_id: str) -> str:
    """How often the id was found."""
    engine = Engine(open_catalog(settings()), PIPELINE, clock=lambda: NOW, spark=cache(lambda: open_spark(settings())))
    return str(erase(engine, "account", account_id, now=NOW).found)
