"""Events between the moment they happen and the landing that brings them. Pure; the model is that of `model.py`.

Landings have numbers from 1: the n-th takes place n intervals after the start.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import NormalDist

import numpy as np

from lake_assets.base.hours import HOUR_MICROSECONDS, hour_start
from lake_assets.demo.membership_simulator.batches import CompleteThrough
from lake_assets.demo.membership_simulator.model import HOUR_MINUTES, TABLES, Simulation, Stalls
from lake_assets.demo.membership_simulator.population import Events, Floats, Happened, Ints, Random

MINUTE_MICROSECONDS = 60_000_000
DELAYS, ORDER, STALLS = 2, 3, 5
"""Numbers of these uses of random numbers, as in `population.py`."""

PROMPT_SIGMA = 0.8


class Transit:
    """Events on their way, by the landing that will bring them."""

    def __init__(self, simulation: Simulation) -> None:
        self._arrival = simulation.arrival
        self._population = simulation.population
        self._start = simulation.population.start_hour * HOUR_MICROSECONDS
        self._interval = simulation.arrival.interval_minutes * MINUTE_MICROSECONDS
        self._grace = simulation.arrival.grace_minutes * MINUTE_MICROSECONDS
        self._stalls = _stalls(simulation)
        self._outages = {table: _outages(simulation, table) for table in TABLES}
        self._steps_sent = 0
        self._by_landing: dict[str, dict[int, list[Events]]] = {table: {} for table in TABLES}

    @property
    def empty(self) -> bool:
        """Whether all events have landed."""
        return not any(self._by_landing.values())

    def moment(self, landing: int) -> datetime:
        """Return when a landing takes place."""
        interval = timedelta(minutes=self._arrival.interval_minutes)
        return hour_start(self._population.start_hour) + landing * interval

    def send(self, happened: Happened) -> None:
        """Add the events of the next step."""
        for number, table in enumerate(TABLES):
            rng = np.random.default_rng((self._population.seed, DELAYS, number, self._steps_sent))
            self._send(rng, table, happened[table])
        self._steps_sent += 1

    def arrive(self, landing: int) -> Happened:
        """Remove the events of a landing and return them, in random order."""
        found = {}
        for number, table in enumerate(TABLES):
            events = Events.concat(self._by_landing[table].pop(landing, []))
            rng = np.random.default_rng((self._population.seed, ORDER, number, landing))
            found[table] = events.take(rng.permutation(len(events)))
        return found

    def complete_through(self, landing: int, declared: CompleteThrough) -> CompleteThrough:
        """Return what is declared complete with a landing. declared: what was declared before it."""
        ended = landing * self._interval - self._grace
        complete_hours = min(ended // HOUR_MICROSECONDS, self._population.hours)
        if complete_hours < 1:
            return declared
        through = self._population.start_hour + complete_hours - 1
        return {table: declared[table] if self._is_out(table, landing) else through for table in TABLES}

    def _send(self, rng: Random, table: str, events: Events) -> None:
        """Choose the landings of a step's events, first and second deliveries."""
        count = len(events)
        prompt = self._landings_of(events.moment, self._delays(rng, count))
        first = self._after_stalls(rng, events, prompt)
        twice = np.flatnonzero(rng.random(count) < self._arrival.twice)
        again = np.flatnonzero(rng.random(count) < self._arrival.again)
        later = first[again] + 1 + self._tail(rng, len(again)) // self._interval
        places = np.concatenate([np.arange(count), twice, again])
        landings = self._after_outages(table, np.concatenate([first, first[twice], later]))
        for landing in np.unique(landings):
            brought = events.take(places[landings == landing])
            self._by_landing[table].setdefault(int(landing), []).append(brought)

    def _delays(self, rng: Random, count: int) -> Ints:
        """Return random delays in microseconds, from an event to when it is known."""
        median = self._arrival.prompt_minutes * MINUTE_MICROSECONDS
        drawn = rng.lognormal(np.log(median), PROMPT_SIGMA, count)
        prompt = np.minimum(drawn, self._grace).astype(np.int64)
        is_in_tail = rng.random(count) < self._arrival.tail
        return np.where(is_in_tail, self._tail(rng, count), prompt)

    def _tail(self, rng: Random, count: int) -> Ints:
        """Return random delays of the heavy tail, in microseconds."""
        median = self._arrival.tail_hours * HOUR_MICROSECONDS
        longest = self._arrival.longest_hours * HOUR_MICROSECONDS
        drawn = rng.lognormal(np.log(median), self._arrival.tail_sigma, count)
        return np.minimum(drawn, longest).astype(np.int64)

    def _landings_of(self, moment: Ints, delay: Ints) -> Ints:
        """Return the first landings that come after the event and not before it is known."""
        since = moment - self._start
        after_event = since // self._interval + 1
        when_known = -(-(since + delay) // self._interval)
        landings: Ints = np.maximum(after_event, when_known)
        return landings

    def _after_stalls(self, rng: Random, events: Events, landings: Ints) -> Ints:
        """Move events that a stall holds back to the stall's landing."""
        luck = rng.random(len(events))
        for stall in self._stalls:
            in_window = (events.moment >= stall.begin) & (events.moment < stall.end)
            is_stalled = in_window & (luck < stall.share)
            landings = np.where(is_stalled, np.maximum(stall.landing, landings), landings)
        return landings

    def _after_outages(self, table: str, landings: Ints) -> Ints:
        """Move landings in an outage of the table to the first one after it."""
        for begin, end in self._outages[table]:
            is_out = (landings >= begin) & (landings < end)
            landings = np.where(is_out, end, landings)
        return landings

    def _is_out(self, table: str, landing: int) -> bool:
        return any(begin <= landing < end for begin, end in self._outages[table])


def _outages(simulation: Simulation, table: str) -> list[tuple[int, int]]:
    """Return the landings that do not take place for a table, as [begin, end), ascending. They may overlap."""
    interval = simulation.arrival.interval_minutes
    found = []
    for outage in simulation.arrival.outages:
        if table in outage.tables:
            begin = _landing_at_or_after(outage.first, interval)
            end = _landing_at_or_after(outage.first + outage.hours, interval)
            found.append((begin, end))
    return sorted(found)


def _landing_at_or_after(hour: int, interval_minutes: int) -> int:
    return -(-hour * HOUR_MINUTES // interval_minutes)


@dataclass(frozen=True)
class _Stall:
    """A share of the events in [begin, end), microseconds since 1970-01-01 UTC, that lands with `landing`."""

    landing: int
    begin: int
    end: int
    share: float


def _stalls(simulation: Simulation) -> list[_Stall]:
    model = simulation.arrival.stalls
    if model is None:
        return []
    rng = np.random.default_rng((simulation.population.seed, STALLS))
    landings = _stalled_landings(rng, model, simulation)
    start = simulation.population.start_hour * HOUR_MICROSECONDS
    interval = simulation.arrival.interval_minutes * MINUTE_MICROSECONDS
    found = []
    for landing, depth in zip(landings, _depths(rng, model, len(landings)), strict=True):
        begin = start + landing * interval - depth
        end = begin + model.window_minutes * MINUTE_MICROSECONDS
        found.append(_Stall(landing, begin, end, model.share))
    return found


def _stalled_landings(rng: Random, model: Stalls, simulation: Simulation) -> list[int]:
    """Draw one landing of each group."""
    interval = simulation.arrival.interval_minutes
    first = model.first * HOUR_MINUTES // interval
    last = simulation.population.hours * HOUR_MINUTES // interval
    groups = range(first, last - model.every + 1, model.every)
    return [group + int(rng.integers(1, model.every + 1)) for group in groups]


def _depths(rng: Random, model: Stalls, count: int) -> list[int]:
    """Return depths in microseconds: quantiles of their distribution, shuffled, so that a few are like many."""
    ranks: Floats = (rng.permutation(count) + 0.5) / max(count, 1)
    depths = []
    for rank in ranks:
        hours = model.depth_hours * np.exp(model.depth_sigma * NormalDist().inv_cdf(rank))
        cut = min(max(hours, model.least_hours), model.most_hours)
        depths.append(int(cut * HOUR_MICROSECONDS))
    return depths
