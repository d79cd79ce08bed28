"""Folders of YAML and SQL for the tests of tables that are declared in SQL."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from lake_assets.incremental.declaration import Broken, Pipeline
from lake_assets.incremental.from_settings import declared_pipeline
from lake_assets.incremental.sql.analysis import CheckedTable, check_tables
from lake_assets.incremental.sql.folder import SqlFolder, open_folder, whole_pipeline

PAYMENTS = """\
type: lake_assets.IncrementalTable
attributes:
  table: core.payment_fact
  mode: stateless
  sources:
    - table: raw.payments
      time_column: event_ts
      key: payment_id
      rules: {amount is negative: amount < 0}
      columns: {payment_id: string, account_id: string, amount: long, event_ts: timestamptz}
  key: payment_id
  time_column: paid_at
  sql: payment_fact.sql
  audits: [source_target_counts, no_missing_events, unique_key, {not_null: [account_id]}]
"""
PAYMENTS_SQL = "SELECT payment_id, account_id, amount, event_ts AS paid_at FROM payments\n"

BALANCES = """\
type: lake_assets.IncrementalTable
attributes:
  table: core.balance_dim
  mode: {sequential: {chunk_hours: 24}}
  sources: [{table: core.payment_fact, time_column: paid_at}]
  key: account_id
  time_column: balance_hour
  columns: {balance_hour: timestamptz, account_id: string, balance: long}
  sql: |
    WITH changes AS (
      SELECT account_id, balance AS amount, balance_hour AS at FROM previous
      UNION ALL
      SELECT account_id, amount, paid_at FROM payment_fact
      WHERE paid_at >= (SELECT min(hour) FROM session_hours)
    )
    SELECT h.hour AS balance_hour, c.account_id, sum(c.amount) AS balance
    FROM session_hours h JOIN changes c ON c.at < h.hour + INTERVAL 1 HOUR
    GROUP BY h.hour, c.account_id
"""

TOTALS = """\
type: lake_assets.IncrementalTable
attributes:
  table: core.payments_hourly
  mode: {stateful: {load: changed}}
  sources: [{table: core.payment_fact, time_column: paid_at, name: p}]
  key: account_id
  time_column: paid_hour
  sql: |
    -- braces in a text stay: '{p}'
    SELECT date_trunc('HOUR', paid_at) AS paid_hour, account_id, count(*) AS payments, sum(amount) AS amount,
      '{p}' AS note
    FROM p
    GROUP BY ALL
"""


def write(folder: Path, name: str, declaration: str, sql: str | None = None) -> Path:
    """Write `name/defs.yaml`, and the query beside it. Returns the YAML file."""
    place = folder / name
    place.mkdir(parents=True, exist_ok=True)
    file = place / "defs.yaml"
    file.write_text(declaration)
    if sql is not None:
        (place / f"{name}.sql").write_text(sql)
    return file


def payments(folder: Path, *, declaration: str = PAYMENTS, sql: str = PAYMENTS_SQL) -> Path:
    """The fact of payments."""
    return write(folder, "payment_fact", declaration, sql)


def _all_used(broken: Iterable[Broken]) -> None:
    for each in broken:
        raise each.error


def open_all(folder: Path) -> SqlFolder:
    """What a folder declares; what cannot be used of it is raised."""
    found = open_folder(folder)
    _all_used(found.broken)
    return found


def pipeline_of(folder: Path, *, start: str) -> Pipeline:
    """The pipeline of a folder without Spark; what cannot be used of it is raised."""
    found = declared_pipeline(folder, start=start)
    _all_used(found.broken)
    return found


def check_all(
    folder: Path, spark: Callable[[], Any], *, start: str, only_changed: bool = False
) -> tuple[list[CheckedTable], Pipeline]:
    """What `lake check` finds in a folder, and its pipeline; what cannot be used of it is raised."""
    found = open_all(folder)
    tables, targets, broken = check_tables(found, spark, schemas={}, only_changed=only_changed)
    _all_used(broken)
    pipeline = whole_pipeline(found, targets, (), start=start)
    _all_used(pipeline.broken)
    return tables, pipeline
