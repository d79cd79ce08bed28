"""Records that requests carry, on real parts: they replace rows or are inserted, once, and stay in place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lake_assets.engagement.tables import DEAD_LETTER, ENGAGEMENT, MUTATION_REQUEST, NOTIFICATION, REPLACED
from lake_assets_tests.engagement.scenario import Traffic, email

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake_assets.settings import Settings


@pytest.mark.journey
def test_records_replace_rows_or_become_rows_and_what_comes_later_does_not_double_them(
    home: Settings, spark: SparkSession, kafka: str
) -> None:
    """Of acme e0 is replaced and e900 inserted, and then both are moved on; e903 is inserted, and goes."""
    mail = Traffic(home, spark, kafka)
    mail.send(range(14))
    mail.run()
    mail.ask("acme", "convert", "lead 6", "contact 6", insert=email(0, who_id="contact 6", kind="replied"))
    mail.ask("acme", "convert", "nobody", "somebody", insert=email(900, who_id="lead 3"))
    mail.ask("acme", "merge", "contact 6", "lead 3", insert=email(903, who_id="lead 9"))
    mail.ask("acme", "delete", "lead 9")
    mail.die("written-data", "mutation")
    mail.run("mutation")
    mail.assert_true()
    rows = {row["engagement_id"]: row for row in mail.rows(ENGAGEMENT)}
    assert (rows["e0"]["who_id"], rows["e0"]["kind"], rows["e0"]["engagement"]["opens"]) == ("lead 3", "replied", 0)
    assert rows["e900"]["who_id"] == "lead 3"
    [told] = [row for row in mail.rows(NOTIFICATION) if row["app_name"] == "mail.mutation"]
    assert (told["inserted"], told["updated"], told["deleted"]) == (2, 1, 1)
    assert {row["record_engagement_id"] for row in mail.rows(MUTATION_REQUEST)} == {"e0", "e900", "e903", None}
    mail.send([900, 15])
    mail.run()
    assert {row["engagement_id"]: row["who_id"] for row in mail.rows(ENGAGEMENT)} == {
        **{name: row["who_id"] for name, row in rows.items()},
        "e15": "lead 1",
    }
    assert [row["reason"] for row in mail.rows(DEAD_LETTER)] == [REPLACED]
