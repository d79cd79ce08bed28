"""Audits of published rows: which hours by default, and targets of every mode. A failing one is in `test_checks`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lake_assets.base.hours import DAY, HOUR, Grain, hour_key
from lake_assets.errors import UsageError
from lake_assets.incremental.engine.audit_run import PublishedAudit, newest_complete_hours
from lake_assets.incremental.engine.engine import utc_now
from lake_assets.incremental.engine.model import AuditResult, Committed, HeldHour
from lake_assets.membership import PIPELINE
from lake_assets_tests.incremental.clicks import START, click_fact
from lake_assets_tests.incremental.in_process_daemon import in_process_daemon
from lake_assets_tests.incremental.planning.plan.random_inputs import waiting
from lake_assets_tests.incremental.scenario import Lake, raw_row, signup

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

HOURS = st.frozensets(st.integers(START - 2, START + 75))


@given(st.none() | st.integers(START - 1, START + 75), HOURS, HOURS, HOURS, HOURS, st.sampled_from([HOUR, DAY]))
def test_by_default_the_newest_partition_with_rows_that_is_complete_and_settled(
    through: int | None,
    pending: frozenset[int],
    skipped: frozenset[int],
    held: frozenset[int],
    present: frozenset[int],
    grain: Grain,
) -> None:
    committed = Committed(
        waiting=waiting(
            pending=pending,
            skipped=skipped,
            held=[HeldHour(hour, "audit x: 1 bad", "s") for hour in sorted(held)],
        ),
        complete_through=through,
    )
    expected: tuple[int, ...] = ()
    has_rows = False
    for first in range(START, START + 76):
        partition = tuple(range(first, first + grain.hours))
        is_whole = first % grain.hours == 0
        is_complete = through is not None and partition[-1] <= through
        is_better = bool({*partition} & present) or not has_rows
        if is_whole and is_complete and is_better and not {*partition} & (pending | skipped | held):
            expected, has_rows = partition, bool({*partition} & present)
    assert newest_complete_hours(replace(click_fact, grain=grain), committed, START, present) == expected


def test_an_audit_that_only_warns_does_not_fail_the_whole() -> None:
    warning, failed = AuditResult("w", passed=False, blocking=False), AuditResult("b", passed=False)
    assert PublishedAudit("core.t", (1,), 7, (warning,)).passed
    assert not PublishedAudit("core.t", (1,), 7, (warning, failed)).passed


@pytest.mark.slow
def test_targets_of_every_mode_are_audited_and_stay_as_they_are(catalog: Catalog, spark: SparkSession) -> None:
    lake = Lake(catalog, spark)
    with pytest.raises(UsageError, match=r"core\.signup_fact has no complete hour to audit"):
        lake.engine.audit(lake.target("signup_fact"))
    lake.append("raw.signups", [signup(1, 1), signup(1, 1, batch_id="again")])
    lake.append("raw.cancels", [raw_row("raw.cancels", 30, 1)])
    for raw in PIPELINE.raw:
        lake.complete(raw.table, START + 1)
    lake.catch_up("signup_fact", "plan_fact", "cancel_request_fact", "cancel_fact", "account_state_dim")
    states = [lake.engine.state(target) for target in PIPELINE.targets]

    for name in ("signup_fact", "cancel_fact", "account_state_dim"):
        found = lake.engine.audit(lake.target(name))
        assert (found.hours, found.passed) == ((START + 1,), True)
        names = [*(audit.name for audit in lake.target(name).audits), "quarantine", "quarantine_limit"]
        names += [] if lake.target(name).sources[0].trusted else ["ties"]
        assert [audit.name for audit in found.audits] == names
    with in_process_daemon(PIPELINE, catalog, utc_now, end=hour_key(START + 20), spark=spark) as daemon:
        # The step of a target that depends on itself could not yield a result without its asset.
        executed = daemon.execute_checks("core.account_state_dim", "unique_key")
        assert executed.success
        assert [each.passed for each in executed.get_asset_check_evaluations()] == [True]

    assert [lake.engine.state(target) for target in PIPELINE.targets] == states
