"""Blocks hold the partitions that they were made of, each once, and no others."""

from __future__ import annotations

from datetime import date, timedelta

from hypothesis import given
from hypothesis import strategies as st

from lake_assets.engagement.metrics import MetricPartition, PartitionBlock, partition_blocks

DAYS = st.integers(0, 5).map(lambda n: date(2026, 1, 1) + timedelta(days=n))


@given(st.lists(st.builds(MetricPartition, st.sampled_from("abcd"), DAYS)))
def test_blocks_hold_just_the_partitions(partitions: list[MetricPartition]) -> None:
    held = [
        MetricPartition(org, day) for block in partition_blocks(partitions) for org in block.orgs for day in block.days
    ]
    assert sorted(held) == sorted(set(partitions))
    assert partition_blocks(partitions) == partition_blocks(partitions[::-1])


def test_days_of_the_same_orgs_make_one_block() -> None:
    first, second, third = (date(2026, 1, day) for day in (1, 2, 3))
    partitions = [
        MetricPartition("b", first),
        MetricPartition("a", first),
        MetricPartition("a", third),
        MetricPartition("b", third),
        MetricPartition("b", second),
    ]
    assert partition_blocks(partitions) == [
        PartitionBlock(("a", "b"), (first, third)),
        PartitionBlock(("b",), (second,)),
    ]
