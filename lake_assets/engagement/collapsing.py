"""`identity.collapse` for many orgs at once, on Spark's executors: this package must be there, too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lake_assets.engagement.identity import MutationRequest, collapse

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame

COLLAPSED = "org_id string, old_id string, new_id string"
_REQUEST = ("request_id", "op", "old_id", "new_id", "executed_at", "partition", "offset")


def collapsed(requests: DataFrame) -> DataFrame:
    """One row for each id of an org that changes: `COLLAPSED`. new_id is null where its rows are deleted.

    requests: org_id string, request_id string, op string, old_id string, new_id string (null for a delete), executed_at
    timestamp, partition int, offset long. All requests of an org meet in one task.
    """
    return requests.select("org_id", *_REQUEST).groupBy("org_id").applyInPandas(_collapse_org, COLLAPSED)


def _collapse_org(frame: pd.DataFrame) -> pd.DataFrame:
    import pandas as pd

    columns = (frame[name].tolist() for name in _REQUEST)
    final = collapse(MutationRequest(*values) for values in zip(*columns, strict=True))
    return pd.DataFrame({"org_id": frame["org_id"].iloc[0], "old_id": list(final), "new_id": list(final.values())})
