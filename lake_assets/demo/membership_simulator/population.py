"""What happens: people sign up, change plans, ask to leave, leave and come back. Pure; when that is known is not here.

Time goes in steps of a quarter of an hour. In a step an account does one thing at most by its rates, beside what
follows at once or was due; so an hour holds histories too. Some events make no sense on purpose: plan changes and
cancels of people who never signed up or have left, signups of members. Moments are whole milliseconds.

Memory: some 20 bytes an account, and one step's events. Each step draws from its own stream, seeded by (seed, step).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lake_assets.base.hours import HOUR_MICROSECONDS, parse_hour
from lake_assets.membership.raw import CANCEL_REQUESTS, CANCELS, PLAN_CHANGES, PLANS, RAW, SIGNUPS

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

STEPS_PER_HOUR = 4
STEP_MICROSECONDS = HOUR_MICROSECONDS // STEPS_PER_HOUR
NEVER = np.iinfo(np.int64).max
HABITS = 1
"""Each stream is seeded by (seed, a number for its use, ...): numpy pads seeds with zeros, so two uses must differ."""

REASONS = ("price", "moving", "no use for it", "another service", None)


@dataclass(frozen=True)
class Population:
    """People and their habits. Rates are events an hour and person; shares are parts of one.

    start: the first hour, a key. hours: how many hours people act for.
    opening: the share who sign up in the first quarter of an hour; signup: the rate for the others, and after it.
    of_strangers: plan changes, requests and cancels each, of people who are not members.
    same_price: the share of plan changes that keep the price. at_once: the share of signups with a plan change, and of
        requests with a cancel, at the very same moment. withdrawn: the share of requests that no cancel follows.
    notice_hours: mean time from request to cancel.
    """

    accounts: int = 500
    seed: int = 1
    start: str = "2026-01-01-00:00"
    hours: int = 24
    opening: float = 0.2
    signup: float = 0.06
    plan_change: float = 0.04
    request: float = 0.02
    involuntary_cancel: float = 0.008
    return_after_cancel: float = 0.05
    signup_of_member: float = 0.001
    of_strangers: float = 0.001
    same_price: float = 0.15
    at_once: float = 0.03
    withdrawn: float = 0.2
    notice_hours: float = 3.0

    @property
    def start_hour(self) -> int:
        return parse_hour(self.start, where="The simulation's start")


@dataclass(frozen=True)
class Events:
    """Events of one kind, column by column; the arrays are of one length.

    number: counts the kind's events from 0. moment: microseconds since 1970. choice: index of the plan, or of the
    reason. price: index of the plan whose list price is paid.
    """

    number: Ints
    account: Ints
    moment: Ints
    choice: Ints
    price: Ints

    def __len__(self) -> int:
        return len(self.number)

    def take(self, which: npt.NDArray[np.bool_] | Ints) -> Events:
        """The events at these places, in this order; or where true."""
        return Events(*(column[which] for column in self._columns()))

    @classmethod
    def none(cls) -> Events:
        return cls(*[np.empty(0, dtype=np.int64)] * 5)

    @classmethod
    def concat(cls, parts: list[Events]) -> Events:
        columns = zip(*(part._columns() for part in parts), strict=True)
        return cls(*map(np.concatenate, columns)) if parts else cls.none()

    def _columns(self) -> tuple[Ints, ...]:
        return self.number, self.account, self.moment, self.choice, self.price


Happened = Mapping[str, Events]
"""Events by the raw table that they belong in; all four are there."""


def steps(population: Population) -> Iterator[Happened]:
    """What happened in each quarter of an hour, for `population.hours` hours; ascending by moment in each table."""
    people = _People(population)
    for step in range(population.hours * STEPS_PER_HOUR):
        yield people.live(step)


def hours(population: Population) -> Iterator[Happened]:
    """The same, an hour at a time."""
    quarters = steps(population)
    for _ in range(population.hours):
        parts = [next(quarters) for _ in range(STEPS_PER_HOUR)]
        yield {raw.table: Events.concat([part[raw.table] for part in parts]) for raw in RAW}


@dataclass(frozen=True)
class _Doing:
    """Who does what in one step: accounts by kind of event."""

    sign_up: Ints
    change_plan: Ints
    ask_to_leave: Ints
    leave: Ints


class _People:
    """The accounts as they stand after the steps lived so far."""

    def __init__(self, population: Population) -> None:
        self._habits = population
        self._member = np.zeros(population.accounts, dtype=np.bool_)
        self._known = np.zeros(population.accounts, dtype=np.bool_)
        self._plan = np.zeros(population.accounts, dtype=np.int8)
        self._price = np.zeros(population.accounts, dtype=np.int8)
        self._cancel_at = np.full(population.accounts, NEVER, dtype=np.int64)
        self._count = dict.fromkeys((raw.table for raw in RAW), 0)

    def live(self, step: int) -> Happened:
        rng = np.random.default_rng((self._habits.seed, HABITS, step))
        begin = self._habits.start_hour * HOUR_MICROSECONDS + step * STEP_MICROSECONDS
        signup = self._habits.signup if step else self._habits.opening * STEPS_PER_HOUR
        doing = self._doing(rng, begin + STEP_MICROSECONDS, signup)
        signups = self._sign_up(rng, doing.sign_up, _moments(rng, begin, len(doing.sign_up)))
        changes = self._change_plan(rng, doing.change_plan, begin, signups)
        requests = self._ask_to_leave(rng, doing.ask_to_leave, _moments(rng, begin, len(doing.ask_to_leave)))
        cancels = self._leave(rng, doing.leave, begin)
        return {
            SIGNUPS.table: signups,
            PLAN_CHANGES.table: changes,
            CANCEL_REQUESTS.table: requests,
            CANCELS.table: cancels,
        }

    def _doing(self, rng: np.random.Generator, end: int, signup: float) -> _Doing:
        habits, staying = self._habits, self._cancel_at >= end
        of_member = (habits.signup_of_member, habits.plan_change, habits.request, habits.involuntary_cancel)
        odd = (habits.of_strangers,) * 3
        groups = (
            (self._member & staying, of_member),
            (~self._member & ~self._known, (signup, *odd)),
            (~self._member & self._known, (habits.return_after_cancel, *odd)),
        )
        drawn = [_draw(rng, np.flatnonzero(group), rates) for group, rates in groups]
        return _Doing(*(np.concatenate([group[kind] for group in drawn]) for kind in range(4)))

    def _sign_up(self, rng: np.random.Generator, account: Ints, moment: Ints) -> Events:
        plan = rng.integers(0, len(PLANS), len(account))
        new = ~self._member[account]
        self._plan[account[new]] = self._price[account[new]] = plan[new]
        self._member[account] = self._known[account] = True
        return self._events(SIGNUPS.table, account, moment, plan, plan)

    def _change_plan(self, rng: np.random.Generator, account: Ints, begin: int, signups: Events) -> Events:
        at_once = signups.take(rng.random(len(signups)) < self._habits.at_once)
        moment = np.concatenate([_moments(rng, begin, len(account)), at_once.moment])
        account = np.concatenate([account, at_once.account])
        plan = (self._plan[account] + rng.integers(1, len(PLANS), len(account))) % len(PLANS)
        price = np.where(rng.random(len(account)) < self._habits.same_price, self._price[account], plan)
        present = self._member[account]
        self._plan[account[present]], self._price[account[present]] = plan[present], price[present]
        return self._events(PLAN_CHANGES.table, account, moment, plan, price)

    def _ask_to_leave(self, rng: np.random.Generator, account: Ints, moment: Ints) -> Events:
        reason = rng.integers(0, len(REASONS), len(account))
        notice = rng.exponential(self._habits.notice_hours * HOUR_MICROSECONDS, len(account))
        notice[rng.random(len(account)) < self._habits.at_once] = 0
        leaves = self._member[account] & (rng.random(len(account)) >= self._habits.withdrawn)
        self._cancel_at[account[leaves]] = (moment + notice.astype(np.int64) // 1000 * 1000)[leaves]
        return self._events(CANCEL_REQUESTS.table, account, moment, reason, reason)

    def _leave(self, rng: np.random.Generator, account: Ints, begin: int) -> Events:
        due = np.flatnonzero(self._cancel_at < begin + STEP_MICROSECONDS)
        moment = np.concatenate([self._cancel_at[due], _moments(rng, begin, len(account))])
        account = np.concatenate([due, account])
        self._member[account], self._cancel_at[account] = False, NEVER
        nothing = np.zeros(len(account), dtype=np.int64)
        return self._events(CANCELS.table, account, moment, nothing, nothing)

    def _events(self, table: str, account: Ints, moment: Ints, choice: Ints, price: Ints) -> Events:
        number = np.arange(self._count[table], self._count[table] + len(account))
        self._count[table] += len(account)
        in_time = np.argsort(moment, kind="stable")
        return Events(number, account[in_time], moment[in_time], choice[in_time], price[in_time])


def _moments(rng: np.random.Generator, begin: int, count: int) -> Ints:
    return begin + 1000 * rng.integers(0, STEP_MICROSECONDS // 1000, count)


def _draw(rng: np.random.Generator, who: Ints, hourly_rates: tuple[float, ...]) -> list[Ints]:
    """Those who do the first, the second, ... thing in a step; each at most one."""
    bounds = np.cumsum(hourly_rates) / STEPS_PER_HOUR
    luck = rng.random(len(who))
    kind = np.searchsorted(bounds, luck, side="right")
    return [who[kind == k] for k in range(len(hourly_rates))]
