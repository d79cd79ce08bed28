"""The functions of `requests` applied on Spark's executors, which must have this package.

A task is some components of the graph of an org and id column: other requests meet them on rows alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lake_assets.engagement.requests import (
    PERSON,
    Alias,
    MutationRequest,
    Record,
    RetentionRequest,
    aliases,
    changed_aliases,
    cut_off,
    erased_ids,
    place_records,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pandas as pd
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

    Codes = npt.NDArray[np.int32]

_OF = ["org_id", "column"]
_KEY = [*_OF, "part"]
"""A task."""
PARTS = "hash bigint, part int, component bigint"
REQUESTS_OF_A_PART = 50_000
"""A part is larger if a single component is. Python takes 1.7 kB for a request."""

ALIASES = "org_id string, column string, old_id string, new_id string, after timestamp, until timestamp"
PLACED_RECORDS = "org_id string, engagement_id string, request_id string, who_id string, ids map<string,string>"
RETENTION_LIMITS = "org_id string, who_id string, person string, until timestamp"
RECORD_IDS = ("record_engagement_id", "record_who_id")
"""Columns that describe the record of a request; null if it carries none."""
RECORD_PLACE = (*RECORD_IDS, "record_date", "record_ids")
"""What decides where a record ends: also its date, and a map of further id columns to its ids."""

_RETENTION_REQUEST = ("request_id", "op", "ttl_days", "who_id", "requested_at")
_REQUEST = ("request_id", "op", "old_id", "new_id", "executed_at", "partition", "offset", "engagement_date", "column")
REPLAYED = ("org_id", *_REQUEST, *RECORD_PLACE)
"""Columns of requests that tell where their records end."""
_IS_OF_BATCH = "of_batch"


def aliases_by_org(requests: DataFrame) -> DataFrame:
    """Return where requests lead rows: `ALIASES`.

    Args:
        requests: org_id string, request_id string, op string, old_id string, new_id string (null for a delete),
            executed_at timestamp, partition int, offset long, engagement_date date, column string, part int.
    """
    by_org = requests.select("org_id", *_REQUEST, "part").groupBy(*_KEY)
    return by_org.applyInPandas(_aliases_of_org, ALIASES)


def changed_aliases_by_org(applied: DataFrame, batch: DataFrame, arrived: DataFrame) -> DataFrame:
    """Return where a batch leads rows by the ids that they were sent with, as `changed_aliases` does: `ALIASES`.

    Args:
        applied: As for `aliases_by_org`.
        batch: As for `aliases_by_org`.
        arrived: org_id string, column string, part int, id string: ids with new rows.
    """
    both = _union(applied, batch.select("org_id", *_REQUEST, "part")).groupBy(*_KEY)
    ids = _own_part(arrived).select(*_KEY, "id").groupBy(*_KEY)
    return both.cogroup(ids).applyInPandas(_changed_aliases_of_org, ALIASES)


def parts_by_org(links: DataFrame) -> DataFrame:
    """Return the ids of the components with a wanted link, as hashes, and part and component of each: `PARTS`.

    Of two ids with one hash, the components are in one part, which does no harm.

    Args:
        links: org_id string, column string, old_id string, new_id string (null for a delete or an id alone) of
            requests; is_wanted boolean.
    """
    from pyspark.sql import functions as F

    old = _hash("old_id")
    new = F.when(F.col("new_id").isNotNull(), _hash("new_id")).otherwise(old)
    ends = links.select(F.xxhash64(*_OF).alias("graph"), old.alias("old"), new.alias("new"), "is_wanted")
    return ends.groupBy("graph").applyInArrow(lambda table: parts_of_graph(table), PARTS)


def with_part(rows: DataFrame, parts: DataFrame, identity: str) -> DataFrame:
    """Return the rows of the ids that have a part, with it and their component.

    Args:
        rows: org_id string, column string, and the id.
        parts: As `parts_by_org` returns them.
        identity: The column with the id.
    """
    return rows.withColumn("hash", _hash(identity)).join(parts, "hash").drop("hash")


def _hash(identity: str) -> Column:
    from pyspark.sql import functions as F

    return F.xxhash64(*_OF, identity)


def place_records_by_org(requests: DataFrame) -> DataFrame:
    """Return where the records of requests end: `PLACED_RECORDS`. who_id is null where no row is left.

    Args:
        requests: `REPLAYED`.
    """
    by_org = requests.select(*REPLAYED).groupBy("org_id")
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
    from pyspark.sql import functions as F

    persons = requests.where("who_id is not null")
    ends = links.select(*_OF, "old_id", "new_id", F.lit(False).alias("is_wanted"))
    ends = ends.union(persons.select("org_id", F.lit(PERSON), "who_id", F.lit(None), F.lit(True)))
    related = with_part(links, parts_by_org(ends), "old_id")
    requests_by_org = requests.select("org_id", *_RETENTION_REQUEST).groupBy("org_id")
    links_by_org = related.select("org_id", *_REQUEST).groupBy("org_id")
    both = requests_by_org.cogroup(links_by_org)
    return both.applyInPandas(_limits_of_org, RETENTION_LIMITS)


def _own_part(rows: DataFrame) -> DataFrame:
    """Return rows whose part is a column of their own: Spark in this process finds one of both sides ambiguous."""
    from pyspark.sql import functions as F

    return rows.withColumn("part", F.expr("part + 0"))


def _union(applied: DataFrame, batch: DataFrame) -> DataFrame:
    """Return applied requests and those of a batch, with the columns of the batch and `_IS_OF_BATCH`."""
    from pyspark.sql import functions as F

    former = applied.select("org_id", *_REQUEST, "part").withColumn(_IS_OF_BATCH, F.lit(False))
    return batch.withColumn(_IS_OF_BATCH, F.lit(True)).unionByName(former, allowMissingColumns=True)


def _aliases_of_org(frame: pd.DataFrame) -> pd.DataFrame:
    return _alias_frame(frame, aliases(_requests(frame)))


def _changed_aliases_of_org(frame: pd.DataFrame, arrived: pd.DataFrame) -> pd.DataFrame:
    if frame.empty:
        return _frame(_names(ALIASES), [])
    former = _requests(frame[~frame[_IS_OF_BATCH]])
    batch = _requests(frame[frame[_IS_OF_BATCH]])
    return _alias_frame(frame, changed_aliases(former, batch, set(_values(arrived["id"]))))


def _alias_frame(requests: pd.DataFrame, found: Iterable[Alias]) -> pd.DataFrame:
    key = [str(requests[name].iloc[0]) for name in _OF]
    rows = [(*key, alias.old_id, alias.new_id, alias.after, alias.until) for alias in found]
    return _frame(_names(ALIASES), rows)


def parts_of_graph(links: pa.Table, most: int = REQUESTS_OF_A_PART) -> pa.Table:
    """Return `PARTS` of one org and column. Pure.

    Args:
        links: old int64, new int64: hashes of the ids; is_wanted bool.
        most: Requests of a part, unless a component has more.
    """
    import numpy as np
    import pyarrow as pa

    ends = np.concatenate([links["old"].to_numpy(), links["new"].to_numpy()])
    is_wanted = links["is_wanted"].to_numpy()
    hashes, places = np.unique(ends, return_inverse=True)
    del ends, links
    first, second = np.split(places.astype(np.int32), 2)
    del places
    component = _components(first, second, len(hashes))
    wanted = np.unique(component[first[is_wanted]])
    sizes = np.bincount(component[first], minlength=len(hashes))[wanted]
    part_of = np.full(len(hashes), -1, dtype=np.int32)
    part_of[wanted] = (np.cumsum(sizes) - sizes) // most
    part = part_of[component]
    is_of_part = part >= 0
    columns = {"hash": hashes, "part": part, "component": hashes[component]}
    return pa.table({name: values[is_of_part] for name, values in columns.items()})


def _components(first: Codes, second: Codes, count: int) -> Codes:
    """Return the least node of the component of each node 0 to count. first, second: the nodes that edges connect."""
    import numpy as np

    least = np.arange(count, dtype=np.int32)
    while True:
        one, other = least[first], least[second]
        differ = one != other
        if not differ.any():
            return least
        one, other = one[differ], other[differ]
        np.minimum.at(least, np.maximum(one, other), np.minimum(one, other))
        while not np.array_equal(shorter := least[least], least):
            least = shorter


def _place_records_of_org(frame: pd.DataFrame) -> pd.DataFrame:
    org = _org(frame)
    found = place_records(_requests_with_records(frame))
    rows = [(org, each.engagement_id, each.request_id, each.who_id, dict(each.ids)) for each in found]
    return _frame(_names(PLACED_RECORDS), rows)


def _limits_of_org(frame: pd.DataFrame, applied: pd.DataFrame) -> pd.DataFrame:
    org = _org(frame if len(frame) else applied)
    requests = _retention_requests(frame)
    rows: list[tuple[object, ...]] = []
    oldest_kept = cut_off(requests)
    if oldest_kept is not None:
        rows.append((org, None, None, oldest_kept))
    for who_id, (until, person) in erased_ids(requests, _requests(applied)).items():
        rows.append((org, who_id, person, until))
    return _frame(_names(RETENTION_LIMITS), rows)


def _retention_requests(frame: pd.DataFrame) -> list[RetentionRequest]:
    integers = frame.astype({"ttl_days": "Int64"})
    columns = [_values(integers[name]) for name in _RETENTION_REQUEST]
    return [RetentionRequest(*values) for values in zip(*columns, strict=True)]


def _requests(frame: pd.DataFrame) -> Iterator[MutationRequest]:
    columns = [_values(frame[name]) for name in _REQUEST]
    without_record = [None] * len(frame)
    for values in zip(*columns[:-2], without_record, *columns[-2:], strict=True):
        yield MutationRequest(*values)


def _requests_with_records(frame: pd.DataFrame) -> Iterator[MutationRequest]:
    columns = [_values(frame[name]) for name in RECORD_PLACE]
    for request, engagement_id, who_id, day, ids in zip(_requests(frame), *columns, strict=True):
        record = None if engagement_id is None else Record(engagement_id, who_id, day, dict(ids or {}))
        yield replace(request, record=record)


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
