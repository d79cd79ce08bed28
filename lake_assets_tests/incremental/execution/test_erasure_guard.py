"""Which rows of an erased subject the guard deletes, and in which files of a plan it looks for them. Without Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, StringType, TimestampType

from lake_assets.base.hours import hour_start
from lake_assets.incremental.declaration import Pipeline, RawTable, Subject
from lake_assets.incremental.engine import iceberg
from lake_assets.incremental.engine.erasures import (
    ERASURE,
    ErasureGuard,
    Erasures,
    KeyedHash,
    create_table,
    holders,
    spellings,
)
from lake_assets.incremental.engine.model import NoSession, SessionPlan, SourceRange
from lake_assets.incremental.engine.publish import main_id
from lake_assets.incremental.engine.retention import drop_deleted_entries
from lake_assets.incremental.erasure.certificate import certify
from lake_assets.membership import PIPELINE
from lake_assets.membership.raw import RAW, SIGNUPS
from lake_assets_tests.incremental.scenario import START, signup
from lake_assets_tests.membership.in_memory import ARROW, COLUMNS

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

ERASED_AT = hour_start(START + 10)
BEFORE = ERASED_AT - timedelta(minutes=1)
AFTER = ERASED_AT + timedelta(minutes=1)
GONE = "gone"

TIMES: Mapping[str, tuple[datetime | None, datetime, bool]] = {
    "both before": (BEFORE, BEFORE, True),
    "happened before": (BEFORE, AFTER, True),
    "landed before": (AFTER, BEFORE, True),
    "happened at that moment": (ERASED_AT, AFTER, True),
    "landed at that moment": (AFTER, ERASED_AT, True),
    "without a time": (None, AFTER, True),
    "both after": (AFTER, AFTER, False),
}
"""Signup → when it happened, when it landed, and whether the guard deletes it."""


def _no_rewrite(table: str) -> None:
    raise AssertionError(f"{table} has no equality deletes")


@pytest.fixture
def guard(catalog: Catalog) -> ErasureGuard:
    for raw in RAW:
        iceberg.create_raw(catalog, raw)
    create_table(catalog)
    return ErasureGuard(catalog, PIPELINE, Erasures(catalog, key=lambda: b"key"), _no_rewrite)


def land(guard: ErasureGuard, account: str, **times: Sequence[datetime | None]) -> int:
    """Land signups of an account in one commit, and return its snapshot. times: key → of the event, of the landing."""
    rows = []
    for key, (event_ts, landed_at) in times.items():
        rows.append(signup(1, 1, signup_id=key, account_id=account, event_ts=event_ts, landed_at=landed_at))
    table = iceberg.load(guard.catalog, SIGNUPS.table)
    schema = pa.schema([(name, ARROW[kind]) for name, kind in COLUMNS[SIGNUPS.table].items()])
    table.append(pa.Table.from_pylist(rows, schema=schema).cast(table.schema().as_arrow()))
    return head(guard)


def head(guard: ErasureGuard) -> int:
    found = main_id(iceberg.load(guard.catalog, SIGNUPS.table))
    assert found is not None
    return found


def left(guard: ErasureGuard) -> set[str]:
    return set(iceberg.load(guard.catalog, SIGNUPS.table).scan().to_arrow()["signup_id"].to_pylist())


def erase(guard: ErasureGuard) -> None:
    guard.erasures.record("account", GONE, "requested", erased_at=ERASED_AT, now=AFTER)


def plan_of(first: int | None, last: int | None) -> SessionPlan:
    """A plan that reads the signups after one snapshot, up to another."""
    source = SourceRange(SIGNUPS.table, "uuid", first, last, 0, 0, None)
    return SessionPlan("core.signup_fact", "s1", "session", "append", (source,), ())


def test_rows_that_happened_or_landed_by_the_erasure_go_and_later_ones_stay(guard: ErasureGuard) -> None:
    land(guard, GONE, **{name: times for name, (*times, _) in TIMES.items()})
    land(guard, "other", **{f"other's {name}": times for name, (*times, _) in TIMES.items()})
    assert guard.sweep() == {}  # nobody was erased
    erase(guard)
    others = {f"other's {name}" for name in TIMES}
    assert guard.sweep() == {SIGNUPS.table: len(TIMES) - 1}
    assert left(guard) == {"both after"} | others
    assert guard.sweep() == {}


def test_a_plan_is_refused_if_the_files_that_it_reads_first_have_an_erased_row(guard: ErasureGuard) -> None:
    read = land(guard, GONE, read=(BEFORE, BEFORE))
    erase(guard)
    new = land(guard, "other", other=(AFTER, AFTER))
    assert not guard.delete_erased_rows(NoSession("idle", "nothing new"))
    for plan in (plan_of(read, new), plan_of(read, read), plan_of(None, None)):
        assert not guard.delete_erased_rows(plan)
    assert left(guard) == {"read", "other"}

    bad = land(guard, GONE, bad=(BEFORE, AFTER))
    assert not guard.delete_erased_rows(plan_of(read, new))  # it ends before
    assert guard.delete_erased_rows(plan_of(new, bad))
    assert left(guard) == {"other"}  # the rows of an id go together
    assert not guard.delete_erased_rows(plan_of(new, head(guard)))


def test_a_plan_of_which_history_does_not_show_what_was_read_is_searched_as_a_whole(guard: ErasureGuard) -> None:
    bad = land(guard, GONE, bad=(BEFORE, AFTER))
    erase(guard)
    unknown = bad + 1
    assert guard.delete_erased_rows(plan_of(unknown, bad))
    assert left(guard) == set()


@pytest.mark.parametrize(
    ("kind", "gone", "stays", "named"),
    [
        ("string", "u7", "u7 ", "u7"),
        ("int", 7, 70, "7"),
        ("long", 2**60, 2**60 + 1, str(2**60)),
        ("decimal(9, 2)", Decimal("7.50"), Decimal("70.50"), "7.500"),
    ],
)
def test_an_id_of_any_type_is_deleted_and_certified(
    catalog: Catalog, kind: str, gone: object, stays: object, named: str
) -> None:
    """Whichever column of the subject has it, and also if the others, or when it landed, are null."""
    columns = {"person": kind, "friend": kind, "seen_at": "timestamptz"}
    raw = RawTable("raw.people", columns, time_column="seen_at", feed=False)
    subject = Subject("person", ("person", "friend"))
    pipeline = Pipeline(raw=(raw,), targets=(), start=PIPELINE.start, subjects=(subject,))
    iceberg.create_raw(catalog, raw)
    create_table(catalog)
    guard = ErasureGuard(catalog, pipeline, Erasures(catalog, key=lambda: b"key"), _no_rewrite)
    table = iceberg.load(catalog, raw.table)
    schema = schema_to_pyarrow(table.schema(), include_field_ids=False)
    people = [(gone, None), (stays, gone), (None, gone), (stays, None), (stays, stays), (None, None)]
    rows: dict[str, list[Any]] = {name: [None] * len(people) for name in schema.names}
    rows["seen_at"] = [BEFORE] * len(people)
    for place, column in enumerate(subject.columns):
        rows[column] = [pair[place] for pair in people]
    table.append(pa.table(rows, schema=schema))

    ids = spellings(catalog, pipeline, subject, [named])
    found = certify(catalog, "person", *ids, columns=subject.columns)
    assert {(each.table, each.kind) for each in found.findings} >= {("raw.people", "data")}
    guard.erasures.record("person", ids, "requested", erased_at=ERASED_AT, now=AFTER)
    assert guard.sweep() == {"raw.people": 3}
    assert guard.sweep() == {}
    left = iceberg.load(catalog, "raw.people").scan().to_arrow().select(subject.columns).to_pylist()
    assert [(each["person"], each["friend"]) for each in left] == people[3:]
    drop_deleted_entries(catalog, "raw.people")
    expired = certify(catalog, "person", *ids, columns=subject.columns)
    assert "main" not in {each.referenced for each in expired.findings}
    others = spellings(catalog, pipeline, subject, [str(stays)])
    assert not certify(catalog, "person", *others, columns=subject.columns).nowhere


def test_a_file_may_have_thousands_of_ids_that_were_erased_at_many_times(guard: ErasureGuard) -> None:
    moments = {f"gone{number}": ERASED_AT + timedelta(seconds=number % 20) for number in range(3_000)}
    signups = [
        signup(1, 1, signup_id=f"{account} {seconds}", account_id=account, event_ts=at, landed_at=at)
        for account, moment in moments.items()
        for seconds in (0, 1)
        for at in [moment + timedelta(seconds=seconds)]
    ]
    table = iceberg.load(guard.catalog, SIGNUPS.table)
    schema = pa.schema([(name, ARROW[kind]) for name, kind in COLUMNS[SIGNUPS.table].items()])
    table.append(pa.Table.from_pylist(signups, schema=schema).cast(table.schema().as_arrow()))
    erased = [
        {
            "subject": "account",
            "id_hash": guard.erasures.hash("account", account),
            "key_id": KeyedHash(lambda: b"key").key_id,
            "state": "requested",
            "erased_at": moment,
            "recorded_at": AFTER,
        }
        for account, moment in moments.items()
    ]
    erasures = iceberg.load(guard.catalog, ERASURE)
    schema = schema_to_pyarrow(erasures.schema(), include_field_ids=False)
    erasures.append(pa.Table.from_pylist(erased, schema=schema))
    assert guard.delete_erased_rows(plan_of(None, head(guard)))
    assert left(guard) == {f"{account} 1" for account in moments}


def test_a_table_of_another_program_is_swept_by_the_columns_that_it_has(catalog: Catalog) -> None:
    create_table(catalog)
    catalog.create_namespace("prod")
    schema = Schema(NestedField(1, "account_id", StringType()), NestedField(2, "at", TimestampType()))
    table = catalog.create_table("prod.events", schema)
    rows = []
    for account, moment in ((GONE, BEFORE), (GONE, ERASED_AT), (GONE, AFTER), (GONE, None), ("stays", BEFORE)):
        rows.append({"account_id": account, "at": moment.replace(tzinfo=None) if moment else None})
    table.append(pa.Table.from_pylist(rows, schema=table.schema().as_arrow()))
    existing = RawTable("prod.events", time_column="at")
    pipeline = Pipeline(raw=(existing,), targets=(), start=PIPELINE.start, subjects=PIPELINE.subjects)
    erasures = Erasures(catalog, key=lambda: b"key")
    (subject,) = pipeline.subjects
    erasures.record(subject.name, GONE, "requested", erased_at=ERASED_AT, now=AFTER)
    assert ErasureGuard(catalog, pipeline, erasures, _no_rewrite).sweep() == {"prod.events": 3}
    assert list(holders(catalog, pipeline, subject)) == [("prod.events", ("account_id",))]
    left = iceberg.load(catalog, "prod.events").scan().to_arrow().to_pylist()
    assert [(row["account_id"], row["at"]) for row in left] == [
        (GONE, AFTER.replace(tzinfo=None)),
        ("stays", BEFORE.replace(tzinfo=None)),
    ]
