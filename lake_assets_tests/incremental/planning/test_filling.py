"""How much of an hour is in, estimated from earlier hours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lake_assets.incremental.engine.arrivals import Cell
from lake_assets.incremental.operations.filling import FULL, LEAST_HOURS, FillingHour, filling_hours

FIRST = 1_000
curves = st.lists(st.integers(0, 20), min_size=1, max_size=8).map(lambda later: [3, *later])
"""Rows of an hour by the age at which they land."""


def cells_of(curve: Sequence[int], sizes: Sequence[int]) -> list[Cell]:
    """The cells of hours that all fill by one curve, as seen at the newest hour. sizes: of each hour, a factor."""
    newest = FIRST + len(sizes) - 1
    found = []
    for hour, size in enumerate(sizes, start=FIRST):
        for age, rows in enumerate(curve):
            if rows and hour + age <= newest:
                found.append(Cell(hour + age, hour, rows * size))
    return found


@given(curves, st.lists(st.integers(1, 5), min_size=LEAST_HOURS + 10, max_size=40))
@settings(max_examples=100, deadline=None)
def test_hours_that_fill_alike_are_estimated_exactly(curve: list[int], sizes: list[int]) -> None:
    found = filling_hours(cells_of(curve, sizes))
    newest = FIRST + len(sizes) - 1
    expected = []
    for hour in range(newest, FIRST + LEAST_HOURS - 1, -1):
        so_far = curve[: newest - hour + 1]
        if Fraction(sum(so_far), sum(curve)) < FULL:
            expected.append((hour, sum(so_far) * sizes[hour - FIRST], sum(so_far) / sum(curve)))
    assert [(each.hour, each.rows) for each in found] == [(hour, rows) for hour, rows, _ in expected]
    assert [each.share for each in found] == pytest.approx([share for *_, share in expected])


triples = st.tuples(st.integers(0, 20), st.integers(-1, 6), st.integers(1, 50))


@given(st.lists(triples, max_size=60))
@settings(max_examples=200, deadline=None)
def test_the_estimate_is_the_chain_ladder(found: list[tuple[int, int, int]]) -> None:
    cells = [Cell(FIRST + hour + age, FIRST + hour, rows) for hour, age, rows in found]
    estimated = {each.hour: each for each in filling_hours(cells)}
    hours = sorted({cell.event_hour for cell in cells})
    for place, hour in enumerate(hours):
        share = slow_share(cells, hour)
        if place < LEAST_HOURS or share >= FULL:
            assert hour not in estimated
        else:
            assert estimated[hour].share == pytest.approx(float(share))
            assert estimated[hour].rows == sum(cell.rows for cell in cells if cell.event_hour == hour)
    assert estimated.keys() <= set(hours)


def slow_share(cells: list[Cell], hour: int) -> Fraction:
    newest = max(max(cell.landed_hour, cell.event_hour) for cell in cells)
    share = Fraction(1)
    for age in range(newest - hour + 1, newest - FIRST + 1):
        rows = [(c.landed_hour - c.event_hour, c.rows) for c in cells if newest - c.event_hour >= age]
        by_then = sum(number for at, number in rows if at <= age)
        before = sum(number for at, number in rows if at < age)
        if before:
            share *= Fraction(before, by_then)
    return share


@given(curves, st.integers(1, 1000))
@settings(max_examples=50, deadline=None)
def test_the_rows_of_an_hour_do_not_change_its_own_estimate(curve: list[int], factor: int) -> None:
    cells = cells_of(curve, [2] * (LEAST_HOURS + 12))
    newest = FIRST + LEAST_HOURS + 11
    for hour in range(newest - 5, newest + 1):
        other = [replace(cell, rows=cell.rows * (factor if cell.event_hour == hour else 1)) for cell in cells]
        shares = [{each.hour: each.share for each in filling_hours(found)} for found in (cells, other)]
        assert shares[0].get(hour) == shares[1].get(hour)


def test_a_share_is_shown_with_one_decimal_and_none_without_history() -> None:
    assert FillingHour(FIRST, 5, 0.99249).in_words == "99.2 %"
    assert filling_hours([]) == ()
    assert filling_hours(cells_of([5, 5], [1] * LEAST_HOURS)) == ()
    assert filling_hours(cells_of([5, 5], [1] * (LEAST_HOURS + 1))) == (FillingHour(FIRST + LEAST_HOURS, 5, 0.5),)
