"""Landings laid down by hand: when they land is exact, what their rows say is the population's history. Pure.

Hours count from the start. In hours 6 and 7 nobody asks to leave.

| landing | at | signups, plan changes | cancels | cancel requests |
| --- | --- | --- | --- | --- |
| `worked_example()[0]` | 06:00 | 0..5 but for the late rows of 2 and 3 | 0..5 but for the late rows of 5 | 0..5 |
| `worked_example()[1]` | 08:00 | late rows of 2 and 3, rows of 6 | late rows of 5, rows of 6, 7 | none |
| `worked_example()[2]` | 08:15 | rows of 7 | none | none |
| `dirty_batch`, `bad_batch` | hour + 1 | rows of the hour | rows of the hour | rows of the hour |

With each landing a table is declared complete through the last hour named here; with the second, cancel requests
through 7, though none come.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta

import numpy as np
import pyarrow as pa

from lake_assets.base.hours import hour_start
from lake_assets.demo.membership_simulator.batches import CompleteThrough, Flaw, Landing, flaws, make_landing, spoil
from lake_assets.demo.membership_simulator.population import Events, Happened, Population, hours
from lake_assets.errors import UsageError
from lake_assets.incremental.declaration import RawTable
from lake_assets.membership.raw import CANCEL_REQUESTS, CANCELS, PLAN_CHANGES, RAW, SIGNUPS

EXAMPLE = Population(accounts=800, opening=0.4, plan_change=0.08, request=0.06, involuntary_cancel=0.05)
"""So busy that each table has rows in each hour, whatever the seed."""

LATE = {SIGNUPS.table: (2, 3), PLAN_CHANGES.table: (2, 3), CANCELS.table: (5,)}
"""The hours with rows that the first landing lacks: every third of them."""

NOBODY_ASKS = (6, 7)
FIRST_HOUR_AFTER = 8


@dataclass(frozen=True)
class BadBatch:
    """A landing that an audit must stop: some of its signups have no account_id. right: signup_id → account_id."""

    landing: Landing
    right: Mapping[str, str]


def worked_example(population: Population = EXAMPLE) -> tuple[Landing, Landing, Landing]:
    """The three landings of the worked example; `population.hours` does not matter."""
    history = _history(population, FIRST_HOUR_AFTER)
    both, none = (SIGNUPS.table, PLAN_CHANGES.table), (None,) * 4
    new = {hour: {table: history[hour][table] for table in both} for hour in (6, 7)}
    cancels = {CANCELS.table: Events.concat([history[6][CANCELS.table], history[7][CANCELS.table]])}
    on_time, late = zip(*(_parted(happened, hour) for hour, happened in enumerate(history[:6])), strict=True)
    return (
        _landing(population, 6 * 60, list(on_time), (5, 5, 5, 5), before=none),
        _landing(population, 8 * 60, [*late, new[6], cancels], (6, 6, 7, 7), before=(5, 5, 5, 5)),
        _landing(population, 8 * 60 + 15, [new[7]], (7, 7, 7, 7), before=(6, 6, 7, 7)),
    )


def dirty_batch(population: Population = EXAMPLE, *, hour: int = 8) -> Landing:
    """The rows of an hour from 8 on, and for each table one row with each flaw that quarantine is for."""
    landing = _whole_hour(population, hour)
    possible = flaws(landing.landed_at, population.start_hour)
    return replace(landing, rows={raw.table: _with_each(raw, landing.rows[raw.table], possible) for raw in RAW})


def bad_batch(population: Population = EXAMPLE, *, hour: int = 8, count: int = 3) -> BadBatch:
    """The rows of an hour from 8 on; its first `count` signups have no account_id, which is no matter of quarantine."""
    landing = _whole_hour(population, hour)
    signups = landing.rows[SIGNUPS.table]
    account_id = signups["account_id"].to_pylist()
    right = dict(zip(signups["signup_id"].to_pylist()[:count], account_id[:count], strict=True))
    wrong = pa.array([None] * len(right) + account_id[len(right) :], pa.string())
    place = signups.schema.get_field_index("account_id")
    rows = {**landing.rows, SIGNUPS.table: signups.set_column(place, signups.schema.field(place), wrong)}
    return BadBatch(replace(landing, rows=rows), right)


def _history(population: Population, length: int) -> list[Happened]:
    """What happens in the first hours, hour by hour; the same for every length."""
    history = list(hours(replace(population, hours=length)))
    silence = {CANCEL_REQUESTS.table: Events.none()}
    return [{**happened, **silence} if hour in NOBODY_ASKS else happened for hour, happened in enumerate(history)]


def _parted(happened: Happened, hour: int) -> tuple[Happened, Happened]:
    """What of an hour is there on time, and what comes late."""
    on_time, late = dict(happened), {}
    for table in (table for table, late_hours in LATE.items() if hour in late_hours):
        is_late = np.arange(len(happened[table])) % 3 == 0
        on_time[table], late[table] = happened[table].take(~is_late), happened[table].take(is_late)
    return on_time, late


def _whole_hour(population: Population, hour: int) -> Landing:
    if hour < FIRST_HOUR_AFTER:
        raise UsageError(
            f"A batch of hour {hour} would overlap the worked example.", remedy="Choose an hour from 8 on."
        )
    happened = _history(population, hour + 1)[hour]
    return _landing(population, 60 * (hour + 1), [happened], (hour,) * 4, before=(hour - 1,) * 4)


def _landing(
    population: Population,
    minutes: int,
    parts: list[Happened],
    complete: tuple[int, ...],
    *,
    before: tuple[int | None, ...],
) -> Landing:
    """A landing so many minutes after the start; complete and before are hours since then, by table."""
    happened = {raw.table: Events.concat([part[raw.table] for part in parts if raw.table in part]) for raw in RAW}
    return make_landing(
        hour_start(population.start_hour) + timedelta(minutes=minutes),
        happened,
        complete_through=_absolute(population, complete),
        before=_absolute(population, before),
    )


def _absolute(population: Population, through: tuple[int | None, ...]) -> CompleteThrough:
    first = population.start_hour
    return {raw.table: None if hour is None else first + hour for raw, hour in zip(RAW, through, strict=True)}


def _with_each(raw: RawTable, good: pa.Table, possible: tuple[Flaw, ...]) -> pa.Table:
    found = [(i % good.num_rows, flaw) for i, flaw in enumerate(f for f in possible if f.concerns(raw))]
    return pa.concat_tables([good, spoil(raw, good, found)]).combine_chunks()
