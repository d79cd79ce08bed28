"""Served tables, and their last pushes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pyiceberg.catalog import Catalog

from lake_assets.connections.addresses import zookeeper_address
from lake_assets.engagement.model.lakes import metrics_locations
from lake_assets.incremental.engine.engine import Engine
from lake_assets.pages.data_path.stages import (
    FAILURES,
    Fact,
    Stage,
    broken_stage,
    moment,
    problem_of,
    read_stage,
)
from lake_assets.serving.lineage import State
from lake_assets.serving.registry import Registry
from lake_assets.serving.served_tables import serving_at
from lake_assets.serving.sources import Source, metrics_sources, pipeline_sources
from lake_assets.serving.store import (
    EntryStatus,
    lineage_status,
    switched_with,
    table_status,
    way_back,
)
from lake_assets.settings import Settings

LAST_PUSHES = 5
"""The number of pushes shown of each served table."""

SERVED = "Served tables"
PUSHES = "Last pushes"
NO_ZOOKEEPER = "No ZooKeeper runs for this data directory, and none is configured: `lake up`, or LAKE_ZOOKEEPER."
NOTHING_SERVED = "Nothing was pushed yet: `lake serving push TABLE`."


def serving_stages(settings: Settings, engine: Engine) -> tuple[Stage, Stage]:
    """Return the served tables, and their last pushes."""
    hosts = zookeeper_address(settings)
    if hosts is None:
        return Stage(SERVED, instead=NO_ZOOKEEPER), Stage(PUSHES, instead=NO_ZOOKEEPER)
    try:
        sources = _sources(settings, engine)
        with serving_at(hosts, settings, clock=engine.clock) as serving:
            registry = serving.registry
            served = read_stage(SERVED, lambda: _table_facts(registry, engine.catalog, sources), NOTHING_SERVED)
            pushes = read_stage(PUSHES, lambda: _push_facts(registry), NOTHING_SERVED)
            return served, pushes
    except FAILURES as error:
        return broken_stage(SERVED, error), broken_stage(PUSHES, error)


def _sources(settings: Settings, engine: Engine) -> dict[str, Source]:
    """Return served table → its source."""
    found = [*pipeline_sources(engine.pipeline), *metrics_sources(metrics_locations(settings))]
    return {source.name: source for source in found}


def _table_facts(registry: Registry, catalog: Catalog, sources: Mapping[str, Source]) -> Iterator[Fact]:
    failures = registry.failures()
    for table in registry.tables():
        status = table_status(registry, table)
        stands = "no rows"
        if status.as_of:
            stands = f"{status.rows:,} rows as of {moment(status.as_of)}"
        pending = list(_pushes_in_progress(registry, table))
        bad = table in failures
        if bad:
            pending.append(f"the last push failed: {failures[table].problem}")
        try:
            if table in sources:
                pending += _source_change(catalog, sources[table], status.head)
        except FAILURES as error:  # concerns only the source of this table
            pending.append(problem_of(error))
            bad = True
        yield Fact(table, stands, ", ".join(pending), bad=bad)


def _pushes_in_progress(registry: Registry, table: str) -> Iterator[str]:
    for entry in lineage_status(registry, table):
        if entry.state is State.IN_PROGRESS:
            yield f"push {entry.id} is in progress since {moment(entry.timestamp)}"


def _source_change(catalog: Catalog, source: Source, served_head: str | None) -> Iterator[str]:
    """Yield a text if the source changed after it was read. served_head: the source's head when it was read."""
    head = source.head(catalog)
    if served_head and head not in (None, served_head):
        yield f"{source.table} is at {head}, {served_head} is served"


def _push_facts(registry: Registry) -> Iterator[Fact]:
    found = {table: lineage_status(registry, table)[:LAST_PUSHES] for table in registry.tables()}
    for table, entries in found.items():
        for entry in entries:
            yield _push_fact(table, entry, switched_with(table, entry, found))


def _push_fact(table: str, entry: EntryStatus, others: Mapping[str, str]) -> Fact:
    """others: table → entry, of the tables that were switched together with this one."""
    command = ""
    if entry.can_roll_back:
        command = way_back(table, entry.id, others, later=not entry.can_revert)
    replaced = f"{len(entry.segments_from)} → {len(entry.segments_to)} segments"
    return Fact(table, f"{entry.state}, {moment(entry.timestamp)}", replaced, command=command)
