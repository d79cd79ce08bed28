"""Dagster's daemon as `lake up` starts it: a commit is seen within a fraction of a second, and so is a queued run.

    python -m lake_assets.dagster_processes.daemon --workspace workspace.yaml

The options are those of `dagster-daemon run`. That command looks at sensors every 5 s and at the queue every second.
Here both loops go on at once when the catalog or Dagster's table of runs was written, and otherwise look every 5 s. So
an idle daemon does less than Dagster's. If the catalog is a server, sensors are looked at every 5 s.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

from lake_assets.connections.dagster import (
    Moved,
    daemon_command,
    unknown_version,
    use_daemons,
    use_time_zones,
)
from lake_assets.dagster_processes.storages import use_sparing_storages
from lake_assets.settings import settings

log = logging.getLogger("lake_assets.daemon")


def main(arguments: Sequence[str]) -> None:
    """Run the daemons until the process is stopped.

    Args:
        arguments: Options of `dagster-daemon run`.
    """
    reason = use_waking_daemons()
    if reason:
        log.warning("Sensors are looked at every 5 s: %s.", reason)
    reason = use_sparing_storages()
    if reason:
        log.warning("The daemon takes more processor time: %s.", reason)
    use_time_zones()
    daemon_command()(arguments)


def use_waking_daemons() -> str:
    """Make the command run daemons that wake up when files were written.

    Returns:
        Why that cannot be done; empty if it is done.
    """
    try:
        from lake_assets.dagster_processes.waking_daemons import waking

        use_daemons(lambda daemon, instance: waking(daemon, instance, settings()))
    except (ImportError, Moved) as error:
        return unknown_version(error)
    return ""


if __name__ == "__main__":
    main(sys.argv[1:])
