"""One of two homes that do the same work on one catalog: `PREFIX FILE`, until the file is there and nothing is left.

It loads what has landed, and runs what is due: as `lake catch-up` and as a daemon's sensors do, in turns.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lake_assets import Pipeline
from lake_assets.base.hours import hour_key
from lake_assets.connections.catalog import open_catalog
from lake_assets.connections.spark import open_spark
from lake_assets.incremental.engine.engine import Engine, catch_up
from lake_assets.membership import PIPELINE
from lake_assets.settings import settings
from lake_assets_tests.incremental.in_process_daemon import in_process_daemon
from lake_assets_tests.incremental.scenario import START
from lake_assets_tests.landing.kafka_scenario import NOW, Landings

SIGNUPS = Pipeline(raw=PIPELINE.raw, targets=(PIPELINE.target("signup_fact"),), start=PIPELINE.start)


def work(argument: str) -> str:
    """What it did, as JSON: rows loaded, sessions of `catch-up`, and the failures of these."""
    prefix, stop = argument.split()
    zones = Landings(settings(), str(settings().kafka), prefix)
    catalog, spark = open_catalog(settings()), open_spark(settings())
    engine = Engine(catalog, SIGNUPS, clock=lambda: NOW, spark=lambda: spark)
    done: dict[str, Any] = {"loaded": 0, "sessions": 0, "failures": []}
    with in_process_daemon(SIGNUPS, catalog, lambda: NOW, end=hour_key(START + 24), spark=spark) as daemon:
        is_last = False
        while not is_last:
            is_last = Path(stop).exists()
            done["loaded"] += sum(loaded.rows for loaded in zones.load())
            for outcome in catch_up(engine, SIGNUPS.targets):
                done["sessions"] += outcome.report is not None
                done["failures"] += [outcome.failure] if outcome.failure else []
            done["loaded"] += sum(loaded.rows for loaded in zones.load())
            daemon.catch_up()
    spark.stop()
    return json.dumps(done)
