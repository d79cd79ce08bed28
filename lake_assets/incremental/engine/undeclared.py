"""Targets that a job names on its command line, with their sources, and that no pipeline need declare.

What is named is checked against the catalog and remembered in properties of the target's table, so that the session is
published by the target's name alone. The rows are the job's: no function builds them, no key and no rule classifies
those of the sources. A pipeline that declares the target counts before what a job has named.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from lake_assets.base.hours import Grain
from lake_assets.connections.catalog import table_names
from lake_assets.errors import UsageError, suggestion
from lake_assets.incremental.declaration import Mode, Pipeline, RawTable, Source, Stateful, Stateless, Target
from lake_assets.incremental.declaration.model import is_name_of
from lake_assets.incremental.engine import iceberg
from lake_assets.incremental.engine.audits import source_target_counts
from lake_assets.incremental.engine.erasures import ERASURE
from lake_assets.incremental.engine.iceberg import QUARANTINE, high_watermark_table, session_table, time_partition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PROCESS_NAME, SOURCES = "lake.process-name", "lake.sources"
"""Properties of a target's table: the process that writes it, and what it is built from, as JSON."""

TIMESTAMPS = ("timestamp", "timestamptz")

MODES: Mapping[int, Mode] = {1: Stateless(), 2: Stateful()}
"""How a target of each etl_pattern_id is planned."""


@dataclass(frozen=True)
class Named:
    """What a job names of the target that it writes. None: it does not.

    Attributes:
        process_name: The process that writes the target, of which there is one.
        src_tables: The sources, comma-separated, each as `table` or `table|time column`.
        etl_pattern_id: 1 (new rows are appended) or 2 (a range of hours is overwritten).
    """

    process_name: str | None = None
    src_tables: str | None = None
    etl_pattern_id: int | None = None


def find_target(catalog: Catalog, pipeline: Pipeline, name: str, named: Named = Named()) -> Target:
    """Return the target of a job: as it is declared, as the job names it, or as a job has named it before.

    Args:
        name: The target, with or without its namespace.
        named: What the job names of it. It has to agree with a declaration.

    Raises:
        UsageError: There is no such target, or what is named of it cannot be right.
    """
    declared = pipeline.find_target(name)
    if declared is not None:
        _check_agrees(catalog, pipeline, declared, named)
        return declared
    pipeline.refuse_broken(name)
    existing = table_names(catalog)
    own = {session_table(catalog), high_watermark_table(catalog), QUARANTINE, ERASURE}
    known = existing | own | {raw.table for raw in pipeline.raw}
    if named == Named() and not any(is_name_of(name, each) for each in existing):
        return pipeline.target(name)
    full = name if not any(is_name_of(name, each) for each in known) else _only(name, known, "TARGET")
    if named != Named() and (full in own or pipeline.raw_table(full) is not None):
        whose = "table of the engine" if full in own else "raw table of the pipeline"
        raise UsageError(f"{full} is no target: it is a {whose}.", remedy="Name the table that the job writes.")
    if full not in existing:
        raise UsageError(
            f"{full} is not declared, and the catalog has no such table.",
            remedy=f"Create it: CREATE TABLE lake.{full} (...) USING iceberg PARTITIONED BY (hours(TIME COLUMN)).",
        )
    table = iceberg.load(catalog, full)
    stored = json.loads(table.metadata.properties.get(SOURCES, "null"))
    if stored is None and named == Named():
        return pipeline.target(name)
    sources = None if stored is None else [Source(each, column) for each, column in stored["sources"]]
    if named.src_tables is not None:
        sources = _sources(catalog, pipeline, named.src_tables)
    pattern = named.etl_pattern_id or (stored["pattern"] if stored else None)
    return _target(table, sources, pattern)


