"""Which ids requests connect, against a closure that is computed round by round."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from lake_assets.engagement.requests.related import Link, connected_ids

IDS = st.sampled_from("abcdefgh")


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(IDS, st.none() | IDS), max_size=10), st.sets(IDS))
def test_ids_are_connected_in_either_direction_and_through_others(links: list[Link], ids: set[str]) -> None:
    expected: set[str] = set()
    more = set(ids)
    while more != expected:
        expected = more
        joined = [{old, new} for old, new in links if new is not None and {old, new} & expected]
        more = expected.union(*joined)
    assert connected_ids(links, ids) == expected
