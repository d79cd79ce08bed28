"""The range of the next batch, over made-up topics: nothing is passed over or taken twice, and it is bounded."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lake_assets.engagement.checkpoint import OffsetRange, TopicState, check_readable, next_range, share
from lake_assets.errors import MessagesLost

TOPIC = TopicState("mail", "t1", earliest={0: 0, 1: 5}, end={0: 10, 1: 25})
READ = OffsetRange("mail", "t1", start={0: 0, 1: 5}, end={0: 4, 1: 9})


def test_the_first_batch_begins_at_what_is_there() -> None:
    assert next_range(TOPIC, None, max_records=100) == OffsetRange("mail", "t1", {0: 0, 1: 5}, {0: 10, 1: 25})


def test_the_next_begins_where_the_last_ended() -> None:
    found = next_range(TOPIC, READ, max_records=100)
    assert (found.start, found.end, found.count) == (READ.end, TOPIC.end, 22)


def test_nothing_new_is_an_empty_range() -> None:
    assert next_range(TOPIC, replace(READ, end=TOPIC.end), max_records=100).count == 0


def test_a_new_partition_begins_at_its_earliest_offset() -> None:
    grown = replace(TOPIC, earliest={**TOPIC.earliest, 2: 3}, end={**TOPIC.end, 2: 7})
    found = next_range(grown, READ, max_records=100)
    assert (found.start[2], found.end[2]) == (3, 7)


@given(st.dictionaries(st.integers(0, 5), st.integers(0, 50)), st.integers(1, 120))
def test_partitions_share_what_a_batch_may_take(lags: dict[int, int], most: int) -> None:
    taken = share(lags, most)
    assert sum(taken.values()) == min(most, sum(lags.values()))
    assert all(0 <= taken[p] <= lags[p] for p in lags)


@given(st.lists(st.integers(1, 9), max_size=6), st.integers(1, 7))
def test_batches_follow_each_other_without_a_gap(ends: list[int], most: int) -> None:
    last, read = None, []
    state = TopicState("mail", "t1", {0: 0, 1: 0}, {0: 0, 1: 0})
    for grown in ends:
        state = replace(state, end={0: state.end[0] + grown, 1: state.end[1] + 1})
        last = next_range(state, last, max_records=most)
        read += [(p, at) for p in last.end for at in range(last.start[p], last.end[p])]
    while last is not None and (last := next_range(state, last, max_records=most)).count:
        read += [(p, at) for p in last.end for at in range(last.start[p], last.end[p])]
    assert sorted(read) == [(p, at) for p in (0, 1) for at in range(state.end[p])]


@given(st.dictionaries(st.sampled_from((0, 1, 2)), st.integers(0, 30)), st.booleans(), st.integers(1, 40))
def test_a_batch_reads_what_lies_between_the_last_one_and_given_ends(
    ends: dict[int, int], is_first: bool, most: int
) -> None:
    """Ends may lie before the last batch, beyond the topic, in unknown partitions, or be missing."""
    last = None if is_first else READ
    begin = TOPIC.earliest if is_first else READ.end
    expected = {(p, at) for p in (0, 1) for at in range(begin[p], TOPIC.end[p]) if at < ends.get(p, 0)}
    found = next_range(TOPIC, last, max_records=most, until=ends)
    read = [(p, at) for p in found.end for at in range(found.start[p], found.end[p])]
    assert (found.start, len(read)) == (begin, min(most, len(expected)))
    assert set(read) <= expected
    assert found.count == len(read)


@pytest.mark.parametrize(
    "state",
    [
        replace(TOPIC, earliest={0: 5, 1: 5}),
        replace(TOPIC, end={0: 10, 1: 8}),
        replace(TOPIC, earliest={0: 0}, end={0: 10}),
    ],
    ids=["truncated", "shorter", "partition gone"],
)
def test_what_is_missing_is_told(state: TopicState) -> None:
    with pytest.raises(MessagesLost, match="The next offset of partition"):
        next_range(state, READ, max_records=100)


def test_a_topic_that_was_made_again_is_told() -> None:
    with pytest.raises(MessagesLost, match="t2"):
        next_range(replace(TOPIC, topic_id="t2"), READ, max_records=100)


def test_a_range_is_read_again_only_in_full() -> None:
    check_readable(replace(TOPIC, earliest={0: 4, 1: 5}), replace(READ, start={0: 4, 1: 5}))
    with pytest.raises(MessagesLost):
        check_readable(replace(TOPIC, earliest={0: 1, 1: 5}), READ)
    nothing_of_one = replace(READ, end={0: 0, 1: 9})
    check_readable(replace(TOPIC, earliest={0: 1, 1: 5}), nothing_of_one)
