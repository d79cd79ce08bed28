"""Tables are created once, and checked before anything is staged: errors name the table, the culprit and the remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyiceberg.types import StringType

from lake_assets.errors import ColumnMismatch, InvalidHourKey, TableMissing, WriteAuditPublishDisabled
from lake_assets.incremental.engine import iceberg
from lake_assets.membership import PIPELINE
from lake_assets.membership.raw import SIGNUPS
from lake_assets.membership.signup_fact import signup_fact

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog


def test_tables_are_created_once_as_they_are_declared(catalog: Catalog) -> None:
    for raw in PIPELINE.raw:
        assert iceberg.create_raw(catalog, raw)
        assert not iceberg.create_raw(catalog, raw)
        table = iceberg.load(catalog, raw.table)
        iceberg.check_columns(table, raw.table, dict(raw.all_columns))
        assert [f.name for f in table.spec().fields] == ["landing_date", "landing_hour", "batch_id"]
    for target in PIPELINE.targets:
        assert iceberg.create_target(catalog, target)
        assert not iceberg.create_target(catalog, target)
        table = iceberg.load(catalog, target.table)
        iceberg.check_columns(table, target.table, dict(target.columns))
        iceberg.check_write_audit_publish(table, target.table)
        assert [str(f.transform) for f in table.spec().fields] == [target.grain.name]


def test_a_table_that_is_missing_is_named(catalog: Catalog) -> None:
    with pytest.raises(TableMissing, match=r"raw\.nowhere is not in the catalog[\s\S]*lake init"):
        iceberg.load(catalog, "raw.nowhere")


def test_a_column_that_is_missing_or_retyped_is_named(catalog: Catalog) -> None:
    iceberg.create_raw(catalog, SIGNUPS)
    table = iceberg.load(catalog, "raw.signups")
    with table.update_schema() as update:
        update.delete_column("plan")
        update.add_column("added", StringType())
    iceberg.check_columns(table, "raw.signups", {"account_id": "string", "event_ts": None})
    with pytest.raises(ColumnMismatch, match=r"raw\.signups should have the column plan \(string\).*no such column"):
        iceberg.check_columns(table, "raw.signups", dict(SIGNUPS.all_columns))
    with pytest.raises(ColumnMismatch, match=r"landing_hour \(string\).*has it as int"):
        iceberg.check_columns(table, "raw.signups", {"landing_hour": "string"})
    with pytest.raises(ColumnMismatch, match=r"nope \(any type\)"):
        iceberg.check_columns(table, "raw.signups", {"nope": None})
    iceberg.check_columns(table, "raw.signups", {"monthly_price": "decimal(9,2)"})


def test_complete_through_is_an_hour_key_or_an_error_that_names_it(catalog: Catalog) -> None:
    iceberg.create_raw(catalog, SIGNUPS)
    table = iceberg.load(catalog, "raw.signups")
    assert iceberg.complete_through(table, "raw.signups") is None
    for value, hour in [("2026-01-01-05:00", 490_901), ("2026-01-01 05:00", None)]:
        with table.transaction() as transaction:
            transaction.set_properties({iceberg.COMPLETE_THROUGH: value})
        if hour is not None:
            assert iceberg.complete_through(table, "raw.signups") == hour
    with pytest.raises(InvalidHourKey, match=r"lake\.complete-through of raw\.signups is '2026-01-01 05:00'"):
        iceberg.complete_through(table, "raw.signups")


def test_a_target_whose_writes_would_go_straight_to_main_is_refused(catalog: Catalog) -> None:
    iceberg.create_target(catalog, signup_fact)
    table = iceberg.load(catalog, "core.signup_fact")
    with table.transaction() as transaction:
        transaction.set_properties({iceberg.WAP_ENABLED: "false"})
    with pytest.raises(WriteAuditPublishDisabled, match=r"core\.signup_fact[\s\S]*ALTER TABLE lake\.core\.signup_fact"):
        iceberg.check_write_audit_publish(table, "core.signup_fact")
