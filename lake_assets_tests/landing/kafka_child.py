"""Landing in processes that a test lets die: `python -m ...kafka_child PREFIX POINT:WHAT ...`, one after the other.

WHAT is a zone that tails, or `load`. Each is a fork of this process, which has loaded all that they need and done
nothing else. Home and Kafka come from the environment.
"""

from __future__ import annotations

import os
import sys

from lake_assets.base.failpoints import EXIT_CODE
from lake_assets.settings import settings
from lake_assets_tests.landing.kafka_scenario import Landings


def main(prefix: str, *lives: str) -> None:
    for life in lives:
        point, what = life.split(":")
        child = os.fork()
        if not child:
            _live(prefix, point, what)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == EXIT_CODE, f"{what} did not come to {point}"


def _live(prefix: str, point: str, what: str) -> None:
    os.environ["LAKE_FAILPOINT"] = point
    settings.cache_clear()
    landings = Landings(settings(), str(settings().kafka), prefix)
    if what == "load":
        landings.load()
    else:
        landings.tail(what)


if __name__ == "__main__":
    main(*sys.argv[1:])
