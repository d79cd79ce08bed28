"""Landing in a process of its own, which a test lets die: `python -m ...child PREFIX load`, or a zone instead of load.

Home, Kafka and the point at which to die come from the environment.
"""

from __future__ import annotations

import sys

from lake_assets.settings import settings
from lake_assets_tests.landing.kafka_scenario import Landings


def main(prefix: str, what: str) -> None:
    landings = Landings(settings(), str(settings().kafka), prefix)
    if what == "load":
        landings.load()
    else:
        landings.tail(what)


if __name__ == "__main__":
    main(*sys.argv[1:])
