"""Who was erased is nowhere, whatever was staged, set aside or kept; all others are as they were; nobody returns."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.exceptions import CommitFailedException

from lake_assets.base.failpoints import ERASURE_POINTS
from lake_assets.demo.membership_simulator import Arrival, Population, Simulation, generate
from lake_assets.errors import AuditFailed, ConfigurationError, ErasureStopped, UsageError
from lake_assets.incremental.declaration import Subject
from lake_assets.incremental.engine import iceberg
from lake_assets.incremental.engine.engine import Engine
from lake_assets.incremental.engine.erasures import KEY_FILE, Erasures, create_table, erasure_key
from lake_assets.incremental.engine.iceberg import SESSION
from lake_assets.incremental.engine.model import AuditResult, SessionPlan
from lake_assets.incremental.engine.retention import bare_path, inventory, list_files
from lake_assets.incremental.engine.session_log import KEEP_SNAPSHOTS, MERGE_FILES, SessionRecord
from lake_assets.incremental.erasure.certificate import Certificate, certify
from lake_assets.incremental.erasure.erase import ERASED, erase, sweep
from lake_assets.membership import PIPELINE
from lake_assets_tests.incremental.crash_matrix import die
from lake_assets_tests.incremental.erasing_child import erase_account
from lake_assets_tests.incremental.scenario import NOW, Lake, landed, signup

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

    from lake_assets.settings import Settings

HOURS = 4
SMALL = Simulation(
    Population(accounts=20, hours=HOURS, seed=5, request=0.3, involuntary_cancel=0.2),
    Arrival(tail=0.1, twice=0.05, again=0.05, bad=0.1),
)
GONE = 'zoë "to-be\\erased"'
"""Spelled otherwise wherever it stands in JSON."""


@pytest.fixture
def lake(catalog: Catalog, spark: SparkSession, home: Settings) -> Lake:
    lake = Lake(catalog, spark)
    lake.engine = Engine(
        catalog, PIPELINE, clock=lambda: NOW, spark=lambda: spark, erasure_key=partial(erasure_key, home)
    )
    return lake


def where(lake: Lake, value: str = GONE) -> Certificate:
    return certify(lake.catalog, "account", value)


def change(number: int, hour: int) -> dict[str, object]:
    row = signup(number, hour, account_id=GONE, plan="premium")
    return {**{k: v for k, v in row.items() if k != "signup_id"}, "change_id": f"c{number}-{hour}"}


def cancel(number: int, hour: int) -> dict[str, object]:
    row = signup(number, hour, account_id=GONE)
    kept = ("account_id", "landed_at", "landing_date", "landing_hour", "batch_id")
    return {**{k: row[k] for k in kept}, "cancel_id": f"x{number}-{hour}", "processing_ts": row["event_ts"]}


def fill(lake: Lake) -> None:
    """Hours of others, and of one who is everywhere: published, overwritten, set aside, staged, pending, in samples."""
    landings = list(generate(SMALL))
    for i, landing in enumerate(landings):
        lake.land(landing)
        if i == 1:
            lake.append("raw.signups", [signup(1, 1, account_id=GONE), signup(2, 1, account_id=GONE, plan="none")])
            lake.append("raw.plan_changes", [change(3, 2)])
            lake.append("raw.cancels", [cancel(4, 2)])
    lake.catch_up()
    # Above complete-through: the dimension waits for it, with its watermark behind.
    lake.append("raw.plan_changes", [change(5, HOURS + 30)])
    lake.session("plan_fact")
    stage(lake)
    number = lake.state("signup_fact").n + 1
    sampled = AuditResult("not_null", False, True, {"nulls": 2}, (GONE, "s1"))
    lake.engine.log.add(stopped("core.signup_fact", number, sampled))


def stopped(process: str, number: int, *audits: AuditResult) -> SessionRecord:
    """A session that an audit has stopped."""
    plan = SessionPlan(process, f"stopped-{number}", kind="session", load="append", sources=(), hours=())
    return SessionRecord(plan, "blocked", number, 1, "run", NOW, NOW, audits=audits)


def stage(lake: Lake) -> None:
    """A snapshot that nobody publishes."""
    lake.spark.conf.set("spark.wap.id", "left-behind.1")
    lake.spark.sql("INSERT INTO lake.core.signup_fact SELECT * FROM lake.core.signup_fact")
    lake.spark.conf.unset("spark.wap.id")


def others(lake: Lake) -> list[dict[str, object]]:
    rows = lake.rows(*[t.table for t in PIPELINE.targets])
    return [row for table in sorted(rows) for row in rows[table] if row["account_id"] != GONE]


def quarantined_accounts(lake: Lake) -> set[str]:
    return {json.loads(row["row"])["account_id"] for row in lake.quarantined("core.signup_fact")}


def test_who_is_erased_is_nowhere_and_all_others_are_as_they_were(lake: Lake) -> None:
    fill(lake)
    before, holding = others(lake), where(lake)
    assert {"data", "manifest"} <= {f.kind for f in holding.findings}
    assert {f.referenced for f in holding.findings} >= {"main", "history"}
    assert {f.table for f in holding.findings} >= {"raw.cancels", "core.account_state_dim", "etl.quarantine"}
    assert GONE in quarantined_accounts(lake)

    done = erase(lake.engine, "account", GONE, now=NOW)
    assert done.rows == {"raw.signups": 2, "raw.plan_changes": 2, "raw.cancels": 1}
    assert (done.quarantined, done.samples, done.unfinished) == (1, 1, 0)
    left = where(lake)
    assert left.nowhere, left.findings
    assert left.undecoded == ()
    lake.assert_true()
    assert others(lake) == before
    audits = [a for r in lake.history("signup_fact") for a in r.audits if a.name == "not_null"]
    assert audits[0].sample == (ERASED, "s1")
    assert GONE not in quarantined_accounts(lake)

    again = erase(lake.engine, "account", GONE, now=NOW)
    assert not again.found


def test_a_record_sent_before_and_landed_afterwards_is_dropped_and_one_sent_afterwards_counts(lake: Lake) -> None:
    lake.append("raw.signups", [signup(1, 1, account_id=GONE), signup(1, 1, account_id="b", signup_id="b")])
    lake.catch_up("signup_fact")
    erase(lake.engine, "account", GONE, now=NOW)

    later = {"landed_at": NOW + timedelta(hours=5), "batch_id": "late"}
    back = {**later, "event_ts": NOW + timedelta(hours=4), "signup_id": "back"}
    lake.append(
        "raw.signups",
        [
            signup(2, 2, account_id=GONE, **later),
            signup(3, 2, account_id=GONE, **later, plan="none"),
            signup(4, 3, account_id="c", **later),
            signup(5, 3, account_id=GONE, **back),
        ],
    )
    undropped = lake.main("raw.signups")
    assert undropped is not None
    lake.catch_up("signup_fact")
    lake.set_main("raw.signups", undropped)  # older than what was read up to, and what was dropped is back
    lake.catch_up("signup_fact")
    rows = lake.rows("core.signup_fact")["core.signup_fact"]
    assert sorted(r["signup_id"] for r in rows) == ["b", "back", "s04-3"]
    assert lake.quarantined("core.signup_fact") == []
    lake.assert_true("signup_fact")

    lake.append("raw.cancels", [cancel(1, 1)])
    done = sweep(lake.engine, now=NOW)
    assert done.rows == {"raw.cancels": 1}
    assert {f.table for f in where(lake).findings} == {"raw.signups", "core.signup_fact"}
    assert all(f.referenced == "main" for f in where(lake).findings)
    assert sweep(lake.engine, now=NOW).rows == {}


def test_an_erasure_that_dies_anywhere_is_finished_by_the_next_whatever_session_was_open(
    lake: Lake, home: Settings
) -> None:
    lake.append("raw.signups", [signup(1, 1, account_id=GONE), signup(2, 2, account_id="b")])
    lake.catch_up("signup_fact")
    lake.append("raw.signups", [signup(3, 3, account_id=GONE)])
    die(home, "signup_fact", "after-staged")
    for point in ERASURE_POINTS:
        die(home, GONE, point, work=erase_account)
        assert [e.state for e in lake.engine.erasures.rows()] == ["requested"], point
    erase(lake.engine, "account", GONE, now=NOW)
    assert [e.state for e in lake.engine.erasures.rows()] == ["done"]
    assert where(lake).nowhere
    lake.assert_true("signup_fact")
    for name in ("raw.signups", "core.signup_fact"):
        table = iceberg.load(lake.catalog, name)
        there = {f.path for f in list_files(table.io, table.location()) if f.path.endswith((".parquet", ".avro"))}
        assert there == inventory(table.io, table.metadata).paths & there


def test_rows_that_only_a_delete_file_hides_are_erased_too(lake: Lake) -> None:
    rows = [signup(i, 1, account_id=GONE if i < 2 else "b") for i in range(4)]
    lake.append("raw.signups", rows)
    lake.set_property("raw.signups", "write.delete.mode", "merge-on-read")
    lake.spark.sql("DELETE FROM lake.raw.signups WHERE signup_id = 's00-1'")
    lake.catch_up("signup_fact")
    done = erase(lake.engine, "account", GONE, now=NOW)
    assert done.rows == {"raw.signups": 1}
    assert where(lake).nowhere, where(lake).findings
    lake.assert_true("signup_fact")


def test_a_tag_that_holds_the_id_stops_an_erasure_which_goes_on_without_it(catalog: Catalog, lake: Lake) -> None:
    lake.append("raw.signups", [signup(1, 1, account_id=GONE)])
    lake.catch_up("signup_fact")
    main = lake.main("core.signup_fact")
    assert main is not None
    iceberg.load(catalog, "core.signup_fact").manage_snapshots().create_tag(main, "kept").commit()
    with pytest.raises(ErasureStopped, match=r"core\.signup_fact still holds the account in the tag kept"):
        erase(lake.engine, "account", GONE, now=NOW)
    iceberg.load(catalog, "core.signup_fact").manage_snapshots().remove_tag("kept").commit()
    erase(lake.engine, "account", GONE, now=NOW)
    assert where(lake).nowhere


def test_what_the_session_table_has_forgotten_is_removed_and_what_may_be_at_work_stops_an_erasure(
    catalog: Catalog, bare_home: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lake_assets.incremental.erasure.erase.WRITER_SECONDS", 0)
    engine = Engine(catalog, PIPELINE, clock=lambda: NOW, erasure_key=partial(erasure_key, bare_home))
    engine.create_tables()
    sampled = AuditResult("not_null", False, True, {"nulls": 1}, (GONE,))
    engine.log.add(stopped("core.fact", 1, sampled))
    with iceberg.load(catalog, SESSION).transaction() as transaction:
        transaction.set_properties({"write.metadata.previous-versions-max": "1"})
    for number in range(MERGE_FILES + 2 * KEEP_SNAPSHOTS):  # the sample's file is merged with others, and forgotten
        engine.log.add(stopped("core.fact", 2 + number))

    stray = Path(bare_path(iceberg.load(catalog, "raw.signups").location())) / "data" / "stray.parquet"
    stray.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"account_id": [GONE]}), stray)
    with pytest.raises(ErasureStopped, match=r"raw\.signups does not refer to 1 files that hold the account"):
        erase(engine, "account", GONE, now=NOW)
    assert [e.state for e in engine.erasures.rows()] == ["requested"]
    stray.unlink()
    erase(engine, "account", GONE, now=NOW)
    assert [e.state for e in engine.erasures.rows()] == ["done"]
    assert certify(catalog, "account", GONE).nowhere


def test_an_erasure_waits_for_a_writer_and_erases_what_it_commits(
    catalog: Catalog, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.append("raw.signups", [signup(1, 1, account_id="somebody")])
    table = iceberg.load(catalog, "raw.signups")
    rows = table.scan().to_arrow()
    written = rows.set_column(rows.column_names.index("account_id"), "account_id", pa.array([GONE]))
    file = f"{table.location()}/data/late.parquet"
    pq.write_table(written, bare_path(file))
    monkeypatch.setattr(
        "lake_assets.incremental.erasure.erase.sleep",
        lambda _: iceberg.load(catalog, "raw.signups").add_files([file]),
    )
    assert erase(lake.engine, "account", GONE, now=NOW).files > 0
    assert certify(catalog, "account", GONE).nowhere
    assert iceberg.load(catalog, "raw.signups").scan().count() == 1


def test_a_commit_that_another_one_came_before_leaves_no_file(catalog: Catalog) -> None:
    before = landed(catalog, "somebody")
    rows = before.scan().to_arrow()
    before.transaction().set_properties({"commit.retry.num-retries": "0"}).commit_transaction()
    stale = iceberg.load(catalog, "raw.signups")
    landed(catalog, "another")
    known = list(list_files(stale.io, stale.location()))
    with pytest.raises(CommitFailedException), iceberg.committing(catalog, stale):
        stale.append(rows)
    assert list(list_files(stale.io, stale.location())) == known
    with iceberg.committing(catalog, before.refresh()):
        before.append(rows)
    assert before.scan().count() == 3


def test_rows_that_another_writer_commits_in_between_are_erased_too(catalog: Catalog, lake: Lake) -> None:
    lake.append("raw.signups", [signup(1, 1, account_id=GONE)])
    steps: list[str] = []

    def commit(step: str) -> None:
        steps.append(step)
        if step == "bringing targets up to date":
            lake.append("raw.signups", [signup(1 + len(steps), 1, account_id=GONE)])

    erase(lake.engine, "account", GONE, now=NOW, report=commit)
    assert "bringing targets up to date" in steps
    assert where(lake).nowhere


def test_no_id_is_kept_and_another_key_is_refused(catalog: Catalog, bare_home: Settings) -> None:
    create_table(catalog)
    mine = Erasures(catalog, key=partial(erasure_key, bare_home))
    assert mine.rows() == []
    mine.record("account", GONE, "requested", erased_at=NOW, now=NOW)
    assert mine.known("account", [GONE, "b"], mine.rows()) == {GONE: NOW}
    assert mine.known("other", [GONE], mine.rows()) == {}
    assert certify(catalog, "account", GONE).nowhere
    assert stat.S_IMODE((bare_home.home / KEY_FILE).stat().st_mode) == 0o600
    with pytest.raises(ConfigurationError, match="another key"):
        Erasures(catalog, key=lambda: b"another").rows()


def test_what_cannot_be_meant_is_refused(catalog: Catalog) -> None:
    engine = Engine(catalog, PIPELINE, clock=lambda: NOW)
    with pytest.raises(UsageError, match="empty"):
        erase(engine, "account", " ", now=NOW)
    with pytest.raises(UsageError, match="no subject 'person'"):
        erase(engine, "person", "a", now=NOW)
    with pytest.raises(ConfigurationError, match="No raw table holds the subject person"):
        replace(PIPELINE, subjects=(Subject("person", columns=("person_id",)),)).check_subjects()
    with pytest.raises(ConfigurationError, match="is timestamptz"):
        replace(PIPELINE, subjects=(Subject("moment", columns=("event_ts", "account_id")),))


def test_what_a_target_remembers_of_a_session_that_an_audit_stopped_names_no_key(lake: Lake) -> None:
    lake.append("raw.signups", [signup(1, 1, account_id=None, signup_id="a-key")])
    with pytest.raises(AuditFailed, match="such as a-key"):
        lake.run("signup_fact")
    blocked = lake.state("signup_fact").blocked
    assert blocked is not None
    assert list(blocked["failed"]) == ["not_null_account_id"]
    assert "a-key" not in str(iceberg.load(lake.catalog, "core.signup_fact").metadata)
