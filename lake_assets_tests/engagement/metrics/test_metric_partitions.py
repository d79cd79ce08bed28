"""Blocks hold the cells that they were made of, each once, and no others."""

from __future__ import annotations

from datetime import date, timedelta

from hypothesis import given
from hypothesis import strategies as st

from lake_assets.engagement.metrics.metric_partitions import Block, Cell, blocks

DAYS = st.integers(0, 5).map(lambda n: date(2026, 1, 1) + timedelta(days=n))


@given(st.lists(st.builds(Cell, st.sampled_from("abcd"), DAYS)))
def test_blocks_hold_just_the_cells(cells: list[Cell]) -> None:
    held = [Cell(org, day) for block in blocks(cells) for org in block.orgs for day in block.days]
    assert sorted(held) == sorted(set(cells))
    assert blocks(cells) == blocks(cells[::-1])


def test_days_of_the_same_orgs_make_one_block() -> None:
    first, second, third = (date(2026, 1, day) for day in (1, 2, 3))
    cells = [Cell("b", first), Cell("a", first), Cell("a", third), Cell("b", third), Cell("b", second)]
    assert blocks(cells) == [Block(("a", "b"), (first, third)), Block(("b",), (second,))]
