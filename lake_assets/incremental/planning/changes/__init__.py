"""What changed in a source since a watermark, from Iceberg metadata. No Spark.

A data file is opened in three cases only: its bounds show a time that quarantine rejects; they are far apart and the
file is small; or the source has versions, and a file may contain earlier ones. Snapshots are walked by parent id from
the head of `main`, never by clock: commit times may go back, and a publish keeps the time of its staging.
Manifests decide; partition summaries of snapshots are off by default and are not used.

May import `incremental.declaration` and `incremental.metadata`, and nothing else of `incremental.planning`.
"""

from lake_assets.incremental.planning.changes.read_changes import changes, hours_present, raw_history
from lake_assets.incremental.planning.changes.row_hours import ReadBudget
from lake_assets.incremental.planning.changes.source_changes import (
    Head,
    SnapshotChange,
    SourceChanges,
    Totals,
    Watermark,
)

__all__ = [
    "Head",
    "ReadBudget",
    "SnapshotChange",
    "SourceChanges",
    "Totals",
    "Watermark",
    "changes",
    "hours_present",
    "raw_history",
]
