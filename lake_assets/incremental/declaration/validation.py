"""Checks of a declaration beyond its names: tables, keys, modes and transforms must fit together."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta

from lake_assets.errors import ConfigurationError
from lake_assets.incremental.declaration.arguments import suggestion
from lake_assets.incremental.declaration.modes import Defer, Sequential, Stateful, Stateless
from lake_assets.incremental.declaration.names import (
    TABLE,
    require_columns,
    require_described,
    require_name,
    require_renamed,
)
from lake_assets.incremental.declaration.tables import RawTable, Source, Subject, Topic
from lake_assets.incremental.declaration.target import Target


def check_source_columns(target: Target, source: Source, columns: Mapping[str, str]) -> None:
    """Check that a source has the columns that a target's `Source` names, and that its time is a timestamptz.

    Args:
        target: The target.
        source: One of its sources.
        columns: Column → Iceberg type, as the source is declared.

    Raises:
        ConfigurationError: A column is missing, or the time column has another type.
    """
    for column in (source.time_column, *source.named_columns, source.landed_column):
        if column is not None and column not in columns:
            raise ConfigurationError(
                f"{target.table} reads {column!r} of {source.table}, which declares no such column.",
                remedy=suggestion(column, tuple(columns)),
            )
    landed_type = "timestamptz" if source.landed_column is None else columns[source.landed_column]
    if landed_type != "timestamptz":
        raise ConfigurationError(
            f"{target.table} reads {source.table} with landed_column={source.landed_column!r}, which is {landed_type}.",
            remedy="Name the timestamptz column that says when a row landed, or leave landed_column= out.",
        )
    time_type = columns[source.time_column]
    if time_type != "timestamptz":
        raise ConfigurationError(
            f"{target.table} reads {source.table} by the time column {source.time_column!r}, which is {time_type}.",
            remedy="Name a timestamptz column as time_column=, or declare this one as timestamptz.",
        )


def check_raw_source(target: Target, source: Source, raw: RawTable) -> None:
    """Check a source that is a raw table: it has a key, which identifies repeated deliveries, and its columns exist.

    Only the catalog knows the columns of a table that exists: a plan checks them.

    Raises:
        ConfigurationError: The key is missing, or a column.
    """
    if not raw.exists_already:
        check_source_columns(target, source, raw.all_columns)
    if source.key is None:
        raise ConfigurationError(
            f"{target.table} reads {raw.table} without a key.",
            remedy=f"Add key= to its Source({raw.table!r}, ...): rows may be landed more than once.",
        )


def check_versions(target: Target) -> None:
    """Check the sources of a target whose rows are versions of a key.

    Raises:
        ConfigurationError: A source has no key, or the target's mode cannot use what it keeps.
    """
    for source in target.sources:
        if source.has_versions and source.key is None:
            raise ConfigurationError(
                f"{target.table} keeps the {source.keep} of a key of {source.table}, but the source has no key.",
                remedy=f'Name one column as the key: Source("{source.table}", key="payment_id", ...).',
            )
        if source.keep == "all" and not isinstance(target.mode, Stateful):
            raise ConfigurationError(
                f"{target.table} reads {source.table} with keep='all', but is {type(target.mode).__name__.lower()}.",
                remedy="Use mode=Stateful(load='changed'), or keep='last'.",
            )


def check_late(target: Target) -> None:
    """Check that hours of a target may wait for its late rows.

    An hour of a sequential target builds on the hour before it, and one of a stateful target on earlier events: they
    would build on rows that are known to be incomplete. A new version of a key changes the hour that it leaves and the
    one that it enters, which must be published together.

    Raises:
        ConfigurationError: They may not, or late= is no policy.
    """
    if target.late is None:
        return
    if not isinstance(target.late, Defer):
        raise ConfigurationError(
            f"late= of {target.table} is {target.late!r}.",
            remedy='Write late=Defer(older_than="6 hours", at_most="4 hours").',
        )
    if not isinstance(target.mode, Stateless):
        raise ConfigurationError(
            f"{target.table} has late=Defer(...), but is {type(target.mode).__name__.lower()}: its later hours are"
            " built from the earlier ones, so none of them may wait.",
            remedy="Remove late=, and declare it on the stateless targets that this one is built from.",
        )
    for source in target.sources:
        if source.has_versions:
            raise ConfigurationError(
                f"{target.table} has late=Defer(...), and reads {source.table} with keep={source.keep!r}: a correction"
                " changes two hours, which must be published together.",
                remedy="Remove late=, or keep every row of the source.",
            )


def check_entity(target: Target, columns: Mapping[str, Collection[str]]) -> None:
    """Check that all sources of a target have the entity's column, and a sequential target, too.

    The rows of the sources of a sequential target must be validated already: otherwise a delivery of one entity could
    replace one of another.

    Args:
        target: The target.
        columns: Table → its declared columns; without the tables whose columns only the catalog knows.

    Raises:
        ConfigurationError: A column is missing, or the target validates the rows of a source, by a key or rules.
    """
    entity = None if isinstance(target.mode, Stateless) else target.mode.entity
    if entity is None:
        return
    if isinstance(target.mode, Sequential):
        _check_has_entity(target.table, target.columns, target, entity)
    for source in target.sources:
        if source.table in columns:
            _check_has_entity(source.table, columns[source.table], target, entity)
    if isinstance(target.mode, Sequential):
        _check_validates_no_source(target, entity)


def _check_validates_no_source(target: Target, entity: str) -> None:
    for source in target.sources:
        if not source.trusted:
            raise ConfigurationError(
                f"{target.table} has the entity {entity!r}, but validates the rows of {source.table} itself.",
                remedy="Read a fact that is built from them, or drop entity=.",
            )


def _check_has_entity(table: str, columns: Collection[str], target: Target, entity: str) -> None:
    if entity not in columns:
        whose = "the target and all its sources have" if isinstance(target.mode, Sequential) else "all its sources have"
        raise ConfigurationError(
            f"{table} has no column {entity!r}, which is the entity of {target.table}.",
            remedy=f"Name a column that {whose}, or drop entity=.",
        )


def check_subject(subject: Subject, raw: Sequence[RawTable], targets: Sequence[Target]) -> None:
    """Check that a raw table contains the subject's ids, and that all columns of ids are strings.

    Raises:
        ConfigurationError: No raw table contains them, or a column is no string.
    """
    is_held = any(subject.columns_of(raw_table.columns) for raw_table in raw)
    if not is_held and not any(raw_table.exists_already for raw_table in raw):
        raise ConfigurationError(
            f"No raw table holds the subject {subject.name}: none has a column {' or '.join(subject.columns)!r}.",
            remedy="Name the columns that contain its id.",
        )
    declared = {raw_table.table: raw_table.columns for raw_table in raw}
    declared.update({target.table: target.columns for target in targets})
    for table, columns in declared.items():
        _check_ids_are_strings(subject, table, columns)


def _check_ids_are_strings(subject: Subject, table: str, columns: Mapping[str, str]) -> None:
    for column in subject.columns_of(columns):
        if columns[column] != "string":
            raise ConfigurationError(
                f"{table}.{column}, an id of the subject {subject.name}, is {columns[column]}.",
                remedy="Declare the column as a string.",
            )


def check_feed(raw: RawTable, subjects: Sequence[Subject]) -> None:
    """Check that the id column of a feed is a subject's, if the raw table has any: files are erased by this column.

    Raises:
        ConfigurationError: It is another column.
    """
    if not isinstance(raw.feed, Topic):
        return
    id_columns: list[str] = []
    for subject in subjects:
        id_columns += subject.columns_of(raw.columns)
    if id_columns and raw.feed.id_column not in id_columns:
        raise ConfigurationError(
            f"The feed of {raw.table} has the id column {raw.feed.id_column!r}, but erasures go by another.",
            remedy=f"Name the column that landed files are erased by, one of: {', '.join(id_columns)}.",
        )


def check_target(target: Target) -> None:
    """Check a target by itself.

    Raises:
        ConfigurationError: Something in the declaration cannot work.
    """
    require_name(TABLE, target.table, "The target")
    require_columns(target.table, target.columns)
    require_described(target.table, target.columns, target.descriptions)
    require_renamed(target.table, target.columns, target.renamed_from)
    if not target.key:
        raise ConfigurationError(
            f"{target.table} has no key.", remedy="Name the columns that, with the time, identify a row."
        )
    if not target.sources:
        raise ConfigurationError(f"{target.table} has no source.", remedy="Name at least one Source.")
    for column in (*target.key, target.time_column):
        if column not in target.columns:
            raise ConfigurationError(
                f"{target.table} has no column {column!r}, which is its key or time.",
                remedy=f"Add it to columns=. {suggestion(column, tuple(target.columns))}",
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
    check_versions(target)
    check_late(target)
    _check_audits(target)
    _check_options(target)
    _check_transform(target)


def _check_audits(target: Target) -> None:
    for audit in target.audits:
        for column in audit.columns:
            if column not in target.columns:
                raise ConfigurationError(
                    f"The audit {audit.name} of {target.table} names the column {column!r}, which the target lacks.",
                    remedy=suggestion(column, tuple(target.columns)),
                )


def _check_options(target: Target) -> None:
    if target.quarantine_limit < 0:
        raise ConfigurationError(
            f"{target.table} has a quarantine limit of {target.quarantine_limit}.", remedy="Use 0 or more rows."
        )
    if target.max_delay is not None and target.max_delay < timedelta(0):
        raise ConfigurationError(
            f"{target.table} has a max_delay of {target.max_delay}.", remedy="Use a timedelta of 0 or more, or None."
        )
    unknown = sorted(target.lineage.keys() - target.columns.keys())
    if unknown:
        raise ConfigurationError(
            f"{target.table} declares lineage for {', '.join(unknown)}, but has no such column.",
            remedy="Add it to columns=, or remove it from lineage=.",
        )


def _check_transform(target: Target) -> None:
    """Check that the transform accepts the session and one DataFrame for each source."""
    sources = target.source_tables
    parameters = 1 + len(sources)
    try:
        inspect.signature(target.transform).bind(*range(parameters))
    except TypeError:
        raise ConfigurationError(
            f"The transform of {target.table} cannot be called with a session and {len(sources)} source(s).",
            remedy=f"Give it {parameters} parameters: the session, then one for each of {', '.join(sources)}.",
        ) from None
