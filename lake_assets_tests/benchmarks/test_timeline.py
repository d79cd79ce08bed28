"""Windows that meet are counted, pair by pair, against a slow look at every moment."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.timeline import Window, conflicts, drawn, overlaps
from lake_assets.engagement.model.lake import STREAMS


@st.composite
def some_windows(draw: st.DrawFn) -> list[Window]:
    """Whole seconds; an end may be another's beginning."""
    spans = draw(st.lists(st.tuples(st.sampled_from(STREAMS), st.integers(0, 12), st.integers(1, 5)), max_size=8))
    return [Window(stream, began, began + length) for stream, began, length in spans]


def moments(window: Window) -> set[int]:
    """The seconds that it lasts."""
    return set(range(int(window.began), int(window.ended)))


@given(some_windows())
def test_windows_of_two_streams_meet_when_they_share_a_moment(windows: list[Window]) -> None:
    pairs = [(a, b) for a, b in combinations(windows, 2) if a.stream != b.stream and moments(a) & moments(b)]
    expected = sorted((min(moments(a) & moments(b)), max(moments(a) & moments(b)) + 1) for a, b in pairs)
    assert sorted(overlaps(windows)) == expected


def test_the_picture_has_a_line_for_each_stream_and_a_cross_for_each_conflict() -> None:
    apart = [Window("ingestion", 0, 1, rows=5), Window("mutation", 1, 2, rows=3, predecessor="retention")]
    met = [Window("ingestion", 10, 13), Window("retention", 12, 14, "DELTA_CONCURRENT_APPEND")]
    figure = drawn({"with": apart, "without": met}).to_dict()
    titles = [note["text"] for note in figure["layout"]["annotations"]]
    assert titles == [
        "with: 2 windows, 0 overlaps, 1 out of order, 0 conflicting commits, 8 rows written",
        "without: 2 windows, 1 overlaps, 0 out of order, 1 conflicting commits, 0 rows written",
    ]
    assert [trace["base"] for trace in figure["data"] if trace.get("base")] == [[0], [1], [0], [2]]
    assert [list(trace["x"]) for trace in figure["data"] if trace["name"] == "conflict"] == [[], [4]]
    assert [(shape["x0"], shape["x1"]) for shape in figure["layout"]["shapes"]] == [(2, 3)]
    assert conflicts(met) == 1
