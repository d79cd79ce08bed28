"""The metrics on real Kafka, Spark and Delta: what was computed piece by piece is what counting all rows gives.

`test_change_reader` plays these checks on its lake.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lake_assets.base.failpoints import EXIT_CODE, METRICS_COMPUTED, METRICS_WRITTEN
from lake_assets.demo.engagement_simulator import Message, send
from lake_assets.engagement.lakes import read_lake
from lake_assets.engagement.metrics import Metrics, metrics_cursor, read_metrics
from lake_assets.engagement.tables import ENGAGEMENT, ENGAGEMENT_METRICS
from lake_assets.errors import UsageError
from lake_assets_tests.engagement import child
from lake_assets_tests.engagement.scenario import Traffic, email
from lake_assets_tests.processes import Child, environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake_assets.settings import Settings

EMAIL_KINDS = ("sent", "opened", "replied", "bounced")
CALL_OUTCOMES = {
    "meaningful_contact": "meaningful contact",
    "not_interested": "not interested",
    "left_voicemail": "left voicemail",
}
RATES = {
    "open_rate": ("opened", "sent"),
    "reply_rate": ("replied", "sent"),
    "bounce_rate": ("bounced", "sent"),
    **{f"{outcome}_rate": (outcome, "calls") for outcome in CALL_OUTCOMES},
}
DIMENSIONS = ("org_id", "engagement_date", "rep_id", "cadence_id", "template_id")
ENGAGEMENT_METRICS_COLUMNS = (*DIMENSIONS, *EMAIL_KINDS, "calls", *CALL_OUTCOMES, *RATES)
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


CHAT = """
name: chat_message
fields: {channel: string, words: int}
metrics:
  messages:
    kinds: {sent: asked, answered: answered}
    outcomes: {solved: solved}
    whole: sent
    rates: {answer_rate: answered}
"""


def chat(number: int, kind: str, outcome: str | None = None) -> dict[str, Any]:
    said = {"channel": "web", "words": number}
    return email(number, org_id="acme", kind=kind, outcome=outcome, rep_id="rep-1", engagement=said)


@pytest.mark.journey
def test_a_lake_of_a_file_counts_what_it_declares_also_if_its_table_counted_other_things(
    home: Settings, spark: SparkSession, kafka: str, tmp_path: Path
) -> None:
    """Its table is first one as earlier versions made it: of emails and calls, and without a digest."""
    (tmp_path / "chat.yaml").write_text(CHAT)
    lake = read_lake(tmp_path / "chat.yaml")
    mail = Traffic(home, spark, kafka, name=lake.name, kind=lake)
    mail.deliver([chat(0, "asked"), chat(1, "asked"), chat(2, "answered", "solved"), chat(3, "sent"), chat(4, "call")])
    mail.run()
    assert mail.rows(ENGAGEMENT)[0]["engagement"] == {"channel": "web", "words": 0}
    Metrics(mail.tables, spark).refresh()
    assert [(row["sent"], row["calls"]) for row in mail.rows(ENGAGEMENT_METRICS)] == [(1, 1)]

    tables = replace(mail.tables, lake=replace(lake, topics=mail.lake.topics))
    with pytest.raises(UsageError, match="lake engagement metrics chat_message"):
        read_metrics(tables)
    assert Metrics(tables, spark).refresh().commit is not None
    [row] = mail.rows(ENGAGEMENT_METRICS)
    counted = {name: row[name] for name in ("sent", "answered", "solved", "answer_rate", "calls", "open_rate")}
    assert counted == {"sent": 2, "answered": 1, "solved": 1, "answer_rate": 0.5, "calls": None, "open_rate": None}
    assert read_metrics(tables).column_names == [*DIMENSIONS, "sent", "answered", "solved", "answer_rate"]
    assert Metrics(tables, spark).refresh().commit is None

    mail.deliver([chat(5, "answered", "open")])
    mail.run()
    assert Metrics(tables, spark).refresh().partitions == 1
    assert [(row["answered"], row["solved"], row["calls"]) for row in mail.rows(ENGAGEMENT_METRICS)] == [(2, 1, None)]


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


def assert_only_what_changed_is_touched(mail: Traffic, metrics: Metrics, orgs: Sequence[str]) -> None:
    """One row more, of an org with a name that must be quoted: one cell. A rebuild mends an org, and no other."""
    message = json.dumps(email(1, org_id=QUOTED)).encode()
    send(mail.servers, [Message(mail.lake.topic("ingestion"), b"", message, 0)])
    mail.run()
    done = metrics.refresh()
    assert (done.orgs, done.partitions) == ((QUOTED,), 1)
    assert done.commit is not None
    assert_metrics(mail)
    mail.spark.sql(f"UPDATE {mail.tables.identifier(ENGAGEMENT_METRICS)} SET sent = 99")
    metrics.refresh(orgs)
    assert {row["org_id"] for row in mail.rows(ENGAGEMENT_METRICS) if row["sent"] == 99} == {QUOTED}
    assert metrics.refresh([QUOTED]).orgs == (QUOTED,)
    assert_metrics(mail)
