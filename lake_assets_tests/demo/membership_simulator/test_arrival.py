"""Whatever the arrival model, nothing is lost, nothing comes before it happened, and what is declared complete is."""

from __future__ import annotations

from collections import Counter
from datetime import datetime

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lake_assets.base.hours import hour_of
from lake_assets.demo.membership_simulator.arrival import generate
from lake_assets.demo.membership_simulator.batches import Landing
from lake_assets.demo.membership_simulator.figures import measure
from lake_assets.demo.membership_simulator.model import TABLES, Arrival, Outage, Simulation, Stalls, late_day
from lake_assets.demo.membership_simulator.population import Population, hours
from lake_assets.errors import ConfigurationError
from lake_assets.membership.raw import RAW

SHARES = st.floats(0, 0.5)
OUTAGES = st.builds(
    Outage, st.integers(0, 12), st.integers(0, 6), st.lists(st.sampled_from(TABLES), unique=True).map(tuple)
)
ARRIVALS = st.builds(
    Arrival,
    interval_minutes=st.sampled_from([15, 60, 240]),
    grace_minutes=st.integers(0, 90),
    tail=SHARES,
    longest_hours=st.floats(0, 9),
    twice=SHARES,
    again=SHARES,
    outages=st.lists(OUTAGES, max_size=3).map(tuple),
    stalls=st.none() | st.builds(Stalls, every=st.integers(1, 8), share=SHARES),
)
POPULATIONS = st.builds(
    Population,
    accounts=st.integers(0, 200),
    seed=st.integers(0, 2**40),
    hours=st.integers(1, 12),
    signup=st.floats(0, 1),
)
SIMULATIONS = st.builds(Simulation, POPULATIONS, ARRIVALS)
SOME = settings(max_examples=40, deadline=None)


def _rows(landing: Landing) -> list[tuple[str, str, datetime]]:
    """(table, id, time) of each row."""
    return [
        (raw.table, key, moment)
        for raw in RAW
        for key, moment in zip(
            landing.rows[raw.table].column(0).to_pylist(),
            landing.rows[raw.table][raw.time_column].to_pylist(),
            strict=True,
        )
    ]


def _bytes(landings: list[Landing]) -> list[tuple[Landing, list[bytes]]]:
    """Landings with their rows as bytes, for a comparison that forgives nothing."""
    return [(landing, [_serialized(landing.rows[table]) for table in TABLES]) for landing in landings]


def _serialized(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue())


@SOME
@given(SIMULATIONS)
def test_every_event_is_delivered_and_nothing_else(simulation: Simulation) -> None:
    happened = {raw.table: sum(len(hour[raw.table]) for hour in hours(simulation.population)) for raw in RAW}
    delivered = Counter(table for table, _ in {row[:2] for landing in generate(simulation) for row in _rows(landing)})
    assert {table: delivered[table] for table in TABLES} == happened


@SOME
@given(SIMULATIONS)
def test_no_row_lands_before_it_happened_and_batches_follow_each_other(simulation: Simulation) -> None:
    landings = list(generate(simulation))
    assert [x.landed_at for x in landings] == sorted({x.landed_at for x in landings})
    assert len({x.batch_id for x in landings}) == len(landings)
    assert all(moment < landing.landed_at for landing in landings for _, _, moment in _rows(landing))


@SOME
@given(SIMULATIONS)
def test_after_an_hour_is_declared_complete_only_late_rows_of_it_land(simulation: Simulation) -> None:
    last_hour = simulation.population.start_hour + simulation.population.hours - 1
    declared: dict[str, int | None] = dict.fromkeys(TABLES)
    for landing in generate(simulation):
        late = Counter(table for table, _, moment in _rows(landing) if hour_of(moment) <= (declared[table] or 0))
        assert {table: late[table] for table in TABLES} == landing.late
        for table, through in landing.complete_through.items():
            assert (through or 0) >= (declared[table] or 0)
        declared = dict(landing.complete_through)
    assert declared == dict.fromkeys(TABLES, last_hour)


@SOME
@given(SIMULATIONS)
def test_without_tail_stalls_and_second_deliveries_nothing_is_late(simulation: Simulation) -> None:
    on_time = Arrival(
        interval_minutes=simulation.arrival.interval_minutes,
        grace_minutes=simulation.arrival.grace_minutes,
        outages=simulation.arrival.outages,
        tail=0,
        again=0,
    )
    assert not any(sum(x.late.values()) for x in generate(Simulation(simulation.population, on_time)))


@SOME
@given(SIMULATIONS)
def test_the_same_simulation_gives_the_same_bytes_beside_any_other(simulation: Simulation) -> None:
    alone, beside = list(generate(simulation)), []
    other = generate(late_day(50, seed=9))
    for landing in generate(simulation):
        next(other, None)
        beside.append(landing)
    assert _bytes(alone) == _bytes(beside)


def test_in_an_outage_nothing_lands_and_nothing_is_declared_then_all_comes() -> None:
    out = Arrival(outages=(Outage(3, 4, ("raw.cancels",)),), interval_minutes=15)
    before, after = 0, 0
    during: set[int | None] = set()
    for landing in generate(Simulation(Population(accounts=2000, hours=10), out)):
        hour = hour_of(landing.landed_at) - Population().start_hour
        rows = landing.rows["raw.cancels"].num_rows
        if 3 <= hour < 7:
            assert rows == 0
            during.add(landing.complete_through["raw.cancels"])
        elif hour < 3:
            before += rows
        else:
            after = after or rows
    assert len(during) == 1
    assert after > before


def test_bad_rows_come_beside_the_good_ones() -> None:
    clean = Simulation(Population(accounts=2000, hours=6))
    dirty = Simulation(clean.population, Arrival(bad=0.02))
    for good, spoilt in zip(generate(clean), generate(dirty), strict=True):
        for table in TABLES:
            assert spoilt.rows[table].slice(0, good.rows[table].num_rows).equals(good.rows[table])
    assert measure(generate(dirty)) == measure(generate(clean))
    assert sum(x.row_count for x in generate(dirty)) > sum(x.row_count for x in generate(clean))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_late_day_is_what_it_says(seed: int) -> None:
    figures = measure(generate(late_day(5000, seed=seed)))
    assert (figures.landings, figures.landings_with_late_rows) == (98, 12)
    assert figures.depth_median_hours == pytest.approx(2, abs=0.3)
    assert figures.reach_median_hours == pytest.approx(2, abs=0.4)
    assert 5 < figures.depth_max_hours <= 6


def test_an_interval_that_no_hour_is_made_of_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="7 minutes apart"):
        Arrival(interval_minutes=7)
