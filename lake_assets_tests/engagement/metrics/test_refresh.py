"""The metrics on real Kafka, Spark and Delta: what was computed piece by piece is what counting all rows gives."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

from lake_assets.base.failpoints import EXIT_CODE, METRICS_COMPUTED, METRICS_WRITTEN
from lake_assets.demo.engagement_simulator import Message, generate, org_names, send
from lake_assets.engagement.metrics.refresh import (
    CALL_OUTCOMES,
    DIMENSIONS,
    EMAIL_KINDS,
    RATES,
    Metrics,
    metrics_cursor,
)
from lake_assets.engagement.model.table_schemas import ENGAGEMENT, ENGAGEMENT_METRICS, ENGAGEMENT_METRICS_COLUMNS
from lake_assets_tests.engagement import child
from lake_assets_tests.engagement.scenario import Traffic, email
from lake_assets_tests.engagement.test_change_reader import SIMULATION, turns
from lake_assets_tests.processes import Child, environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake_assets.settings import Settings

QUOTED = 'o\'neil \\ "sons"'


def assert_metrics(mail: Traffic) -> None:
    """The metrics are what counting all rows gives, one by one."""
    columns = [*EMAIL_KINDS, "calls", *CALL_OUTCOMES]
    found: defaultdict[tuple[Any, ...], Counter[str]] = defaultdict(Counter)
    for row in mail.rows(ENGAGEMENT):
        counts = found[tuple(row[name] for name in DIMENSIONS)]
        counts["calls" if row["kind"] == "call" else row["kind"]] += 1
        counts.update([name for name, outcome in CALL_OUTCOMES.items() if row["outcome"] == outcome])
    expected = {
        key: (
            *(counts[name] for name in columns),
            *(counts[part] / counts[whole] if counts[whole] else None for part, whole in RATES.values()),
        )
        for key, counts in found.items()
    }
    rows = [tuple(row[name] for name in ENGAGEMENT_METRICS_COLUMNS) for row in mail.rows(ENGAGEMENT_METRICS)]
    assert {row[: len(DIMENSIONS)]: row[len(DIMENSIONS) :] for row in rows} == expected
    assert len(rows) == len(expected)


def test_metrics_are_what_counting_all_rows_gives(home: Settings, spark: SparkSession, kafka: str) -> None:
    mail = Traffic(home, spark, kafka)
    mail.tables.register_orgs(dict.fromkeys([*org_names(SIMULATION), QUOTED]))
    metrics = Metrics(mail.tables, mail.spark)
    send(mail.servers, generate(SIMULATION, mail.lake))
    turns(mail, "ingestion")
    assert metrics.refresh().orgs is None
    assert_metrics(mail)
    turns(mail, "mutation")
    assert_killed_anywhere_it_ends_the_same(mail, metrics)
    assert_only_what_changed_is_touched(mail, metrics)


def assert_killed_anywhere_it_ends_the_same(mail: Traffic, metrics: Metrics) -> None:
    before = metrics_cursor(mail.tables)
    die(mail, METRICS_COMPUTED)
    assert metrics_cursor(mail.tables) == before
    die(mail, METRICS_WRITTEN)
    assert metrics_cursor(mail.tables) > before
    assert metrics.refresh().commit is None
    assert_metrics(mail)


def die(mail: Traffic, point: str) -> None:
    """Let a refresh, in a process of its own, die at a point."""
    refresh = Child(child.refresh, f"{mail.name} {mail.topic}", environment(mail.home, point))
    assert refresh.end() == EXIT_CODE, f"the refresh did not come to {point}"


def assert_only_what_changed_is_touched(mail: Traffic, metrics: Metrics) -> None:
    """One row more, of an org with a name that must be quoted: one cell. A rebuild mends an org, and no other."""
    message = json.dumps(email(1, org_id=QUOTED)).encode()
    send(mail.servers, [Message(mail.lake.topic("ingestion"), b"", message, 0)])
    turns(mail, "ingestion")
    done = metrics.refresh()
    assert (done.orgs, done.partitions) == ((QUOTED,), 1)
    assert done.commit is not None
    assert_metrics(mail)
    mail.spark.sql(f"UPDATE {mail.tables.identifier(ENGAGEMENT_METRICS)} SET sent = 99")
    metrics.refresh(org_names(SIMULATION))
    assert {row["org_id"] for row in mail.rows(ENGAGEMENT_METRICS) if row["sent"] == 99} == {QUOTED}
    assert metrics.refresh([QUOTED]).orgs == (QUOTED,)
    assert_metrics(mail)
