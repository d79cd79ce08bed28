"""The functions of `requests` applied to rows of Spark: in this process while they are few, else on its executors.

The executors must have this package. A task is some components of the graph of an org and id column: other requests
meet them on rows alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

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
    from pyspark.sql import Column, DataFrame

    Codes = npt.NDArray[np.int32]

IN_PROCESS = 10_000
"""Rows that are read into this process: its work on them takes less time than it takes to start Spark's workers."""

_OF = ["org_id", "column"]
_KEY = [*_OF, "part"]
"""A task."""
PARTS = "hash bigint, part int, component bigint"
REQUESTS_OF_A_PART = 50_000
"""A part is larger if a single component is. Python takes 1.7 kB for a request."""

ALIASES = "org_id string, column string, old_id string, new_id string, after timestamp, until timestamp, day date"
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
    return _by_group(requests.select("org_id", *_REQUEST, "part"), _KEY, _aliases_of_org, ALIASES)


def changed_aliases_by_org(applied: DataFrame, batch: DataFrame, arrived: DataFrame) -> DataFrame:
    """Return where a batch leads rows by the ids that they were sent with, as `changed_aliases` does: `ALIASES`.

    Args:
        applied: As for `aliases_by_org`.
        batch: As for `aliases_by_org`.
        arrived: org_id string, column string, part int, id string: ids with new rows.
    """
    from pyspark.sql import functions as F

    names = ["org_id", *_REQUEST, "part"]
    former = applied.select(*names, F.lit(False).alias(_IS_OF_BATCH))
    asked = batch.select(*names, F.lit(True).alias(_IS_OF_BATCH))
    ids = arrived.select(*_KEY, F.col("id").alias("old_id"))
    both = asked.unionByName(former).unionByName(ids, allowMissingColumns=True)
    return _by_group(both, _KEY, _changed_aliases_of_org, ALIASES)


def _by_group(rows: DataFrame, key: Sequence[str], function: Callable[[pa.Table], pa.Table], schema: str) -> DataFrame:
    """Return what a function makes of the rows of each group, computed now, as `checkpoint_rows` does."""
    from lake_assets.connections.row_checkpoint import checkpoint_rows

    few = rows.limit(IN_PROCESS + 1).toArrow()
    if few.num_rows > IN_PROCESS:
        return checkpoint_rows(rows.groupBy(*key).applyInArrow(function, schema))
    places = defaultdict[tuple[object, ...], list[int]](list)
    for place, of_row in enumerate(zip(*(few[name].to_pylist() for name in key), strict=True)):
        places[of_row].append(place)
    made = [function(few.take(of_group)) for of_group in places.values()]
    found = pa.concat_tables(made) if made else None
    spark = rows.sparkSession
    # Spark refuses an empty table.
    return spark.createDataFrame(found, schema) if found else spark.createDataFrame([], schema)


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
    return _by_group(ends, ["graph"], lambda table: parts_of_graph(table), PARTS)


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
    return _by_group(requests.select(*REPLAYED), ["org_id"], _place_records_of_org, PLACED_RECORDS)


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
    links_of_persons = related.select("org_id", *_REQUEST)
    both = requests.select("org_id", *_RETENTION_REQUEST).unionByName(links_of_persons, allowMissingColumns=True)
    return _by_group(both, ["org_id"], _limits_of_org, RETENTION_LIMITS)


def _aliases_of_org(rows: pa.Table) -> pa.Table:
    return _of_aliases(rows, aliases(_requests(rows)))


def _changed_aliases_of_org(rows: pa.Table) -> pa.Table:
    is_of_batch = rows[_IS_OF_BATCH]
    former, batch = (_requests(rows.filter(pc.equal(is_of_batch, of_batch))) for of_batch in (False, True))
    arrived = {*rows.filter(is_of_batch.is_null())["old_id"].to_pylist()}
    return _of_aliases(rows, changed_aliases(former, batch, arrived))


def _of_aliases(rows: pa.Table, found: Iterable[Alias]) -> pa.Table:
    key = [rows[name][0].as_py() for name in _OF]
    return _table(ALIASES, [(*key, each.old_id, each.new_id, each.after, each.until, each.day) for each in found])


def parts_of_graph(links: pa.Table, most: int = REQUESTS_OF_A_PART) -> pa.Table:
    """Return `PARTS` of one org and column. Pure.

    Args:
        links: old int64, new int64: hashes of the ids; is_wanted bool.
        most: Requests of a part, unless a component has more.
    """
    import numpy as np

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


def _place_records_of_org(rows: pa.Table) -> pa.Table:
    org = rows["org_id"][0].as_py()
    columns = [rows[name].to_pylist() for name in RECORD_PLACE]
    requests = []
    for request, engagement_id, who_id, day, ids in zip(_requests(rows), *columns, strict=True):
        record = None if engagement_id is None else Record(engagement_id, who_id, day, dict(ids or ()))
        requests.append(replace(request, record=record))
    found = place_records(requests)
    return _table(
        PLACED_RECORDS, [(org, each.engagement_id, each.request_id, each.who_id, [*each.ids.items()]) for each in found]
    )


def _limits_of_org(rows: pa.Table) -> pa.Table:
    org = rows["org_id"][0].as_py()
    is_link = rows["requested_at"].is_null()
    asked = rows.filter(pc.invert(is_link)).select(_RETENTION_REQUEST)
    requests = [RetentionRequest(**row) for row in asked.to_pylist()]
    oldest_kept = cut_off(requests)
    found: list[tuple[object, ...]] = [] if oldest_kept is None else [(org, None, None, oldest_kept)]
    for who_id, (until, person) in erased_ids(requests, _requests(rows.filter(is_link))).items():
        found.append((org, who_id, person, until))
    return _table(RETENTION_LIMITS, found)


def _requests(rows: pa.Table) -> Iterator[MutationRequest]:
    columns = [rows[name].to_pylist() for name in _REQUEST]
    without_record = [None] * rows.num_rows
    for values in zip(*columns[:-2], without_record, *columns[-2:], strict=True):
        yield MutationRequest(*values)


_ARROW = {
    "string": pa.string(),
    "timestamp": pa.timestamp("us", "UTC"),
    "date": pa.date32(),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
}


def _table(schema: str, rows: Sequence[tuple[object, ...]]) -> pa.Table:
    """Return rows as a table of a schema in Spark's words."""
    fields = [field.split() for field in schema.split(", ")]
    values = zip(*rows, strict=True) if rows else ((),) * len(fields)
    return pa.table({name: pa.array(column, _ARROW[kind]) for (name, kind), column in zip(fields, values, strict=True)})
