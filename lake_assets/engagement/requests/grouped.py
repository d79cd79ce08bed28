"""The functions of this package applied by org on Spark's executors, which must have this package."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import astuple, replace
from typing import TYPE_CHECKING, Any

from lake_assets.engagement.requests.aliases import aliases
from lake_assets.engagement.requests.identity import MutationRequest, Record, collapse
from lake_assets.engagement.requests.pending import applicable, status_after_attempt
from lake_assets.engagement.requests.record_placement import place_records
from lake_assets.engagement.requests.retention_rules import (
    RetentionRequest,
    cut_off,
    erased_ids,
    least_id_of_person,
)

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame

COLLAPSED = "org_id string, old_id string, new_id string"
ALIASES = f"{COLLAPSED}, after timestamp, until timestamp"
PLACED_RECORDS = "org_id string, engagement_id string, request_id string, who_id string"
RETENTION_LIMITS = "org_id string, who_id string, person string, until timestamp"
RECORD_IDS = ("record_engagement_id", "record_who_id")
"""Columns that describe the record of a request; null if it carries none."""

_RETENTION_REQUEST = ("request_id", "op", "ttl_days", "who_id", "requested_at")
_REQUEST = ("request_id", "op", "old_id", "new_id", "executed_at", "partition", "offset")
_IS_OF_BATCH = "of_batch"


def collapse_by_org(requests: DataFrame) -> DataFrame:
    """Return one row for each id of an org whose rows change. All requests of an org are processed in one task.

    Args:
        requests: org_id string, request_id string, op string, old_id string, new_id string (null for a delete),
            executed_at timestamp, partition int, offset long.

    Returns:
        `COLLAPSED`. new_id is null where rows are deleted.
    """
    by_org = requests.select("org_id", *_REQUEST).groupBy("org_id")
    return by_org.applyInPandas(_collapse_org, COLLAPSED)


def aliases_by_org(applied: DataFrame, batch: DataFrame) -> DataFrame:
    """Return the aliases that applied requests leave beside the requests of a batch: `ALIASES`.

    Args:
        applied: As for `collapse_by_org`.
        batch: As for `collapse_by_org`.
    """
    both = _union(applied, batch.select("org_id", *_REQUEST))
    return both.groupBy("org_id").applyInPandas(_aliases_of_org, ALIASES)


def place_records_by_org(requests: DataFrame) -> DataFrame:
    """Return where the records of requests end: `PLACED_RECORDS`. who_id is null where no row is left.

    Args:
        requests: As for `collapse_by_org`, and `RECORD_IDS`, strings.
    """
    by_org = requests.select("org_id", *_REQUEST, *RECORD_IDS).groupBy("org_id")
    return by_org.applyInPandas(_place_records_of_org, PLACED_RECORDS)


def limits_by_org(requests: DataFrame, applied: DataFrame) -> DataFrame:
    """Return what retention requests remove.

    Args:
        requests: org_id string, request_id string, op string, ttl_days int, who_id string, requested_at timestamp.
        applied: Mutation requests, as for `collapse_by_org`.

    Returns:
        `RETENTION_LIMITS`. A row with a who_id erases that id; until is inclusive, person is the least id of the same
        person. A row without a who_id is the cut-off of the org; until is exclusive.
    """
    requests_by_org = requests.select("org_id", *_RETENTION_REQUEST).groupBy("org_id")
    applied_by_org = applied.select("org_id", *_REQUEST).groupBy("org_id")
    both = requests_by_org.cogroup(applied_by_org)
    return both.applyInPandas(_limits_of_org, RETENTION_LIMITS)


def attempt_by_org(requests: DataFrame, applied: DataFrame, present: DataFrame, *, max_attempts: int) -> DataFrame:
    """Return the requests with one more attempt and their status after it.

    Args:
        requests: Columns as for `place_records_by_org`, attempts int, status string, and any others.
        applied: Requests of former batches, as for `collapse_by_org`.
        present: Ids that have rows: org_id string, who_id string, arrived timestamp. arrived is engaged_at of a new
            row, null for former rows. It must not contain orgs without requests.
    """

    def attempt_org(frame: pd.DataFrame, ids: pd.DataFrame) -> pd.DataFrame:
        asked = frame[frame[_IS_OF_BATCH]]
        former = frame[~frame[_IS_OF_BATCH]]
        is_new = ids["arrived"].notna()
        new_rows = ids[is_new]
        former_rows = ids[~is_new]
        found = applicable(
            _requests_with_records(asked),
            present=_values(former_rows["who_id"]),
            applied=_requests(former),
            arrived=zip(_values(new_rows["who_id"]), _values(new_rows["arrived"]), strict=True),
        )
        columns = {name: _values(asked[name]) for name in names}
        columns["attempts"] = [count + 1 for count in columns["attempts"]]
        columns["status"] = [
            status_after_attempt(found=request_id in found, attempts=attempts, max_attempts=max_attempts)
            for request_id, attempts in zip(columns["request_id"], columns["attempts"], strict=True)
        ]
        return _frame(columns, zip(*columns.values(), strict=True))

    names = requests.columns
    requests_by_org = _union(applied, requests).groupBy("org_id")
    return requests_by_org.cogroup(present.groupBy("org_id")).applyInPandas(attempt_org, requests.schema)


def _union(applied: DataFrame, batch: DataFrame) -> DataFrame:
    """Return applied requests and those of a batch, with the columns of the batch and `_IS_OF_BATCH`."""
    from pyspark.sql import functions as F

    former = applied.select("org_id", *_REQUEST).withColumn(_IS_OF_BATCH, F.lit(False))
    return batch.withColumn(_IS_OF_BATCH, F.lit(True)).unionByName(former, allowMissingColumns=True)


def _collapse_org(frame: pd.DataFrame) -> pd.DataFrame:
    org = _org(frame)
    final_ids = collapse(_requests(frame))
    rows = [(org, old_id, new_id) for old_id, new_id in final_ids.items()]
    return _frame(_names(COLLAPSED), rows)


def _aliases_of_org(frame: pd.DataFrame) -> pd.DataFrame:
    org = _org(frame)
    former = _requests(frame[~frame[_IS_OF_BATCH]])
    batch = _requests(frame[frame[_IS_OF_BATCH]])
    found = aliases(former, batch)
    rows = [(org, *astuple(alias)) for alias in found]
    return _frame(_names(ALIASES), rows)


def _place_records_of_org(frame: pd.DataFrame) -> pd.DataFrame:
    org = _org(frame)
    found = place_records(_requests_with_records(frame))
    rows = [(org, *astuple(record)) for record in found]
    return _frame(_names(PLACED_RECORDS), rows)


def _limits_of_org(frame: pd.DataFrame, applied: pd.DataFrame) -> pd.DataFrame:
    org = _org(frame if len(frame) else applied)
    requests = _retention_requests(frame)
    links = list(_requests(applied))
    least_id = least_id_of_person(links)
    rows: list[tuple[object, ...]] = []
    oldest_kept = cut_off(requests)
    if oldest_kept is not None:
        rows.append((org, None, None, oldest_kept))
    for who_id, until in erased_ids(requests, links).items():
        person = least_id.get(who_id, who_id)
        rows.append((org, who_id, person, until))
    return _frame(_names(RETENTION_LIMITS), rows)


def _retention_requests(frame: pd.DataFrame) -> list[RetentionRequest]:
    integers = frame.astype({"ttl_days": "Int64"})
    columns = [_values(integers[name]) for name in _RETENTION_REQUEST]
    return [RetentionRequest(*values) for values in zip(*columns, strict=True)]


def _requests(frame: pd.DataFrame) -> Iterator[MutationRequest]:
    columns = [_values(frame[name]) for name in _REQUEST]
    for values in zip(*columns, strict=True):
        yield MutationRequest(*values)


def _requests_with_records(frame: pd.DataFrame) -> Iterator[MutationRequest]:
    columns = [_values(frame[name]) for name in RECORD_IDS]
    for request, engagement_id, who_id in zip(_requests(frame), *columns, strict=True):
        if engagement_id is None:
            yield request
        else:
            yield replace(request, record=Record(engagement_id, who_id))


def _org(frame: pd.DataFrame) -> str:
    return str(frame["org_id"].iloc[0])


def _names(schema: str) -> list[str]:
    return [field.split()[0] for field in schema.split(", ")]


def _values(column: pd.Series[Any]) -> list[Any]:
    """Return the values of a column as Python values, with None for null."""
    return column.astype(object).where(column.notna(), None).tolist()


def _frame(names: Iterable[str], rows: Iterable[tuple[object, ...]]) -> pd.DataFrame:
    """Build the frame that a function returns to Spark.

    Every function here builds its result from Python values, and returns no column that it was given. If the rows of an
    org come in more than one Arrow batch, a column of strings has several chunks, and Spark rejects it (Y1).
    """
    import pandas as pd

    return pd.DataFrame(list(rows), columns=list(names))
