"""A target whose table was dropped is not taken for an empty one: everything says so until it is rebuilt."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from lake_assets.cli.main import app
from lake_assets.errors import LakeError, TargetGone
from lake_assets.incremental.engine import iceberg
from lake_assets.incremental.engine.engine import catch_up
from lake_assets.incremental.engine.model import SessionReport
from lake_assets.membership.raw import RAW
from lake_assets.settings import settings
from lake_assets_tests.incremental.scenario import START, Lake, signup

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

    from lake_assets.settings import Settings

DIM = "core.account_state_dim"
FACT = "core.signup_fact"


@pytest.fixture
def opened(home: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """The home as `lake` opens it."""
    monkeypatch.setenv("LAKE_HOME", str(home.home))
    monkeypatch.setenv("LAKE_SPARK_REMOTE", str(home.spark_remote))
    settings.cache_clear()
    yield settings()
    settings.cache_clear()


def command(*arguments: str) -> tuple[int, str]:
    """The exit code of `lake`, and what it printed; an error as `lake` prints it."""
    done = CliRunner().invoke(app, [*arguments])
    if done.exception is not None and not isinstance(done.exception, (SystemExit, LakeError)):
        raise done.exception
    error = str(done.exception) if isinstance(done.exception, LakeError) else ""
    return done.exit_code, " ".join(f"{done.output} {error}".split())


def complete(lake: Lake, hour: int) -> None:
    for raw in RAW:
        lake.complete(raw.table, START + hour)


def test_a_dropped_target_is_an_error_everywhere_until_it_is_rebuilt(
    catalog: Catalog, spark: SparkSession, opened: Settings
) -> None:
    lake = Lake(catalog, spark)
    lake.append("raw.signups", [signup(1, 1), signup(2, 3, account_id="b"), signup(3, 9, account_id="c")])
    complete(lake, 4)
    lake.catch_up()
    catalog.drop_table(DIM)

    remedy = f"`lake rebuild {DIM} --reset`"
    for arguments in (["init"], ["catch-up"], ["status"], ["plan", DIM], ["report"]):
        code, printed = command(*arguments)
        assert (arguments, code) == (arguments, 1)
        assert remedy in printed, arguments
    assert iceberg.find(catalog, DIM) is None
    outcomes = catch_up(lake.engine, lake.pipeline.targets)
    assert next(o.table for o in outcomes if o.failure) == DIM
    assert [(o.table, o.problem.partition(":")[0]) for o in outcomes if o.problem] == [(DIM, f"{DIM} was dropped")]

    # Somebody creates it again: an empty table, which nobody takes for the former one.
    iceberg.create_target(catalog, lake.target(DIM))
    with pytest.raises(TargetGone, match="--reset"):
        lake.run(DIM)
    assert command("status")[0] == 1
    catalog.drop_table(DIM)

    # Whichever hours are named, all of them are missing.
    rebuilt = lake.engine.rebuild(lake.target(DIM), [START + 3], reset=True)
    assert isinstance(rebuilt, SessionReport)
    assert lake.complete_through(DIM) == 4
    lake.assert_true(DIM)
    assert command("init")[0] == 0

    catalog.drop_table(FACT)
    assert isinstance(lake.engine.rebuild_all(lake.target(FACT)), SessionReport)
    assert "was replaced" in lake.session(DIM).plan.reason  # all of it is read again
    complete(lake, 6)
    lake.catch_up()
    assert lake.complete_through(FACT) == 6
    lake.assert_true("signup_fact", DIM)


def test_an_open_session_does_not_publish_to_a_table_that_it_was_not_planned_for(
    catalog: Catalog, spark: SparkSession
) -> None:
    lake = Lake(catalog, spark)
    lake.append("raw.signups", [signup(1, 1)])
    lake.session("signup_fact")
    lake.append("raw.signups", [signup(2, 2)])
    lake.engine.open_session(lake.target("signup_fact"))
    catalog.drop_table(FACT)
    with pytest.raises(TargetGone):
        lake.run("signup_fact")
    iceberg.create_target(catalog, lake.target("signup_fact"))
    with pytest.raises(TargetGone):
        lake.run("signup_fact")
    assert isinstance(lake.engine.rebuild_all(lake.target("signup_fact")), SessionReport)
    lake.assert_true("signup_fact")
