"""Landings made by hand. Their times are exact; their rows come from the population's history. Pure.

Hours are counted from the start of the simulation. Nobody asks to leave in hours 6 and 7.

| landing | at | signups, plan changes | cancels | cancel requests |
| --- | --- | --- | --- | --- |
| `worked_example()[0]` | 06:00 | 0..5 without the late rows of 2 and 3 | 0..5 without the late rows of 5 | 0..5 |
| `worked_example()[1]` | 08:00 | late rows of 2 and 3, rows of 6 | late rows of 5, rows of 6, 7 | none |
| `worked_example()[2]` | 08:15 | rows of 7 | none | none |
| `dirty_batch`, `bad_batch` | hour + 1 | rows of the hour | rows of the hour | rows of the hour |

Each landing declares a table complete through the last hour named here. The second one also declares cancel requests
complete through hour 7, although it has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta

import numpy as np
import pyarrow as pa

from lake_assets.base.hours import hour_start
from lake_assets.demo.membership_simulator.batches import CompleteThrough, Landing, flaws, make_landing, spoil
from lake_assets.demo.membership_simulator.model import HOUR_MINUTES
from lake_assets.demo.membership_simulator.population import Bools, Events, Happened, Population, concat_tables, hours
from lake_assets.errors import UsageError
from lake_assets.membership.raw import CANCEL_REQUESTS, CANCELS, PLAN_CHANGES, RAW, SIGNUPS

EXAMPLE = Population(accounts=800, opening=0.4, plan_change=0.08, request=0.06, involuntary_cancel=0.05)
"""A population with rows in every table and hour, for any seed."""

LATE_HOURS = {SIGNUPS.table: (2, 3), PLAN_CHANGES.table: (2, 3), CANCELS.table: (5,)}
"""Hours of which the first landing lacks every third row."""

LATE_EVERY = 3
HOURS_WITHOUT_REQUESTS = (6, 7)
FIRST_LANDED_HOURS = 6
FIRST_HOUR_AFTER = 8

Declared = tuple[int | None, int | None, int | None, int | None]
"""Complete-through of each table of `RAW`, in hours since the start."""


@dataclass(frozen=True)
class BadBatch:
    """A landing that an audit must stop: some of its signups have no account_id. right: signup_id → account_id."""

    landing: Landing
    right: Mapping[str, str]


def worked_example(population: Population = EXAMPLE) -> tuple[Landing, Landing, Landing]:
    """Return the three landings of the worked example. `population.hours` is ignored."""
    history = _history(population, FIRST_HOUR_AFTER)
    hour_6, hour_7 = history[6], history[7]
    on_time = []
    late = []
    for hour in range(FIRST_LANDED_HOURS):
        late_rows = _late_rows(history[hour], hour)
        on_time.append(_without_late_rows(history[hour], hour))
        late.append(late_rows)
    cancels = {CANCELS.table: Events.concat([hour_6[CANCELS.table], hour_7[CANCELS.table]])}
    nothing: Declared = (None, None, None, None)
    first = _landing(population, 6 * HOUR_MINUTES, on_time, declared=(5, 5, 5, 5), before=nothing)
    second = _landing(
        population,
        8 * HOUR_MINUTES,
        [*late, _signups_and_plan_changes(hour_6), cancels],
        declared=(6, 6, 7, 7),
        before=(5, 5, 5, 5),
    )
    third = _landing(
        population,
        8 * HOUR_MINUTES + 15,
        [_signups_and_plan_changes(hour_7)],
        declared=(7, 7, 7, 7),
        before=(6, 6, 7, 7),
    )
    return first, second, third


def dirty_batch(population: Population = EXAMPLE, *, hour: int = 8) -> Landing:
    """Return the rows of an hour, and for each table one row with each flaw that sends a row to quarantine.

    Args:
        population: The population.
        hour: The hour since the start, 8 or later.

    Raises:
        UsageError: The hour is one of the worked example.
    """
    landing = _whole_hour(population, hour)
    possible = flaws(landing.landed_at, population.start_hour)
    rows = {}
    for raw in RAW:
        good = landing.rows[raw.table]
        own = [flaw for flaw in possible if flaw.concerns(raw)]
        chosen = [(number % good.num_rows, flaw) for number, flaw in enumerate(own)]
        rows[raw.table] = pa.concat_tables([good, spoil(raw, good, chosen)]).combine_chunks()
    return replace(landing, rows=rows)


def bad_batch(population: Population = EXAMPLE, *, hour: int = 8, count: int = 3) -> BadBatch:
    """Return the rows of an hour; its first signups have no account_id, which quarantine does not check.

    Args:
        population: The population.
        hour: The hour since the start, 8 or later.
        count: Number of signups without an account_id.

    Raises:
        UsageError: The hour is one of the worked example.
    """
    landing = _whole_hour(population, hour)
    signups = landing.rows[SIGNUPS.table]
    signup_ids = signups["signup_id"].to_pylist()[:count]
    account_ids = signups["account_id"].to_pylist()
    right = dict(zip(signup_ids, account_ids[:count], strict=True))
    wrong = pa.array([None] * len(right) + account_ids[len(right) :], pa.string())
    place = signups.schema.get_field_index("account_id")
    bad_signups = signups.set_column(place, signups.schema.field(place), wrong)
    rows = {**landing.rows, SIGNUPS.table: bad_signups}
    return BadBatch(replace(landing, rows=rows), right)


def _history(population: Population, length: int) -> list[Happened]:
    """Return the events of the first hours. An hour has the same events for every length."""
    history = []
    for hour, happened in enumerate(hours(replace(population, hours=length))):
        if hour in HOURS_WITHOUT_REQUESTS:
            happened = {**happened, CANCEL_REQUESTS.table: Events.none()}
        history.append(happened)
    return history


def _without_late_rows(happened: Happened, hour: int) -> Happened:
    on_time = dict(happened)
    for table in _tables_with_late_rows(hour):
        events = happened[table]
        on_time[table] = events.take(~_is_late(events))
    return on_time


def _late_rows(happened: Happened, hour: int) -> Happened:
    late = {}
    for table in _tables_with_late_rows(hour):
        events = happened[table]
        late[table] = events.take(_is_late(events))
    return late


def _tables_with_late_rows(hour: int) -> list[str]:
    return [table for table, late_hours in LATE_HOURS.items() if hour in late_hours]


def _is_late(events: Events) -> Bools:
    is_late: Bools = np.arange(len(events)) % LATE_EVERY == 0
    return is_late


def _signups_and_plan_changes(happened: Happened) -> Happened:
    return {table: happened[table] for table in (SIGNUPS.table, PLAN_CHANGES.table)}


def _whole_hour(population: Population, hour: int) -> Landing:
    if hour < FIRST_HOUR_AFTER:
        raise UsageError(
            f"A batch of hour {hour} would overlap the worked example.",
            remedy="Choose hour 8 or a later one.",
        )
    happened = _history(population, hour + 1)[hour]
    landed = HOUR_MINUTES * (hour + 1)
    before = hour - 1
    return _landing(
        population,
        landed,
        [happened],
        declared=(hour, hour, hour, hour),
        before=(before, before, before, before),
    )


def _landing(
    population: Population,
    minutes: int,
    parts: list[Happened],
    *,
    declared: Declared,
    before: Declared,
) -> Landing:
    """Return a landing that takes place some minutes after the start."""
    return make_landing(
        hour_start(population.start_hour) + timedelta(minutes=minutes),
        concat_tables(parts),
        complete_through=_since_1970(population, declared),
        before=_since_1970(population, before),
    )


def _since_1970(population: Population, through: Declared) -> CompleteThrough:
    found: dict[str, int | None] = {}
    for raw, hour in zip(RAW, through, strict=True):
        found[raw.table] = None if hour is None else population.start_hour + hour
    return found
