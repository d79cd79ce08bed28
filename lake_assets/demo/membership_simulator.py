"""A simulated membership business, and how its events reach the raw tables: late, twice, out of order, with gaps.

Everything is a function of one `Simulation`: the same value gives the same bytes, whatever was generated before. In
order: what happens; how it becomes known; landings, some of them with bad rows; the landings of the worked example;
landings as messages for Kafka; and landings written to the raw tables.

Time advances in steps of a quarter of an hour. In a step an account has at most one random event, and also what
follows at once or was due. Some events are inconsistent on purpose: plan changes and cancels of people who never
signed up or have left, and signups of members. Moments are whole milliseconds.

A row becomes known after a delay: a prompt one of at most `grace_minutes`, or of a heavy tail. It lands with the first
landing at or after that moment. The first landing at least `grace_minutes` after the end of an hour declares the hour
complete. So a row is late only because of the tail, a stall (a part of the clients is cut off) or a second delivery.
During an outage nothing of a source lands and its complete-through stands still; afterwards all of it lands at once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from itertools import count, islice
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lake_assets.base.hours import HOUR_MICROSECONDS, hour_start, parse_hour
from lake_assets.demo.message import Message
from lake_assets.incremental.declaration import RawTable
from lake_assets.incremental.engine.iceberg import landed_with, load, retrying
from lake_assets.membership.raw import CANCEL_REQUESTS, CANCELS, PLAN_CHANGES, PLANS, RAW, SIGNUPS

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Random = np.random.Generator

TABLES = tuple(raw.table for raw in RAW)
STEPS_PER_HOUR = 4
STEP_MICROSECONDS = HOUR_MICROSECONDS // STEPS_PER_HOUR
MILLISECOND_MICROSECONDS = 1000
NEVER = np.iinfo(np.int64).max
HABITS = 1
"""Number of this use of random numbers.

