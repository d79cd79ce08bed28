"""A zone is as late as the oldest look at Kafka that it has not caught up with."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from lake_assets.landing.kafka import Mark, lag

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
STEPS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=20)


@given(STEPS)
def test_the_age_is_never_more_than_how_long_a_message_waits_and_less_by_one_catching_up_at_most(
    steps: list[tuple[int, int]],
) -> None:
    end = landed = 0
    history: list[tuple[datetime, int]] = []
    mark: Mark | None = None
    for minute, (sent, taken) in enumerate(steps):
        now = NOON + timedelta(minutes=minute)
        end, landed = end + sent, min(end + sent, landed + taken)
        history.append((now, end))
        found = lag({0: end}, {0: landed}, mark, now=now)
        mark = found.mark
        waiting = [now - at for at, seen in history if seen > landed]
        assert found.messages == end - landed
        assert found.age <= max(waiting, default=timedelta(0))
        if not waiting:
            assert found.age == timedelta(0)


def test_what_does_not_come_grows_old() -> None:
    mark = lag({0: 5, 1: 2}, {0: 5}, None, now=NOON).mark
    later = lag({0: 9, 1: 2}, {0: 9}, mark, now=NOON + timedelta(minutes=5))
    assert (later.messages, later.age) == (2, timedelta(minutes=5))
    assert lag({0: 9, 1: 2}, {0: 9, 1: 2}, later.mark, now=NOON + timedelta(minutes=6)).age == timedelta(0)
