"""What an erasure takes away beside rows: messages in any spelling, its own among them; and what it has to leave."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from lake_assets.engagement.checkpoint import Batch
from lake_assets.engagement.erasure import certify
from lake_assets.engagement.monitoring import Reconciliation, reconcile
from lake_assets.engagement.tables import DEAD_LETTER, ENGAGEMENT, ERASED, MUTATION_REQUEST, REMOVED, REPLACED
from lake_assets_tests.engagement.scenario import START, Traffic, email

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake_assets.settings import Settings

UNTIL = START + timedelta(days=2)
PEOPLE = ("contact 0", "müller", "a/b")
IN_PLACE = 900
"""Number of an email of acme that a request puts in place, of somebody who is not erased."""
DELETED = 3
"""Number of an email of acme that a request deletes before its person is erased."""
SPELLED = [b'{"org_id": "acme", "who_id": "m\\u00fcller", "engaged_at": "soon"}', b'{"who_id": "a\\/b"}']
TWIN = b'{"org_id": "acme", "request_id": "twin", "op": "gdpr", "who_id": "contact 0", "requested_at": "soon"}'
KEPT = b'{"org_id": "globex", "who_id": "a/b"}'


@pytest.mark.faults
def test_an_erasure_takes_messages_in_any_spelling_and_leaves_that_a_record_is_in_place(
    home: Settings, spark: SparkSession, kafka: str
) -> None:
    mail = Traffic(home, spark, kafka)
    mail.send(range(3), [*SPELLED, KEPT])
    mail.send([DELETED], who_id="müller")
    mail.run()
    mail.ask("acme", "delete", "müller", insert=email(IN_PLACE, who_id="lead 3"))
    mail.run("mutation")
    assert removed(mail) == {(f"e{DELETED}", "müller", f"Subject {DELETED}")}
    for who in PEOPLE:
        mail.retain("acme", "gdpr", UNTIL, who_id=who)
    mail.spoil("retention", [TWIN, TWIN[:-1]])
    report = mail.run("retention")
    assert report.dropped == 0
    assert_what_is_not_carried_out_is_missed(mail, report.batch)
    assert letters(mail) == {(None, None), ("globex", "a/b")}
    assert removed(mail) == {(f"e{DELETED}", None, None)}
    # The row of a request's deletion stays in its file until maintenance, like any deleted row.
    assert [holders(mail, who) for who in PEOPLE] == [set(), {"mail.engagement"}, set()]
    assert_erased_again(mail)
    mail.send([IN_PLACE])
    mail.run()
    assert mail.whose()[f"e{IN_PLACE}"] == ("acme", "lead 3")
    assert len(mail.rows(ENGAGEMENT)) == len(mail.whose())
    assert reasons(mail, mail.lake.topic("ingestion")).count(REPLACED) == 1


def assert_what_is_not_carried_out_is_missed(mail: Traffic, batch: Batch) -> None:
    """Two requests come after the batch, and it is said to have had them; the next one has them."""
    mail.retain("initech", "gdpr", START + timedelta(days=1), who_id="lead 2")
    mail.retain("initech", "ttl", START + timedelta(days=2), ttl_days=1)
    missed = reconcile(mail.tables, mail.spark, mail.servers, "retention", mail.longer(batch))
    assert (missed, missed.balanced) == (Reconciliation(7, {"ttl": 0, "gdpr": 3, "dead letters": 2}), False)


def assert_erased_again(mail: Traffic) -> None:
    """By the same id, of which nothing is left; beside it a request that is spoiled, and dropped."""
    mail.retain("acme", "gdpr", UNTIL, who_id="contact 0")
    mail.spoil("retention", [TWIN])
    assert mail.run("retention").dropped == 1
    assert letters(mail) == {(None, None), ("globex", "a/b")}
    assert reasons(mail, mail.lake.topic("retention")) == ["bad date requested_at", ERASED, "not JSON"]
    [request] = mail.rows(MUTATION_REQUEST)
    left = ("status", "new_id", "record_engagement_id", "record_who_id", "record_engaged_at")
    at = datetime.fromisoformat(email(IN_PLACE)["engaged_at"])
    assert [request[name] for name in left] == [ERASED, None, f"e{IN_PLACE}", "lead 3", at]
    assert request["old_id"] not in (None, "müller")


def letters(mail: Traffic) -> set[tuple[str | None, str | None]]:
    """The orgs and ids that dead letters name."""
    told = [json.loads(row["message"] or "{}") for row in mail.rows(DEAD_LETTER)]
    return {(message.get("org_id"), message.get("who_id")) for message in told}


def removed(mail: Traffic) -> set[tuple[str, str | None, str | None]]:
    """What is remembered of engagements without a row: id, person and subject."""
    found = mail.rows(REMOVED)
    return {(row["engagement_id"], row["who_id"], (row["engagement"] or {}).get("subject")) for row in found}


def reasons(mail: Traffic, topic: str) -> list[str]:
    return sorted(row["reason"] for row in mail.rows(DEAD_LETTER) if row["topic"] == topic)


def holders(mail: Traffic, who: str) -> set[str | None]:
    """The tables of which a file of the present version holds an id; files of former versions do until maintenance."""
    found = certify(mail.tables.root, [], "acme", who, mail.servers)
    return {each.table for each in found.findings if each.referenced == "main"}
