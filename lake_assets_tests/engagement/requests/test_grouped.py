"""Every function that hands rows from Spark to Python or back, with more rows of one org than an Arrow batch has.

Spark hands the rows of a group over in batches of `spark.sql.execution.arrow.maxRecordsPerBatch`, 10,000 by default. If
there is more than one batch, a column has several chunks, and Spark takes no such column back (Y1). So each test has
12,000 rows of one org, and a single row of another one beside them: too many for this process, or not.
"""

from __future__ import annotations

from collections import Counter
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING

import networkx as nx
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F

from lake_assets.engagement import grouped
from lake_assets.engagement.batch import BatchMessages
from lake_assets.engagement.checkpoint import Batch, OffsetRange
from lake_assets.engagement.erasure import erased_by_org
from lake_assets.engagement.grouped import (
    RECORD_PLACE,
    aliases_by_org,
    changed_aliases_by_org,
    limits_by_org,
    parts_by_org,
    place_records_by_org,
    with_part,
)
from lake_assets.engagement.lakes import EMAIL_EVENT
from lake_assets.engagement.messages import RETENTION_FORMAT
from lake_assets.engagement.retention import RetentionLimits, redact_letters
from lake_assets.engagement.tables import MUTATION_REQUEST_COLUMNS, open_tables
from lake_assets.engagement.topics import KafkaTopic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lake_assets.settings import Settings

COUNT = 12_000
START = datetime(2026, 1, 1)  # noqa: DTZ001 - Spark gives times of its session's zone, UTC, without one
ONE, MANY = "globex", "acme"
REQUEST = {
    "request_id": "concat('r', id)",
    "op": "if(id % 3 = 0, 'delete', 'convert')",
    "old_id": "concat('old ', id)",
    "new_id": "if(id % 3 = 0, null, concat('new ', id))",
    "engagement_date": "null",
    "executed_at": "timestamp'2026-01-01' + make_dt_interval(0, 0, id)",
    "partition": "0",
    "offset": "id",
    "attempts": "1",
    "status": "'pending'",
    "batch_id": "7",
    "record_engagement_id": "if(id % 2 = 0, concat('e', id), null)",
    "record_who_id": "if(id % 2 = 0, concat('who ', id), null)",
    "record_date": "if(id % 2 = 0, date'2026-01-01', null)",
    "record_ids": "if(id % 2 = 0, map('deal_id', if(id % 4 = 0, concat('deal ', id), null)), null)",
    "column": "'who_id'",
    "part": "0",
}
KINDS = {
    **MUTATION_REQUEST_COLUMNS,
    "part": "int",
    **dict(zip(RECORD_PLACE, ("string", "string", "date", "map<string, string>"), strict=True)),
}

TASK = {"column": "'who_id'", "part": "0"}


def of_orgs(spark: SparkSession, **columns: str) -> DataFrame:
    """Rows 0 to COUNT of one org, row 0 of another. columns: expressions on a row's number, id."""
    many = spark.range(COUNT).withColumn("org_id", F.lit(MANY))
    both = many.unionByName(spark.range(1).withColumn("org_id", F.lit(ONE)))
    return both.select("org_id", *(F.expr(of).alias(name) for name, of in columns.items()))


def requests(spark: SparkSession, **columns: str) -> DataFrame:
    """Requests to convert `old n` to `new n`, or to delete it, n minutes after START. columns: instead of these."""
    columns = {**REQUEST, **columns}
    return of_orgs(spark, **{name: f"cast({of} as {KINDS[name]})" for name, of in columns.items()})


def at(number: int) -> datetime:
    """When a request was executed."""
    return START + timedelta(minutes=number)


def rows(found: DataFrame) -> list[tuple[object, ...]]:
    return sorted((tuple(row) for row in found.collect()), key=repr)


def expected(*numbered: tuple[object, ...]) -> list[tuple[object, ...]]:
    """Rows of the large org, of their numbers in order, and the first of them of the small one."""
    return sorted([*((MANY, *row) for row in numbered), (ONE, *numbered[0])], key=repr)


