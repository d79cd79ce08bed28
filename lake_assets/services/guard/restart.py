"""Start everything again after the supervisor was killed, however long it takes."""

from __future__ import annotations

import time
from pathlib import Path

from lake_assets.connections import addresses
from lake_assets.errors import LakeError
from lake_assets.services import lifecycle

PATIENCE = 10
"""How many times longer than usual a start may take: nobody waits for it, and the machine may be busy."""

RETRY_SECONDS = 5


def start_again() -> None:
    """Start the services of the home that the environment names: their supervisor was killed.

    If they do not start, their records stay: the guard tries again as long as there are any. `lake down` ends the guard
    and this process before it removes the records for good.
    """
    from lake_assets.settings import settings

    print("The supervisor was killed. All services are started anew.", flush=True)
    home = settings().home
    records = addresses.read_records(home)
    try:
        lifecycle.up(settings(), report=print, patience=PATIENCE)
    except (LakeError, OSError):
        _restore(home, records)
        raise


def _restore(home: Path, records: list[addresses.ServiceRecord]) -> None:
    """Write records, if need be once the disk is not full any more."""
    while True:
        try:
            addresses.write_records(home, records)
            return
        except OSError:
            time.sleep(RETRY_SECONDS)
