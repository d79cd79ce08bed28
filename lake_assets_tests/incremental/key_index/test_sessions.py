"""Sessions find the rows of their accounts, however old, and open no other old file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks.history import END, LakeWithPast, Past, Row
from lake_assets.base.hours import hour_of, hour_start
from lake_assets.incremental.engine import key_index
from lake_assets.incremental.engine import stage as prepare
from lake_assets.incremental.engine.model import NoSession

if TYPE_CHECKING:
    from lake_assets.settings import Settings

HOURS = 60
MIN_FILES = 20
FEW_ROWS = 50
"""More than a session reads, and fewer than each table has."""

LATE = 6
"""Late rows of each raw table in a round: one in each of the last hours, fewer than a session is cut into."""
ROUNDS = (0, 1)
READ = ("core.signup_fact", "core.cancel_request_fact", "core.cancel_fact", "raw.cancels")


@pytest.fixture(autouse=True)
def _small_tables_have_an_index_and_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_index, "MIN_FILES", MIN_FILES)
    monkeypatch.setattr(prepare, "SINGLE_PARTITION_ROWS", FEW_ROWS)


def all_rows(past: Past, kind: str, lake: LakeWithPast) -> list[Row]:
    """The rows of a raw table: those of the past, and the late ones of all rounds."""
    rows = []
    for hour in range(past.first, END):
        rows += past.rows(f"raw.{kind}", hour)
    for number in ROUNDS:
        rows += lake.late_rows(kind, number, LATE)
    return rows


def churn(cancels: list[Row], requests: list[Row], cancel: Row) -> str | None:
    """The request that led to a cancel: the latest one that is not before an earlier cancel of the account."""
    account, at = cancel["account_id"], cancel["processing_ts"]
    cancels = [row for row in cancels if row["account_id"] == account and row["processing_ts"] < at]
    after = max((row["processing_ts"] for row in cancels), default=None)
    found = None
    for row in sorted(requests, key=lambda row: (row["event_ts"], row["request_id"])):
        is_of_account = row["account_id"] == account and row["event_ts"] <= at
        if is_of_account and (after is None or row["event_ts"] > after):
            found = row["request_id"]
    return found


def remove_old_files(past: Past, accounts: set[str]) -> int:
    """Remove the older files of the tables that sessions read, except those with rows of some accounts."""
    removed = 0
    for name in READ:
        for hour in range(past.first, END - LATE - 2):
            if accounts.isdisjoint(row["account_id"] for row in past.rows(name, hour)):
                (past.folder / name / f"{hour}.parquet").unlink()
                removed += 1
    return removed


def accounts_of_late_requests(lake: LakeWithPast) -> set[str]:
    accounts = set()
    for number in ROUNDS:
        accounts |= {row["account_id"] for row in lake.late_rows("cancel_requests", number, LATE)}
    return accounts


@pytest.mark.journey
def test_sessions_open_only_files_that_have_their_accounts(home: Settings, tmp_path: Path) -> None:
    past = Past(tmp_path / "past", HOURS)
    lake = LakeWithPast(home, past, HOURS)
    lake.land(0, LATE)
    lake.run()
    cancels, requests = all_rows(past, "cancels", lake), all_rows(past, "cancel_requests", lake)
    rebuilt = [row for row in cancels if hour_of(row["processing_ts"]) >= END - LATE]
    accounts = {row["account_id"] for row in rebuilt}
    assert remove_old_files(past, accounts | accounts_of_late_requests(lake)) > HOURS

    lake.land(1, LATE)
    reports = lake.run()

    for target in lake.pipeline.targets:
        assert isinstance(lake.engine.decide(target), NoSession)
    assert len(reports["cancel_fact"].hours_built) == LATE
    found = lake.spark.table("lake.core.cancel_fact").where(f"canceled_at >= timestamp '{hour_start(END - LATE)}'")
    assert {row["cancel_id"]: row["request_id"] for row in found.collect()} == {
        row["cancel_id"]: churn(cancels, requests, row) for row in rebuilt
    }
    assert any(churn(cancels, requests, row) for row in rebuilt)
    signed_up = {row["account_id"] for row in all_rows(past, "signups", lake)}
    unknown = len([row for row in rebuilt if row["account_id"] not in signed_up])
    audits = {audit.name: audit for audit in reports["cancel_fact"].audits}
    assert audits["referential_account_id"].counts == {"unknown": unknown}
    lake.spark.stop()
