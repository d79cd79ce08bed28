"""Streams on real Kafka, Spark and Delta, with a table that refuses some rows: their messages are found."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lake_assets.engagement.batch import run_batch
from lake_assets.engagement.isolation import ATTEMPTS
from lake_assets.engagement.lake import StreamName
from lake_assets.engagement.monitoring import reconcile, stream_status
from lake_assets.engagement.notifications import notified_since
from lake_assets.engagement.tables import DEAD_LETTER, ENGAGEMENT, MUTATION_REQUEST
from lake_assets.errors import BatchFailed
from lake_assets_tests.engagement.scenario import Alone, Traffic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake_assets.settings import Settings

VIOLATED = "failed: DELTA_VIOLATE_CONSTRAINT_WITH_VALUES"


@pytest.mark.faults
def test_a_table_that_refuses_a_row_stops_no_stream(home: Settings, spark: SparkSession, kafka: str) -> None:
    mail = Traffic(home, spark, kafka)
    table = mail.tables.identifier(ENGAGEMENT)
    spark.sql(f"ALTER TABLE {table} ADD CONSTRAINT nobody CHECK (who_id <> 'nobody')")
    mail.send(range(3))
    mail.run()
    mail.ask("acme", "convert", "lead 0", "contact 0")
    mail.ask("globex", "convert", "lead 1", "nobody")
    mail.ask("initech", "convert", "nobody yet", "somebody")
    fail(mail, "mutation")
    assert requests(mail) == {"r0": "applied", "r1": "applied", "r2": "parked"}  # decided, and not applied
    settle(mail, "mutation")
    assert mail.whose() == {"e0": ("acme", "contact 0"), "e1": ("globex", "lead 1"), "e2": ("initech", "lead 2")}
    assert requests(mail) == {"r0": "applied", "r2": "parked"}
    letters = {(row["topic"], row["reason"]) for row in mail.rows(DEAD_LETTER)}
    assert letters == {(mail.lake.topic("mutation"), VIOLATED)}
    assert len(mail.rows(DEAD_LETTER)) == 1
    assert mail._told() == mail._changed()
    assert mail._commits("notification") == mail._commits(ENGAGEMENT)
    assert notified_since(mail.tables, 0)[0] == mail.tables.version(ENGAGEMENT)


def fail(mail: Traffic, name: StreamName) -> None:
    """Attempts until the stream looks for the cause, with what each says and status shows."""
    for attempt in range(1, ATTEMPTS):
        with pytest.raises(BatchFailed, match=f"failed attempts: {attempt}, the last one in commit data: DELTA"):
            run_batch(mail.stream(name), Alone())
    status = stream_status(mail.tables, name, mail.servers)
    assert status.problem is not None
    assert status.problem.endswith(VIOLATED.removeprefix("failed: "))
    assert status.remedy is not None
    assert "cut in halves" in status.remedy


def settle(mail: Traffic, name: StreamName) -> None:
    """Batches until none is due; each accounts for all of its messages."""
    while stream_status(mail.tables, name, mail.servers).lag or stream_status(mail.tables, name, mail.servers).problem:
        report = mail.run(name)
        assert reconcile(mail.tables, mail.spark, mail.servers, name, report.batch).balanced
    assert stream_status(mail.tables, name, mail.servers).problem is None


def requests(mail: Traffic) -> dict[str, str]:
    return {row["request_id"]: row["status"] for row in mail.rows(MUTATION_REQUEST)}