Each random stream has the seed (seed, number of its use, ...). numpy pads seeds with zeros, so the numbers differ.
"""

REASONS = ("price", "moving", "no use for it", "another service", None)

SIGNUP, SIGNUP_AFTER_CANCEL, SIGNUP_OF_MEMBER = 0.06, 0.05, 0.001
"""Signups an hour and person: of people who were never members, of those who have left, and of members."""

SAME_PRICE = 0.15
"""Share of plan changes that keep the price."""

AT_ONCE = 0.03
"""Share of signups with a plan change, and of requests with a cancel, at the same moment."""

WITHDRAWN = 0.2
"""Share of requests without a cancel."""

NOTICE_HOURS = 3.0
"""Mean time from a request to its cancel."""


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
class Events:
    """Events of one kind, in columns of equal length.

    Attributes:
        number: Counts all events of the kind, from 0.
        account: Number of the account.
        moment: Microseconds since 1970-01-01 UTC.
        choice: Index of the plan, or of the reason.
        price: Index of the plan whose list price is paid.
    """

    number: Ints
    account: Ints
    moment: Ints
    choice: Ints
    price: Ints

    def __len__(self) -> int:
        return len(self.number)

    def take(self, which: Bools | Ints) -> Events:
        """Return some of the events. which: their places, in the order of the result; or a flag for each event."""
        return Events(*(column[which] for column in vars(self).values()))

    @classmethod
    def concat(cls, parts: Iterable[Events] = ()) -> Events:
        """Return the events of all parts, one part after the other."""
        empty = np.empty(0, dtype=np.int64)
        return cls(*(np.concatenate([empty, *(getattr(part, name) for part in parts)]) for name in COLUMNS))


COLUMNS = tuple(each.name for each in fields(Events))

Happened = Mapping[str, Events]
"""Raw table → events. It has all four raw tables."""


def steps(population: Population) -> Iterator[Happened]:
    """Yield the events of each quarter of an hour, for `population.hours` hours; ascending by moment in each table."""
    people = _People(population)
    yield from map(people.live, range(population.hours * STEPS_PER_HOUR))


def hours(population: Population) -> Iterator[Happened]:
    """Yield the events of each hour; ascending by moment in each table."""
    quarters = steps(population)
    while parts := list(islice(quarters, STEPS_PER_HOUR)):
        yield concat_tables(parts)


def concat_tables(parts: Sequence[Happened]) -> Happened:
    """Return the events of several periods, table by table. A part may lack tables."""
    return {table: Events.concat([part[table] for part in parts if table in part]) for table in TABLES}


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
        """Play a step and return its events."""
        rng = np.random.default_rng((self._habits.seed, HABITS, step))
        start = self._habits.start_hour * HOUR_MICROSECONDS + step * STEP_MICROSECONDS
        signing_up, changing_plan, requesting, leaving = self._draw_actors(rng, step, start + STEP_MICROSECONDS)
        signups = self._sign_up(rng, signing_up, start)
        return {
            SIGNUPS.table: signups,
            PLAN_CHANGES.table: self._change_plan(rng, changing_plan, start, signups),
            CANCEL_REQUESTS.table: self._request(rng, requesting, start),
            CANCELS.table: self._leave(rng, leaving, start),
        }

    def _draw_actors(self, rng: Random, step: int, end: int) -> list[Ints]:
        """Draw the accounts that act, by kind of event. An account acts at most once in a step.

        Who leaves before `end`, the end of the step, does nothing else.
        """
        habits, stray = self._habits, self._habits.of_strangers
        first_signup = habits.opening * STEPS_PER_HOUR if step == 0 else SIGNUP
        is_staying = self._cancel_at >= end
        groups = (
            (
                self._is_member & is_staying,
                (SIGNUP_OF_MEMBER, habits.plan_change, habits.request, habits.involuntary_cancel),
            ),
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

    def _sign_up(self, rng: Random, account: Ints, start: int) -> Events:
        moment = _moments(rng, start, len(account))
        plan = rng.integers(0, len(PLANS), len(account))
        is_new = ~self._is_member[account]
        self._plan[account[is_new]] = self._price[account[is_new]] = plan[is_new]
        self._is_member[account] = self._was_member[account] = True
        return self._events(SIGNUPS.table, account, moment, choice=plan, price=plan)

    def _change_plan(self, rng: Random, account: Ints, start: int, signups: Events) -> Events:
        at_once = signups.take(rng.random(len(signups)) < AT_ONCE)
        moment = np.concatenate([_moments(rng, start, len(account)), at_once.moment])
        account = np.concatenate([account, at_once.account])
        plan = (self._plan[account] + rng.integers(1, len(PLANS), len(account))) % len(PLANS)
        price = np.where(rng.random(len(account)) < SAME_PRICE, self._price[account], plan)
        is_member = self._is_member[account]
        self._plan[account[is_member]] = plan[is_member]
        self._price[account[is_member]] = price[is_member]
        return self._events(PLAN_CHANGES.table, account, moment, choice=plan, price=price)

    def _request(self, rng: Random, account: Ints, start: int) -> Events:
        count = len(account)
        moment = _moments(rng, start, count)
        reason = rng.integers(0, len(REASONS), count)
        notice = rng.exponential(NOTICE_HOURS * HOUR_MICROSECONDS, count)
        notice[rng.random(count) < AT_ONCE] = 0
        leaves = self._is_member[account] & (rng.random(count) >= WITHDRAWN)
        cancel_at = moment + notice.astype(np.int64) // MILLISECOND_MICROSECONDS * MILLISECOND_MICROSECONDS
        self._cancel_at[account[leaves]] = cancel_at[leaves]
        return self._events(CANCEL_REQUESTS.table, account, moment, choice=reason, price=reason)

    def _leave(self, rng: Random, account: Ints, start: int) -> Events:
        due = np.flatnonzero(self._cancel_at < start + STEP_MICROSECONDS)
        moment = np.concatenate([self._cancel_at[due], _moments(rng, start, len(account))])
        account = np.concatenate([due, account])
        self._is_member[account] = False
        self._cancel_at[account] = NEVER
        nothing = np.zeros(len(account), dtype=np.int64)
        return self._events(CANCELS.table, account, moment, choice=nothing, price=nothing)

    def _events(self, table: str, account: Ints, moment: Ints, *, choice: Ints, price: Ints) -> Events:
        """Number events in the order of their moments."""
        first = self._counts[table]
        self._counts[table] += len(account)
        order = np.argsort(moment, kind="stable")
        number = np.arange(first, self._counts[table])
        return Events(number, account[order], moment[order], choice[order], price[order])


def _moments(rng: Random, start: int, count: int) -> Ints:
    """Return random moments of the step that starts at `start`, in whole milliseconds."""
    milliseconds = rng.integers(0, STEP_MICROSECONDS // MILLISECOND_MICROSECONDS, count)
    return start + MILLISECOND_MICROSECONDS * milliseconds


QUARTER_MINUTES = 15
HOUR_MINUTES = 60
DAY_HOURS = 24


@dataclass(frozen=True)
class Outage:
    """A period without landings; all rows of it land at once afterwards.

    Attributes:
        first: First hour, inclusive, counted from the start of the simulation.
        hours: Length.
        tables: The raw tables concerned.
    """

    first: int
    hours: int
    tables: tuple[str, ...] = TABLES


PROMPT_MINUTES, PROMPT_SIGMA = 2.0, 0.8
"""Median and sigma of the prompt delays, which are log-normal."""

TAIL_SIGMA = 1.0
"""Of the heavy tail, which is log-normal, too."""

STALLED, STALL_WINDOW_MINUTES = 0.3, 30
"""Share of the events in a window of this length that land late, after a stall."""

STALL_HOURS, STALL_SIGMA, STALL_HOURS_RANGE = 2.25, 0.55, (1.75, 6.0)
"""How long before the landing the window of a stall began: median, sigma and range of a log-normal distribution."""


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
        outages: Periods without landings.
        stall_every: One landing of so many has late rows of clients that were cut off; 0 for none.
        first_stall: Number of hours at the start without stalls.
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
    stall_every: int = 0
    first_stall: int = 0


@dataclass(frozen=True)
class Simulation:
    """Everything that a sequence of landings depends on."""

    population: Population = field(default_factory=Population)
    arrival: Arrival = field(default_factory=Arrival)


def late_day(
    accounts: int = 20_000,
    *,
    seed: int = 1,
    start: str = "2026-01-01-00:00",
    loaded_hours: int = 6,
) -> Simulation:
    """Return a day with a landing every 15 minutes. One in eight has late rows, of median depth 2 h and at most 6 h.

    The first landing has all rows of the `loaded_hours` before that day. The 96 landings of the day follow, and one
    with the prompt rows of its last minutes. No row is delivered twice.

    Args:
        accounts: Number of people. With several thousand, every stall has rows.
        seed: Seed of all random streams.
        start: First hour, as an hour key.
        loaded_hours: Number of hours before the day.
    """
    outages = (Outage(0, loaded_hours),) if loaded_hours else ()
    return Simulation(
        Population(accounts=accounts, seed=seed, start=start, hours=loaded_hours + DAY_HOURS),
        Arrival(
            interval_minutes=QUARTER_MINUTES,
            grace_minutes=QUARTER_MINUTES,
            tail=0.0,
            twice=0.0,
            again=0.0,
            outages=outages,
            stall_every=8,
            first_stall=loaded_hours,
        ),
    )


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
UNKNOWN_PLAN = "platinum"
BEFORE_START = timedelta(days=400)
AFTER_LANDING = timedelta(days=2)
BAD_PREFIX = "bad-"
ID_DIGITS = 9

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


Flaw = tuple[str, Any]
"""One way in which a row can be wrong: a column, and its bad value."""


def flaws(raw: RawTable, landed_at: datetime, first_hour: int) -> list[Flaw]:
    """Return every flaw that sends a row of a raw table to quarantine.

    Args:
        raw: The raw table.
        landed_at: When the row lands.
        first_hour: First hour of the pipeline, in hours since 1970-01-01 UTC.
    """
    possible = [
        (key_of(raw), None),
        (raw.time_column, None),
        (raw.time_column, hour_start(first_hour) - BEFORE_START),
        (raw.time_column, landed_at + AFTER_LANDING),
        ("monthly_price", -next(iter(PLANS.values()))),
        ("plan", UNKNOWN_PLAN),
    ]
    return [(column, value) for column, value in possible if column in raw.columns]


def make_landing(
    landed_at: datetime,
    happened: Happened,
    *,
    complete_through: CompleteThrough,
    before: CompleteThrough,
) -> Landing:
    """Return events as one batch.

    Args:
        landed_at: When they land.
        happened: The events.
        complete_through: What the landing declares complete.
        before: What was declared complete before it; rows of these hours are late.
    """
    batch_id = f"sim-{landed_at:%Y%m%dT%H%M}"
    return Landing(
        landed_at,
        batch_id,
        rows={raw.table: rows(raw, happened[raw.table], landed_at, batch_id) for raw in RAW},
        complete_through=complete_through,
        late={table: _count_late(happened[table], before[table]) for table in TABLES},
    )


def rows(raw: RawTable, events: Events, landed_at: datetime, batch_id: str) -> pa.Table:
    """Return events as rows of a raw table, with all its columns, in order."""
    in_utc = landed_at.astimezone(UTC)
    landing_columns = {
        "landed_at": landed_at,
        "landing_date": in_utc.date(),
        "landing_hour": in_utc.hour,
        "batch_id": batch_id,
    }
    table = pa.table({name: _column(raw, name, events) for name in raw.columns})
    for name, value in landing_columns.items():
        kind = ARROW[raw.all_columns[name]]
        column = pa.repeat(pa.scalar(value, kind), len(events))
        table = table.append_column(name, column)
    return table


def spoil(raw: RawTable, good: pa.Table, chosen: list[tuple[int, Flaw]]) -> pa.Table:
    """Return bad copies of rows, each with its own id: a copy is not another delivery of the good row.

    Args:
        raw: The raw table.
        good: Its good rows.
        chosen: The place of each row to copy, and its flaw.
    """
    copies = [good.slice(0, 0)]
    for number, (place, flaw) in enumerate(chosen):
        own_id = f"{BAD_PREFIX}{good['batch_id'][place]}-{number}"
        row = _with_value(good.slice(place, 1), key_of(raw), own_id)
        copies.append(_with_value(row, *flaw))
    return pa.concat_tables(copies).combine_chunks()


def key_of(raw: RawTable) -> str:
    """Return the key of a raw table: its first column."""
    return next(iter(raw.columns))


def microseconds(moment: datetime) -> int:
    """Return a moment in microseconds since 1970-01-01 UTC."""
    return (moment - EPOCH) // timedelta(microseconds=1)


def _count_late(events: Events, complete_through: int | None) -> int:
    if complete_through is None:
        return 0
    is_late = events.moment < (complete_through + 1) * HOUR_MICROSECONDS
    return int(np.count_nonzero(is_late))


def _column(raw: RawTable, name: str, events: Events) -> pa.Array:
    kind = ARROW[raw.columns[name]]
    if name == key_of(raw):
        return _ids(name.removesuffix("_id"), events.number)
    if name == "account_id":
        return _ids("a", events.account)
    if name == raw.time_column:
        return pa.array(events.moment, pa.int64()).cast(kind)
    values, indexes = {
        "plan": (list(PLANS), events.choice),
        "monthly_price": (list(PLANS.values()), events.price),
        "reason": (list(REASONS), events.choice),
    }[name]
    return pa.array(values, kind).take(pa.array(indexes))


def _ids(prefix: str, numbers: Ints) -> pa.Array:
    digits = pc.utf8_lpad(pa.array(numbers).cast(pa.string()), ID_DIGITS, "0")
    return pc.binary_join_element_wise(prefix, digits, "-")


def _with_value(row: pa.Table, name: str, value: Any) -> pa.Table:
    place = row.schema.get_field_index(name)
    field = row.schema.field(place)
    return row.set_column(place, field, pa.array([value], field.type))


MINUTE_MICROSECONDS = 60_000_000
DELAYS, ORDER, STALLS = 2, 3, 5
"""Numbers of these uses of random numbers, as `HABITS`."""


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
        first = self._after_stalls(rng, events, self._landings_of(events.moment, self._delays(rng, count)))
        twice = np.flatnonzero(rng.random(count) < self._arrival.twice)
        again = np.flatnonzero(rng.random(count) < self._arrival.again)
        later = first[again] + 1 + self._tail(rng, len(again)) // self._interval
        places = np.concatenate([np.arange(count), twice, again])
        landings = np.concatenate([first, first[twice], later])
        for begin, end in self._outages[table]:
            landings = np.where((landings >= begin) & (landings < end), end, landings)
        for landing in np.unique(landings):
            brought = events.take(places[landings == landing])
            self._by_landing[table].setdefault(int(landing), []).append(brought)

    def _delays(self, rng: Random, count: int) -> Ints:
        """Return random delays in microseconds, from an event to when it is known."""
        median = PROMPT_MINUTES * MINUTE_MICROSECONDS
        drawn = rng.lognormal(np.log(median), PROMPT_SIGMA, count)
        prompt = np.minimum(drawn, self._grace).astype(np.int64)
        is_in_tail = rng.random(count) < self._arrival.tail
        return np.where(is_in_tail, self._tail(rng, count), prompt)

    def _tail(self, rng: Random, count: int) -> Ints:
        """Return random delays of the heavy tail, in microseconds."""
        median = self._arrival.tail_hours * HOUR_MICROSECONDS
        longest = self._arrival.longest_hours * HOUR_MICROSECONDS
        drawn = rng.lognormal(np.log(median), TAIL_SIGMA, count)
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
        for landing, begin, end in self._stalls:
            is_stalled = (events.moment >= begin) & (events.moment < end) & (luck < STALLED)
            landings = np.where(is_stalled, np.maximum(landing, landings), landings)
        return landings

    def _is_out(self, table: str, landing: int) -> bool:
        return any(begin <= landing < end for begin, end in self._outages[table])


def _outages(simulation: Simulation, table: str) -> list[tuple[int, int]]:
    """Return the landings that do not take place for a table, as [begin, end), ascending. They may overlap."""
    interval = simulation.arrival.interval_minutes

    def landing_at_or_after(hour: int) -> int:
        return -(-hour * HOUR_MINUTES // interval)

    return sorted(
        (landing_at_or_after(outage.first), landing_at_or_after(outage.first + outage.hours))
        for outage in simulation.arrival.outages
        if table in outage.tables
    )


def _stalls(simulation: Simulation) -> list[tuple[int, int, int]]:
    """Draw a landing of each group, and a depth for each: quantiles of the distribution, so that few are like many.

    Returns:
        The landing, and the window of events that it brings late: [begin, end) in microseconds since 1970-01-01 UTC.
    """
    every, minutes = simulation.arrival.stall_every, simulation.arrival.interval_minutes
    if not every:
        return []
    rng = np.random.default_rng((simulation.population.seed, STALLS))
    last = simulation.population.hours * HOUR_MINUTES // minutes
    groups = range(simulation.arrival.first_stall * HOUR_MINUTES // minutes, last - every + 1, every)
    landings = [group + int(rng.integers(1, every + 1)) for group in groups]
    start = simulation.population.start_hour * HOUR_MICROSECONDS
    least, most = STALL_HOURS_RANGE
    found = []
    for landing, place in zip(landings, rng.permutation(len(landings)), strict=True):
        rank = (place + 0.5) / len(landings)
        hours = STALL_HOURS * np.exp(STALL_SIGMA * NormalDist().inv_cdf(rank))
        depth = int(min(max(hours, least), most) * HOUR_MICROSECONDS)
        begin = start + landing * minutes * MINUTE_MICROSECONDS - depth
        found.append((landing, begin, begin + STALL_WINDOW_MINUTES * MINUTE_MICROSECONDS))
    return found


BAD_ROWS = 4
"""Number of this use of random numbers, as `HABITS`."""


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

    def choose(count: int, own: Sequence[Flaw]) -> list[tuple[int, Flaw]]:
        places = rng.permutation(count)[: rng.binomial(count, share)]
        return [(int(place), own[int(rng.integers(len(own)))]) for place in places]

    return _spoilt(landing, simulation.population.start_hour, choose)


def _spoilt(
    landing: Landing, first_hour: int, choose: Callable[[int, Sequence[Flaw]], list[tuple[int, Flaw]]]
) -> Landing:
    """Return a landing with bad copies. choose: from the number of rows and their flaws to the places to copy."""
    rows = {}
    for raw in RAW:
        good = landing.rows[raw.table]
        chosen = choose(good.num_rows, flaws(raw, landing.landed_at, first_hour))
        rows[raw.table] = pa.concat_tables([good, spoil(raw, good, chosen)]).combine_chunks()
    return replace(landing, rows=rows)


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
    """A landing that an audit must stop: some of its signups have no account_id. right: signup_id → account_id."""

    landing: Landing
    right: Mapping[str, str]


def worked_example(population: Population = EXAMPLE) -> tuple[Landing, Landing, Landing]:
    """Return the three landings of the worked example. `population.hours` is ignored."""
    history = _history(population, FIRST_HOUR_AFTER)
    on_time, late = [], []
    for hour, happened in enumerate(history[:FIRST_LANDED_HOURS]):
        concerned = [table for table, late_hours in LATE_HOURS.items() if hour in late_hours]
        is_late = {table: np.arange(len(happened[table])) % LATE_EVERY == 0 for table in concerned}
        on_time.append({**happened, **{table: happened[table].take(~is_late[table]) for table in concerned}})
        late.append({table: happened[table].take(is_late[table]) for table in concerned})
    of_hour_6, of_hour_7 = (
        {table: happened[table] for table in (SIGNUPS.table, PLAN_CHANGES.table)} for happened in history[6:8]
    )
    cancels = [{CANCELS.table: happened[CANCELS.table]} for happened in history[6:8]]
    first = _landing(population, 6 * HOUR_MINUTES, on_time, (5, 5, 5, 5), (None, None, None, None))
    second = _landing(population, 8 * HOUR_MINUTES, [*late, of_hour_6, *cancels], (6, 6, 7, 7), (5, 5, 5, 5))
    third = _landing(population, 8 * HOUR_MINUTES + 15, [of_hour_7], (7, 7, 7, 7), (6, 6, 7, 7))
    return first, second, third


def dirty_batch(population: Population = EXAMPLE, *, hour: int = 8) -> Landing:
    """Return the rows of an hour, and for each table one row with each flaw that sends a row to quarantine.

    Args:
        population: The population.
        hour: The hour since the start, 8 or later.
    """
    return _spoilt(
        _whole_hour(population, hour),
        population.start_hour,
        lambda count, own: [(number % count, flaw) for number, flaw in enumerate(own)],
    )


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
    signup_ids = signups["signup_id"].to_pylist()[:count]
    account_ids = signups["account_id"].to_pylist()
    right = dict(zip(signup_ids, account_ids[:count], strict=True))
    wrong = pa.array([None] * len(right) + account_ids[len(right) :], pa.string())
    place = signups.schema.get_field_index("account_id")
    bad_signups = signups.set_column(place, signups.schema.field(place), wrong)
    rows = {
        table: found.filter(pc.invert(pc.is_in(found["account_id"], signups["account_id"])))
        for table, found in landing.rows.items()
    } | {SIGNUPS.table: bad_signups}
    return BadBatch(replace(landing, rows=rows), right)


def _history(population: Population, length: int) -> list[Happened]:
    """Return the events of the first hours. An hour has the same events for every length."""
    history = []
    for hour, happened in enumerate(hours(replace(population, hours=length))):
        if hour in HOURS_WITHOUT_REQUESTS:
            happened = {**happened, CANCEL_REQUESTS.table: Events.concat()}
        history.append(happened)
    return history


def _whole_hour(population: Population, hour: int) -> Landing:
    happened = _history(population, hour + 1)[hour]
    now, before = (hour, hour, hour, hour), (hour - 1, hour - 1, hour - 1, hour - 1)
    return _landing(population, HOUR_MINUTES * (hour + 1), [happened], now, before)


def _landing(
    population: Population, minutes: int, parts: Sequence[Happened], declared: Declared, before: Declared
) -> Landing:
    """Return a landing that takes place some minutes after the start."""

    def since_1970(through: Declared) -> CompleteThrough:
        hours = [None if hour is None else population.start_hour + hour for hour in through]
        return dict(zip(TABLES, hours, strict=True))

    return make_landing(
        hour_start(population.start_hour) + timedelta(minutes=minutes),
        concat_tables(parts),
        complete_through=since_1970(declared),
        before=since_1970(before),
    )


DISTINCT_ID = "account_id"


def messages(landing: Landing, *, prefix: str = "") -> Iterator[Message]:
    """Yield a message for each row of a landing, in the order of `RAW` and of the rows.

    Args:
        landing: The landing.
        prefix: Start of the topics' names; the name of the raw table follows.
    """
    timestamp = microseconds(landing.landed_at) // 1000
    for raw in RAW:
        own_columns = landing.rows[raw.table].select(list(raw.columns))
        for row in own_columns.to_pylist():
            key = (row[DISTINCT_ID] or "").encode()
            yield Message(f"{prefix}{raw.table}", key, _json(row), timestamp)


def heartbeats(landing: Landing, *, prefix: str = "") -> dict[str, datetime]:
    """Return topic → time of the heartbeat that declares complete what the landing declares complete.

    An hour is complete once the heartbeats have reached the next hour. A topic without a complete hour is left out.
    """
    return {
        f"{prefix}{table}": hour_start(through + 1)
        for table, through in landing.complete_through.items()
        if through is not None
    }


def _json(row: Mapping[str, Any]) -> bytes:
    present = {name: value for name, value in row.items() if value is not None}
    return json.dumps(present, separators=(",", ":"), default=_plain).encode()


def _plain(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


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
