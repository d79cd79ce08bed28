"""How far a topic is loaded: written and read again it is the same, and heartbeats alone make hours complete."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from lake_assets.base.hours import hour_of
from lake_assets.landing.loading import Progress, progress_properties, read_progress

SIX = datetime(2026, 1, 1, 6, 30, tzinfo=UTC)
PARTITIONS = st.integers(0, 5)
TIMES = st.integers(0, 1 << 40).map(lambda milliseconds: datetime.fromtimestamp(milliseconds / 1000, UTC))
PROGRESS = st.builds(
    Progress,
    st.just("t"),
    st.dictionaries(PARTITIONS, st.integers(0, 1 << 60)),
    st.dictionaries(PARTITIONS, TIMES),
    st.integers(0, 1 << 40),
)


@given(PROGRESS)
def test_what_is_written_is_read_again_and_other_topics_stay(progress: Progress) -> None:
    other = Progress("other", {0: 7}, {0: SIX}, 3)
    found = progress_properties(progress, progress_properties(other, {}))
    assert read_progress(found, "t") == progress
    assert read_progress(found, "other") == Progress("other", {0: 7}, {0: SIX}, progress.batch)


def test_the_stored_properties_have_a_fixed_form() -> None:
    assert progress_properties(
        Progress("t", {10: 5, 2: 7}, {2: SIX}, 3), {"lake.landing.offsets": '{"a":{"0":1}}'}
    ) == {
        "lake.landing.offsets": '{"a":{"0":1},"t":{"10":5,"2":7}}',
        "lake.landing.heartbeats": '{"t":{"2":"2026-01-01T06:30:00+00:00"}}',
        "lake.landing.batch": "3",
    }


def test_nothing_is_loaded_of_a_topic_that_no_property_names() -> None:
    assert read_progress({}, "t") == Progress("t")


@given(PROGRESS, st.dictionaries(PARTITIONS, TIMES))
def test_no_heartbeat_goes_back(progress: Progress, heartbeats: dict[int, datetime]) -> None:
    after = progress.after({0: 9}, heartbeats)
    assert after.batch == progress.batch + 1
    assert after.offsets == {**progress.offsets, 0: 9}
    for partition in {*progress.heartbeats, *heartbeats}:
        seen = [source[partition] for source in (progress.heartbeats, heartbeats) if partition in source]
        assert after.heartbeats[partition] == max(seen)


def test_complete_is_the_hour_before_the_least_heartbeat_of_all_partitions() -> None:
    progress = Progress("t", heartbeats={0: SIX, 1: SIX + timedelta(hours=3)})
    assert progress.complete_through([0, 1]) == hour_of(SIX) - 1
    assert progress.complete_through([1]) == hour_of(SIX) + 2
    assert progress.complete_through([0, 1, 2]) is None
    assert progress.complete_through([]) is None
