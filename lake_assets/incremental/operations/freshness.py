"""Whether a target is as complete as it should be.

It is computed from metadata alone, so it is known while nothing runs. `evaluate_freshness` is pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from pyiceberg.catalog import Catalog

from lake_assets.base.hours import hour_key, hour_start
from lake_assets.incremental.declaration import Pipeline, Target
from lake_assets.incremental.engine import iceberg
from lake_assets.incremental.engine.complete import source_complete_through


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
    needed = target.grain.last(start if through is None else through + 1)
    delay = max(timedelta(0), now - hour_start(needed + 1))
    so_far = "complete through no hour yet" if through is None else f"complete through {hour_key(through)}"
    behind = [name for name, complete in sources.items() if complete is None or complete < needed]
    remedy = f"Its sources are complete. See `lake plan {target.name}` and `lake sessions {target.name}`."
    if behind:
        verb = "is" if len(behind) == 1 else "are"
        remedy = (
            f"{', '.join(behind)} {verb} not complete through {hour_key(needed)}. Check what lands there; "
            "`lake complete TABLE HOUR` declares a silent raw table complete."
        )
    return Freshness(
        table=target.table,
        fresh=delay <= target.max_delay,
        complete_through=through,
        delay=delay,
        max_delay=target.max_delay,
        what=f"{target.table} is {so_far}, {_in_words(delay)} late; allowed are {_in_words(target.max_delay)}",
        remedy=remedy,
    )


def _in_words(delay: timedelta) -> str:
    minutes = int(delay.total_seconds() // 60)
    return f"{minutes // 60} h {minutes % 60:02} min"


def freshness(catalog: Catalog, pipeline: Pipeline, target: Target, now: datetime) -> Freshness:
    """Return the present freshness of a target that declares a `max_delay`. Reads metadata only.

    Raises:
        InvalidHourKey: A table's complete-through is no hour key.
        TableMissing: The target or a source is not in the catalog.
    """
    through = {}
    for name in (target.table, *target.source_tables):
        through[name] = source_complete_through(iceberg.load(catalog, name), name, pipeline)
    of_target = through.pop(target.table)
    return evaluate_freshness(target, of_target, through, start=pipeline.start_hour, now=now)


def with_max_delay(pipeline: Pipeline) -> list[Target]:
    """Return the targets that declare a `max_delay`."""
    return [target for target in pipeline.targets if target.max_delay is not None]
