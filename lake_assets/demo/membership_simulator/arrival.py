"""The landings of a simulation: which rows come with which, and what is declared complete with it. Pure.

The model is that of `model.py`. Landings count from 1: the n-th lies n intervals after the start.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import count
from statistics import NormalDist

import numpy as np
import pyarrow as pa

from lake_assets.base.hours import HOUR_MICROSECONDS, hour_start
from lake_assets.demo.membership_simulator.batches import CompleteThrough, Landing, flaws, make_landing, spoil
from lake_assets.demo.membership_simulator.model import TABLES, Simulation
from lake_assets.demo.membership_simulator.population import STEPS_PER_HOUR, Events, Happened, Ints, steps
from lake_assets.membership.raw import RAW

MINUTE_MICROSECONDS = 60_000_000
DELAYS, ORDER, BADNESS, STALLS = 2, 3, 4, 5


def generate(simulation: Simulation) -> Iterator[Landing]:
    """The landings, ascending by time, until everything has landed and the last hour is complete.

    A landing without rows is there only if it moves a complete-through.
    """
    transit, quarters = _Transit(simulation), steps(simulation.population)
    declared: CompleteThrough = dict.fromkeys(TABLES)
    last_hour = simulation.population.start_hour + simulation.population.hours - 1
    for tick in count(1):
        for _ in range(STEPS_PER_HOUR * simulation.arrival.interval_minutes // 60):
            if happened := next(quarters, None):
                transit.send(happened)
        before, declared = declared, transit.complete_through(tick, declared)
        arrived = transit.arrive(tick)
        if any(map(len, arrived.values())) or before != declared:
            landing = make_landing(transit.moment(tick), arrived, complete_through=declared, before=before)
            yield _with_bad_rows(landing, simulation, tick) if simulation.arrival.bad else landing
        if transit.empty and set(declared.values()) == {last_hour}:
            return


class _Transit:
    """Events on their way, by the landing that will bring them."""

    def __init__(self, simulation: Simulation) -> None:
        self._arrival, self._population = simulation.arrival, simulation.population
        self._begin = self._population.start_hour * HOUR_MICROSECONDS
        self._interval = self._arrival.interval_minutes * MINUTE_MICROSECONDS
        self._stalls = _stalls(simulation)
        self._outages = {table: _outages(simulation, table) for table in TABLES}
        self._sent = 0
        self._coming: dict[str, dict[int, list[Events]]] = {table: {} for table in TABLES}

    @property
    def empty(self) -> bool:
        return not any(self._coming.values())

    def moment(self, tick: int) -> datetime:
        return hour_start(self._population.start_hour) + tick * timedelta(minutes=self._arrival.interval_minutes)

    def send(self, happened: Happened) -> None:
        """Put the next step's events on their way."""
        for number, table in enumerate(TABLES):
            rng = np.random.default_rng((self._population.seed, DELAYS, number, self._sent))
            self._send(table, happened[table], rng)
        self._sent += 1

    def arrive(self, tick: int) -> Happened:
        """The events that this landing brings, in no order; they are no longer on their way."""
        return {table: self._shuffled(tick, number, table) for number, table in enumerate(TABLES)}

    def complete_through(self, tick: int, declared: CompleteThrough) -> CompleteThrough:
        """What is declared with this landing, after what was declared before it."""
        ended = tick * self._interval - self._arrival.grace_minutes * MINUTE_MICROSECONDS
        through = self._population.start_hour + min(ended // HOUR_MICROSECONDS, self._population.hours) - 1
        if through < self._population.start_hour:
            return declared
        return {table: declared[table] if self._is_out(table, tick) else through for table in TABLES}

    def _shuffled(self, tick: int, number: int, table: str) -> Events:
        events = Events.concat(self._coming[table].pop(tick, []))
        return events.take(np.random.default_rng((self._population.seed, ORDER, number, tick)).permutation(len(events)))

    def _send(self, table: str, events: Events, rng: np.random.Generator) -> None:
        first = self._stalled(rng, events, self._landing_of(events.moment, self._delays(rng, len(events))))
        twice = np.flatnonzero(rng.random(len(events)) < self._arrival.twice)
        again = np.flatnonzero(rng.random(len(events)) < self._arrival.again)
        later = first[again] + 1 + self._tail(rng, len(again)) // self._interval
        which = np.concatenate([np.arange(len(events)), twice, again])
        ticks = self._held_back(table, np.concatenate([first, first[twice], later]))
        for tick in np.unique(ticks):
            self._coming[table].setdefault(int(tick), []).append(events.take(which[ticks == tick]))

    def _delays(self, rng: np.random.Generator, count: int) -> Ints:
        """Microseconds from event to knowledge."""
        longest = self._arrival.grace_minutes * MINUTE_MICROSECONDS
        prompt = rng.lognormal(np.log(self._arrival.prompt_minutes * MINUTE_MICROSECONDS), 0.8, count)
        in_tail = rng.random(count) < self._arrival.tail
        return np.where(in_tail, self._tail(rng, count), np.minimum(prompt, longest).astype(np.int64))

    def _tail(self, rng: np.random.Generator, count: int) -> Ints:
        longest = self._arrival.longest_hours * HOUR_MICROSECONDS
        drawn = rng.lognormal(np.log(self._arrival.tail_hours * HOUR_MICROSECONDS), self._arrival.tail_sigma, count)
        return np.minimum(drawn, longest).astype(np.int64)

    def _landing_of(self, moment: Ints, delay: Ints) -> Ints:
        """The first landing after the event, and at or after the moment it is known."""
        since = moment - self._begin
        landing: Ints = np.maximum(since // self._interval + 1, -(-(since + delay) // self._interval))
        return landing

    def _stalled(self, rng: np.random.Generator, events: Events, ticks: Ints) -> Ints:
        """The same landings, but for the events that a stall holds back."""
        luck = rng.random(len(events))
        for stall in self._stalls:
            inside = (events.moment >= stall.begin) & (events.moment < stall.end) & (luck < stall.share)
            ticks = np.where(inside, np.maximum(stall.tick, ticks), ticks)
        return ticks

    def _held_back(self, table: str, ticks: Ints) -> Ints:
        """The same landings, but for those in an outage of the table: the first one after it."""
        for begin, end in self._outages[table]:
            ticks = np.where((ticks >= begin) & (ticks < end), end, ticks)
        return ticks

    def _is_out(self, table: str, tick: int) -> bool:
        return any(begin <= tick < end for begin, end in self._outages[table])


def _outages(simulation: Simulation, table: str) -> list[tuple[int, int]]:
    """The landings that do not take place for a table, as [begin, end). Ascending: one may run into the next."""
    interval = simulation.arrival.interval_minutes
    outages = sorted((o.first, o.first + o.hours) for o in simulation.arrival.outages if table in o.tables)
    return [(-(-begin * 60 // interval), -(-end * 60 // interval)) for begin, end in outages]


@dataclass(frozen=True)
class _Stall:
    """What happened in [begin, end), microseconds since 1970, comes in part with the landing `tick`."""

    tick: int
    begin: int
    end: int
    share: float


def _stalls(simulation: Simulation) -> list[_Stall]:
    """The stalls of a simulation. Depths are the quantiles of their distribution, shuffled: few are like many."""
    model, minutes = simulation.arrival.stalls, simulation.arrival.interval_minutes
    if model is None:
        return []
    rng = np.random.default_rng((simulation.population.seed, STALLS))
    first, last = model.first * 60 // minutes, simulation.population.hours * 60 // minutes
    groups = range(first, last - model.every + 1, model.every)
    ticks = [group + int(rng.integers(1, model.every + 1)) for group in groups]
    ranks = (rng.permutation(len(ticks)) + 0.5) / max(len(ticks), 1)
    depths = [model.depth_hours * np.exp(model.depth_sigma * NormalDist().inv_cdf(rank)) for rank in ranks]
    begin = simulation.population.start_hour * HOUR_MICROSECONDS
    found = []
    for tick, depth in zip(ticks, depths, strict=True):
        at = begin + tick * minutes * MINUTE_MICROSECONDS
        since = at - int(min(max(depth, model.least_hours), model.most_hours) * HOUR_MICROSECONDS)
        found.append(_Stall(tick, since, since + model.window_minutes * MINUTE_MICROSECONDS, model.share))
    return found


def _with_bad_rows(landing: Landing, simulation: Simulation, tick: int) -> Landing:
    """The landing, and copies of some of its rows with one flaw each."""
    rng = np.random.default_rng((simulation.population.seed, BADNESS, tick))
    all_flaws = flaws(landing.landed_at, simulation.population.start_hour)
    rows = {}
    for raw in RAW:
        good, possible = landing.rows[raw.table], [flaw for flaw in all_flaws if flaw.concerns(raw)]
        places = rng.permutation(good.num_rows)[: rng.binomial(good.num_rows, simulation.arrival.bad)]
        bad = spoil(raw, good, [(int(place), possible[int(rng.integers(len(possible)))]) for place in places])
        rows[raw.table] = pa.concat_tables([good, bad]).combine_chunks()
    return replace(landing, rows=rows)
