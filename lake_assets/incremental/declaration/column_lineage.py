"""Which source columns the columns of a target come from, as declared. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from lake_assets.incremental.declaration.pipeline import Pipeline
from lake_assets.incremental.declaration.target import Target


def column_sources(pipeline: Pipeline, target: Target) -> dict[str, tuple[str, ...]]:
    """Return column of a target → the source columns that it comes from, each `namespace.name.column`.

    A column without declared lineage comes from the columns of the same name in the sources. A column that comes from
    no source, or of which that is not known, is left out.
    """
    columns = _columns_by_table(pipeline)
    found = {}
    for column in target.columns:
        names = list(target.lineage.get(column, ()))
        if column not in target.lineage:
            names = [f"{source}.{column}" for source in target.source_tables if column in columns.get(source, {})]
        if names:
            found[column] = tuple(names)
    return found


def _columns_by_table(pipeline: Pipeline) -> dict[str, Mapping[str, str]]:
    columns: dict[str, Mapping[str, str]] = {}
    for raw in pipeline.raw:
        columns[raw.table] = raw.all_columns
    for target in pipeline.targets:
        columns[target.table] = target.columns
    return columns
