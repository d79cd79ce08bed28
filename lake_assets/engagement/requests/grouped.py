"""The functions of this package applied by org on Spark's executors, which must have this package."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import astuple, replace
from typing import TYPE_CHECKING, Any

from lake_assets.engagement.requests.aliases import Alias, aliases, changed_aliases, late_aliases
from lake_assets.engagement.requests.identity import MutationRequest, Record
from lake_assets.engagement.requests.pending import Engaged, applicable, status_after_attempt
from lake_assets.engagement.requests.record_placement import place_records
from lake_assets.engagement.requests.related import connected_ids
from lake_assets.engagement.requests.retention_rules import (
    RetentionRequest,
    cut_off,
    erased_ids,
    least_id_of_person,
)

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame

ALIASES = "org_id string, old_id string, new_id string, after timestamp, until timestamp"
PLACED_RECORDS = "org_id string, engagement_id string, request_id string, who_id string"
RETENTION_LIMITS = "org_id string, who_id string, person string, until timestamp"
RECORD_IDS = ("record_engagement_id", "record_who_id")
"""Columns that describe the record of a request; null if it carries none."""

_RETENTION_REQUEST = ("request_id", "op", "ttl_days", "who_id", "requested_at")
_REQUEST = ("request_id", "op", "old_id", "new_id", "executed_at", "partition", "offset")
_IS_OF_BATCH = "of_batch"


def aliases_by_org(requests: DataFrame) -> DataFrame:
    """Return where requests lead rows: `ALIASES`. All requests of an org are processed in one task.

    Args:
        requests: org_id string, request_id string, op string, old_id string, new_id string (null for a delete),
            executed_at timestamp, partition int, offset long.
    """
    by_org = requests.select("org_id", *_REQUEST).groupBy("org_id")
    return by_org.applyInPandas(_aliases_of_org, ALIASES)


def late_aliases_by_org(applied: DataFrame, batch: DataFrame) -> DataFrame:
    """Return where applied requests and those of a batch lead late rows, as `late_aliases` does: `ALIASES`.

    Args:
        applied: As for `aliases_by_org`.
        batch: As for `aliases_by_org`.
    """
    both = _union(applied, batch.select("org_id", *_REQUEST))
    return both.groupBy("org_id").applyInPandas(_late_aliases_of_org, ALIASES)


def changed_aliases_by_org(applied: DataFrame, batch: DataFrame, arrived: DataFrame) -> DataFrame:
    """Return where a batch leads rows by the ids that they were sent with, as `changed_aliases` does: `ALIASES`.

    Args:
        applied: As for `aliases_by_org`.
        batch: As for `aliases_by_org`.
        arrived: org_id string, id string: ids with new rows.
    """
    both = _union(applied, batch.select("org_id", *_REQUEST)).groupBy("org_id")
    ids = arrived.select("org_id", "id").groupBy("org_id")
    return both.cogroup(ids).applyInPandas(_changed_aliases_of_org, ALIASES)


def related_by_org(applied: DataFrame, ids: DataFrame) -> DataFrame:
    """Return the applied requests that are connected with some ids, directly or through others.

    Args:
        applied: As for `aliases_by_org`.
        ids: org_id string, id string.

    Returns:
        The columns of `applied` that `aliases_by_org` needs.
    """
    requests = applied.select("org_id", *_REQUEST)
    both = requests.groupBy("org_id").cogroup(ids.select("org_id", "id").groupBy("org_id"))
    return both.applyInPandas(_related_of_org, requests.schema)


def place_records_by_org(requests: DataFrame) -> DataFrame:
    """Return where the records of requests end: `PLACED_RECORDS`. who_id is null where no row is left.

    Args:
        requests: As for `aliases_by_org`, and `RECORD_IDS`, strings.
    """
    by_org = requests.select("org_id", *_REQUEST, *RECORD_IDS).groupBy("org_id")
    return by_org.applyInPandas(_place_records_of_org, PLACED_RECORDS)


def limits_by_org(requests: DataFrame, links: DataFrame) -> DataFrame:
    """Return what retention requests remove.

    Args:
        requests: org_id string, request_id string, op string, ttl_days int, who_id string, requested_at timestamp.
        links: Mutation requests, as for `aliases_by_org`, whether they were applied or not.

    Returns:
        `RETENTION_LIMITS`. A row with a who_id erases that id; until is inclusive, person is the least id of the same
        person. A row without a who_id is the cut-off of the org; until is exclusive.
    """
    requests_by_org = requests.select("org_id", *_RETENTION_REQUEST).groupBy("org_id")
    links_by_org = links.select("org_id", *_REQUEST).groupBy("org_id")
    both = requests_by_org.cogroup(links_by_org)
    return both.applyInPandas(_limits_of_org, RETENTION_LIMITS)


def attempt_by_org(requests: DataFrame, applied: DataFrame, present: DataFrame, *, max_attempts: int) -> DataFrame:
    """Return the requests with one more attempt and their status after it.

    Args:
        requests: Columns as for `place_records_by_org`, attempts int, status string, and any others.
        applied: Requests of former batches, as for `aliases_by_org`.
        present: Rows: org_id string, who_id string, engaged_at timestamp, is_as_sent boolean: whether who_id is the id
            that the row was sent with, so that applied requests act on it, too. It must not contain orgs that have
            neither requests nor applied ones.
    """

    def attempt_org(frame: pd.DataFrame, ids: pd.DataFrame) -> pd.DataFrame:
        asked = frame[frame[_IS_OF_BATCH]]
        former = frame[~frame[_IS_OF_BATCH]]
        is_as_sent = ids["is_as_sent"].astype(bool)
        found = applicable(
            _requests_with_records(asked),
            present=_engaged(ids[~is_as_sent]),
            applied=_requests(former),
            as_sent=_engaged(ids[is_as_sent]),
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


def _aliases_of_org(frame: pd.DataFrame) -> pd.DataFrame:
    return _alias_frame(_org(frame), aliases(_requests(frame)))


def _changed_aliases_of_org(frame: pd.DataFrame, arrived: pd.DataFrame) -> pd.DataFrame:
    if frame.empty:
        return _alias_frame("", [])
    former = _requests(frame[~frame[_IS_OF_BATCH]])
    batch = _requests(frame[frame[_IS_OF_BATCH]])
    return _alias_frame(_org(frame), changed_aliases(former, batch, set(_values(arrived["id"]))))


def _late_aliases_of_org(frame: pd.DataFrame) -> pd.DataFrame:
    former = _requests(frame[~frame[_IS_OF_BATCH]])
    batch = _requests(frame[frame[_IS_OF_BATCH]])
    return _alias_frame(_org(frame), late_aliases(former, batch))


def _alias_frame(org: str, found: Iterable[Alias]) -> pd.DataFrame:
    rows = [(org, *astuple(alias)) for alias in found]
    return _frame(_names(ALIASES), rows)


def _related_of_org(frame: pd.DataFrame, ids: pd.DataFrame) -> pd.DataFrame:
    columns = {name: _values(frame[name]) for name in frame.columns}
    links = list(zip(columns["old_id"], columns["new_id"], strict=True))
    connected = connected_ids(links, _values(ids["id"]))
    rows = zip(*columns.values(), strict=True)
    related = [row for row, (old_id, _) in zip(rows, links, strict=True) if old_id in connected]
    return _frame(columns, related)


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


def _engaged(frame: pd.DataFrame) -> Iterator[Engaged]:
    yield from zip(_values(frame["who_id"]), _values(frame["engaged_at"]), strict=True)


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
