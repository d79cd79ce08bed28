"""What is pure here, requests by org, for many orgs at once on Spark's executors: this package must be there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import astuple, replace
from typing import TYPE_CHECKING, Any

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
        asked, former = frame[frame[_NEW]], frame[~frame[_NEW]]
        came = ids["arrived"].notna()
        arrived = zip(_values(ids["who_id"][came]), _values(ids["arrived"][came]), strict=True)
        found = met(_with_records(asked), _values(ids["who_id"][~came]), applied=_requests(former), arrived=arrived)
        columns = {name: _values(asked[name]) for name in names}
        columns["attempts"] = [count + 1 for count in columns["attempts"]]
        columns["status"] = [
            status(found=request in found, attempts=count, max_attempts=max_attempts)
            for request, count in zip(columns["request_id"], columns["attempts"], strict=True)
        ]
        return _frame(columns, zip(*columns.values(), strict=True))

    names = requests.columns
    by_org = _told_apart(applied, requests).groupBy("org_id")
    return by_org.cogroup(present.groupBy("org_id")).applyInPandas(try_org, requests.schema)


def _told_apart(applied: DataFrame, batch: DataFrame) -> DataFrame:
    """The requests applied before and those of a batch, with the columns of these, and `_NEW`: whether it is one."""
    from pyspark.sql import functions as F

    before = applied.select("org_id", *_REQUEST).withColumn(_NEW, F.lit(False))
    return batch.withColumn(_NEW, F.lit(True)).unionByName(before, allowMissingColumns=True)


def _collapse_org(frame: pd.DataFrame) -> pd.DataFrame:
    org, final = _org(frame), collapse(_requests(frame))
    return _frame(_names(COLLAPSED), ((org, old_id, new_id) for old_id, new_id in final.items()))


def _alias_org(frame: pd.DataFrame) -> pd.DataFrame:
    org = _org(frame)
    found = aliases(_requests(frame[~frame[_NEW]]), _requests(frame[frame[_NEW]]))
    return _frame(_names(ALIASED), ((org, *astuple(alias)) for alias in found))


def _place_org(frame: pd.DataFrame) -> pd.DataFrame:
    org, found = _org(frame), placed(_with_records(frame))
    return _frame(_names(PLACED), ((org, *astuple(record)) for record in found))


def _limit_org(frame: pd.DataFrame, applied: pd.DataFrame) -> pd.DataFrame:
    org, whole = _org(frame if len(frame) else applied), frame.astype({"ttl_days": "Int64"})
    columns = (_values(whole[name]) for name in _RETENTION_REQUEST)
    requests = [RetentionRequest(*values) for values in zip(*columns, strict=True)]
    links = list(_requests(applied))
    until, least = erased(requests, links), persons(links)
    limits = [(None, None, cut_off(requests)), *((who, least.get(who, who), at) for who, at in until.items())]
    return _frame(_names(LIMITED), ((org, *limit) for limit in limits if limit[2] is not None))


def _requests(frame: pd.DataFrame) -> Iterator[MutationRequest]:
    columns = (_values(frame[name]) for name in _REQUEST)
    return (MutationRequest(*values) for values in zip(*columns, strict=True))


def _with_records(frame: pd.DataFrame) -> Iterator[MutationRequest]:
    carried = zip(*(_values(frame[name]) for name in RECORD_IDS), strict=True)
    for request, (engagement_id, who_id) in zip(_requests(frame), carried, strict=True):
        carries = engagement_id is not None
        yield replace(request, record=Record(engagement_id, who_id)) if carries else request


def _org(frame: pd.DataFrame) -> str:
    return str(frame["org_id"].iloc[0])


def _names(schema: str) -> list[str]:
    return [field.split()[0] for field in schema.split(", ")]


def _values(column: pd.Series[Any]) -> list[Any]:
    """Return the values of a column as Python values, with None for null."""
    return column.astype(object).where(column.notna(), None).tolist()


def _frame(names: Iterable[str], rows: Iterable[tuple[object, ...]]) -> pd.DataFrame:
    """Build the frame that a function returns to Spark.

    Every function here builds its result from Python values, and returns no column that it was given: if the rows of an
    org come in more than one Arrow batch, a column of strings has several chunks, and Spark takes no such column (Y1).
    """
    import pandas as pd

    return pd.DataFrame(list(rows), columns=list(names))
