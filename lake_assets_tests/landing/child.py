"""One operation of a zone in a process of its own, which a test lets die: `python -m ...child OPERATION ZONE`."""

from __future__ import annotations

import sys

from lake_assets.settings import settings
from lake_assets_tests.landing.scenario import Landed


def main(operation: str, zone: str) -> None:
    Landed(settings()).run(operation, zone)


if __name__ == "__main__":
    main(*sys.argv[1:])
