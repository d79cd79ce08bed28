"""Declaring by hand how far a raw table goes: for a source that went silent, or whose lander sets nothing."""

from __future__ import annotations

from dataclasses import dataclass

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from lake_assets.base.hours import hour_key
from lake_assets.errors import UsageError
from lake_assets.incremental.declaration import Pipeline
from lake_assets.incremental.metadata import tables


@dataclass(frozen=True)
class Declared:
    """A raw table's complete-through, an hour, as it was (None: unset) and as it is."""

    table: str
    before: int | None
    after: int


@retry(
    retry=retry_if_exception_type(CommitFailedException),
    wait=wait_random_exponential(multiplier=0.05, max=1),
    stop=stop_after_attempt(8),
    reraise=True,
)
def declare_complete(catalog: Catalog, pipeline: Pipeline, name: str, hour: int, *, force: bool = False) -> Declared:
    """Set a raw table's complete-through to `hour`, inclusive.

    force: also when that goes back; what targets have built, and their own complete-through, stay.
    Raises `UsageError` for a table that is no raw table, or to go back without `force`; `TableMissing`.
    """
    raw = _raw_table(pipeline, name)
    table = tables.load(catalog, raw)
    before = tables.complete_through(table, raw)
    if before is not None and hour < before and not force:
        raise UsageError(
            f"{raw} is complete through {hour_key(before)} already; {hour_key(hour)} would take that back.",
            remedy="Name a later hour. With --force it goes back; what was built from it stays.",
        )
    if hour != before:
        with table.transaction() as transaction:
            transaction.set_properties({tables.COMPLETE_THROUGH: hour_key(hour)})
    return Declared(raw, before, hour)


def _raw_table(pipeline: Pipeline, name: str) -> str:
    wanted = name.replace("/", ".")
    known = [r.table for r in pipeline.raw]
    names = ", ".join(known)
    if wanted in {n for t in pipeline.targets for n in (t.table, t.name)}:
        raise UsageError(
            f"{wanted} is a target: its sessions say how far it is complete.", remedy=f"Name a raw table: {names}."
        )
    found = [t for t in known if wanted in (t, t.split(".")[1])]
    if len(found) != 1:
        raise UsageError(f"There is no raw table {name!r}.", remedy=f"Name one of: {names}.")
    return found[0]
