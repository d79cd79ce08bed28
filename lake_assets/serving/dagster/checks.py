"""What is checked of a push when it is done: that readers get what the lake's table holds, and what was pushed."""

from __future__ import annotations

import dagster as dg

from lake_assets.serving.endpoints.query import query
from lake_assets.serving.served_tables import Serving
from lake_assets.serving.store.files import checksum, sha256_of
from lake_assets.serving.store.sources import Reading, Source
from lake_assets.serving.store.writer import PushReport

ROW_COUNT, SERVED_CHECKSUM = "row_count", "served_checksum"


def check_push(
    serving: Serving, key: dg.AssetKey, source: Source, report: PushReport, reading: Reading
) -> list[dg.AssetCheckResult]:
    """The verdicts on a push. key: of the asset that they are about."""
    return [row_count(serving, key, source, reading), served_checksum(serving, key, report)]


def row_count(serving: Serving, key: dg.AssetKey, source: Source, reading: Reading) -> dg.AssetCheckResult:
    """A query counts as many rows as the metadata of the source."""
    found = query(serving.broker, f'select count(*) from "{source.name}"', serving.limits).rows[0][0]
    return dg.AssetCheckResult(
        asset_key=key,
        check_name=ROW_COUNT,
        passed=found == reading.expected,
        metadata={"rows": reading.expected, "rows served": found},
        description=f"{source.table} has as many rows, of {reading.of}, as are served.",
    )


def served_checksum(serving: Serving, key: dg.AssetKey, report: PushReport) -> dg.AssetCheckResult:
    """The files that the broker routes to are those that were pushed, byte by byte."""
    with serving.broker.pin(report.table, seconds=serving.limits.seconds) as pinned:
        found = checksum(sha256_of(path) for path in pinned.files[report.table])
    return dg.AssetCheckResult(
        asset_key=key,
        check_name=SERVED_CHECKSUM,
        passed=found == report.checksum,
        metadata={"pushed": report.checksum, "served": found},
        description="What the broker serves is what was pushed.",
    )
