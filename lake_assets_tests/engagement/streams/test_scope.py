"""Requests that name an id column, or a day, on real Kafka, Spark and Delta; against a replay row by row."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from lake_assets.engagement.batch import run_batch
from lake_assets.engagement.id_graph import component, components
from lake_assets.engagement.lake import EngagementLake
from lake_assets.engagement.monitoring import reconcile
from lake_assets.engagement.tables import DEAD_LETTER, ENGAGEMENT, MUTATION_REQUEST
from lake_assets.errors import UsageError
from lake_assets_tests.engagement.scenario import START, Alone, Traffic, email

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake_assets.settings import Settings

COLUMNS = ("who_id", "deal_id", "template_id")
IDS = ("a", "b", "c")
TURNS, STEP = 3, timedelta(hours=6)
Values = dict[str, Any]


@dataclass
class Deals(Traffic):
    """A lake with three columns of ids."""

    def __post_init__(self) -> None:
        fields = {"subject": "string", "opens": "int"}
        self.kind = EngagementLake(self.name, fields, ids=COLUMNS)
        super().__post_init__()

    def request(self, values: Values) -> None:
        self._produce(self.lake.topic("mutation"), [json.dumps({"org_id": "acme", **values}).encode()])

    def ids(self) -> dict[str, tuple[str | None, ...]]:
        return {row["engagement_id"]: tuple(row[column] for column in COLUMNS) for row in self.rows(ENGAGEMENT)}


@pytest.fixture
def deals(home: Settings, spark: SparkSession, kafka: str) -> Deals:
    return Deals(home, spark, kafka, name=f"deals_{uuid4().hex}")


def replayed(row: Values, requests: Iterable[Values]) -> tuple[str | None, ...] | None:
    """Where a row ends: of each request, in the order of time, whether it acts on the row as it is then."""
    ids = {column: row.get(column) for column in COLUMNS}
    for request in sorted(requests, key=lambda each: (each["executed_at"], each["number"])):
        column, day = request.get("column") or "who_id", request.get("engagement_date")
        is_there = row["engaged_at"] <= request["executed_at"]
        if is_there and ids[column] == request["old_id"] and day in (None, row["engaged_at"][:10]):
            if request["op"] == "delete":
                return None
            ids[column] = request["new_id"]
    return tuple(ids[column] for column in COLUMNS)


def when(chance: random.Random) -> str:
    at = START + chance.randrange(12) * STEP + chance.choice((0, 1)) * timedelta(microseconds=-1)
    return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@pytest.mark.journey
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [1])
def test_requests_act_on_their_column_and_on_the_day_that_they_name(deals: Deals, seed: int) -> None:
    """Rows and requests come in any order. A row that was deleted does not come back."""
    chance = random.Random(seed)
    rows: dict[str, Values] = {}
    requests: list[Values] = []
    expected: dict[str, tuple[str | None, ...] | None] = {}
    for turn in range(TURNS):
        for number in range(8):
            ids = {column: chance.choice((*IDS, None)) for column in COLUMNS[1:]}
            place = 3 * (8 * turn + number)
            mail = email(place, who_id=chance.choice(IDS), engaged_at=when(chance), **ids)
            rows[mail["engagement_id"]] = mail
            deals.deliver([mail])
        deals.run()
        for _ in range(7):
            old_id, new_id = chance.sample(IDS, 2)
            at = when(chance)
            scope = {"column": chance.choice((*COLUMNS, None)), "engagement_date": chance.choice((None, at[:10]))}
            op = "delete" if chance.random() < 0.15 else "merge"
            values = {"request_id": f"r{len(requests)}", "op": op, "old_id": old_id, "new_id": new_id}
            requests.append({**values, "executed_at": at, **scope, "number": len(requests)})
            deals.request(requests[-1])
        report = deals.run("mutation")
        gone = {row for row, ids in expected.items() if ids is None}
        expected = {name: None if name in gone else replayed(row, requests) for name, row in rows.items()}
        assert deals.ids() == {name: ids for name, ids in expected.items() if ids is not None}, turn
        assert reconcile(deals.tables, deals.spark, deals.servers, "mutation", report.batch).balanced


@pytest.mark.faults
@pytest.mark.timeout(900)
def test_records_have_ids_of_all_columns_and_erasures_follow_persons(deals: Deals) -> None:
    """A deal has the same id as the person who is erased; nothing happens to it."""
    late = "2026-01-05T00:00:00Z"
    deals.deliver([email(3 * n, who_id="lead", deal_id="d", template_id="t") for n in range(3)])
    deals.deliver([email(9, who_id="other", deal_id="lead")])
    deals.run()
    carried = email(12, who_id="other", deal_id="d", template_id="t")
    ask = {"op": "merge", "executed_at": late}
    deals.request(
        {**ask, "request_id": "1", "old_id": "d", "new_id": "e", "column": "deal_id", "insert_record": carried}
    )
    deals.request({**ask, "request_id": "2", "old_id": "t", "new_id": "u", "column": "template_id"})
    deals.request({**ask, "request_id": "3", "old_id": "lead", "new_id": "won", "column": "deal_id"})
    deals.request({**ask, "request_id": "4", "old_id": "x", "new_id": "y", "column": "rep_id"})
    deals.run("mutation")
    moved = dict.fromkeys(("e0", "e3", "e6"), ("lead", "e", "u"))
    assert deals.ids() == {**moved, "e9": ("other", "won", None), "e12": ("other", "d", "u")}
    assert [row["reason"] for row in deals.rows(DEAD_LETTER)] == ["unknown column"]
    assert [(size.column, size.id) for size in components(deals.tables, "acme")] == [
        ("deal_id", "d"),
        ("deal_id", "lead"),
        ("template_id", "t"),
    ]
    assert component(deals.tables, "acme", "u").ids == ("t", "u")
    with pytest.raises(UsageError, match="names the id 'u'"):
        component(deals.tables, "acme", "u", "deal_id")

    deals.retain("acme", "gdpr", datetime(2026, 1, 6, tzinfo=UTC), who_id="lead")
    deals.run("retention")
    assert deals.ids() == {"e9": ("other", "won", None), "e12": ("other", "d", "u")}
    assert {row["request_id"] for row in deals.rows(MUTATION_REQUEST)} == {"1", "2", "3"}
    deals.deliver([email(15, who_id="other", deal_id="lead", template_id="t")])
    deals.run()
    deals.run("mutation")
    assert deals.ids()["e15"] == ("other", "won", "u")


@pytest.mark.faults
@pytest.mark.timeout(900)
def test_a_lake_gets_a_column_of_ids_later(home: Settings, spark: SparkSession, kafka: str) -> None:
    mail = Traffic(home, spark, kafka, name=f"later_{uuid4().hex}")
    mail.deliver([email(0, template_id="t")])
    mail.run()
    mail.lake = replace(mail.lake, ids=COLUMNS)
    mail.deliver([email(3, template_id="t", deal_id="d")])
    mail.run()
    for column, old_id in (("template_id", "t"), ("deal_id", "d")):
        asked = {"org_id": "acme", "request_id": column, "op": "convert", "column": column, "old_id": old_id}
        values = {**asked, "new_id": "new", "executed_at": "2026-01-05T00:00:00Z"}
        mail._produce(mail.lake.topic("mutation"), [json.dumps(values).encode()])
    mail.run("mutation")
    found = {row["engagement_id"]: (row["template_id"], row["deal_id"]) for row in mail.rows(ENGAGEMENT)}
    assert found == {"e0": ("new", None), "e3": ("new", "new")}
    assert run_batch(mail.stream("mutation"), Alone()) is None
