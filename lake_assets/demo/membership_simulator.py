"""Simulated membership, and how it reaches the raw tables. A pure function of a `Simulation`, reproducible by its seed.

People sign up, change plans, ask to leave and leave. There are also plan changes and cancels of people who never
signed up or have left, and signups of members. Moments are whole milliseconds.

A row becomes known after a delay: a prompt one of at most `grace_minutes`, or of a heavy tail. It lands with the first
landing at or after that moment. The first landing at least `grace_minutes` after the end of an hour declares the hour
complete. So a row is late only because of the tail, a stall or a second delivery. During an outage nothing of a source
lands and its complete-through stands still; afterwards all of it lands at once.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import count, islice
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lake_assets.base.hours import HOUR_MICROSECONDS, hour_start, milliseconds, parse_hour
from lake_assets.demo.message import Message
from lake_assets.incremental.declaration import RawTable
from lake_assets.incremental.engine.iceberg import landed_with, load, retrying
from lake_assets.membership.raw import CANCEL_REQUESTS, CANCELS, PLAN_CHANGES, PLANS, RAW, SIGNUPS

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

EVENT = np.dtype([(name, np.int64) for name in ("number", "account", "moment", "choice", "price")])
"""An event: its number among those of its kind, the number of the account, microseconds since 1970-01-01 UTC, the index
of the plan or of the reason, and the index of the plan whose list price is paid."""

Events = npt.NDArray[np.void]
Happened = Mapping[str, Events]
"""Raw table → events. It has all four raw tables."""

TABLES = tuple(raw.table for raw in RAW)
STEPS_PER_HOUR = 4
STEP_MICROSECONDS = HOUR_MICROSECONDS // STEPS_PER_HOUR
MINUTE_MICROSECONDS = 60_000_000
HOUR_MINUTES = 60
NEVER = np.iinfo(np.int64).max

HABITS, DELAYS, ORDER, BAD_ROWS = 1, 2, 3, 4
"""Uses of random numbers. Each random stream has the seed (seed, its use, ...). numpy pads seeds with zeros, so the
numbers differ."""

REASONS = ("price", "moving", "no use for it", "another service", None)

SIGNUP, SIGNUP_AFTER_CANCEL, SIGNUP_OF_MEMBER = 0.06, 0.05, 0.001
"""Signups an hour and person: of people who were never members, of those who have left, and of members."""

SAME_PRICE, AT_ONCE, WITHDRAWN, NOTICE_HOURS = 0.15, 0.03, 0.2, 3.0
"""Shares of plan changes that keep the price, of signups with a plan change (and requests with a cancel) at the same
moment, and of requests without a cancel; and the mean time from a request to its cancel."""

PROMPT_MINUTES, PROMPT_SIGMA, TAIL_SIGMA = 2.0, 0.8, 1.0
"""Of the delays, which are log-normal: median and sigma of prompt ones, and sigma of the heavy tail."""

STALLED = 0.3
"""Share of the events of a stall's window that land late."""


@dataclass(frozen=True)
class Population:
    """People and their habits. Rates are events per hour and person.

    Attributes:
        accounts: Number of people.
        seed: Seed of all random streams.
        start: First hour, as an hour key.
        hours: Number of hours in which people act.
        opening: Share of people who sign up in the first quarter of an hour.
        plan_change: Rate of members.
        request: Rate of requests to leave, of members.
        involuntary_cancel: Rate of cancels without a request, of members.
        of_strangers: Rate of plan changes, of requests and of cancels of people who are not members.
    """

    accounts: int = 500
    seed: int = 1
    start: str = "2026-01-01-00:00"
    hours: int = 24
    opening: float = 0.2
    plan_change: float = 0.04
    request: float = 0.02
    involuntary_cancel: float = 0.008
    of_strangers: float = 0.001

    @property
    def start_hour(self) -> int:
        """The first hour, in hours since 1970-01-01 UTC."""
        return parse_hour(self.start, where="The simulation's start")


@dataclass(frozen=True)
class Outage:
    """Hours without landings of some raw tables, counted from the start; all of their rows land at once afterwards."""

    first: int
    hours: int
    tables: tuple[str, ...] = TABLES


