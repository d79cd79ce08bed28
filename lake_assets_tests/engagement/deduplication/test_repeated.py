"""The same engagement sent twice is one row, on real Kafka, Spark and Delta: wherever copies come, and what dies."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from lake_assets.engagement.batch import run_batch
from lake_assets.engagement.ingestion import may_be_copies
from lake_assets.engagement.monitoring import COPY_DAYS, Reconciliation, Sample, lake_status, reconcile, repeated_ids
from lake_assets.engagement.tables import DEAD_LETTER, ENGAGEMENT, REPEATED
from lake_assets.errors import LockLost
from lake_assets_tests.engagement.interrupted import ASKED, go_on
from lake_assets_tests.engagement.scenario import Losing, Traffic, Values, email

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake_assets.engagement.checkpoint import Batch
    from lake_assets.settings import Settings


@pytest.fixture
def mail(home: Settings, spark: SparkSession, kafka: str) -> Traffic:
    return Traffic(home, spark, kafka)


@pytest.mark.faults
@pytest.mark.timeout(1200)  # it shares one lake among many cases
def test_an_engagement_that_is_sent_again_is_one_row(mail: Traffic) -> None:
    mail.send(range(12), [b"{"])
    mail.deliver([{**email(0), "org_id": "globex", "who_id": "lead 4"}])  # an id of another org
    mail.resend([mail.sent[1], mail.sent[1], later(mail.sent[2], minutes=5)])
    first = mail.run()
    assert (first.repeated, outcomes(mail, first.batch)) == (3, {"rows": 13, "repeated": 3, "dead letters": 1})
    mail.ask("acme", "convert", "lead 3", "contact 3")
    mail.ask("globex", "delete", "lead 4")
    mail.run("mutation")
    assert_copies_of_moved_rows_stay_away_whatever_dies(mail)
    assert_copies_of_what_is_gone_stay_away(mail)
    assert [stream.repeated for stream in lake_status(mail.tables, mail.servers)] == [5, 0, 0]


@pytest.mark.faults
def test_the_audit_looks_at_the_days_around_the_rows_of_a_batch(mail: Traffic) -> None:
    mail.send([0, 1])
    mail.run()
    mail.resend([later(mail.sent[0], days=COPY_DAYS)])
    mail.run()
    assert audited(mail) == Sample(1, ("acme/e0",))
    mail.resend([later(mail.sent[1], days=COPY_DAYS + 1)])
    mail.run()
    assert audited(mail) == Sample(0, ())
    newest = mail.tables.changes(mail.spark, ENGAGEMENT, mail.tables.version(ENGAGEMENT))
    read = mail.tables.read(mail.spark, ENGAGEMENT).where(may_be_copies(newest, COPY_DAYS))
    assert len(read.inputFiles()) == 1


def audited(mail: Traffic) -> Sample:
    return repeated_ids(mail.spark, mail.tables, mail.tables.version(ENGAGEMENT))


def later(mail: Values, **by: int) -> Values:
    """An email as if it had happened later."""
    return {**mail, "engaged_at": (datetime.fromisoformat(mail["engaged_at"]) + timedelta(**by)).isoformat()}


def outcomes(mail: Traffic, batch: Batch) -> dict[str, int]:
    """What the messages of a batch of ingestion came to; each of them to one thing."""
    found: Reconciliation = reconcile(mail.tables, mail.spark, mail.servers, "ingestion", batch)
    assert found.balanced
    return dict(found.outcomes)


def assert_copies_of_moved_rows_stay_away_whatever_dies(mail: Traffic) -> None:
    """Of an engagement that has another person by now, and of one whose time was corrected by a day."""
    mail.send([12])
    mail.resend([mail.sent[3], later(mail.sent[0], days=1)])
    mail.die("written-data")
    go_on(mail, "ingestion")
    checkpoint = mail.tables.checkpoints.read(mail.lake.app_name("ingestion"))
    assert checkpoint is not None
    assert outcomes(mail, checkpoint.batch) == {"rows": 1, "repeated": 2, "dead letters": 0}
    mail.assert_true()


def assert_copies_of_what_is_gone_stay_away(mail: Traffic) -> None:
    """A deleted row comes, and mutation deletes it again; of an erased person nothing comes.

    The version before has begun the batch: it may have made a row of the copy, so there is one, and the audit finds it.
    """
    mail.erased.add(("initech", "lead 2"))
    mail.retain("initech", "gdpr", ASKED, who_id="lead 2")
    mail.run("retention")
    mail.deliver([mail.sent[4], mail.sent[1]])
    mail.resend([mail.sent[2]])
    begin_as_the_version_before(mail)
    report = mail.run()
    assert (report.dropped, outcomes(mail, report.batch)) == (1, {"rows": 2, "repeated": 0, "dead letters": 1})
    assert audited(mail) == Sample(1, ("globex/e1",))
    mail.run("mutation")
    assert mail.whose() == mail.truth()
    assert Counter(row["reason"] for row in mail.rows(DEAD_LETTER)) == {REPEATED: 5, "erased": 1, "not JSON": 1}


def begin_as_the_version_before(mail: Traffic) -> None:
    with pytest.raises(LockLost):
        run_batch(mail.stream(), Losing(confirmed=1))
    app_name = mail.lake.app_name("ingestion")
    opened = mail.tables.checkpoints.read(app_name)
    assert opened is not None
    before = replace(opened, batch=replace(opened.batch, rules=0))
    mail.tables.checkpoints.move(app_name, opened, before)
