"""Backfills that ask for partitions which cannot be built yet.

Dagster ends a backfill as failed if one of its runs succeeds without a partition that the backfill has asked for. A
partition that still waits for its sources is no failure, and a later session builds it: the run takes it out of the
backfill. All use of Dagster's backfills is here: if an upgrade changes them, Dagster's own verdict stays.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import dagster as dg

if TYPE_CHECKING:
    from dagster._core.definitions.assets.graph.asset_graph import AssetGraph
    from dagster._core.execution.asset_backfill import AssetBackfillData

log = logging.getLogger(__name__)

BACKFILL_TAG = "dagster/backfill"
REQUESTED = "REQUESTED"
"""Status of a backfill that goes on."""

LOOKS = 5
LOOK_SECONDS = 0.5
"""Time until a run looks whether the backfill is as it has written it: the daemon may have written it meanwhile."""


def leave_out_of_backfill(context: dg.AssetExecutionContext, key: dg.AssetKey, partitions: Collection[str]) -> None:
    """Take partitions of an asset out of the backfill that a run belongs to, if it belongs to one. See `leave_out`."""
    backfill_id = context.run.tags.get(BACKFILL_TAG)
    if backfill_id is None or not partitions:
        return
    try:
        graph = _graph(context)
        leave_out(context.instance, backfill_id, key, partitions, graph=graph, in_run=context.run.asset_selection or ())
    except (AttributeError, TypeError) as error:
        log.warning("The backfill may end as failed, though nothing failed: this Dagster has other names (%s).", error)


def _graph(context: dg.AssetExecutionContext) -> Any:
    try:
        return context.repository_def.asset_graph
    except Exception:  # the run was started as a function, which knows the assets of its own job alone
        return context.job_def.asset_layer.asset_graph


def leave_out(
    instance: dg.DagsterInstance,
    backfill_id: str,
    key: dg.AssetKey,
    partitions: Collection[str],
    *,
    graph: AssetGraph,
    in_run: Collection[dg.AssetKey],
) -> None:
    """Take partitions of an asset out of a backfill.

    The step of the asset yields no output then, so Dagster skips the assets downstream in the same run. They are
    requested again if something upstream of them was built, and otherwise leave the backfill, too.

    Args:
        instance: Has the backfill.
        backfill_id: Its id.
        key: The asset.
        partitions: Keys of its partitions; the backfill need not have asked for all of them.
        graph: All assets.
        in_run: The assets of the run that leaves the partitions out.
    """
    for _ in range(LOOKS):
        backfill = instance.get_backfill(backfill_id)
        if backfill is None or backfill.status.value != REQUESTED:
            return
        data = backfill.asset_backfill_data
        if data is None or not _asks_for(data, key, partitions):
            return
        changed = _without(data, key, partitions, graph, in_run)
        instance.update_backfill(backfill._replace(asset_backfill_data=changed))
        time.sleep(LOOK_SECONDS)


def _asks_for(data: AssetBackfillData, key: dg.AssetKey, partitions: Collection[str]) -> bool:
    target = data.target_subset.partitions_subsets_by_asset_key.get(key)
    return target is not None and any(partition in target for partition in partitions)


def _without(
    data: AssetBackfillData,
    key: dg.AssetKey,
    partitions: Collection[str],
    graph: AssetGraph,
    in_run: Collection[dg.AssetKey],
) -> AssetBackfillData:
    """Return what a backfill asks for without some partitions of an asset. in_run: the assets of the same run."""
    asked: Any = data.target_subset.partitions_subsets_by_asset_key[key]
    waiting = asked.partitions_def.subset_with_partition_keys([each for each in partitions if each in asked])
    left = type(data.target_subset).create_empty_subset()._replace(partitions_subsets_by_asset_key={key: waiting})
    target, requested = data.target_subset - left, data.requested_subset - left
    skipped, gone = {key}, set()
    for each in graph.toposorted_asset_keys:
        parents = graph.get(each).parent_keys - {each}
        if parents & skipped and each in in_run:
            skipped.add(each)
        targeted = parents & data.target_subset.asset_keys
        if targeted and not targeted & target.asset_keys:
            gone.add(each)
            target = target.filter_asset_keys(target.asset_keys - {each})
    kept = requested.asset_keys - (skipped - {key}) - gone
    return data._replace(target_subset=target, requested_subset=requested.filter_asset_keys(kept))
