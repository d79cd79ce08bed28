"""Lateness counted batch by batch, against all rows sorted in a list."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lake_assets.base.hours import hour_of, hour_start
from lake_assets.incremental.declaration import RawTable
from lake_assets.incremental.engine import arrivals
from lake_assets.incremental.engine.arrivals import EXACT_SECONDS, Arrivals, Lateness

START = 490_896
RAW = RawTable("raw.some", {"event_ts": "timestamptz"}, time_column="event_ts")
Times = tuple[datetime | None, datetime | None]

moments = st.one_of(
    st.none(),
    st.integers(-2 * 3600, 40 * 3600).map(lambda s: hour_start(START) + timedelta(seconds=s)),
    st.timedeltas(timedelta(hours=-3), timedelta(days=400)).map(lambda d: hour_start(START) + d),
)
rows = st.lists(st.tuples(moments, moments), max_size=60)


def batch(times: list[Times]) -> pa.RecordBatch:
    zoned = pa.timestamp("us", "UTC")
    event, landed = ([pair[i] for pair in times] for i in (0, 1))
    return pa.record_batch({"event_ts": pa.array(event, zoned), "landed_at": pa.array(landed, zoned)})


def counted(batches: list[list[Times]]) -> Arrivals:
    return arrivals.counted(map(batch, batches), RAW, START)


def placed(times: list[Times]) -> list[tuple[datetime, datetime]]:
    known = [(event, landed) for event, landed in times if event and landed]
    return [(e, at) for e, at in known if e >= hour_start(START) and e <= at + timedelta(hours=1)]


def assert_about(found: Lateness | None, pairs: list[tuple[datetime, datetime]]) -> None:
    """Equal to what sorting gives; the percentiles to within 1/128, never above."""
    assert found is not None
    exact = sorted((landed - event) // timedelta(seconds=1) for event, landed in pairs)
    assert (found.rows, found.max_seconds) == (len(exact), exact[-1])
    for got, percent in ((found.p50_seconds, 50), (found.p95_seconds, 95)):
        rank = next(k for k in range(1, len(exact) + 1) if 100 * k >= percent * len(exact))
        true = exact[rank - 1]
        assert got == true if true < EXACT_SECONDS else true * 127 / 128 < got <= true


@settings(deadline=None)
@given(st.lists(rows, max_size=4))
def test_counting_in_batches_is_what_sorting_all_rows_gives(batches: list[list[Times]]) -> None:
    times = [pair for some in batches for pair in some]
    pairs = placed(times)
    found = counted(batches)
    assert (found.rows, found.unplaced) == (len(times), len(times) - len(pairs))
    cells = Counter((hour_of(landed), hour_of(event)) for event, landed in pairs)
    assert [((c.landed_hour, c.event_hour), c.rows) for c in found.cells] == sorted(cells.items())
    assert [h.landed_hour for h in found.by_landed_hour] == sorted({hour_of(landed) for _, landed in pairs})
    for hour in found.by_landed_hour:
        assert_about(hour.lateness, [pair for pair in pairs if hour_of(pair[1]) == hour.landed_hour])
    if pairs:
        assert_about(found.overall, pairs)
    else:
        assert found.overall is None


def test_summing_up_now_and_then_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    start = hour_start(START)
    pairs: list[Times] = [(start + timedelta(minutes=i), start + timedelta(minutes=2 * i)) for i in range(500)]
    batches = [pairs[i : i + 50] for i in range(0, 500, 50)]
    at_the_end = counted(batches)
    monkeypatch.setattr(arrivals, "FOLD_ROWS", 10)
    assert counted(batches) == at_the_end


def test_times_of_less_than_microseconds_and_of_another_zone_are_the_same_moments() -> None:
    event, landed = datetime(2026, 1, 1, 0, 10, tzinfo=UTC), datetime(2026, 1, 1, 2, 10, tzinfo=UTC)
    columns = {
        "event_ts": pa.array([event], pa.timestamp("ms", "Asia/Tokyo")),
        "landed_at": pa.array([landed], pa.timestamp("s", "UTC")),
    }
    found = arrivals.counted([pa.record_batch(columns)], RAW, START)
    assert found == counted([[(event, landed)]])
    assert found.overall == Lateness(1, 7200, 7200, 7200)
