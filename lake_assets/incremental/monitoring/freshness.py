"""Whether a target is as far as it promised: its complete-through against the clock, and against its sources.

Judged from table properties alone, so it can be told also when nothing runs. The judging is pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from pyiceberg.catalog import Catalog

from lake_assets.base.hours import hour_key, hour_start
from lake_assets.incremental.declaration import Pipeline, Target
from lake_assets.incremental.metadata import tables


@dataclass(frozen=True)
class Freshness:
    """The verdict on one target.

    complete_through: an hour; None while nothing is complete. delay: since the end of the first hour or day that is not
    complete, 0 while it lasts. what: in words. remedy: what to do when it is not fresh.
    """

    table: str
    fresh: bool
    complete_through: int | None
    delay: timedelta
    max_delay: timedelta
    what: str
    remedy: str


def judge(
    target: Target, through: int | None, sources: Mapping[str, int | None], *, start: int, now: datetime
) -> Freshness:
    """The verdict on a target that declares a `max_delay`.

    through: its complete-through. sources: theirs. start: the pipeline's first hour, the first to become complete.
    """
    assert target.max_delay is not None, f"{target.table} declares no max_delay"
    needed = target.grain.last(start if through is None else through + 1)
    delay = max(timedelta(0), now - hour_start(needed + 1))
    so_far = "complete through no hour yet" if through is None else f"complete through {hour_key(through)}"
    return Freshness(
        table=target.table,
        fresh=delay <= target.max_delay,
        complete_through=through,
        delay=delay,
        max_delay=target.max_delay,
        what=f"{target.table} is {so_far}, {_spell(delay)} late; allowed are {_spell(target.max_delay)}",
        remedy=_remedy(target, needed, sources),
    )


def freshness(catalog: Catalog, pipeline: Pipeline, target: Target, now: datetime) -> Freshness:
    """The verdict as of now. Metadata only. Raises `TableMissing`, `InvalidHourKey`."""
    return judge(
        target,
        _through(catalog, target.table),
        {s.table: _through(catalog, s.table) for s in target.sources},
        start=pipeline.start_hour,
        now=now,
    )


def with_max_delay(pipeline: Pipeline) -> list[Target]:
    """The targets that declare how late they may be."""
    return [t for t in pipeline.targets if t.max_delay is not None]


def promised(pipeline: Pipeline, max_delay: timedelta | None) -> Pipeline:
    """The pipeline, with a promise for the targets that declare none; None: as it is declared."""
    return replace(
        pipeline,
        targets=tuple(t if t.max_delay is not None else replace(t, max_delay=max_delay) for t in pipeline.targets),
    )


def _through(catalog: Catalog, name: str) -> int | None:
    return tables.complete_through(tables.load(catalog, name), name)


def _remedy(target: Target, needed: int, sources: Mapping[str, int | None]) -> str:
    """Either the sources have not come so far, or the target has not followed them. needed: an hour."""
    behind = [name for name, through in sources.items() if through is None or through < needed]
    if behind:
        return (
            f"{_listed(behind)} not complete through {hour_key(needed)}: see what lands there; "
            "`lake complete TABLE HOUR` declares a silent raw table complete."
        )
    return f"Its sources are further: see `lake plan {target.name}` and `lake sessions {target.name}`."


def _listed(names: Iterable[str]) -> str:
    found = list(names)
    return f"{', '.join(found)} {'is' if len(found) == 1 else 'are'}"


def _spell(delay: timedelta) -> str:
    """Hours and minutes."""
    minutes = int(delay.total_seconds() // 60)
    return f"{minutes // 60} h {minutes % 60:02} min"
