"""What shards of several specifications have in common, and what they lack, against each place by itself."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lake_assets.landing.records import Shard, complete

PLACES = range(24)
OF = st.sampled_from([1, 2, 3, 4, 6, 8])
SHARDS = OF.flatmap(lambda of: st.builds(Shard, st.just("t"), st.integers(0, of - 1), st.just(of)))


def places(shard: Shard) -> set[int]:
    return {place for place in PLACES if place % shard.of == shard.number}


@given(SHARDS, SHARDS)
def test_shards_meet_where_a_record_may_be_in_both(one: Shard, other: Shard) -> None:
    assert one.overlaps(other) == bool(places(one) & places(other))


@given(st.lists(SHARDS, max_size=8))
def test_shards_are_complete_when_every_record_is_in_one(found: list[Shard]) -> None:
    assert complete(found) == (set().union(*map(places, found)) == set(PLACES))


def test_a_shard_that_was_split_alone_and_the_others_are_complete() -> None:
    found = [Shard("t", 0, 4), Shard("t", 2, 4), Shard("t", 1, 2)]
    assert complete(found)
    assert not complete(found[1:])
    assert not complete([])
