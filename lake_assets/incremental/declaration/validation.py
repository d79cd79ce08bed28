"""What a declaration must be, beyond its names: tables, keys, modes and transforms that fit together."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from datetime import timedelta

from lake_assets.errors import ConfigurationError
from lake_assets.incremental.declaration.modes import Sequential, Stateless
from lake_assets.incremental.declaration.names import TABLE, require_columns, require_name
from lake_assets.incremental.declaration.tables import RawTable, Source, Subject
from lake_assets.incremental.declaration.target import Target


def check_raw_source(target: Target, source: Source, raw: RawTable) -> None:
    """Rows that others land are judged, and told from their deliveries, by a key."""
    for column in (source.time_column, source.key):
        if column is not None and column not in raw.all_columns:
            raise ConfigurationError(
                f"{target.table} reads {column!r} of {raw.table}, which declares no such column.",
                remedy=f"Name one of: {', '.join(raw.all_columns)}.",
            )
    if source.key is None:
        raise ConfigurationError(
            f"{target.table} reads {raw.table} without a key.",
            remedy=f"Add key= to its Source({raw.table!r}, ...): rows may be landed more than once.",
        )


def check_entity(target: Target, columns: Mapping[str, Mapping[str, str]]) -> None:
    """Rows of an entity are told by one column everywhere; and no delivery of one entity may beat one of another."""
    entity = target.mode.entity if isinstance(target.mode, Sequential) else None
    if entity is None:
        return
    read = {s.table: columns[s.table] for s in target.sources if s.table in columns}
    for table, there in {target.table: target.columns, **read}.items():
        if entity not in there:
            raise ConfigurationError(
                f"{table} has no column {entity!r}, which is the entity of {target.table}.",
                remedy="Name a column that the target and all its sources have, or drop entity=.",
            )
    for source in target.sources:
        if not source.trusted:
            raise ConfigurationError(
                f"{target.table} has the entity {entity!r}, and judges the rows of {source.table} itself.",
                remedy="Read a fact that is built from them, or drop entity=.",
            )


def check_subject(subject: Subject, raw: Sequence[RawTable], targets: Sequence[Target]) -> None:
    """Its rows begin in a raw table, and its ids are strings: as such they are looked for, everywhere."""
    if not any(subject.columns_of(table.columns) for table in raw):
        raise ConfigurationError(
            f"No raw table holds the subject {subject.name}: none has a column {' or '.join(subject.columns)!r}.",
            remedy="Name the columns that hold its id.",
        )
    declared = {t.table: t.columns for t in raw} | {t.table: t.columns for t in targets}
    for table, columns in declared.items():
        for column in subject.columns_of(columns):
            if columns[column] != "string":
                raise ConfigurationError(
                    f"{table}.{column}, an id of the subject {subject.name}, is {columns[column]}.",
                    remedy="The id of a subject is a string.",
                )


def check_target(target: Target) -> None:
    require_name(TABLE, target.table, "The target")
    require_columns(target.table, target.columns)
    if not target.key:
        raise ConfigurationError(
            f"{target.table} has no key.", remedy="Name the columns that, with the time, tell a row."
        )
    if not target.sources:
        raise ConfigurationError(f"{target.table} has no source.", remedy="Name at least one Source.")
    for column in (*target.key, target.time_column):
        if column not in target.columns:
            raise ConfigurationError(
                f"{target.table} has no column {column!r}, which is its key or time.", remedy="Add it to columns=."
            )
    if target.columns[target.time_column] != "timestamptz":
        raise ConfigurationError(
            f"{target.table}.{target.time_column} is {target.columns[target.time_column]}.",
            remedy=f"The time column is partitioned by {target.grain.name} and must be timestamptz.",
        )
    if isinstance(target.mode, Stateless) and len(target.sources) != 1:
        raise ConfigurationError(
            f"{target.table} is stateless and has {len(target.sources)} sources.",
            remedy="A stateless target is built from each row of one source; use Stateful() for more.",
        )
    _check_options(target)
    _check_transform(target)


def _check_options(target: Target) -> None:
    if target.quarantine_limit < 0:
        raise ConfigurationError(
            f"{target.table} has a quarantine limit of {target.quarantine_limit}.", remedy="Use 0 or more rows."
        )
    if target.max_delay is not None and target.max_delay < timedelta(0):
        raise ConfigurationError(
            f"{target.table} has a max_delay of {target.max_delay}.", remedy="Use a timedelta of 0 or more, or None."
        )
    if unknown := sorted(target.lineage.keys() - target.columns.keys()):
        raise ConfigurationError(
            f"{target.table} has a lineage for {', '.join(unknown)}, which it has not.", remedy="Add them to columns=."
        )


def _check_transform(target: Target) -> None:
    """It is called with the session and one DataFrame per source."""
    given = 1 + len(target.sources)
    try:
        inspect.signature(target.transform).bind(*range(given))
    except TypeError:
        raise ConfigurationError(
            f"The transform of {target.table} cannot be called with a session and {given - 1} source(s).",
            remedy=f"Give it {given} parameters: the session, then one for each of"
            f" {', '.join(s.table for s in target.sources)}.",
        ) from None
