"""`incremental_asset`: the decorator that turns a transform into a target."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

from lake_assets.incremental.declaration.code_version import function_code, version_of
from lake_assets.incremental.declaration.modes import Defer, Mode, Stateless, declared_grain
from lake_assets.incremental.declaration.served import Served, declared_served
from lake_assets.incremental.declaration.tables import Source
from lake_assets.incremental.declaration.target import DEFAULT_QUARANTINE_LIMIT, Audit, Target, Transform
from lake_assets.incremental.declaration.validation import check_arguments, check_target

CODE_VERSION_DIGITS = 12
"""Hexadecimal digits of a code version."""


def incremental_asset(
    *,
    mode: Mode,
    sources: Sequence[Source],
    key: str | Sequence[str],
    time_column: str,
    columns: Mapping[str, str],
    audits: Sequence[Audit] = (),
    namespace: str = "core",
    quarantine_limit: float = DEFAULT_QUARANTINE_LIMIT,
    code_version: str | None = None,
    owners: Sequence[str] = (),
    lineage: Mapping[str, Sequence[str]] | None = None,
    max_delay: timedelta | None = None,
    grain: Literal["hour", "day"] = "hour",
    timezone: str = "UTC",
    descriptions: Mapping[str, str] | None = None,
    served: bool | str | Path | Mapping[str, Any] | Served = False,
    late: Defer | None = None,
    renamed_from: Mapping[str, str] | None = None,
) -> Callable[[Transform], Target]:
    """Declare the table `namespace.<function name>`. The function's docstring describes it.

    Args:
        mode: How the target is built.
        sources: The tables that it is built from, in the order of the function's parameters.
        key: One or more columns. A row's identity is (key, time).
        time_column: The column of the event time; a timestamptz.
        columns: Column → Iceberg type.
        audits: Checks of each staged snapshot.
        namespace: Of the table.
        quarantine_limit: A blocking check fails if a session adds more rows than this to the quarantine; below 1, a
            larger share of the rows that it reads. Default: 100 rows, or half of those read if that is more.
        code_version: Default: a hash of the function, of what it uses of its project, and of the sources with their
            rules, the mode, the audits and the limit. Comments and formatting do not matter. If it changes, commands
            and Dagster say which hours other code has built; nothing is rebuilt by itself.
        owners: Shown in Dagster.
        lineage: Target column → source columns (`raw.signups.event_ts`), where names differ. Equal names are found.
        max_delay: The freshness check fails if an hour or day ended longer ago than this and is not complete.
        grain: What one partition contains. A day is built as a whole: if any of its hours changed, and once all are
            complete. Chunks and the catch-up threshold are rounded up to days. A stateless target takes rows at once.
        timezone: With `grain="day"`, the IANA time zone whose calendar days the partitions are: `America/New_York`. Its
            days must begin at full hours of UTC. A day then has 23 to 25 hours.
        descriptions: Column → what is in it, for people. Shown in Dagster; columns may be left out.
        served: Whether the serving part pushes the target, so that readers can query it; or how it does: `Served(...)`,
            Apache Pinot's table configuration as a dict, or its file of JSON or YAML, relative to the function's.
        late: Which hours of a stateless target wait if late rows change them, and how long: `Defer(...)`.
        renamed_from: Column → its former name, under which the table may still have it: `lake migrate` renames it.

    Raises:
        ConfigurationError: Something in the declaration cannot work.
    """

    def declare(transform: Transform) -> Target:
        table = f"{namespace}.{transform.__name__}"
        check_arguments(table, mode=mode, sources=sources, key=key, columns=columns, audits=audits, owners=owners)
        keyed = tuple(sources)
        if isinstance(mode, Stateless) and isinstance(key, str):
            keyed = tuple(source if source.key is not None else replace(source, key=key) for source in sources)
        folder = Path(transform.__code__.co_filename).parent if inspect.isfunction(transform) else Path()
        target = Target(
            table=table,
            mode=mode,
            sources=keyed,
            key=(key,) if isinstance(key, str) else tuple(key),
            time_column=time_column,
            columns=dict(columns),
            transform=transform,
            audits=tuple(audits),
            quarantine_limit=quarantine_limit,
            code_version=code_version or _code_version(transform, keyed, audits, quarantine_limit, mode),
            code_version_before=code_version or _code_hash(transform, keyed, audits, quarantine_limit),
            grain=declared_grain(table, grain, timezone),
            description=inspect.getdoc(transform) or "",
            descriptions=dict(descriptions or {}),
            lineage=dict(lineage or {}),
            owners=tuple(owners),
            max_delay=max_delay,
            late=late,
            renamed_from=renamed_from or {},
            served=declared_served(table, served, folder),
        )
        check_target(target)
        return target

    return declare


def _code_version(
    transform: Transform,
    sources: Sequence[Source],
    audits: Sequence[Audit],
    quarantine_limit: float,
    mode: Mode,
) -> str:
    """Return a hash of everything that decides which rows are built and published; equal in every OS process."""
    declared_audits = [(audit.name, audit.description, audit.blocking) for audit in audits]
    declared_sources = [_as_hashed(source) for source in sources]
    return version_of(
        function_code(transform), declared_sources, declared_audits, quarantine_limit, type(mode).__name__
    )


def _code_hash(
    transform: Transform,
    sources: Sequence[Source],
    audits: Sequence[Audit],
    quarantine_limit: float,
) -> str:
    """Return the code version of a target as the version before computed it."""
    declared_audits = [(audit.name, audit.description, audit.blocking) for audit in audits]
    code = inspect.getsource(inspect.getmodule(transform) or transform)
    declared_sources = "[" + ", ".join(_as_hashed(source) for source in sources) + "]"
    hashed = f"({code!r}, {declared_sources}, {declared_audits!r}, {quarantine_limit!r})"
    return hashlib.sha256(hashed.encode()).hexdigest()[:CODE_VERSION_DIGITS]


def _as_hashed(source: Source) -> str:
    """Return a source as text. What it does not use is left out, so its hash stays as it was before that existed."""
    names = ["table", "time_column", "key", "rules"]
    if source.has_versions:
        names += ["keep", "order_by", "deleted"]
    if source.landed_column is not None:
        names.append("landed_column")
    values = ", ".join(f"{name}={getattr(source, name)!r}" for name in names)
    return f"Source({values})"