@dataclass(frozen=True)
class Arrival:
    """How events reach the raw tables; the module's docstring has the model.

    Attributes:
        interval_minutes: From one landing to the next: 15, or whole hours.
        grace_minutes: From the end of an hour to the earliest landing that declares it complete.
        tail: Share of rows with a delay of the heavy tail.
        tail_hours: Median of the heavy tail.
        longest_hours: Largest delay of the heavy tail.
        twice: Share of rows that are delivered twice in one landing.
        again: Share of rows that are delivered again in a later landing, after another delay of the tail.
        bad: Bad rows for each good one.
        outages: Hours without landings.
        stalls: The number of a landing, and the moments [begin, end) of which it brings some events late, in
            microseconds since 1970-01-01 UTC.
    """

    interval_minutes: int = 60
    grace_minutes: int = 10
    tail: float = 0.03
    tail_hours: float = 1.5
    longest_hours: float = 24.0
    twice: float = 0.005
    again: float = 0.005
    bad: float = 0.0
    outages: tuple[Outage, ...] = ()
    stalls: tuple[tuple[int, int, int], ...] = ()


@dataclass(frozen=True)
class Simulation:
    """Everything that a sequence of landings depends on."""

    population: Population = field(default_factory=Population)
    arrival: Arrival = field(default_factory=Arrival)


def steps(population: Population) -> Iterator[Happened]:
    """Yield the events of each quarter of an hour, for `population.hours` hours; ascending by moment in each table."""
    people = _People(population)
    return map(people.live, range(population.hours * STEPS_PER_HOUR))


def joined(parts: Sequence[Mapping[str, Events]]) -> Happened:
    """Return the events of several periods, table by table. A part may lack tables."""
    nothing = np.empty(0, EVENT)
    return {table: np.concatenate([nothing, *(part[table] for part in parts if table in part)]) for table in TABLES}


