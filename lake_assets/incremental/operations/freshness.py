"""Whether a target is as complete as it should be: its complete-through against the clock and its sources.

Freshness is computed from table properties alone, so it is known while nothing runs. `evaluate_freshness` is pure.

Which targets are not as their sessions left them: dropped, replaced, or rolled back.

Read from metadata alone, so a problem is known while nothing runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from pyiceberg.catalog import Catalog

from lake_assets.base.hours import hour_key, hour_start
from lake_assets.errors import TargetError
from lake_assets.incremental.declaration import Pipeline, Target
from lake_assets.incremental.engine import iceberg
from lake_assets.incremental.engine.complete import source_complete_through

if TYPE_CHECKING:
    from lake_assets.incremental.engine.engine import Engine


@dataclass(frozen=True)
class Freshness:
    """The freshness of one target.

    Attributes:
        table: The target's table.
        fresh: Whether the delay is at most `max_delay`.
        complete_through: Last complete hour, inclusive, in hours since 1970-01-01 UTC; None if no hour is complete.
        delay: Time since the end of the first hour or day that is not complete; 0 before its end.
        max_delay: Longest delay that the target declares.
        what: How late the target is, in words.
        remedy: What to do if it is not fresh.
    """

    table: str
    fresh: bool
    complete_through: int | None
    delay: timedelta
    max_delay: timedelta
    what: str
    remedy: str


def evaluate_freshness(
    target: Target,
    through: int | None,
    sources: Mapping[str, int | None],
    *,
    start: int,
    now: datetime,
) -> Freshness:
    """Return the freshness of a target that declares a `max_delay`.

    Args:
        target: The target.
        through: Its complete-through; None if no hour is complete.
        sources: Source → its complete-through.
        start: The pipeline's first hour, which becomes complete first.
        now: The present moment.
    """
    assert target.max_delay is not None, f"{target.table} declares no max_delay"
    first_incomplete = start if through is None else through + 1
    needed = target.grain.last(first_incomplete)
    delay = max(timedelta(0), now - hour_start(needed + 1))
    so_far = "complete through no hour yet" if through is None else f"complete through {hour_key(through)}"
    lateness = f"{_hours_and_minutes(delay)} late; allowed are {_hours_and_minutes(target.max_delay)}"
    return Freshness(
        table=target.table,
        fresh=delay <= target.max_delay,
        complete_through=through,
        delay=delay,
        max_delay=target.max_delay,
        what=f"{target.table} is {so_far}, {lateness}",
        remedy=_remedy(target, needed, sources),
    )


def freshness(catalog: Catalog, pipeline: Pipeline, target: Target, now: datetime) -> Freshness:
    """Return the present freshness of a target that declares a `max_delay`. Reads metadata only.

    Raises:
        InvalidHourKey: A table's complete-through is no hour key.
        TableMissing: The target or a source is not in the catalog.
    """
    return evaluate_freshness(
        target,
        _complete_through(catalog, pipeline, target.table),
        {table: _complete_through(catalog, pipeline, table) for table in target.source_tables},
        start=pipeline.start_hour,
        now=now,
    )


def with_max_delay(pipeline: Pipeline) -> list[Target]:
    """Return the targets that declare a `max_delay`."""
    return [target for target in pipeline.targets if target.max_delay is not None]


def with_default_max_delay(pipeline: Pipeline, max_delay: timedelta | None) -> Pipeline:
    """Return the pipeline with a `max_delay` for the targets that declare none; None leaves it as it is."""
    targets = []
    for target in pipeline.targets:
        targets.append(target if target.max_delay is not None else replace(target, max_delay=max_delay))
    return replace(pipeline, targets=tuple(targets))


def _complete_through(catalog: Catalog, pipeline: Pipeline, name: str) -> int | None:
    return source_complete_through(iceberg.load(catalog, name), name, pipeline)


def _remedy(target: Target, needed: int, sources: Mapping[str, int | None]) -> str:
    """Say whether the sources or the target's own sessions are behind; `needed` is the hour to become complete."""
    behind = [name for name, through in sources.items() if through is None or through < needed]
    if not behind:
        return f"Its sources are complete. See `lake plan {target.name}` and `lake sessions {target.name}`."
    verb = "is" if len(behind) == 1 else "are"
    return (
        f"{', '.join(behind)} {verb} not complete through {hour_key(needed)}. Check what lands there; "
        "`lake complete TABLE HOUR` declares a silent raw table complete."
    )


def _hours_and_minutes(delay: timedelta) -> str:
    minutes = int(delay.total_seconds() // 60)
    return f"{minutes // 60} h {minutes % 60:02} min"


def target_problems(engine: Engine) -> list[TargetError]:
    """Return the problem of each target that has one, upstream targets first."""
    found = []
    for target in engine.pipeline.in_order():
        problem = engine.problem(target)
        if problem is not None:
            found.append(problem)
    return found
