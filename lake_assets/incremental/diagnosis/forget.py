"""Forgetting what a damaged file of the session log may have held.

Sessions may always be forgotten: the state of a target is in the target itself. Of a target that no session of this
version has built, the log has the state; forgotten, all its hours are rebuilt, and nothing is appended a second time.
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
        return f"forgets the logged sessions of {damaged.partition}: the target keeps its state, which is in its table"
    return f"starts {name} again and forgets all logged sessions: targets keep their state, which is in their tables"


def forget(catalog: Catalog, name: str, damaged: DamagedFile) -> None:
    """Forget the process of a damaged data file, or all processes if another file of the log table is damaged.

    The files stay, so that they can be restored. The damaged table comes last: if a repair dies before it, the log
    still cannot be read, and the repair is made again.
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