class _People:
    """The accounts with their state after the steps so far."""

    def __init__(self, population: Population) -> None:
        accounts = population.accounts
        self._habits = population
        self._is_member: Bools = np.zeros(accounts, dtype=np.bool_)
        self._was_member: Bools = np.zeros(accounts, dtype=np.bool_)
        self._plan = np.zeros(accounts, dtype=np.int8)
        self._price = np.zeros(accounts, dtype=np.int8)
        self._cancel_at: Ints = np.full(accounts, NEVER, dtype=np.int64)
        self._counts = dict.fromkeys(TABLES, 0)

    def live(self, step: int) -> Happened:
        """Play a step and return its events. An account acts at most once in a step."""
        rng = np.random.default_rng((self._habits.seed, HABITS, step))
        start = self._habits.start_hour * HOUR_MICROSECONDS + step * STEP_MICROSECONDS
        end = start + STEP_MICROSECONDS
        signing_up, changing_plan, requesting, leaving = self._draw_actors(rng, step, end)

        def moments(accounts: Ints) -> Ints:
            drawn: Ints = start + 1000 * rng.integers(0, STEP_MICROSECONDS // 1000, len(accounts))
            return drawn

        moment = moments(signing_up)
        plan = rng.integers(0, len(PLANS), len(signing_up))
        is_new = ~self._is_member[signing_up]
        self._plan[signing_up[is_new]] = self._price[signing_up[is_new]] = plan[is_new]
        self._is_member[signing_up] = self._was_member[signing_up] = True
        signups = self._events(SIGNUPS, signing_up, moment, plan, plan)

        at_once = signups[rng.random(len(signups)) < AT_ONCE]
        moment = np.concatenate([moments(changing_plan), at_once["moment"]])
        account = np.concatenate([changing_plan, at_once["account"]])
        plan = (self._plan[account] + rng.integers(1, len(PLANS), len(account))) % len(PLANS)
        price = np.where(rng.random(len(account)) < SAME_PRICE, self._price[account], plan)
        is_member = self._is_member[account]
        self._plan[account[is_member]] = plan[is_member]
        self._price[account[is_member]] = price[is_member]
        changes = self._events(PLAN_CHANGES, account, moment, plan, price)

        moment = moments(requesting)
        reason = rng.integers(0, len(REASONS), len(requesting))
        notice = rng.exponential(NOTICE_HOURS * HOUR_MICROSECONDS, len(requesting))
        notice[rng.random(len(requesting)) < AT_ONCE] = 0
        leaves = self._is_member[requesting] & (rng.random(len(requesting)) >= WITHDRAWN)
        cancel_at = moment + notice.astype(np.int64) // 1000 * 1000
        self._cancel_at[requesting[leaves]] = cancel_at[leaves]
        requests = self._events(CANCEL_REQUESTS, requesting, moment, reason, reason)

        due = np.flatnonzero(self._cancel_at < end)
        moment = np.concatenate([self._cancel_at[due], moments(leaving)])
        account = np.concatenate([due, leaving])
        self._is_member[account] = False
        self._cancel_at[account] = NEVER
        nothing = np.zeros(len(account), dtype=np.int64)
        cancels = self._events(CANCELS, account, moment, nothing, nothing)
        return dict(zip(TABLES, (signups, changes, requests, cancels), strict=True))

    def _draw_actors(self, rng: np.random.Generator, step: int, end: int) -> list[Ints]:
        """Draw the accounts that act, by kind of event. Who leaves before `end` does nothing else."""
        habits, stray = self._habits, self._habits.of_strangers
        first_signup = habits.opening * STEPS_PER_HOUR if step == 0 else SIGNUP
        rates_of_members = SIGNUP_OF_MEMBER, habits.plan_change, habits.request, habits.involuntary_cancel
        groups = (
            (self._is_member & (self._cancel_at >= end), rates_of_members),
            (~self._is_member & ~self._was_member, (first_signup, stray, stray, stray)),
            (~self._is_member & self._was_member, (SIGNUP_AFTER_CANCEL, stray, stray, stray)),
        )
        drawn: list[list[Ints]] = [[], [], [], []]
        for group, hourly_rates in groups:
            accounts = np.flatnonzero(group)
            bounds = np.cumsum(hourly_rates) / STEPS_PER_HOUR
            kind = np.searchsorted(bounds, rng.random(len(accounts)), side="right")
            for number, found in enumerate(drawn):
                found.append(accounts[kind == number])
        return [np.concatenate(found) for found in drawn]

    def _events(self, raw: RawTable, account: Ints, moment: Ints, choice: Ints, price: Ints) -> Events:
        """Number events in the order of their moments."""
        events = np.empty(len(account), EVENT)
        events["account"], events["moment"], events["choice"], events["price"] = account, moment, choice, price
        events = events[np.argsort(moment, kind="stable")]
        first = self._counts[raw.table]
        self._counts[raw.table] += len(events)
        events["number"] = np.arange(first, self._counts[raw.table])
        return events


DISTINCT_ID = "account_id"
UNKNOWN_PLAN = "platinum"
BEFORE_START = timedelta(days=400)
AFTER_LANDING = timedelta(days=2)
BAD_PREFIX = "bad-"

ARROW: Mapping[str, pa.DataType] = {
    "string": pa.string(),
    "decimal(9, 2)": pa.decimal128(9, 2),
    "timestamptz": pa.timestamp("us", tz="UTC"),
    "date": pa.date32(),
    "int": pa.int32(),
}

CompleteThrough = Mapping[str, int | None]
"""Raw table → last hour that has all rows that arrive on time, in hours since 1970-01-01 UTC; None before the first."""


@dataclass(frozen=True)
class Landing:
    """One batch: rows that land together.

    Attributes:
        landed_at: When they land; each row has it.
        batch_id: Id of the batch; each row has it.
        rows: Raw table → new rows with all its columns. It has all raw tables; some may have no rows.
        complete_through: What to declare complete after the rows are written.
        late: Raw table → number of good rows of hours that were declared complete before this landing.
    """

    landed_at: datetime
    batch_id: str
    rows: Mapping[str, pa.Table]
    complete_through: CompleteThrough
    late: Mapping[str, int]

    @property
    def row_count(self) -> int:
        """The number of rows of all tables."""
        return sum(table.num_rows for table in self.rows.values())


def _landing(landed_at: datetime, happened: Happened, *, declares: CompleteThrough, before: CompleteThrough) -> Landing:
    """Return events as one batch. before: what was declared complete before it; rows of these hours are late."""
    late = {}
    for table, events in happened.items():
        through = before[table]
        end = 0 if through is None else (through + 1) * HOUR_MICROSECONDS
        late[table] = int(np.count_nonzero(events["moment"] < end))
    batch_id = f"sim-{landed_at:%Y%m%dT%H%M}"
    rows = {raw.table: _rows(raw, happened[raw.table], landed_at, batch_id) for raw in RAW}
    return Landing(landed_at, batch_id, rows, declares, late)


def _rows(raw: RawTable, events: Events, landed_at: datetime, batch_id: str) -> pa.Table:
    """Return events as rows of a raw table, with all its columns, in order."""
    of_landing = {
        "landed_at": landed_at,
        "landing_date": landed_at.date(),
        "landing_hour": landed_at.hour,
        "batch_id": batch_id,
    }
    chosen = {
        "plan": ([*PLANS], "choice"),
        "monthly_price": ([*PLANS.values()], "price"),
        "reason": ([*REASONS], "choice"),
    }
    columns = {}
    for name, kind in ((name, ARROW[kind]) for name, kind in raw.all_columns.items()):
        if name in of_landing:
            columns[name] = pa.repeat(pa.scalar(of_landing[name], kind), len(events))
        elif name in chosen:
            values, index = chosen[name]
            columns[name] = pa.array(values, kind).take(pa.array(events[index]))
        elif name == raw.time_column:
            columns[name] = pa.array(events["moment"]).cast(kind)
        else:
            prefix, number = ("a", "account") if name == DISTINCT_ID else (name.removesuffix("_id"), "number")
            digits = pc.utf8_lpad(pa.array(events[number]).cast(pa.string()), 9, "0")
            columns[name] = pc.binary_join_element_wise(prefix, digits, "-")
    return pa.table(columns)


Flaw = tuple[str, Any]
"""One way in which a row can be wrong: a column, and its bad value."""


def key_of(raw: RawTable) -> str:
    """Return the key of a raw table: its first column."""
    return next(iter(raw.columns))


def _spoilt(
    landing: Landing, first_hour: int, choose: Callable[[int, Sequence[Flaw]], list[tuple[int, Flaw]]]
) -> Landing:
    """Return a landing with bad copies of rows, each with its own id: a copy is not another delivery of the good row.

    Args:
        landing: With good rows.
        first_hour: First hour of the pipeline, in hours since 1970-01-01 UTC.
        choose: Takes the number of rows of a table and every flaw that sends a row of it to quarantine; returns the
            place of each row to copy, and its flaw.
    """
    rows = {}
    for raw in RAW:
        good, key = landing.rows[raw.table], key_of(raw)
        possible: list[Flaw] = [
            (key, None),
            (raw.time_column, None),
            (raw.time_column, hour_start(first_hour) - BEFORE_START),
            (raw.time_column, landing.landed_at + AFTER_LANDING),
            ("monthly_price", -next(iter(PLANS.values()))),
            ("plan", UNKNOWN_PLAN),
        ]
        chosen = choose(good.num_rows, [flaw for flaw in possible if flaw[0] in raw.columns])
        copies = []
        for number, (place, (column, value)) in enumerate(chosen):
            [row] = good.slice(place, 1).to_pylist()
            copies.append({**row, key: f"{BAD_PREFIX}{landing.batch_id}-{number}", column: value})
        rows[raw.table] = pa.concat_tables([good, pa.Table.from_pylist(copies, good.schema)]).combine_chunks()
    return replace(landing, rows=rows)


class _Transit:
    """Events on their way, by the landing that will bring them."""

    def __init__(self, simulation: Simulation) -> None:
        self._arrival, self._population = simulation.arrival, simulation.population
        self._interval = self._arrival.interval_minutes * MINUTE_MICROSECONDS
        self._grace = self._arrival.grace_minutes * MINUTE_MICROSECONDS
        self._steps_sent = 0
        self._coming: dict[tuple[str, int], list[Events]] = defaultdict(list)

    @property
    def empty(self) -> bool:
        """Whether all events have landed."""
        return not self._coming

    def arrive(self, landing: int) -> Happened:
        """Remove the events of a landing and return them, in random order."""
        found = joined([{table: events} for table in TABLES for events in self._coming.pop((table, landing), [])])
        shuffled = {}
        for number, (table, events) in enumerate(found.items()):
            rng = np.random.default_rng((self._population.seed, ORDER, number, landing))
            shuffled[table] = events[rng.permutation(len(events))]
        return shuffled

    def complete_through(self, landing: int, declared: CompleteThrough) -> CompleteThrough:
        """Return what is declared complete with a landing. declared: what was declared before it."""
        ended = landing * self._interval - self._grace
        complete_hours = min(ended // HOUR_MICROSECONDS, self._population.hours)
        if complete_hours < 1:
            return declared
        through = self._population.start_hour + complete_hours - 1
        return {
            table: declared[table] if any(begin <= landing < end for begin, end in self._outages(table)) else through
            for table in TABLES
        }

    def send(self, happened: Happened) -> None:
        """Choose the landings of the next step's events, first and second deliveries."""
        arrival = self._arrival
        for number, table in enumerate(TABLES):
            rng = np.random.default_rng((self._population.seed, DELAYS, number, self._steps_sent))
            events = happened[table]
            count, moment = len(events), events["moment"]
            drawn = rng.lognormal(np.log(PROMPT_MINUTES * MINUTE_MICROSECONDS), PROMPT_SIGMA, count)
            prompt = np.minimum(drawn, self._grace).astype(np.int64)
            delay = np.where(rng.random(count) < arrival.tail, self._tail(rng, count), prompt)
            since = moment - self._population.start_hour * HOUR_MICROSECONDS
            # After the event, and not before it is known.
            first = np.maximum(since // self._interval + 1, -(-(since + delay) // self._interval))
            luck = rng.random(count)
            for landing, begin, end in arrival.stalls:
                is_stalled = (moment >= begin) & (moment < end) & (luck < STALLED)
                first = np.where(is_stalled, np.maximum(landing, first), first)
            twice = np.flatnonzero(rng.random(count) < arrival.twice)
            again = np.flatnonzero(rng.random(count) < arrival.again)
            later = first[again] + 1 + self._tail(rng, len(again)) // self._interval
            places = np.concatenate([np.arange(count), twice, again])
            landings = np.concatenate([first, first[twice], later])
            for begin, end in self._outages(table):
                landings = np.where((landings >= begin) & (landings < end), end, landings)
            for landing in np.unique(landings):
                self._coming[table, int(landing)].append(events[places[landings == landing]])
        self._steps_sent += 1

    def _tail(self, rng: np.random.Generator, count: int) -> Ints:
        """Return random delays of the heavy tail, in microseconds."""
        drawn = rng.lognormal(np.log(self._arrival.tail_hours * HOUR_MICROSECONDS), TAIL_SIGMA, count)
        found: Ints = np.minimum(drawn, self._arrival.longest_hours * HOUR_MICROSECONDS).astype(np.int64)
        return found

    def _outages(self, table: str) -> list[tuple[int, int]]:
        """Return the landings that do not take place for a table, as [begin, end), ascending. They may overlap."""
        edges = [(each.first, each.first + each.hours) for each in self._arrival.outages if table in each.tables]
        interval = self._arrival.interval_minutes
        return sorted(
            (-(-begin * HOUR_MINUTES // interval), -(-end * HOUR_MINUTES // interval)) for begin, end in edges
        )


def generate(simulation: Simulation) -> Iterator[Landing]:
    """Yield the landings, ascending by time, until all rows have landed and the last hour is complete.

    A landing without rows is left out unless it changes a complete-through.
    """
    population, arrival = simulation.population, simulation.arrival
    transit, quarters = _Transit(simulation), steps(population)
    last_hour = population.start_hour + population.hours - 1
    declared: CompleteThrough = dict.fromkeys(TABLES)
    for number in count(1):
        for happened in islice(quarters, STEPS_PER_HOUR * arrival.interval_minutes // HOUR_MINUTES):
            transit.send(happened)
        before, declared = declared, transit.complete_through(number, declared)
        arrived = transit.arrive(number)
        if any(len(events) for events in arrived.values()) or before != declared:
            at = hour_start(population.start_hour) + number * timedelta(minutes=arrival.interval_minutes)
            landing = _landing(at, arrived, declares=declared, before=before)
            yield _with_bad_rows(landing, simulation, number) if arrival.bad else landing
        if transit.empty and set(declared.values()) == {last_hour}:
            return


def _with_bad_rows(landing: Landing, simulation: Simulation, number: int) -> Landing:
    """Add copies of some rows of a landing, with one flaw each."""
    rng = np.random.default_rng((simulation.population.seed, BAD_ROWS, number))

    def choose(count: int, own: Sequence[Flaw]) -> list[tuple[int, Flaw]]:
        places = rng.permutation(count)[: rng.binomial(count, simulation.arrival.bad)]
        return [(int(place), own[int(rng.integers(len(own)))]) for place in places]

    return _spoilt(landing, simulation.population.start_hour, choose)


EXAMPLE = Population(
    accounts=800, opening=0.4, plan_change=0.08, request=0.06, involuntary_cancel=0.05, of_strangers=0.0
)
"""A population with rows in every table and hour, for any seed, and without events of people who never signed up."""

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
    """A landing that an audit must stop: some of its signups have no account_id.

    Attributes:
        landing: As it lands.
        repaired: As it is once its producer has put the right accounts into these signups.
        right: signup_id → account_id, of these signups.
    """

    landing: Landing
    repaired: Landing
    right: Mapping[str, str]


def worked_example(population: Population = EXAMPLE) -> tuple[Landing, Landing, Landing]:
    """Return the three landings of the worked example. `population.hours` is ignored."""
    history = _history(population, FIRST_HOUR_AFTER)
    on_time, late = [], []
    for hour, happened in enumerate(history[:FIRST_LANDED_HOURS]):
        concerned = [table for table, late_hours in LATE_HOURS.items() if hour in late_hours]
        is_late = {table: np.arange(len(happened[table])) % LATE_EVERY == 0 for table in concerned}
        on_time.append({**happened, **{table: happened[table][~is_late[table]] for table in concerned}})
        late.append({table: happened[table][is_late[table]] for table in concerned})
    of_hour_6, of_hour_7 = (
        {table: happened[table] for table in (SIGNUPS.table, PLAN_CHANGES.table)} for happened in history[6:8]
    )
    cancels = [{CANCELS.table: happened[CANCELS.table]} for happened in history[6:8]]
    first = _batch(population, 6 * HOUR_MINUTES, on_time, (5, 5, 5, 5), (None, None, None, None))
    second = _batch(population, 8 * HOUR_MINUTES, [*late, of_hour_6, *cancels], (6, 6, 7, 7), (5, 5, 5, 5))
    third = _batch(population, 8 * HOUR_MINUTES + 15, [of_hour_7], (7, 7, 7, 7), (6, 6, 7, 7))
    return first, second, third


def dirty_batch(population: Population = EXAMPLE, *, hour: int = 8) -> Landing:
    """Return the rows of an hour, and for each table one row with each flaw that sends a row to quarantine.

    Args:
        population: The population.
        hour: The hour since the start, 8 or later.
    """

    def each_once(count: int, own: Sequence[Flaw]) -> list[tuple[int, Flaw]]:
        return [(number % count, flaw) for number, flaw in enumerate(own)]

    return _spoilt(_whole_hour(population, hour), population.start_hour, each_once)


def bad_batch(population: Population = EXAMPLE, *, hour: int = 8, count: int = 3) -> BadBatch:
    """Return the rows of an hour; its first signups have no account_id, which quarantine does not check.

    Who signs up in the hour does nothing else in it, as the other tables would refer to signups that are not there.

    Args:
        population: The population.
        hour: The hour since the start, 8 or later.
        count: Number of signups without an account_id.
    """
    landing = _whole_hour(population, hour)
    signups = landing.rows[SIGNUPS.table]
    rows = {
        table: found.filter(pc.invert(pc.is_in(found[DISTINCT_ID], signups[DISTINCT_ID])))
        for table, found in landing.rows.items()
    }
    accounts = signups[DISTINCT_ID].to_pylist()
    place = signups.schema.get_field_index(DISTINCT_ID)
    wrong = pa.array([None] * len(accounts[:count]) + accounts[count:], pa.string())
    bad_signups = signups.set_column(place, signups.schema.field(place), wrong)
    return BadBatch(
        replace(landing, rows={**rows, SIGNUPS.table: bad_signups}),
        replace(landing, rows={**rows, SIGNUPS.table: signups}),
        dict(zip(signups["signup_id"].to_pylist()[:count], accounts, strict=False)),
    )


def _history(population: Population, length: int) -> list[Happened]:
    """Return the events of the first hours. An hour has the same events for every length."""
    quarters = steps(replace(population, hours=length))
    history = []
    for hour in range(length):
        happened = joined([*islice(quarters, STEPS_PER_HOUR)])
        if hour in HOURS_WITHOUT_REQUESTS:
            happened = {**happened, CANCEL_REQUESTS.table: np.empty(0, EVENT)}
        history.append(happened)
    return history


def _whole_hour(population: Population, hour: int) -> Landing:
    now, before = (hour, hour, hour, hour), (hour - 1, hour - 1, hour - 1, hour - 1)
    return _batch(population, HOUR_MINUTES * (hour + 1), [_history(population, hour + 1)[hour]], now, before)


def _batch(
    population: Population, minutes: int, parts: Sequence[Mapping[str, Events]], declared: Declared, before: Declared
) -> Landing:
    """Return a landing that takes place some minutes after the start."""

    def since_1970(through: Declared) -> CompleteThrough:
        hours = [None if hour is None else population.start_hour + hour for hour in through]
        return dict(zip(TABLES, hours, strict=True))

    at = hour_start(population.start_hour) + timedelta(minutes=minutes)
    return _landing(at, joined(parts), declares=since_1970(declared), before=since_1970(before))


def messages(landing: Landing, *, prefix: str = "") -> Iterator[Message]:
    """Yield a message for each row of a landing, in the order of `RAW` and of the rows.

    Args:
        landing: The landing.
        prefix: Start of the topics' names; the name of the raw table follows.
    """
    timestamp = milliseconds(landing.landed_at)
    for raw in RAW:
        for row in landing.rows[raw.table].select(list(raw.columns)).to_pylist():
            present = {name: value for name, value in row.items() if value is not None}
            value = json.dumps(present, separators=(",", ":"), default=_plain).encode()
            yield Message(f"{prefix}{raw.table}", (row[DISTINCT_ID] or "").encode(), value, timestamp)


def _plain(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def heartbeats(landing: Landing, *, prefix: str = "") -> dict[str, datetime]:
    """Return topic → time of the heartbeat that declares complete what the landing declares complete.

    An hour is complete once the heartbeats have reached the next hour. A topic without a complete hour is left out.
    """
    return {
        f"{prefix}{table}": hour_start(through + 1)
        for table, through in landing.complete_through.items()
        if through is not None
    }


def land(catalog: Catalog, landing: Landing) -> None:
    """Land a batch: in each raw table one commit, with the rows and complete-through.

    A batch that was interrupted may be landed again: a table that has it, or a later complete-through, keeps that.

    Raises:
        TableMissing: A raw table does not exist.
    """
    for raw in RAW:
        for attempt in retrying():
            with attempt:
                table = load(catalog, raw.table)
                rows, through = landing.rows[raw.table], landing.complete_through[raw.table]
                is_there = any(True for _ in table.scan(row_filter=_partition(landing)).plan_files())
                with landed_with(catalog, table, through) as transaction:
                    if rows.num_rows and not is_there:
                        transaction.append(rows.cast(table.schema().as_arrow()))


def repair(spark: SparkSession, bad: BadBatch) -> None:
    """Set the account_id of the bad signups of a batch, in place: one overwrite of their data file."""
    cases = " ".join(f"WHEN '{signup}' THEN '{account}'" for signup, account in bad.right.items())
    signups = ", ".join(f"'{signup}'" for signup in bad.right)
    spark.sql(
        f"UPDATE lake.{SIGNUPS.table} SET account_id = CASE signup_id {cases} END "
        f"WHERE {_partition(bad.landing)} AND signup_id IN ({signups})"
    )


def _partition(landing: Landing) -> str:
    """Return the condition of the batch's partition, in the syntax that Spark and pyiceberg share."""
    moment = landing.landed_at
    return f"landing_date = '{moment:%Y-%m-%d}' AND landing_hour = {moment.hour} AND batch_id = '{landing.batch_id}'"
