"""Values are kept as a list of all that were ever kept would say."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lake_assets.base.recent import Recent

KEPT = st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 5)), max_size=30)


def newest(kept: list[tuple[str, int]], most: int) -> dict[str, int]:
    """The newest value of each key, from the newest key on, while they weigh no more than `most`; at least one."""
    found: dict[str, int] = {}
    for key, weight in reversed(kept):
        if key in found:
            continue
        if found and sum(found.values()) + weight > most:
            break
        found[key] = weight
    return found


def keys(kept: list[tuple[str, int]]) -> dict[str, int]:
    recent: Recent[str, int] = Recent(most=8)
    for key, weight in kept:
        recent.keep(key, weight, weight=weight)
    return {key: value for key in "abcdef" if (value := recent.find(key)) is not None}


@given(KEPT)
def test_each_value_that_is_kept_is_the_newest_and_they_weigh_no_more_than_allowed(kept: list[tuple[str, int]]) -> None:
    found = keys(kept)
    assert found.items() <= dict(kept).items()
    assert sum(found.values()) <= 8 or len(found) == 1


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.just(3)), max_size=30))
def test_values_of_one_weight_go_in_the_order_in_which_they_were_kept(kept: list[tuple[str, int]]) -> None:
    assert keys(kept) == newest(kept, 8)


def test_a_heavy_value_stays_alone_and_nothing_stays_when_it_is_cleared() -> None:
    recent: Recent[str, int] = Recent(most=2)
    recent.keep("a", 1)
    recent.keep("b", 2, weight=9)
    assert (recent.find("a"), recent.find("b")) == (None, 2)
    recent.clear()
    recent.keep("c", 3, weight=2)
    assert (recent.find("b"), recent.find("c")) == (None, 3)
