"""Publishing: the audited snapshot becomes main as it is, or not at all, whoever else writes.

Tests are named after the hazards of the pinned versions that they guard against; `test_upstream_characterization.py`
shows these hazards themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from lake_assets.errors import ConfigurationError, PublishConflict, TargetError, TargetRolledBack
from lake_assets.incremental.declaration.model import Audit, AuditScope, Verdict
from lake_assets.incremental.engine import iceberg, publish
from lake_assets.incremental.engine.model import NoSession, SessionReport
from lake_assets.membership import PIPELINE
from lake_assets_tests.incremental.scenario import START, Lake, signup, with_target

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import DataFrame, SparkSession

    from lake_assets.incremental.declaration import SessionContext, Transform

FACT = "core.signup_fact"


@pytest.fixture
def lake(catalog: Catalog, spark: SparkSession) -> Lake:
    """signup_fact with hours 1 and 2."""
    found = Lake(catalog, spark)
    found.append("raw.signups", [signup(n, hour) for hour in (1, 2) for n in range(3)])
    found.session("signup_fact")
    return found


def while_audited(lake: Lake, write: Callable[[int], None], transform: Transform | None = None) -> None:
    """Let somebody else write each time that a session of signup_fact is staged; it is told the how-manieth time."""
    times: list[int] = []

    def run(scope: AuditScope) -> Verdict:
        times.append(len(times))
        write(times[-1])
        return Verdict(passed=True)

    fact = PIPELINE.target("signup_fact")
    changed = replace(fact, audits=(Audit("another writer", run, ""),), transform=transform or fact.transform)
    lake.pipeline = with_target(PIPELINE, changed)
    lake.engine = lake.engine_of(lake.pipeline)


def staged_ids(lake: Lake) -> list[str]:
    """The WAP ids of a table's snapshots, published or not, oldest first."""
    found = sorted(iceberg.load(lake.catalog, FACT).metadata.snapshots, key=lambda s: s.sequence_number or 0)
    ids = [s.summary.additional_properties.get(publish.WAP_ID) for s in found if s.summary]
    return [i for i in ids if i]


def keys(lake: Lake) -> list[str]:
    return sorted(row["signup_id"] for row in lake.rows(FACT)[FACT])


def test_p3_what_a_stranger_does_while_an_append_is_audited_is_seen(lake: Lake, spark: SparkSession) -> None:
    """A deleted row that the sources still have is built again; an append of what was audited would not show it."""
    lake.set_property(FACT, "write.delete.mode", "merge-on-read")
    before = keys(lake)
    while_audited(lake, lambda n: _erase(spark, before[0]) if n == 0 else None)
    lake.append("raw.signups", [signup(7, 1)])
    report = lake.session("signup_fact")
    assert keys(lake) == sorted([*before, "s07-1"])
    lake.assert_true("signup_fact")
    assert (report.plan.load, report.hours_built) == ("overwrite", (START + 1,))
    assert len(set(staged_ids(lake))) == len(staged_ids(lake)) == 3  # P9: no WAP id is written twice
    assert lake.published(FACT).count(report.plan.session_id) == 1


def _erase(spark: SparkSession, key: str) -> None:
    spark.sql(f"DELETE FROM lake.{FACT} WHERE signup_id = '{key}'")


