"""What is pure here, requests by org, for many orgs at once on Spark's executors: this package must be there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, replace
from typing import TYPE_CHECKING

from lake_assets.engagement.requests.aliases import aliases
from lake_assets.engagement.requests.identity import MutationRequest, Record, collapse
from lake_assets.engagement.requests.pending import met, status
from lake_assets.engagement.requests.record_placement import placed
from lake_assets.engagement.requests.retention_rules import RetentionRequest, cut_off, erased, persons

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame

COLLAPSED = "org_id string, old_id string, new_id string"
ALIASED = f"{COLLAPSED}, after timestamp, until timestamp"
PLACED = "org_id string, engagement_id string, request_id string, who_id string"
LIMITED = "org_id string, who_id string, person string, until timestamp"
_RETENTION_REQUEST = ("request_id", "op", "ttl_days", "who_id", "requested_at")
_REQUEST = ("request_id", "op", "old_id", "new_id", "executed_at", "partition", "offset")
_NEW = "of_batch"
RECORD_IDS = ("record_engagement_id", "record_who_id")
"""What tells of a request's record here; null if it carries none."""


def collapsed(requests: DataFrame) -> DataFrame:
    """One row for each id of an org that changes: `COLLAPSED`. new_id is null where its rows are deleted.

    requests: org_id string, request_id string, op string, old_id string, new_id string (null for a delete), executed_at
    timestamp, partition int, offset long. All requests of an org meet in one task.
    """
    return requests.select("org_id", *_REQUEST).groupBy("org_id").applyInPandas(_collapse_org, COLLAPSED)


def aliased(applied: DataFrame, batch: DataFrame) -> DataFrame:
    """The aliases that applied requests leave among those of a batch, by org: `ALIASED`. Both as for `collapsed`."""
    both = _told_apart(applied, batch.select("org_id", *_REQUEST))
    return both.groupBy("org_id").applyInPandas(_alias_org, ALIASED)


def placed_records(requests: DataFrame) -> DataFrame:
    """Where the records of requests end, by org: `PLACED`. who_id is null where no row is left.

    requests: as for `collapsed`, and `RECORD_IDS`, strings.
    """
    return requests.select("org_id", *_REQUEST, *RECORD_IDS).groupBy("org_id").applyInPandas(_place_org, PLACED)


def limited(requests: DataFrame, applied: DataFrame) -> DataFrame:
    """What requests for retention remove: `LIMITED`. until: so long an id's engagements are erased, inclusive; person:
    the least id of whose it is. Where who_id is null, the cut-off of the org, exclusive.

    requests: org_id string, request_id string, op string, ttl_days int, who_id string, requested_at timestamp. applied:
    requests of mutation, as for `collapsed`.
    """
    asked = requests.select("org_id", *_RETENTION_REQUEST).groupBy("org_id")
    return asked.cogroup(applied.select("org_id", *_REQUEST).groupBy("org_id")).applyInPandas(_limit_org, LIMITED)


def tried(requests: DataFrame, applied: DataFrame, present: DataFrame, *, max_attempts: int) -> DataFrame:
    """The requests with one more attempt, and their status after it.

    requests: columns as for `placed_records`, attempts int, status string, and any others. applied: as for `collapsed`,
    those before. present: org_id string, who_id string: ids that hold rows; arrived timestamp: when those engaged that
    just came, null for rows that were there. Of orgs that request nothing there must be none.
    """

    def try_org(frame: pd.DataFrame, ids: pd.DataFrame) -> pd.DataFrame:
        asked, former = frame[frame[_NEW]].drop(columns=_NEW), frame[~frame[_NEW]]
        came = ids["arrived"].notna()
        arrived = zip(ids["who_id"][came], ids["arrived"][came], strict=True)
        found = met(_with_records(asked), ids["who_id"][~came], applied=_requests(former), arrived=arrived)
        attempts = asked["attempts"] + 1
        states = [
            status(found=request in found, attempts=count, max_attempts=max_attempts)
            for request, count in zip(asked["request_id"], attempts, strict=True)
        ]
        return asked.assign(attempts=attempts, status=states)

    by_org = _told_apart(applied, requests).groupBy("org_id")
    return by_org.cogroup(present.groupBy("org_id")).applyInPandas(try_org, requests.schema)


def _told_apart(applied: DataFrame, batch: DataFrame) -> DataFrame:
    """The requests applied before and those of a batch, with the columns of these, and `_NEW`: whether it is one."""
    from pyspark.sql import functions as F

    before = applied.select("org_id", *_REQUEST).withColumn(_NEW, F.lit(False))
    return batch.withColumn(_NEW, F.lit(True)).unionByName(before, allowMissingColumns=True)


def _collapse_org(frame: pd.DataFrame) -> pd.DataFrame:
    import pandas as pd

    final = collapse(_requests(frame))
    return pd.DataFrame({"org_id": frame["org_id"].iloc[0], "old_id": list(final), "new_id": list(final.values())})


def _alias_org(frame: pd.DataFrame) -> pd.DataFrame:
    import pandas as pd

    found = aliases(_requests(frame[~frame[_NEW]]), _requests(frame[frame[_NEW]]))
    columns = pd.DataFrame([astuple(alias) for alias in found], columns=["old_id", "new_id", "after", "until"])
    spans = columns.astype({"after": "datetime64[ns]", "until": "datetime64[ns]"})
    spans.insert(0, "org_id", frame["org_id"].iloc[0])
    return spans


def _place_org(frame: pd.DataFrame) -> pd.DataFrame:
    import pandas as pd

    columns = ["engagement_id", "request_id", "who_id"]
    found = pd.DataFrame([astuple(record) for record in placed(_with_records(frame))], columns=columns)
    found.insert(0, "org_id", frame["org_id"].iloc[0])
    return found


def _limit_org(frame: pd.DataFrame, applied: pd.DataFrame) -> pd.DataFrame:
    import pandas as pd

    whole = frame.astype({"ttl_days": "Int64"}).astype(object)
    columns = (whole[name].where(whole[name].notna(), None).tolist() for name in _RETENTION_REQUEST)
    requests = [RetentionRequest(*values) for values in zip(*columns, strict=True)]
    links = list(_requests(applied))
    until, least = erased(requests, links), persons(links)
    limits = [(None, None, cut_off(requests)), *((who, least.get(who, who), at) for who, at in until.items())]
    found = pd.DataFrame([limit for limit in limits if limit[2] is not None], columns=["who_id", "person", "until"])
    found.insert(0, "org_id", frame["org_id"].iloc[0] if len(frame) else None)
    return found.astype({"until": "datetime64[ns]"})


def _requests(frame: pd.DataFrame) -> Iterator[MutationRequest]:
    columns = (frame[name].tolist() for name in _REQUEST)
    return (MutationRequest(*values) for values in zip(*columns, strict=True))


def _with_records(frame: pd.DataFrame) -> Iterator[MutationRequest]:
    carried = zip(*(frame[name].tolist() for name in RECORD_IDS), strict=True)
    for request, (engagement_id, who_id) in zip(_requests(frame), carried, strict=True):
        carries = isinstance(engagement_id, str)  # pandas may say NaN for null
        yield replace(request, record=Record(engagement_id, who_id)) if carries else request
