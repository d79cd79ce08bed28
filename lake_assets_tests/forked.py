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
        "lake_assets_tests.landing.kafka_scenario",
        "lake_assets_tests.landing.loads",
        "lake_assets_tests.serving.child",
        # What these import when they come to need it.
        "lake_assets.cli.doctor",
        "lake_assets.cli.engagement",
        "lake_assets.cli.erasure",
        "lake_assets.cli.landing",
        "lake_assets.cli.report",
        "lake_assets.cli.land",
        "lake_assets.cli.serving",
        "lake_assets.cli.services",
        "lake_assets.cli.tables",
        "lake_assets.connections.sql_catalog",
        "lake_assets.incremental.engine.stage",
        "lake_assets.incremental.from_settings",
        "lake_assets.incremental.sql.analysis",
        "lake_assets.incremental.sql.folder",
        "lake_assets.landing.loading",
        "lake_assets.pages.report",
        "rich.columns",
        "rich.markdown",
        "sqlalchemy.dialects.sqlite.pysqlite",
        "sqlglot.dialects.spark",
        "typer.rich_utils",
        "pyiceberg.avro.decoder_fast",
        "pyiceberg.catalog.sql",
        "pyiceberg.io.pyarrow",
        "pyspark.sql.connect.session",
        "dagster",
    ]
)
