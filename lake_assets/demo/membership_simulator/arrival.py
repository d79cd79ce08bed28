"""The landings of a simulation: the rows of each landing, and what it declares complete. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count, islice

import numpy as np
import pyarrow as pa

from lake_assets.demo.membership_simulator.batches import CompleteThrough, Flaw, Landing, flaws, make_landing, spoil
from lake_assets.demo.membership_simulator.model import HOUR_MINUTES, TABLES, Simulation
from lake_assets.demo.membership_simulator.population import STEPS_PER_HOUR, Random, steps
from lake_assets.demo.membership_simulator.transit import Transit
from lake_assets.incremental.declaration import RawTable
from lake_assets.membership.raw import RAW

BAD_ROWS = 4
"""Number of this use of random numbers, as in `population.py`."""


def generate(simulation: Simulation) -> Iterator[Landing]:
    """Yield the landings, ascending by time, until all rows have landed and the last hour is complete.

    A landing without rows is left out unless it changes a complete-through.
    """
    transit = Transit(simulation)
    quarters = steps(simulation.population)
    steps_per_landing = STEPS_PER_HOUR * simulation.arrival.interval_minutes // HOUR_MINUTES
    last_hour = simulation.population.start_hour + simulation.population.hours - 1
    declared: CompleteThrough = dict.fromkeys(TABLES)
    for number in count(1):
        for happened in islice(quarters, steps_per_landing):
            transit.send(happened)
        before = declared
        declared = transit.complete_through(number, before)
        arrived = transit.arrive(number)
        has_rows = any(len(events) for events in arrived.values())
        if has_rows or before != declared:
            landing = make_landing(transit.moment(number), arrived, complete_through=declared, before=before)
            yield _with_bad_rows(landing, simulation, number)
        is_complete = set(declared.values()) == {last_hour}
        if transit.empty and is_complete:
            return


def _with_bad_rows(landing: Landing, simulation: Simulation, number: int) -> Landing:
    """Add copies of some rows of a landing, with one flaw each."""
    share = simulation.arrival.bad
    if not share:
        return landing
    rng = np.random.default_rng((simulation.population.seed, BAD_ROWS, number))
    possible = flaws(landing.landed_at, simulation.population.start_hour)
    rows = {}
    for raw in RAW:
        good = landing.rows[raw.table]
        chosen = _choose_flaws(rng, raw, good.num_rows, share, possible)
        rows[raw.table] = pa.concat_tables([good, spoil(raw, good, chosen)]).combine_chunks()
    return replace(landing, rows=rows)


def _choose_flaws(
    rng: Random,
    raw: RawTable,
    count: int,
    share: float,
    possible: tuple[Flaw, ...],
) -> list[tuple[int, Flaw]]:
    """Draw the places of rows to copy, each with its flaw."""
    own = [flaw for flaw in possible if flaw.concerns(raw)]
    order = rng.permutation(count)
    places = order[: rng.binomial(count, share)]
    chosen = []
    for place in places:
        flaw = own[int(rng.integers(len(own)))]
        chosen.append((int(place), flaw))
    return chosen
