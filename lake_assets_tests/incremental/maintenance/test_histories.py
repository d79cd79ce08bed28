"""Sessions keep histories short, so that the ten-thousandth costs what the first ones did. No Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from lake_assets.base.hours import hour_key
from lake_assets.incremental.engine import engine, iceberg, retention, session_log
from lake_assets.incremental.engine.engine import Engine
from lake_assets.incremental.engine.model import NoSession
from lake_assets_tests.incremental.clicks import CLICKS, at, click_fact, land_clicks
from lake_assets_tests.incremental.committing import commit
from lake_assets_tests.incremental.scenario import NOW, landed

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

NAME, NEWEST = "raw.signups", 5


def with_history(catalog: Catalog) -> Table:
    """A table of 24 snapshots: each second one deletes a row that the one before has added."""
    session_log.create_tables(catalog)
    for number in range(12):
        landed(catalog, f"a-{number}", f"b-{number}").delete(f"account_id = 'a-{number}'")
    return iceberg.load(catalog, NAME)


def files(table: Table) -> set[str]:
    """The names of its data files, manifests and lists of manifests."""
    folder = Path(table.location().removeprefix("file://"))
    return {each.name for each in folder.rglob("*") if each.suffix in (".parquet", ".avro")}


def contents(table: Table) -> dict[int, pa.Table]:
    return {each.snapshot_id: table.scan(snapshot_id=each.snapshot_id).to_arrow() for each in table.metadata.snapshots}


def test_what_only_old_snapshots_have_goes_and_nothing_else(catalog: Catalog) -> None:
    before = with_history(catalog)
    rows, snapshots = contents(before), [each.snapshot_id for each in before.metadata.snapshots]
    assert retention.shorten(catalog, NAME, newest=len(snapshots)) == 0
    assert retention.shorten(catalog, NAME, newest=NEWEST) == len(snapshots) - NEWEST
    after = iceberg.load(catalog, NAME)
    assert contents(after) == {each: rows[each] for each in snapshots[-NEWEST:]}
    assert len(files(after)) < len(files(before)) + 1
    assert retention.remove_unreferenced_files(catalog, NAME, orphaned_before=NOW) == 0, "nothing is left over"


def test_what_a_branch_or_a_tag_needs_stays(catalog: Catalog) -> None:
    table = with_history(catalog)
    snapshots = [each.snapshot_id for each in table.metadata.snapshots]
    with table.manage_snapshots() as changed:
        changed.create_branch(snapshots[3], "mine")
    table.append(table.scan(snapshot_id=snapshots[3]).to_arrow(), branch="mine")
    rows = contents(iceberg.load(catalog, NAME))
    assert retention.shorten(catalog, NAME, newest=NEWEST) == len(snapshots) - NEWEST
    branch = iceberg.load(catalog, NAME).metadata.refs["mine"].snapshot_id
    assert set(contents(iceberg.load(catalog, NAME))) == {*snapshots[-NEWEST:], branch}
    assert iceberg.load(catalog, NAME).scan(snapshot_id=branch).to_arrow() == rows[branch]

    table = with_history(catalog)
    tagged = [each.snapshot_id for each in table.metadata.snapshots][-20]
    table.manage_snapshots().create_tag(tagged, "audit").commit()
    length = len(list(table.metadata.snapshots))
    retention.shorten(catalog, NAME, newest=NEWEST)
    assert iceberg.load(catalog, NAME).snapshot_by_id(tagged) is not None
    assert len(iceberg.load(catalog, NAME).metadata.snapshots) == min(length, 21), "a history has no gap"


def test_sessions_shorten_what_they_read_and_write(catalog: Catalog) -> None:
    lake = Engine(catalog, CLICKS, clock=lambda: at(9))
    lake.create_tables()
    land_clicks(catalog, [0], landing=0)
    commit(lake, click_fact)
    for number in range(2 * engine.SHORTENED_EVERY + 2):
        table = iceberg.load(catalog, "raw.clicks")
        with table.transaction() as transaction:
            transaction.set_properties({iceberg.COMPLETE_THROUGH: hour_key(lake.pipeline.start_hour + 30 + number)})
        assert not isinstance(lake.run(click_fact), NoSession)
    found = iceberg.load(catalog, "core.click_fact").metadata.snapshots
    assert len(found) <= 100 + engine.SHORTENED_EVERY
    assert lake.state(click_fact).n == 2 * engine.SHORTENED_EVERY + 3
    assert isinstance(lake.run(click_fact), NoSession)
    assert len(lake.history(click_fact)) == 2 * engine.SHORTENED_EVERY + 3
