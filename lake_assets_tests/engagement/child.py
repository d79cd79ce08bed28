"""One turn of a stream in a process of its own, which a test lets die: `python -m ...child LAKE TOPIC STREAM`.

Home, Kafka and the point at which to die come from the environment, as for any turn.
"""

from __future__ import annotations

import sys

from lake_assets.engagement.batch import run_batch
from lake_assets.engagement.tables import open_tables
from lake_assets.local.spark import open_spark
from lake_assets.settings import settings
from lake_assets_tests.engagement.scenario import STREAMS, Alone, lake_of


def main(name: str, topic: str, stream: str) -> None:
    tables = open_tables(settings(), lake_of(name, topic))
    run_batch(STREAMS[stream](tables, open_spark(settings()), str(settings().kafka)), Alone())


if __name__ == "__main__":
    main(*sys.argv[1:])
