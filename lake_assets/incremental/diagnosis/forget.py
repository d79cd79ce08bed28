"""Forgetting what a damaged file of the session log may have held.

A process without watermarks rebuilds all its hours from its sources, so it may always be forgotten, and this is the
only state that is known to be right: with an older watermark, a process would append rows for a second time.
"""

from __future__ import annotations

from pyiceberg.catalog import Catalog
from pyiceberg.expressions import AlwaysTrue, EqualTo

from lake_assets.incremental.execution.log import create_tables
from lake_assets.incremental.metadata import tables
from lake_assets.incremental.metadata.damaged_files import DamagedFile, damaged_file
from lake_assets.incremental.metadata.state_tables import HIGH_WATERMARK, SESSION

LOGS = (SESSION, HIGH_WATERMARK)

STARTED_AGAIN = "lake.started-again"
"""Property of a log table that was created again on purpose: the former one in its folder is damaged."""


def forgotten_by(name: str, damaged: DamagedFile) -> str:
    """Return what `forget` does about a damaged file of a log table, in the third person."""
    if damaged.partition is not None:
        rebuilds = f"its next session rebuilds all hours of {damaged.partition}"
        return f"forgets the sessions and watermarks of {damaged.partition}: {rebuilds}"
    return f"starts {name} again and forgets all sessions and watermarks: the next sessions rebuild all hours"


def forget(catalog: Catalog, name: str, damaged: DamagedFile) -> None:
    """Forget the process of a damaged data file, or all processes if another file of the log table is damaged.

    The files stay, so that they can be restored. The damaged table comes last: if a repair dies before it, the process
    still cannot be read, so nothing runs on one half of its state, and the repair is made again.
    """
    other = HIGH_WATERMARK if name == SESSION else SESSION
    if damaged.partition is not None:
        _delete(catalog, other, damaged.partition)
        _delete(catalog, name, damaged.partition)
        return
    _clear(catalog, other)
    _clear(catalog, name)


def _clear(catalog: Catalog, name: str) -> None:
    """Delete all rows of a log table; one whose metadata or manifests are damaged is created again."""
    if damaged_file(catalog, name, data=False) is None:
        _delete(catalog, name, None)
        return
    catalog.drop_table(name)
    create_tables(catalog)
    with tables.load(catalog, name).transaction() as transaction:
        transaction.set_properties({STARTED_AGAIN: "true"})


def _delete(catalog: Catalog, name: str, process: str | None) -> None:
    """Delete the rows of a process, or all. Whole files go, by metadata alone: a damaged one is not opened."""
    rows = AlwaysTrue() if process is None else EqualTo("process_name", process)  # type: ignore[call-arg, arg-type]
    for attempt in tables.retrying():
        with attempt:
            tables.load(catalog, name).delete(rows)