def remember(catalog: Catalog, pipeline: Pipeline, target: Target, process_name: str | None) -> None:
    """Write what a job has named into the properties of its target's table, and let the table stage commits.

    Raises:
        UsageError: Another process writes the target.
    """
    table = iceberg.find(catalog, target.table)
    if table is None:
        return
    found = table.metadata.properties
    writes = found.get(PROCESS_NAME)
    if process_name is not None and writes not in (None, process_name):
        raise UsageError(
            f"{target.table} is written by the process {writes!r}, and not by {process_name!r}: the watermarks of its"
            " sources are those of one process.",
            remedy=f"Give --process-name {writes}, and each process a target of its own. If the process has another"
            f" name now: ALTER TABLE lake.{target.table} UNSET TBLPROPERTIES ('{PROCESS_NAME}').",
        )
    wanted = {} if process_name is None else {PROCESS_NAME: process_name}
    if pipeline.find_target(target.table) is None:
        sources = [[source.table, source.time_column] for source in target.sources]
        wanted[SOURCES] = json.dumps({"pattern": target.mode.pattern_id, "sources": sources})
        wanted[iceberg.WAP_ENABLED] = "true"
    changed = {key: value for key, value in wanted.items() if found.get(key) != value}
    if changed:
        with table.transaction() as transaction:
            transaction.set_properties(changed)


def _target(table: Table, sources: list[Source] | None, pattern: int | None) -> Target:
    """Return a target that is built from these sources, with the columns and the partitions of its table."""
    name = ".".join(table.name())
    if sources is None or pattern is None:
        missing = [
            f"--{each}" for each, known in (("src-tables", sources), ("etl-pattern-id", pattern)) if known is None
        ]
        raise UsageError(
            f"{name} is not declared, so its sources and its pattern have to be named: {' and '.join(missing)}.",
            remedy="Such as: --src-tables 'raw.cancels|processing_ts,core.requests' --etl-pattern-id 2. Or declare it.",
        )
    if pattern not in MODES:
        raise UsageError(
            f"--etl-pattern-id is {pattern}.", remedy="Use 1 (new rows are appended) or 2 (hours are overwritten)."
        )
    if pattern == 1 and len(sources) > 1:
        raise UsageError(
            f"{name} has --etl-pattern-id 1 and {len(sources)} sources: an append has the new rows of one.",
            remedy="Use --etl-pattern-id 2, which overwrites the hours that changed in any of them.",
        )
    if name in [source.table for source in sources]:
        raise UsageError(f"{name} is named as a source of itself.", remedy="Name the tables that the job reads.")
    partition = _time_partition(table)
    if partition is None:
        raise UsageError(
            f"{name} is not partitioned by hours or days of one timestamptz column, so its hours are not known.",
            remedy=f"ALTER TABLE lake.{name} ADD PARTITION FIELD hours(TIME COLUMN), and rewrite its rows.",
        )
    time_column, grain = partition
    columns: dict[str, str] = {}
    for field in table.schema().fields:
        if field.field_type.is_primitive and field.name == field.name.lower():
            columns[field.name] = str(field.field_type)

    def written_by_a_job(session: Any, *read: DataFrame) -> DataFrame:
        """Return no row: another program writes all."""
        from pyspark.sql import functions as F

        selected = [F.lit(None).cast("timestamp" if name == time_column else "string").alias(name) for name in columns]
        return read[0].where(F.lit(False)).select(*selected)

    built_from = json.dumps([pattern, *((source.table, source.time_column) for source in sources)])
    return Target(
        table=name,
        mode=MODES[pattern],
        sources=tuple(sources),
        key=(),
        time_column=time_column,
        columns=columns,
        transform=written_by_a_job,
        audits=(replace(source_target_counts(), blocking=False),) if pattern == 1 else (),
        grain=grain,
        code_version=hashlib.sha256(built_from.encode()).hexdigest()[:12],
    )


def _time_partition(table: Table) -> tuple[str, Grain] | None:
    """Return the column that a table is partitioned by the time of, and its grain; None if there is not one such."""
    found = []
    for field in table.schema().fields:
        partition = time_partition(table, table.spec().spec_id, field.name)
        if partition and str(field.field_type) == "timestamptz":
            found.append((field.name, partition[1]))
    return found[0] if len(found) == 1 else None