def new(number: int) -> str | None:
    return f"new {number}" if number % 3 else None


@pytest.fixture
def spark(spark: SparkSession) -> SparkSession:
    assert int(str(spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch"))) < COUNT
    return spark


@pytest.fixture(params=[COUNT // 2, 2 * COUNT], ids=["tasks", "in this process"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouped, "IN_PROCESS", request.param)


@pytest.mark.usefixtures("way")
def test_y1_requests_lead_rows(spark: SparkSession) -> None:
    """Each third names the day of its rows."""
    asked = requests(spark, engagement_date="if(id % 3 = 1, date'2026-01-01', null)")
    days = {n: date(2026, 1, 1) if n % 3 == 1 else None for n in range(COUNT)}
    found = rows(aliases_by_org(asked))
    assert found == expected(*(("who_id", f"old {n}", new(n), None, at(n), days[n]) for n in range(COUNT)))


@pytest.mark.usefixtures("way")
def test_y1_requests_change_aliases(spark: SparkSession) -> None:
    """The batch was executed before the applied requests, and takes their rows; each second id has new rows, too."""
    earlier = f"{REQUEST['executed_at']} - interval 1 year"
    batch = requests(spark, request_id="concat('b', id)", op="'convert'", executed_at=earlier, new_id="'other'")
    before = START.replace(year=START.year - 1)
    ids = of_orgs(spark, id="concat('old ', id)", **TASK).where("substring(id, 5) % 2 = 0")
    found = rows(changed_aliases_by_org(requests(spark), batch, ids))
    moved = [("who_id", f"old {n}", "other", None, before + timedelta(minutes=n), None) for n in range(COUNT)]
    late = [("who_id", f"old {n}", new(n), before + timedelta(minutes=n), at(n), None) for n in range(0, COUNT, 2)]
    assert found == sorted([*expected(*moved), *expected(*late)], key=repr)


@pytest.mark.usefixtures("way")
def test_requests_that_are_connected_are_in_one_part(spark: SparkSession) -> None:
    """`old n` goes to `new n` and that to `last n`, or is deleted; nobody wants the component of `old 1`."""
    further = {"request_id": "concat('f', id)", "op": "'merge'", "old_id": "concat('new ', id)"}
    links = requests(spark).unionByName(requests(spark, **further, new_id="concat('last ', id)").where("id % 3 > 0"))
    ids = of_orgs(spark, id="concat('old ', id)", column="'who_id'").where("id <> 'old 1'")
    links = links.drop("part")
    ends = links.select("org_id", "column", "old_id", "new_id", F.lit(False).alias("is_wanted"))
    ends = ends.union(ids.select("org_id", "column", "id", F.lit(None), F.lit(True)))
    parts = with_part(links, parts_by_org(ends), "old_id").select("org_id", "old_id", "part").collect()
    part_of = {(row["org_id"], row["old_id"]): row["part"] for row in parts}
    connected = [n for n in range(COUNT) if n != 1]
    assert {(MANY, f"old {n}") for n in connected} <= part_of.keys()
    assert {(MANY, f"new {n}") for n in connected if n % 3} <= part_of.keys()
    assert len(parts) == len(part_of) == len(connected) + len([n for n in connected if n % 3]) + 1
    assert {part_of[MANY, f"old {n}"] == part_of[MANY, f"new {n}"] for n in connected if n % 3} == {True}


EDGES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=40)


@settings(max_examples=200, deadline=None)
@given(EDGES, st.sets(st.integers(0, 30), min_size=1), st.integers(1, 10))
def test_parts_are_whole_components_and_not_larger_than_they_must_be(
    edges: list[tuple[int, int]], wanted: set[int], most: int
) -> None:
    ends = [(old, new, False) for old, new in edges] + [(each, each, True) for each in wanted]
    old, new, is_wanted = zip(*ends, strict=True)
    rows = grouped.parts_of_graph(pa.table({"old": old, "new": new, "is_wanted": is_wanted}), most=most).to_pylist()
    part_of = {row["hash"]: row["part"] for row in rows}
    graph = nx.Graph([*edges, *((each, each) for each in wanted)])
    components = [ids for ids in nx.connected_components(graph) if ids & wanted]
    assert part_of.keys() == set().union(*components)
    sizes: Counter[int] = Counter()
    for ids in components:
        [part] = {part_of[each] for each in ids}
        sizes[part] += sum(old in ids for old, _, _ in ends)
    largest = max(sum(old in ids for old, _, _ in ends) for ids in components)
    assert max(sizes.values()) < most + largest


@pytest.mark.usefixtures("way")
def test_y1_records_have_places(spark: SparkSession) -> None:
    deals = {n: {"deal_id": None if n % 4 else f"deal {n}"} for n in range(COUNT)}
    placed = expected(*((f"e{n}", f"r{n}", f"who {n}", deals[n]) for n in range(0, COUNT, 2)))
    assert rows(place_records_by_org(requests(spark))) == placed


@pytest.mark.usefixtures("way")
def test_y1_retention_has_limits(spark: SparkSession) -> None:
    asked = of_orgs(
        spark,
        request_id="concat('t', id)",
        op="if(id = 0, 'ttl', 'gdpr')",
        ttl_days="if(id = 0, 30, null)",
        who_id="if(id = 0, null, concat('old ', id))",
        requested_at=REQUEST["executed_at"],
    )
    people = {n: [who for who in (f"old {n}", new(n)) if who] for n in range(1, COUNT)}
    erased = [(who, min(ids), at(n)) for n, ids in people.items() for who in ids]
    assert rows(limits_by_org(asked, requests(spark))) == expected((None, None, START - timedelta(days=30)), *erased)


def test_y1_a_table_of_several_chunks_becomes_a_dataframe(spark: SparkSession) -> None:
    """As erasures and the memory of them hand over theirs; they aggregate them to one row for each org."""
    until = datetime(2026, 1, 1, tzinfo=UTC)
    schema = pa.schema({"org_id": pa.string(), "who_id": pa.string(), "until": pa.timestamp("us", "UTC")})
    people = [{"org_id": MANY, "who_id": f"lead {n}", "until": until} for n in range(COUNT)]
    halves = [people[: COUNT // 2], people[COUNT // 2 :], [{**people[0], "org_id": ONE}]]
    table = pa.concat_tables([pa.Table.from_pylist(half, schema=schema) for half in halves])
    assert table.column("who_id").num_chunks == 3
    found = {row["of_org"]: row["erased"] for row in erased_by_org(spark.createDataFrame(table)).collect()}
    assert found.keys() == {MANY, ONE}
    assert found[MANY].keys() == {f"lead {n}" for n in range(COUNT)}
    assert {to.replace(tzinfo=UTC) for erased in found.values() for to in erased.values()} == {until}


def test_y1_rows_reach_this_process_all(spark: SparkSession) -> None:
    found = of_orgs(spark, who_id="concat('lead ', id)").toArrow().to_pylist()
    whose = sorted((row["org_id"], row["who_id"]) for row in found)
    assert whose == expected(*((f"lead {n}",) for n in range(COUNT)))


def test_y1_dead_letters_that_name_somebody_erased_lose_their_message(home: Settings, spark: SparkSession) -> None:
    """Every second letter names the person; of the other org, the only one does not."""
    tables, topic = open_tables(home, EMAIL_EVENT), EMAIL_EVENT.topic("retention")
    messages = BatchMessages(tables, spark, KafkaTopic("nowhere:9092", topic), RETENTION_FORMAT)
    limits = RetentionLimits(messages, _people={1: [{"org_id": MANY, "who_id": "lead 1"}]})
    letters = of_orgs(spark, offset="id", message="to_json(struct(org_id, concat('lead ', id % 2) AS who_id))")
    found = redact_letters(letters, Batch(1, OffsetRange(topic, "id", {}, {}), {}), limits).collect()
    assert len(found) == COUNT + 1
    assert {row["offset"] for row in found if row["message"] is None} == set(range(1, COUNT, 2))
