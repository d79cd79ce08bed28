"""The heads of sources that a catch-up works up to.

A busy writer moves its table on all the time. A catch-up that always read the present heads would never come to its
second target. So the heads are read once, and every session plans up to them, unless another process has gone further.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from lake_assets.errors import InvalidHourKey, TableDamaged, TimeColumnUnusable
from lake_assets.incremental.declaration import Pipeline
from lake_assets.incremental.metadata import publish, tables
from lake_assets.incremental.metadata.newest_event import source_complete_through
from lake_assets.incremental.planning.changes import Head, Watermark

Heads = Mapping[str, tuple[int | None, int | None]]
"""Source → (snapshot id, complete-through) to plan up to."""


def present_heads(
    catalog: Catalog, pipeline: Pipeline, names: Iterable[str]
) -> dict[str, tuple[int | None, int | None]]:
    """Return the heads of tables now: table → (snapshot id, complete-through).

    A table that is damaged or declared wrongly is left out: the session that reads it reports why.
    """
    heads: dict[str, tuple[int | None, int | None]] = {}
    for name in names:
        try:
            table = tables.find(catalog, name)
            if table is not None:
                heads[name] = (publish.main_id(table), source_complete_through(table, name, pipeline))
        except (InvalidHourKey, TableDamaged, TimeColumnUnusable):
            continue
    return heads


def usable_heads(catalog: Catalog, watermarks: Mapping[str, Watermark], up_to: Heads) -> dict[str, Head]:
    """Return the heads to plan up to, for heads that were read earlier: see `usable_head`."""
    heads: dict[str, Head] = {}
    for source, (snapshot_id, complete_through) in up_to.items():
        table = tables.load(catalog, source)
        head = usable_head(table, Head(snapshot_id, complete_through), watermarks.get(source))
        if head is not None:
            heads[source] = head
    return heads


def usable_head(table: Table, head: Head, mark: Watermark | None) -> Head | None:
    """Return the head to plan up to, for one that was read earlier.

    Args:
        table: The source, as it is now.
        head: The head that was read earlier.
        mark: The watermark of the target that reads the source.

    Returns:
        The watermark itself, if another process has moved it beyond the head: planning up to the head would take the
        target back. None for the present head, if the earlier one is no ancestor of it or has expired.
    """
    main = [snapshot.snapshot_id for snapshot in publish.ancestors(table)]
    newer = main  # than the head; main is listed from the newest on
    if head.snapshot_id is not None:
        if head.snapshot_id not in main:
            return None
        newer = main[: main.index(head.snapshot_id)]
    if mark is not None and mark.snapshot_id in newer:
        return Head(mark.snapshot_id, mark.complete_through)
    return head