# Sources


def _sources(catalog: Catalog, pipeline: Pipeline, text: str, columns: Mapping[str, str] = {}) -> list[Source]:
    """Return the sources that a job names: see `Named.src_tables`. columns: Source → time column, if none is named."""
    known = {raw.table for raw in pipeline.raw} | {target.table for target in pipeline.targets} | table_names(catalog)
    found: list[Source] = []
    for part in text.split(","):
        name, bar, column = (each.strip() for each in part.partition("|"))
        if not name or "|" in column or (bar and not column):
            raise UsageError(
                f"--src-tables is {text!r}, of which {part!r} names no source.",
                remedy="Write table or table|time column, with commas: 'raw_cancels|processing_ts,cancel_fact'.",
            )
        table = _only(name, known, "--src-tables")
        if table in [source.table for source in found]:
            raise UsageError(f"--src-tables names {table} twice.", remedy="Name each source once.")
        found.append(Source(table, _time_column(catalog, pipeline, table, column or columns.get(table))))
    return found


def _time_column(catalog: Catalog, pipeline: Pipeline, table: str, named: str | None) -> str:
    """Return the time column of a source: the one that is named, declared, or that its table is partitioned by."""
    declared = pipeline.raw_table(table) or pipeline.find_target(table)
    stored = iceberg.find(catalog, table)
    types: Mapping[str, str] = {}
    if stored is not None:
        types = {field.name: str(field.field_type) for field in stored.schema().fields}
    elif declared is not None:
        types = declared.all_columns if isinstance(declared, RawTable) else declared.columns
    timestamps = [column for column, kind in types.items() if kind in TIMESTAMPS]
    partition = None if stored is None else _time_partition(stored)
    column = named or (declared.time_column if declared else None) or (partition[0] if partition else None)
    if column is None:
        raise UsageError(
            f"--src-tables names {table} without a time column, and nothing declares one.",
            remedy=f"Write '{table}|COLUMN', with one of its timestamps: {', '.join(timestamps) or 'it has none'}.",
        )
    if column not in timestamps:
        problem = f"{table} has no column {column!r}, which is to be its time."
        if column in types:
            problem = f"{table} has the column {column!r} as {types[column]}, which is no time."
        raise UsageError(problem, remedy=suggestion(column, timestamps))
    return column


def _check_agrees(catalog: Catalog, pipeline: Pipeline, target: Target, named: Named) -> None:
    """Check that what a job names of a declared target is as it is declared.

    Raises:
        UsageError: It is not.
    """
    remedy = f"Leave the option out, or change the declaration of {target.table}."
    if named.etl_pattern_id not in (None, target.mode.pattern_id):
        raise UsageError(
            f"--etl-pattern-id is {named.etl_pattern_id}, but {target.table} is declared as"
            f" {type(target.mode).__name__.lower()}, which is {target.mode.pattern_id}.",
            remedy=remedy,
        )
    if named.src_tables is None:
        return
    declared = {source.table: source.time_column for source in target.sources}
    sources = _sources(catalog, pipeline, named.src_tables, declared)
    if {source.table: source.time_column for source in sources} != declared:
        in_words = ",".join(f"{table}|{column}" for table, column in declared.items())
        raise UsageError(
            f"--src-tables is {named.src_tables!r}, but {target.table} is declared with {in_words!r}.", remedy=remedy
        )


# Names


def _only(name: str, known: Collection[str], where: str) -> str:
    """Return the one known table of a name.

    Raises:
        UsageError: There is none, or more than one.
    """
    found = sorted(table for table in known if is_name_of(name, table))
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(
            f"{where} names {name!r}, which is {' and '.join(found)}.", remedy="Name it with its namespace."
        )
    raise UsageError(f"{where} names {name!r}, which is no table.", remedy=suggestion(name, sorted(known)))
