"""`identity.collapse` and `parking.met` for many orgs at once, on Spark's executors: this package must be there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from lake_assets.engagement.identity import MutationRequest, collapse
from lake_assets.engagement.parking import met, status

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


def tried(requests: DataFrame, present: DataFrame, *, max_attempts: int) -> DataFrame:
    """The requests with one more attempt, and their status after it.

    requests: columns as for `collapsed`, attempts int, status string, and any others. present: org_id string, who_id
    string: ids that hold rows; of other orgs there must be none.
    """

    def try_org(frame: pd.DataFrame, ids: pd.DataFrame) -> pd.DataFrame:
        found = met(_requests(frame), ids["who_id"].tolist())
        attempts = frame["attempts"] + 1
        states = [
            status(found=request in found, attempts=count, max_attempts=max_attempts)
            for request, count in zip(frame["request_id"], attempts, strict=True)
        ]
        return frame.assign(attempts=attempts, status=states)

    by_org, ids_by_org = requests.groupBy("org_id"), present.groupBy("org_id")
    return by_org.cogroup(ids_by_org).applyInPandas(try_org, requests.schema)


def _collapse_org(frame: pd.DataFrame) -> pd.DataFrame:
    import pandas as pd

    final = collapse(_requests(frame))
    return pd.DataFrame({"org_id": frame["org_id"].iloc[0], "old_id": list(final), "new_id": list(final.values())})


def _requests(frame: pd.DataFrame) -> Iterator[MutationRequest]:
    columns = (frame[name].tolist() for name in _REQUEST)
    return (MutationRequest(*values) for values in zip(*columns, strict=True))
