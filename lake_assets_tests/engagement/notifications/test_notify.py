"""What a notification says is what the commit's own metrics say, whether it appended or merged."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from lake_assets.engagement.delta_log import Commit
from lake_assets.engagement.notifications import Counts, check_totals
from lake_assets.errors import LakeError

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("metrics", "counts"),
    [
        ({"numOutputRows": "3"}, {"acme": Counts(inserted=1), "globex": Counts(inserted=2)}),
        (
            {
                "numTargetRowsInserted": "0",
                "numTargetRowsUpdated": "2",
                "numTargetRowsDeleted": "1",
                "numOutputRows": "9",
            },
            {"acme": Counts(updated=2, deleted=1)},
        ),
        ({}, {}),
    ],
    ids=["append", "merge", "nothing"],
)
def test_counts_that_agree_pass(metrics: dict[str, str], counts: dict[str, Counts]) -> None:
    check_totals(Commit(7, NOW, metrics), counts, "engagement")


def test_counts_that_do_not_agree_are_not_told() -> None:
    with pytest.raises(LakeError, match="Version 7 of engagement"):
        check_totals(Commit(7, NOW, {"numOutputRows": "3"}), {"acme": Counts(inserted=2)}, "engagement")
