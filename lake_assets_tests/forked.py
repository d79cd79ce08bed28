"""The process that processes of tests are forked from, which has imported what they need.

There is one for each process of tests, however many modules ask for a context, so what it imports stands here.
"""

from __future__ import annotations

import multiprocessing

FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(
    [
        "lake_assets.cli.main",
        "lake_assets.cli.targets",
        "lake_assets_tests.incremental.child",
        "lake_assets_tests.incremental.erasing_child",
        "lake_assets_tests.engagement.child",
        "lake_assets_tests.landing.erasing_child",
        "lake_assets_tests.serving.child",
        # What these import when they come to need it.
        "lake_assets.incremental.engine.stage",
        "pyiceberg.catalog.sql",
        "pyiceberg.io.pyarrow",
        "pyspark.sql.connect.session",
        "dagster",
    ]
)
