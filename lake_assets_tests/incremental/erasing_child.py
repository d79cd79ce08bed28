"""One erasure in a process of its own, which a test may let die: `python -m ...erasing_child ID`."""

from __future__ import annotations

import sys
from functools import cache

from lake_assets.incremental.engine import Engine
from lake_assets.incremental.erasure import erase
from lake_assets.local.catalog import open_catalog
from lake_assets.local.spark import open_spark
from lake_assets.membership import PIPELINE
from lake_assets.settings import settings
from lake_assets_tests.incremental.scenario import NOW

if __name__ == "__main__":
    engine = Engine(open_catalog(settings()), PIPELINE, clock=lambda: NOW, spark=cache(lambda: open_spark(settings())))
    print(erase(engine, "account", sys.argv[1], now=NOW).found)