def test_p1_main_may_move_as_often_as_is_allowed_and_nothing_stays_open(
    lake: Lake, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lake_assets.incremental.engine.engine.MAX_OVERTAKEN", 2)
    erased = keys(lake)
    while_audited(lake, lambda n: iceberg.load(catalog, FACT).delete(f"signup_id = '{erased[n]}'"))
    lake.append("raw.signups", [signup(7, 1)])
    with pytest.raises(PublishConflict, match="moved from snapshot"):
        lake.run("signup_fact")
    assert keys(lake) == erased[3:]
    assert [each.revision for each in lake.history("signup_fact")] == [1]

    while_audited(
        lake, lambda n: iceberg.load(catalog, FACT).delete(f"signup_id = '{erased[3 + n]}'") if n < 2 else None
    )
    lake.session("signup_fact")
    lake.assert_true("signup_fact")
    assert lake.state("signup_fact").n == 2
    assert len(staged_ids(lake)) == 1 + 3 + 3


def test_p6_publishing_makes_no_snapshot_and_moves_complete_through_with_main(lake: Lake, catalog: Catalog) -> None:
    seen: dict[str, object] = {}

    def look(_: int) -> None:
        table = iceberg.load(catalog, FACT)
        seen.update(snapshots=len(table.metadata.snapshots), through=lake.complete_through(FACT), main=lake.main(FACT))

    while_audited(lake, look)
    before = lake.main(FACT)
    lake.append("raw.signups", [signup(7, 5)])
    lake.complete("raw.signups", START + 5)
    report = lake.session("signup_fact")
    table = iceberg.load(catalog, FACT)
    assert seen == {"snapshots": len(table.metadata.snapshots), "through": None, "main": before}
    assert lake.main(FACT) == report.published_snapshot_id
    assert lake.complete_through(FACT) == 5
    assert lake.state("signup_fact").session_id == report.plan.session_id


def test_complete_through_moves_without_rows_and_never_back(lake: Lake) -> None:
    before = keys(lake)
    lake.complete("raw.signups", START + 4)
    report = lake.session("signup_fact")
    assert (report.plan.load, report.hours_built, report.published_snapshot_id) == ("none", (), None)
    assert keys(lake) == before
    lake.complete("raw.signups", START + 3)
    assert isinstance(lake.run("signup_fact"), NoSession)
    assert lake.complete_through(FACT) == 4


def test_w2_without_write_audit_publish_nothing_is_staged(lake: Lake, catalog: Catalog) -> None:
    lake.append("raw.signups", [signup(7, 1)])
    before = keys(lake)
    lake.set_property(FACT, iceberg.WAP_ENABLED, "false")
    with pytest.raises(TargetError):
        lake.run("signup_fact")

    lake.set_property(FACT, iceberg.WAP_ENABLED, "true")
    while_audited(lake, lambda _: _switch_off_and_move_main(lake, catalog))
    for _ in range(2):
        with pytest.raises(TargetError):
            lake.run("signup_fact")
    assert keys(lake) == before
    assert lake.state("signup_fact").n == 1


def _switch_off_and_move_main(lake: Lake, catalog: Catalog) -> None:
    lake.set_property(FACT, iceberg.WAP_ENABLED, "false")
    table = iceberg.load(catalog, FACT)
    table.append(table.scan(limit=0).to_arrow())


def test_w3_hours_without_rows_are_emptied(lake: Lake, spark: SparkSession) -> None:
    spark.sql("DELETE FROM lake.raw.signups WHERE signup_id LIKE '%-2'")
    report = lake.session("signup_fact")
    assert report.hours_built == (START + 2,)
    assert keys(lake) == ["s00-1", "s01-1", "s02-1"]
    spark.sql("DELETE FROM lake.raw.signups")
    lake.session("signup_fact")
    assert keys(lake) == []


def test_a_target_that_was_rolled_back_stops_until_that_is_undone(lake: Lake) -> None:
    first = lake.main(FACT)
    lake.append("raw.signups", [signup(7, 1)])
    second = lake.session("signup_fact").published_snapshot_id
    lake.append("raw.signups", [signup(8, 1)])
    assert first is not None
    assert second is not None
    lake.set_main(FACT, first)
    with pytest.raises(TargetRolledBack, match=f"CALL lake.system.set_current_snapshot\\('{FACT}', {second}\\)"):
        lake.run("signup_fact")
    lake.set_main(FACT, second)
    lake.catch_up("signup_fact")
    lake.assert_true("signup_fact")

    lake.set_main(FACT, first)
    report = lake.engine.rebuild(lake.target("signup_fact"), [START + 1], reset=True)
    assert isinstance(report, SessionReport)
    lake.catch_up("signup_fact")
    lake.assert_true("signup_fact")


def test_an_append_into_other_hours_than_its_source_rows_is_refused(lake: Lake) -> None:
    def a_day_later(session: SessionContext, signups: DataFrame) -> DataFrame:
        rows = PIPELINE.target("signup_fact").transform(session, signups)
        return rows.selectExpr("* except (signed_up_at)", "signed_up_at + interval 1 day as signed_up_at")

    while_audited(lake, lambda _: None, a_day_later)
    before = keys(lake)
    lake.append("raw.signups", [signup(7, 1)])
    with pytest.raises(ConfigurationError, match="2026-01-02-01:00"):
        lake.run("signup_fact")
    assert keys(lake) == before


def test_source_snapshots_that_recur_are_another_session(lake: Lake) -> None:
    """Rolled back and forth again, a source shows the same snapshots as before: its rows must come back, too."""
    old = lake.main("raw.signups")
    lake.append("raw.signups", [signup(7, 1)])
    new = lake.main("raw.signups")
    assert old is not None
    assert new is not None
    for snapshot_id, present in ((new, True), (old, False), (new, True)):
        lake.set_main("raw.signups", snapshot_id)
        lake.catch_up("signup_fact")
        assert ("s07-1" in keys(lake)) == present


def test_a_snapshot_belongs_to_the_session_that_its_wap_id_names(catalog: Catalog) -> None:
    iceberg.create_target(catalog, PIPELINE.target("signup_fact"))
    table = iceberg.load(catalog, FACT)
    assert publish.next_staging_number(table, "fact-1") == 1
    for session, number in (("fact-1", 1), ("fact-1", 2), ("fact-10", 7)):
        table.append(table.scan().to_arrow(), snapshot_properties={publish.WAP_ID: publish.wap_id(session, number)})
    numbers = [publish.next_staging_number(table, session) for session in ("fact-1", "fact-10", "fact")]
    assert numbers == [3, 8, 1]
