"""`lake land`: the rows of CSV and Parquet files, appended to a raw table in one commit with its complete-through."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lake_assets.base.hours import hour_key, hour_of
from lake_assets.cli.common import require_begun
from lake_assets.errors import UsageError
from lake_assets.incremental.declaration import LANDING_COLUMNS, Pipeline, RawTable
from lake_assets.incremental.execution.decisions import MAX_HOURS_BEYOND
from lake_assets.incremental.metadata.tables import COMPLETE_THROUGH, complete_through, load

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog


def land_files(
    catalog: Catalog,
    pipeline: Pipeline,
    table: str,
    files: Sequence[Path],
    *,
    now: datetime,
    through: int | None,
    force: bool = False,
) -> int:
    """Append the rows of files to a raw table, and set its complete-through in the same commit.

    Args:
        catalog: The catalog.
        pipeline: Declares the raw table.
        table: The raw table, `namespace.name`.
        files: CSV files with a header, or Parquet files. Their columns are those that are declared, in any order.
        now: When the rows land.
        through: The last complete hour, inclusive; None to leave it as it is.
        force: Also take an hour that is more than a day beyond the newest row.

    Returns:
        The number of rows.

    Raises:
        UsageError: There is no such raw table, a file does not have its rows, or the hour is earlier than the present
            one, in the future, or, without `force`, more than a day beyond the rows. Nothing is landed.
        TableMissing: The table was not created yet.
    """
    import pyarrow as pa

    raw = _declared(pipeline, table)
    found = load(catalog, table)
    before = complete_through(found, table)
    if through is not None:
        _require_not_back(table, before, through)
        require_begun(through, "--through", now=now)
    schema = found.schema().as_arrow()
    columns = pa.schema([field for field in schema if field.name not in LANDING_COLUMNS])
    rows = pa.concat_tables(_read(file, columns) for file in files)
    _require_near(through, before, _newest_hour(rows[raw.time_column]), force=force)
    landing = {
        "landed_at": now,
        "landing_date": now.date(),
        "landing_hour": now.hour,
        "batch_id": f"{now:%Y%m%dT%H%M%S%f}",
    }
    for name, value in landing.items():
        field = schema.field(name)
        rows = rows.append_column(field, pa.repeat(pa.scalar(value, field.type), len(rows)))
    with found.transaction() as transaction:
        transaction.append(rows.select(schema.names))
        if through is not None:
            transaction.set_properties({COMPLETE_THROUGH: hour_key(through)})
    return len(rows)


def _declared(pipeline: Pipeline, table: str) -> RawTable:
    found = pipeline.raw_table(table)
    if found is None:
        declared = ", ".join(raw.table for raw in pipeline.raw)
        raise UsageError(f"There is no raw table {table!r}.", remedy=f"Name a raw table: {declared}.")
    return found


def _require_not_back(table: str, before: int | None, through: int) -> None:
    if before is not None and through < before:
        raise UsageError(
            f"{table} is complete through {hour_key(before)} already; {hour_key(through)} is earlier.",
            remedy="Leave --through out: late rows need none.",
        )


def _require_near(through: int | None, before: int | None, newest: int | None, *, force: bool) -> None:
    """Refuse an hour that neither the rows nor the former complete-through come near, without `force`.

    Sessions would not build so many hours beyond the newest row, so the hour may be a slip of the pen.
    """
    known = [hour for hour in (before, newest) if hour is not None]
    if force or through is None or not known or through <= max(known) + MAX_HOURS_BEYOND:
        return
    raise UsageError(
        f"--through is {hour_key(through)}, {through - max(known):,} hours beyond the newest row.",
        remedy="Correct the hour. If the source had nothing to send in these hours, add --force.",
    )


def _newest_hour(times: Any) -> int | None:
    import pyarrow.compute as pc

    newest = pc.max(times).as_py()
    if newest is None:
        return None
    return hour_of(newest if newest.tzinfo else newest.replace(tzinfo=UTC))


def _read(file: Path, columns: Any) -> Any:
    """Return the rows of a file with exactly these columns."""
    import pyarrow as pa
    from pyarrow import csv, parquet

    try:
        if file.suffix == ".parquet":
            rows = parquet.read_table(file)
        else:
            types = {field.name: field.type for field in columns}
            rows = csv.read_csv(file, convert_options=csv.ConvertOptions(column_types=types))
        missing = [name for name in columns.names if name not in rows.column_names]
        if not missing:
            return rows.select(columns.names).cast(columns)
    except (pa.ArrowException, OSError) as error:
        raise UsageError(
            f"{file} cannot be read as declared: {error}.",
            remedy="Correct the file. Times have a zone, such as 2026-01-01T00:05:00Z.",
        ) from error
    raise _missing_columns(file, missing, set(rows.column_names) - set(columns.names))


def _missing_columns(file: Path, missing: Sequence[str], unknown: Collection[str]) -> UsageError:
    """Return the error of a file that lacks columns. unknown: those that it has and the table lacks."""
    instead = f"; it has {', '.join(sorted(unknown))}, which the table lacks" if unknown else ""
    return UsageError(
        f"{file} has no column {', '.join(missing)}{instead}.",
        remedy="Correct its name in the file's header, or add it with its values.",
    )
