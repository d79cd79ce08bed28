"""Which snapshots others have made on a target, and in which hours: tables that pyiceberg writes, no Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from lake_assets.base.hours import hour_start, parse_hour
from lake_assets.incremental.metadata import publish, tables
from lake_assets.incremental.planning.outside_changes import OutsideChanges, outside_changes, version_of
from lake_assets.incremental.planning.session import TargetVersion
from lake_assets_tests.incremental.clicks import click_fact

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

START = parse_hour("2026-01-01-00:00")
NAME = "core.click_fact"
BY_A_SESSION = {publish.WAP_ID: "click_fact-0123456789abcdef.1"}
PICKED = {publish.PUBLISHED_WAP_ID: "click_fact-0123456789abcdef.2"}


@pytest.fixture
def table(catalog: Catalog) -> Table:
    tables.create_target(catalog, click_fact)
    return tables.load(catalog, NAME)


def append(table: Table, *hours: int, by: dict[str, str] | None = None) -> TargetVersion:
    rows = [{"click_id": f"c{hour}", "clicked_at": hour_start(START + hour)} for hour in hours]
    table.append(pa.Table.from_pylist(rows, schema=table.schema().as_arrow()), snapshot_properties=by or {})
    return version_of(table)


def found(table: Table, known: TargetVersion) -> OutsideChanges | None:
    return outside_changes(table, NAME, "clicked_at", known)


def hours(table: Table, known: TargetVersion) -> list[tuple[int, int]] | None:
    """The suspect hours, counted from the start; None if every hour is suspect."""
    changes = found(table, known)
    assert changes is not None
    if changes.hours is None:
        return None
    return [(first - START, last - START) for first, last in changes.hours]


def expire(table: Table, *kept: int | None) -> None:
    """Expire all snapshots but the head and some others."""
    ids = {s.snapshot_id for s in table.metadata.snapshots} - {publish.main_id(table), *kept}
    table.maintenance.expire_snapshots().by_ids(sorted(ids)).commit()


def test_what_sessions_publish_is_known_also_if_it_was_cherry_picked(table: Table) -> None:
    empty = version_of(table)
    first = append(table, 1, by=BY_A_SESSION)
    append(table, 2, by=PICKED)
    assert found(table, empty) is None
    assert found(table, first) is None


def test_the_hours_of_what_others_append_and_delete_are_suspect_until_a_version_after_it_is_known(table: Table) -> None:
    known = append(table, 1, 2, 3, by=BY_A_SESSION)
    append(table, 7)
    append(table, 8, by=BY_A_SESSION)
    table.delete("click_id = 'c2'")
    assert hours(table, known) == [(2, 2), (7, 7)]
    changes = found(table, known)
    assert changes is not None
    assert len(changes.snapshots) == 2
    assert changes.covered_by({START + hour for hour in (1, 2, 7)})
    assert not changes.covered_by({START + 2})
    assert found(table, version_of(table)) is None


def test_an_append_without_rows_changes_nothing(table: Table) -> None:
    known = append(table, 1, by=BY_A_SESSION)
    table.append(table.scan(limit=0).to_arrow())
    assert found(table, known) is None


def test_after_a_rollback_the_hours_that_differ_are_suspect(table: Table) -> None:
    first = append(table, 1, by=BY_A_SESSION)
    known = append(table, 2, 3, by=BY_A_SESSION)
    assert first.snapshot_id is not None
    table.manage_snapshots().set_current_snapshot(snapshot_id=first.snapshot_id).commit()
    assert hours(table, known) == [(2, 3)]
    expire(table)
    assert hours(table, known) is None  # nothing says any more which hours


def test_what_has_expired_is_judged_by_the_number_of_rows(table: Table) -> None:
    known = append(table, 1, by=BY_A_SESSION)
    append(table, 2)
    append(table, 3, by=BY_A_SESSION)
    expire(table)
    assert hours(table, known) is None
    # As if the expired snapshots had been compactions: the rows before the head are those that were known.
    assert found(table, TargetVersion(known.table_uuid, known.snapshot_id, known.sequence_number, rows=2)) is None
    # An older version knew nothing but the snapshot.
    assert found(table, TargetVersion(None, known.snapshot_id)) is None


def test_a_known_snapshot_that_has_expired_just_before_the_head_is_still_named_by_it(table: Table) -> None:
    known = append(table, 1, by=BY_A_SESSION)
    append(table, 4)
    expire(table)
    assert hours(table, known) == [(4, 4)]
