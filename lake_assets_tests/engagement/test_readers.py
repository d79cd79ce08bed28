"""A lake with deletion vectors, as each reader of docs/engagement.md sees it; and a batch whose session was ended."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.errors import PySparkException

from lake_assets.connections.spark import KeptSession, open_spark
from lake_assets.engagement.tables import ENGAGEMENT
from lake_assets.settings import PROJECT
from lake_assets_tests.engagement.scenario import Traffic

if TYPE_CHECKING:
    from lake_assets.settings import Settings

Pairs = list[tuple[str, str]]


@pytest.mark.timeout(1800)
@pytest.mark.faults
def test_readers_see_no_deleted_row_and_a_batch_goes_on_in_another_session(home: Settings, kafka: str) -> None:
    kept = KeptSession(partial(open_spark, home))
    try:
        mail = Traffic(home, kept.session(), kafka)
        mail.send(range(30))
        mail.run()
        for lead in range(3):
            mail.ask("acme", "delete", f"lead {lead}")
        assert_a_batch_goes_on_when_its_session_was_ended(mail, kept)
        assert_readers_agree(mail)
    finally:
        kept.close()


def assert_a_batch_goes_on_when_its_session_was_ended(mail: Traffic, kept: KeptSession) -> None:
    """The intent of the batch is stored; its first commit finds that the server no longer knows the session."""
    assert kept.session() is mail.spark
    ended: Any = mail.spark
    ended.client.release_session()
    with pytest.raises(PySparkException):
        mail.run("mutation")
    mail.spark = kept.session()
    assert mail.spark is not ended
    assert mail.run("mutation").batch.batch_id == 1
    mail.assert_true()


def assert_readers_agree(mail: Traffic) -> None:
    location = mail.tables.location(ENGAGEMENT)
    truth = sorted((row, who) for row, (_, who) in mail.truth().items())
    files = Path(urlsplit(location).path)
    assert any("deletionVector" in log.read_text() for log in (files / "_delta_log").glob("*.json"))
    spark_code, delta_code, duckdb_code = shown()
    rows = run(spark_code, location, mail.spark).select("engagement_id", "who_id").collect()
    assert sorted(map(tuple, rows)) == truth
    assert pairs(run(delta_code, location)) == truth
    of_acme = {row for row, (org, _) in mail.truth().items() if org == "acme"}
    assert pairs(run(duckdb_code, location)) == [pair for pair in truth if pair[0] in of_acme]
    with pytest.raises(Exception, match="deletionVectors"):
        DeltaTable(location).to_pyarrow_table()
    bare = duckdb.execute(f"SELECT DISTINCT engagement_id FROM read_parquet('{files}/org_id=*/*.parquet')").fetchall()
    assert len(bare) > len(truth)


def shown() -> list[str]:
    """The code of the section "Reading the rows"."""
    page = (PROJECT / "docs" / "engagement.md").read_text()
    section = page.partition("## Reading the rows")[2].partition("\n## ")[0]
    return re.findall(r"^```python\n(.*?)^```$", section, re.S | re.M)


def run(code: str, location: str, spark: Any = None) -> Any:
    """What the code calls `rows`. It is called with these names alone."""
    names: dict[str, Any] = {"location": location, "spark": spark}
    exec(code, names)
    return names["rows"]


def pairs(rows: Any) -> Pairs:
    table = pa.table(rows).to_pydict()
    return sorted(zip(table["engagement_id"], table["who_id"], strict=True))
