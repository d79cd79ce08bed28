"""Who was erased stays away: what comes late is dropped, in every stream, and the rest of the lake forgets the ids."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from lake_assets.engagement.erasure import ErasureRegistry, LakeCertificate, certify
from lake_assets.engagement.maintenance import maintain
from lake_assets.engagement.tables import (
    DEAD_LETTER,
    ENGAGEMENT,
    ENGAGEMENT_METRICS,
    ERASED,
    ERASURE,
    MUTATION_REQUEST,
)
from lake_assets.engagement.topics import RetainedMessages
from lake_assets.engagement.turn_order import MAINTENANCE
from lake_assets.errors import ConfigurationError
from lake_assets.incremental.engine.erasures import KeyedHash
from lake_assets_tests.engagement.scenario import START, Alone, Traffic, email

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake_assets.settings import Settings

UNTIL = START + timedelta(days=2)
LATE, NEW, NEWER = 63, 2898, 2901
"""Numbers of emails of acme: one to lead 0 that engaged before `UNTIL`; others after it."""
CUT = b'{"org_id": "acme", "who_id": "lead 0"'
TWIN = b'{"org_id": "acme", "request_id": "twin", "op": "gdpr", "who_id": "contact 0", "requested_at": "soon"}'
KEPT = [b'{"org_id": "globex", "who_id": "lead 0"}', b'{"org_id": "acme", "who_id": "lead 01"']


@pytest.mark.journey
@pytest.mark.timeout(1200)
def test_who_was_erased_is_in_no_file_any_more_and_what_comes_late_is_dropped_and_counted(
    home: Settings, spark: SparkSession, kafka: str
) -> None:
    """acme and globex have a `lead 0` each, and only that of acme goes. Erasure and maintenance die on their way."""
    mail = Traffic(home, spark, kafka)
    mail.send(range(43), [CUT, *KEPT])
    mail.run()
    mail.ask("acme", "convert", "lead 0", "contact 0")
    mail.ask("acme", "convert", "lead 1", "contact 1")
    mail.run("mutation")
    mail.retain("acme", "gdpr", UNTIL, who_id="contact 0")
    mail.spoil("retention", [TWIN])
    mail.die("written-requests", "retention")
    mail.run("retention")
    assert "mail.engagement" in {finding.table for finding in certified(mail, "contact 0").findings}
    mail.die("maintenance-half-vacuumed", MAINTENANCE)
    assert_maintained(mail)
    mail.send([NEWER], who_id="contact 0")
    mail.send([LATE, NEW, 64], [json.dumps({**email(LATE), "engaged_at": "soon"}).encode()])
    assert mail.run().dropped == 2
    mail.ask("acme", "merge", "contact 2", "lead 0")
    mail.ask("acme", "merge", "lead 2", "contact 2")
    assert mail.run("mutation").dropped == 1  # it looks at the rows that came, and needs no feed that is gone
    assert_forgotten(mail)
    assert_connected_later(mail)
    assert_erased_again(mail)
    assert_hashed(mail)


def assert_connected_later(mail: Traffic) -> None:
    """The requests that came last connect two ids more with the person, whose rows were there before."""
    assert "contact 2" in {row["who_id"] for row in mail.rows(ENGAGEMENT) if row["org_id"] == "acme"}
    mail.run("retention")
    maintain(mail.tables, mail.spark, Alone(), retain_hours=72)
    assert certified(mail, "lead 2").nowhere
    assert certified(mail, "contact 2").nowhere


def assert_erased_again(mail: Traffic) -> None:
    """By an id that no request connects with the other one any more: those of the first erasure knew both."""
    mail.retain("acme", "gdpr", UNTIL + timedelta(days=1), who_id="lead 0")
    mail.run("retention")
    assert not {f"e{NEW}", f"e{NEWER}"} & {row["engagement_id"] for row in mail.rows(ENGAGEMENT)}


def assert_forgotten(mail: Traffic) -> None:
    rows = {(row["org_id"], row["who_id"]): row["engagement_id"] for row in mail.rows(ENGAGEMENT)}
    assert (rows["acme", "contact 0"], rows["acme", "lead 0"]) == (f"e{NEWER}", f"e{NEW}")
    assert ("globex", "lead 0") in rows
    assert not {row["old_id"] for row in mail.rows(MUTATION_REQUEST)} & {"lead 0", "contact 0"}
    letters = mail.rows(DEAD_LETTER)
    assert {row["message"] for row in letters} == {None, *(message.decode() for message in KEPT)}
    assert {row["reason"] for row in letters} >= {"not JSON"}


def assert_maintained(mail: Traffic) -> None:
    """No row has changed, and no file names the person; the local broker keeps its messages.

    A file that was left behind goes at once, but not one that a refresh of the metrics may be about to commit.
    """
    before = mail.rows(ENGAGEMENT)
    left, awaited = (orphan(mail, table) for table in (ENGAGEMENT, ENGAGEMENT_METRICS))
    done = maintain(mail.tables, mail.spark, Alone(), retain_hours=72)
    assert (left.exists(), awaited.exists()) == (False, True)
    assert (done.kept_hours, mail.rows(ENGAGEMENT)) == (0, before)
    found = certified(mail, "contact 0")
    asked = (mail.lake.topic("mutation"), mail.lake.topic("retention"))
    assert (found.nowhere, found.kafka) == (
        True,
        (RetainedMessages(asked[0], 1, None), RetainedMessages(asked[1], 2, None)),
    )
    assert certified(mail, "lead 0").nowhere


def orphan(mail: Traffic, table: str) -> Path:
    """A file in the folder of a table that no version names."""
    file = Path(urlsplit(mail.tables.location(table)).path) / "orphan.parquet"
    file.touch()
    return file


def certified(mail: Traffic, who: str) -> LakeCertificate:
    return certify(mail.tables.root, [mail.lake], "acme", who, mail.servers)


def assert_hashed(mail: Traffic) -> None:
    """The registry has one hash for each id, and is of no use without the key."""
    rows = mail.rows(ERASURE)
    registry = ErasureRegistry(mail.tables, mail.spark)
    ids = ("lead 0", "contact 0", "lead 2", "contact 2")
    assert {row["id_hash"] for row in rows} == {registry.hash("acme", who) for who in ids}
    assert ERASED in {row["reason"] for row in mail.rows(DEAD_LETTER)}
    version = mail.tables.version(ERASURE)
    with pytest.raises(ConfigurationError, match="another key"):
        ErasureRegistry(replace(mail.tables, keyed=KeyedHash(lambda: b"other")), mail.spark).erased_hashes(version)
