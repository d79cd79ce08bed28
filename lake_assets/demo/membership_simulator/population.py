"""What happens: people sign up, change plans, ask to leave, leave and come back. Pure.

`model.py` decides when these events become known.

Time advances in steps of a quarter of an hour. In a step an account has at most one random event, and also what follows
at once or was due; so one hour can hold several events of an account. Some events are inconsistent on purpose: plan
changes and cancels of people who never signed up or have left, and signups of members. Moments are whole milliseconds.

Memory: about 20 bytes per account, and the events of one step. Each step has its own random stream.
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
Bools = npt.NDArray[np.bool_]
Random = np.random.Generator

STEPS_PER_HOUR = 4
STEP_MICROSECONDS = HOUR_MICROSECONDS // STEPS_PER_HOUR
MILLISECOND_MICROSECONDS = 1000
NEVER = np.iinfo(np.int64).max
HABITS = 1
"""Number of this use of random numbers.

Each random stream has the seed (seed, number of its use, ...). numpy pads seeds with zeros, so the numbers differ.
"""

REASONS = ("price", "moving", "no use for it", "another service", None)


@dataclass(frozen=True)
class Population:
    """People and their habits. Rates are events per hour and person; shares are between 0 and 1.

    Attributes:
        accounts: Number of people.
        seed: Seed of all random streams.
        start: First hour, as an hour key.
        hours: Number of hours in which people act.
        opening: Share of people who sign up in the first quarter of an hour.
        signup: Rate of signups of the others, after that.
        plan_change: Rate of members.
        request: Rate of requests to leave, of members.
        involuntary_cancel: Rate of cancels without a request, of members.
        return_after_cancel: Rate of signups of people who have left.
        signup_of_member: Rate of signups of members.
        of_strangers: Rate of plan changes, of requests and of cancels of people who are not members.
        same_price: Share of plan changes that keep the price.
        at_once: Share of signups with a plan change, and of requests with a cancel, at the same moment.
        withdrawn: Share of requests without a cancel.
        notice_hours: Mean time from request to cancel.
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
        return Events(
            number=self.number[which],
            account=self.account[which],
            moment=self.moment[which],
            choice=self.choice[which],
            price=self.price[which],
        )

    @classmethod
    def none(cls) -> Events:
        """Return no events."""
        empty = np.empty(0, dtype=np.int64)
        return cls(empty, empty, empty, empty, empty)

    @classmethod
    def concat(cls, parts: list[Events]) -> Events:
        """Return the events of all parts, one part after the other."""
        if not parts:
            return cls.none()
        return cls(
            number=np.concatenate([part.number for part in parts]),
            account=np.concatenate([part.account for part in parts]),
            moment=np.concatenate([part.moment for part in parts]),
            choice=np.concatenate([part.choice for part in parts]),
            price=np.concatenate([part.price for part in parts]),
        )


Happened = Mapping[str, Events]
"""Raw table → events. It has all four raw tables."""


def steps(population: Population) -> Iterator[Happened]:
    """Yield the events of each quarter of an hour, for `population.hours` hours; ascending by moment in each table."""
    people = _People(population)
    for step in range(population.hours * STEPS_PER_HOUR):
        yield people.live(step)


def hours(population: Population) -> Iterator[Happened]:
    """Yield the events of each hour; ascending by moment in each table."""
    quarters = steps(population)
    for _ in range(population.hours):
        parts = [next(quarters) for _ in range(STEPS_PER_HOUR)]
        yield concat_tables(parts)


def concat_tables(parts: list[Happened]) -> Happened:
    """Return the events of several periods, table by table. A part may lack tables."""
    found = {}
    for raw in RAW:
        events = [part[raw.table] for part in parts if raw.table in part]
        found[raw.table] = Events.concat(events)
    return found


