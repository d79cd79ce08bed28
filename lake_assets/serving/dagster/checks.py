"""Checks of a completed push: readers get the rows of the lake's table, and the files that were pushed."""

from __future__ import annotations

import dagster as dg

from lake_assets.serving.endpoints.query import query
from lake_assets.serving.errors import SegmentDamaged
from lake_assets.serving.served_tables import Serving
from lake_assets.serving.store.files import checksum, sha256_of
from lake_assets.serving.store.push import PushReport
from lake_assets.serving.store.sources import Reading, Source

ROW_COUNT = "row_count"
SERVED_CHECKSUM = "served_checksum"


def check_push(
    serving: Serving, key: dg.AssetKey, source: Source, report: PushReport, reading: Reading
) -> list[dg.AssetCheckResult]:
    """Return the results of both checks.

    Args:
        serving: The served tables.
        key: Of the pushed asset.
        source: That was pushed.
        report: Of the push.
        reading: The rows that were pushed.
    """
    return [row_count(serving, key, source, reading), served_checksum(serving, key, report)]


def row_count(serving: Serving, key: dg.AssetKey, source: Source, reading: Reading) -> dg.AssetCheckResult:
    """Compare the row count of a query with the metadata of the source."""
    description = f"The number of served rows equals that of {source.table}, {reading.of}."
    try:
        result = query(serving.broker, f'select count(*) from "{source.name}"', serving.limits)
        served = result.rows[0][0]
    except SegmentDamaged as error:
        served = None
        description = error.problem
    return dg.AssetCheckResult(
        asset_key=key,
        check_name=ROW_COUNT,
        passed=served == reading.expected,
        metadata={"rows": reading.expected, "rows served": served},
        description=description,
    )


def served_checksum(serving: Serving, key: dg.AssetKey, report: PushReport) -> dg.AssetCheckResult:
    """Compare the files that the broker routes to with the pushed ones, byte by byte."""
    with serving.broker.pin(report.table, seconds=serving.limits.seconds) as pinned:
        served = checksum(sha256_of(path) for path in pinned.files[report.table])
    return dg.AssetCheckResult(
        asset_key=key,
        check_name=SERVED_CHECKSUM,
        passed=served == report.checksum,
        metadata={"pushed": report.checksum, "served": served},
        description="The served files are those that were pushed.",
    )
