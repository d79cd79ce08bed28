"""Targets that a person has paused in Dagster's UI: the pool of the target has the limit 0.

A home of the version before may have a sensor for each target. If a person switched it off, the target stays paused
until somebody sets the limit of its pool. All use of Dagster's storages for this is here; a test fails if an upgrade
changes them.
"""

from __future__ import annotations

import dagster as dg
from dagster._core.definitions.run_request import InstigatorType
from dagster._core.scheduler.instigation import InstigatorStatus

from lake_assets.incremental.declaration import Target


def pause_of(instance: dg.DagsterInstance, target: Target) -> str | None:
    """Return why no session of a target is to be requested, as a sentence; None if the target is not paused."""
    limit = _pool_limit(instance, target.table)
    if limit == 0:
        return f"{target.table} is paused: the limit of its pool is 0. Set it to 1 to go on."
    if limit is None and f"{target.name}_sensor" in _switched_off(instance):
        return (
            f"{target.table} is paused: its own sensor, of a version before, is switched off. "
            f"To go on, set the limit of the pool {target.table} to 1 (Deployment, Concurrency)."
        )
    return None


def _pool_limit(instance: dg.DagsterInstance, pool: str) -> int | None:
    """Return the limit that a person has set for a pool; None if it has the default limit."""
    for limit in instance.event_log_storage.get_pool_limits():
        if limit.name == pool and not limit.from_default:
            return limit.limit
    return None


def _switched_off(instance: dg.DagsterInstance) -> set[str]:
    """Return the names of the sensors that a person has switched off."""
    if instance.schedule_storage is None:
        return set()
    states = instance.schedule_storage.all_instigator_state(
        instigator_type=InstigatorType.SENSOR, instigator_statuses={InstigatorStatus.STOPPED}
    )
    return {state.name for state in states}