@dataclass(frozen=True)
class _Actors:
    """The accounts that act in a step, by kind of event."""

    signing_up: Ints
    changing_plan: Ints
    requesting: Ints
    leaving: Ints


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
        self._counts = {raw.table: 0 for raw in RAW}

    def live(self, step: int) -> Happened:
        """Play a step and return its events."""
        rng = np.random.default_rng((self._habits.seed, HABITS, step))
        start = self._habits.start_hour * HOUR_MICROSECONDS + step * STEP_MICROSECONDS
        actors = self._draw_actors(rng, step, start + STEP_MICROSECONDS)
        signups = self._sign_up(rng, actors.signing_up, start)
        plan_changes = self._change_plan(rng, actors.changing_plan, start, signups)
        requests = self._request(rng, actors.requesting, start)
        cancels = self._leave(rng, actors.leaving, start)
        return {
            SIGNUPS.table: signups,
            PLAN_CHANGES.table: plan_changes,
            CANCEL_REQUESTS.table: requests,
            CANCELS.table: cancels,
        }

    def _draw_actors(self, rng: Random, step: int, end: int) -> _Actors:
        """Draw who acts. end: the end of the step; who leaves before it does nothing else."""
        habits = self._habits
        first_signup = habits.opening * STEPS_PER_HOUR if step == 0 else habits.signup
        stray = habits.of_strangers
        of_members = (habits.signup_of_member, habits.plan_change, habits.request, habits.involuntary_cancel)
        of_strangers = (first_signup, stray, stray, stray)
        of_former_members = (habits.return_after_cancel, stray, stray, stray)
        is_staying = self._cancel_at >= end
        drawn = (
            _draw(rng, self._is_member & is_staying, of_members),
            _draw(rng, ~self._is_member & ~self._was_member, of_strangers),
            _draw(rng, ~self._is_member & self._was_member, of_former_members),
        )
        by_kind = [np.concatenate(groups) for groups in zip(*drawn, strict=True)]
        return _Actors(*by_kind)

    def _sign_up(self, rng: Random, account: Ints, start: int) -> Events:
        moment = _moments(rng, start, len(account))
        plan = rng.integers(0, len(PLANS), len(account))
        is_new = ~self._is_member[account]
        new_member = account[is_new]
        self._plan[new_member] = plan[is_new]
        self._price[new_member] = plan[is_new]
        self._is_member[account] = True
        self._was_member[account] = True
        return self._events(SIGNUPS.table, account, moment, choice=plan, price=plan)

    def _change_plan(self, rng: Random, account: Ints, start: int, signups: Events) -> Events:
        is_at_once = rng.random(len(signups)) < self._habits.at_once
        at_once = signups.take(is_at_once)
        moment = np.concatenate([_moments(rng, start, len(account)), at_once.moment])
        account = np.concatenate([account, at_once.account])
        steps_up = rng.integers(1, len(PLANS), len(account))
        plan = (self._plan[account] + steps_up) % len(PLANS)
        keeps_price = rng.random(len(account)) < self._habits.same_price
        price = np.where(keeps_price, self._price[account], plan)
        is_member = self._is_member[account]
        member = account[is_member]
        self._plan[member] = plan[is_member]
        self._price[member] = price[is_member]
        return self._events(PLAN_CHANGES.table, account, moment, choice=plan, price=price)

    def _request(self, rng: Random, account: Ints, start: int) -> Events:
        count = len(account)
        moment = _moments(rng, start, count)
        reason = rng.integers(0, len(REASONS), count)
        notice = rng.exponential(self._habits.notice_hours * HOUR_MICROSECONDS, count)
        notice[rng.random(count) < self._habits.at_once] = 0
        is_final = rng.random(count) >= self._habits.withdrawn
        leaves = self._is_member[account] & is_final
        cancel_at = moment + _whole_milliseconds(notice)
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
        end = first + len(account)
        self._counts[table] = end
        in_order = np.argsort(moment, kind="stable")
        return Events(
            number=np.arange(first, end),
            account=account[in_order],
            moment=moment[in_order],
            choice=choice[in_order],
            price=price[in_order],
        )


def _moments(rng: Random, start: int, count: int) -> Ints:
    """Return random moments of the step that starts at `start`, in whole milliseconds."""
    milliseconds = rng.integers(0, STEP_MICROSECONDS // MILLISECOND_MICROSECONDS, count)
    return start + MILLISECOND_MICROSECONDS * milliseconds


def _whole_milliseconds(microseconds: Floats) -> Ints:
    return microseconds.astype(np.int64) // MILLISECOND_MICROSECONDS * MILLISECOND_MICROSECONDS


def _draw(rng: Random, group: Bools, hourly_rates: tuple[float, ...]) -> list[Ints]:
    """Draw the accounts of a group that act in a step, for each rate. An account acts at most once.

    Args:
        rng: The step's random stream.
        group: A flag for each account.
        hourly_rates: The rate of each kind of event.
    """
    accounts = np.flatnonzero(group)
    bounds = np.cumsum(hourly_rates) / STEPS_PER_HOUR
    kind = np.searchsorted(bounds, rng.random(len(accounts)), side="right")
    return [accounts[kind == number] for number in range(len(hourly_rates))]
