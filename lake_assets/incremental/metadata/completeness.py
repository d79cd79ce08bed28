"""Setting a raw table's complete-through by hand, for a source that stopped or whose writer does not set it."""

from __future__ import annotations

from dataclasses import dataclass

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from lake_assets.base.hours import hour_key
from lake_assets.errors import InvalidHourKey, UsageError
from lake_assets.incremental.declaration import Pipeline
from lake_assets.incremental.metadata import tables
from lake_assets.incremental.metadata.newest_event import source_complete_through


@dataclass(frozen=True)
class Declared:
    """A raw table's complete-through.

    Attributes:
        table: The raw table.
        before: The hour before the change; None if it was not set.
        after: The hour now.
    """

    table: str
    before: int | None
    after: int


@retry(
    retry=retry_if_exception_type(CommitFailedException),
    wait=wait_random_exponential(multiplier=0.05, max=1),
    stop=stop_after_attempt(8),
    reraise=True,
)
def declare_complete(
    catalog: Catalog,
    pipeline: Pipeline,
    name: str,
    hour: int,
    *,
    force: bool = False,
) -> Declared:
    """Set a raw table's complete-through.

    Args:
        catalog: The catalog.
        pipeline: The pipeline that declares the raw table.
        name: The table, with or without its namespace.
        hour: The last complete hour, inclusive.
        force: Also go back to an earlier hour, and replace a value that is no hour key. Hours that targets have built,
            and their complete-through, stay.

    Raises:
        InvalidHourKey: The present value is no hour key, without `force`.
        UsageError: The name is not one raw table, or the hour is earlier than the present one, without `force`.
        TableMissing: The table does not exist.
    """
    raw = _raw_table(pipeline, name)
    table = tables.load(catalog, raw)
    before = _present_hour(table, raw, pipeline, force=force)
    if before is not None and hour < before and not force:
        raise UsageError(
            f"{raw} is complete through {hour_key(before)} already; {hour_key(hour)} is earlier.",
            remedy="Name a later hour, or use --force to go back. Hours that were built from it stay.",
        )
    if hour != before:
        with table.transaction() as transaction:
            transaction.set_properties({tables.COMPLETE_THROUGH: hour_key(hour)})
    return Declared(raw, before, hour)


def _present_hour(table: Table, raw: str, pipeline: Pipeline, *, force: bool) -> int | None:
    try:
        return source_complete_through(table, raw, pipeline)
    except InvalidHourKey:
        if not force:
            raise
        return None


def _raw_table(pipeline: Pipeline, name: str) -> str:
    wanted = name.replace("/", ".")
    raw_tables = [raw.table for raw in pipeline.raw]
    remedy = f"Name a raw table: {', '.join(raw_tables)}."
    if any(wanted in (target.table, target.name) for target in pipeline.targets):
        raise UsageError(f"{wanted} is a target: its sessions set its complete-through.", remedy=remedy)
    found: list[str] = []
    for table in raw_tables:
        _, bare_name = table.split(".")
        if wanted in (table, bare_name):
            found.append(table)
    if len(found) != 1:
        raise UsageError(f"There is no raw table {name!r}.", remedy=remedy)
    return found[0]
