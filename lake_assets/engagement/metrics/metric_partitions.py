"""Metric partitions, one day of one org each, grouped into blocks that a few conditions select. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import date
from typing import NamedTuple


class MetricPartition(NamedTuple):
    """A day of an org: the unit in which metrics are rebuilt."""

    org_id: str
    engagement_date: date


class PartitionBlock(NamedTuple):
    """All of these orgs on all of these days; both sorted."""

    orgs: tuple[str, ...]
    days: tuple[date, ...]


def partition_blocks(partitions: Iterable[MetricPartition]) -> list[PartitionBlock]:
    """Group partitions into blocks that contain exactly these, each once. Days with the same orgs form one block.

    Returns:
        Blocks, sorted by their orgs.
    """
    orgs_of: defaultdict[date, set[str]] = defaultdict(set)
    for partition in partitions:
        orgs_of[partition.engagement_date].add(partition.org_id)
    days_of: defaultdict[tuple[str, ...], list[date]] = defaultdict(list)
    for day, orgs in orgs_of.items():
        days_of[tuple(sorted(orgs))].append(day)
    return [PartitionBlock(orgs, tuple(sorted(days))) for orgs, days in sorted(days_of.items())]
