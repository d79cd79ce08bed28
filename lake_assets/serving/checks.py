"""What is checked of a push when it is done: that readers get what the lake's table holds, and what was pushed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import dagster as dg

from lake_assets.incremental.hours import hour_key
from lake_assets.serving.files import checksum, sha256_of
from lake_assets.serving.query import query
from lake_assets.serving.sources import Source
from lake_assets.serving.store import Serving
from lake_assets.serving.writer import PushReport

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

ROW_COUNT, SERVED_CHECKSUM = "row_count", "served_checksum"


def check_push(
    serving: Serving, source: Source, report: PushReport, hour: int, catalog: Catalog
) -> list[dg.AssetCheckResult]:
    """The verdicts on a push of an hour."""
    return [row_count(serving, source, hour, catalog), served_checksum(serving, report)]


def row_count(serving: Serving, source: Source, hour: int, catalog: Catalog) -> dg.AssetCheckResult:
    """A query counts as many rows as the manifests of the source."""
    expected = source.count(catalog, hour)
    found = query(serving.broker, f'select count(*) from "{source.name}"', serving.limits).rows[0][0]
    return dg.AssetCheckResult(
        check_name=ROW_COUNT,
        passed=found == expected,
        metadata={"rows": expected, "rows served": found},
        description=f"{source.table} has as many rows in {hour_key(hour)} as are served.",
    )


def served_checksum(serving: Serving, report: PushReport) -> dg.AssetCheckResult:
    """The files that the broker routes to are those that were pushed, byte by byte."""
    with serving.broker.pin(report.table, seconds=serving.limits.seconds) as pinned:
        found = checksum(sha256_of(path) for path in pinned.files[report.table])
    return dg.AssetCheckResult(
        check_name=SERVED_CHECKSUM,
        passed=found == report.checksum,
        metadata={"pushed": report.checksum, "served": found},
        description="What the broker serves is what was pushed.",
    )
