"""The head that a session plans up to, if a head was read earlier. Metadata only: no Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lake_assets.incremental.engine import iceberg, publish
from lake_assets.incremental.engine.engine import Engine
from lake_assets.incremental.engine.planner import present_heads, usable_head
from lake_assets.incremental.engine.source_changes import Head, Watermark
from lake_assets_tests.incremental.clicks import CLICKS, START, at, land_clicks

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog


def mark(snapshot_id: int | None, through: int) -> Watermark:
    return Watermark("raw.clicks", "uuid", snapshot_id, complete_through=START + through)


def test_a_head_counts_unless_it_was_passed_or_is_no_ancestor_any_more(catalog: Catalog) -> None:
    Engine(catalog, CLICKS, clock=lambda: at(8)).create_tables()
    empty = present_heads(catalog, CLICKS, ["raw.clicks", "raw.none"])
    assert empty == {"raw.clicks": (None, None)}
    found = []
    for hour in range(3):
        land_clicks(catalog, [hour], landing=hour)
        (head,) = present_heads(catalog, CLICKS, ["raw.clicks"]).values()
        found.append(Head(*head))
    first, second, third = found
    assert [head.complete_through for head in found] == [START, START + 1, START + 2]
    table = iceberg.load(catalog, "raw.clicks")

    assert usable_head(table, second, None) == second
    assert usable_head(table, second, mark(None, 0)) == second
    assert usable_head(table, second, mark(first.snapshot_id, 0)) == second
    assert usable_head(table, second, mark(second.snapshot_id, 0)) == second
    assert usable_head(table, second, mark(third.snapshot_id, 2)) == third, "another process has passed it"
    assert usable_head(table, Head(None, None), mark(third.snapshot_id, 2)) == third
    assert usable_head(table, Head(None, None), mark(None, 0)) == Head(None, None)

    # A rollback takes back what the watermark has seen: the head before it counts.
    table.manage_snapshots().set_current_snapshot(snapshot_id=first.snapshot_id).commit()
    assert usable_head(table, first, mark(third.snapshot_id, 2)) == first
    assert usable_head(table, second, mark(first.snapshot_id, 0)) is None
    assert publish.main_id(table) == first.snapshot_id
