"""What happens to the made-up people makes sense, told by replaying their events one by one."""

from __future__ import annotations

from itertools import chain

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lake_assets.base.hours import HOUR_MICROSECONDS
from lake_assets.demo.membership_simulator.population import Events, Population, hours
from lake_assets.membership.raw import CANCEL_REQUESTS, CANCELS, PLAN_CHANGES, RAW, SIGNUPS

POPULATIONS = st.builds(
    Population,
    accounts=st.integers(0, 300),
    seed=st.integers(0, 2**40),
    hours=st.integers(0, 12),
    notice_hours=st.floats(0, 9),
)
BUSY = Population(accounts=3000, hours=48)
AT_THE_SAME_TIME = {SIGNUPS.table: 0, CANCEL_REQUESTS.table: 1, PLAN_CHANGES.table: 2, CANCELS.table: 3}


def _life(population: Population) -> dict[str, Events]:
    history = list(hours(population))
    return {raw.table: Events.concat([happened[raw.table] for happened in history]) for raw in RAW}


@settings(max_examples=50, deadline=None)
@given(POPULATIONS)
def test_an_hour_holds_its_own_events_and_no_id_comes_twice(population: Population) -> None:
    numbers: dict[str, list[int]] = {raw.table: [] for raw in RAW}
    for hour, happened in enumerate(hours(population), population.start_hour):
        for table, events in happened.items():
            assert set(events.moment // HOUR_MICROSECONDS) <= {hour}
            assert set(events.account) <= set(range(population.accounts))
            numbers[table] += events.number.tolist()
    assert all(sorted(found) == list(range(len(found))) for found in numbers.values())


def test_a_longer_history_begins_with_the_shorter_one() -> None:
    for short, long in zip(hours(Population(hours=3)), hours(Population(hours=9)), strict=False):
        assert all(np.array_equal(short[table].moment, long[table].moment) for table in short)


def test_members_move_up_and_down_and_sideways_and_leave_asked_and_unasked() -> None:
    seen: set[str] = set()
    price: dict[int, int | None] = {}
    asked: set[int] = set()
    for _, _, table, account, paid in sorted(chain.from_iterable(map(_told, *zip(*_life(BUSY).items(), strict=True)))):
        present = price.get(account)
        if table == SIGNUPS.table:
            seen.add("return" if account in price and present is None else "signup")
            price[account] = paid if present is None else present
        elif table == CANCEL_REQUESTS.table:
            asked.add(account)
        elif present is None:
            seen.add(f"stranger in {table}")
        elif table == PLAN_CHANGES.table:
            seen.add("same" if paid == present else "up" if paid > present else "down")
            price[account] = paid
        else:
            seen.add("voluntary" if account in asked else "involuntary")
            price[account] = None
            asked.discard(account)
    assert seen == {
        *("signup", "return", "same", "up", "down", "voluntary", "involuntary"),
        *(f"stranger in {table}" for table in (PLAN_CHANGES.table, CANCELS.table)),
    }


def _told(table: str, events: Events) -> list[tuple[int, int, str, int, int]]:
    """Events in the order they apply in: by time, then kind."""
    rows = zip(events.moment.tolist(), events.account.tolist(), events.price.tolist(), strict=True)
    return [(moment, AT_THE_SAME_TIME[table], table, account, price) for moment, account, price in rows]
