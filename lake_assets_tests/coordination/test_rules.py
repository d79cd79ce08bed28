"""Whose turn it is: rules against a slow oracle, and against what they are for: nobody starves, nothing stops."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lake_assets.coordination.rules import (
    ANY,
    Granted,
    Refused,
    Stream,
    Turn,
    check_claim,
    check_turn_order,
    decide,
    stream,
)
from lake_assets.errors import ClaimRefused, ConfigurationError

ENGAGEMENT = (stream("ingestion", ANY), stream("mutation", "ingestion"), stream("retention", "mutation"))
NAMES = "abcd"

accepts = st.one_of(st.just(frozenset({ANY})), st.frozensets(st.sampled_from(NAMES), min_size=1))
streams = st.builds(Stream, st.sampled_from(NAMES), accepts, st.booleans())
turns = st.builds(Turn, st.sampled_from(NAMES), st.sampled_from(["running", "done"]), st.just(1), st.just(None))
waiting = st.dictionaries(st.sampled_from(NAMES), accepts)
rings = st.dictionaries(st.sampled_from(NAMES), st.tuples(accepts, st.booleans()), min_size=1).map(
    lambda found: [Stream(name, *rest) for name, rest in found.items()]
)


def oracle(asking: Stream, last: Turn | None, waiting: Mapping[str, frozenset[str]]) -> bool:
    """The rules as sentences, each on its own."""
    if last is None:
        return asking.first or asking.accepts == {ANY}
    own = last.name == asking.name
    if last.state == "running":
        return own
    accepted = asking.accepts == {ANY} or last.name in asking.accepts
    needed = [name for name in waiting if name != asking.name and last.name in waiting[name]]
    return accepted and not (asking.accepts == {ANY} and needed)


@given(streams, st.none() | turns, waiting)
def test_a_verdict_is_what_the_rules_say(
    asking: Stream, last: Turn | None, waiting: Mapping[str, frozenset[str]]
) -> None:
    assert isinstance(decide(asking, last, waiting), Granted) == oracle(asking, last, waiting)


@given(rings)
def test_a_ring_that_was_let_through_never_stops(ring: list[Stream]) -> None:
    try:
        check_turn_order(ring)
    except ConfigurationError:
        assume(False)
    for last in [None, *(Turn(s.name, "done", 1) for s in ring)]:
        refused = {s.name: s.accepts for s in ring if isinstance(decide(s, last, {}), Refused)}
        assert [s for s in ring if isinstance(decide(s, last, refused), Granted)], last


@given(rings)
def test_a_ring_is_refused_only_if_somebody_is_never_reached_or_never_followed(ring: list[Stream]) -> None:
    """Playing all courses of turns from the start tells the same as the check."""
    seen: set[str | None] = {None}
    while (
        more := {
            s.name
            for s in ring
            for name in seen
            if isinstance(decide(s, Turn(name, "done", 1) if name else None, {}), Granted)
        }
        - seen
    ):
        seen |= more
    names = {s.name for s in ring}
    known = all(s.accepts <= {ANY, *names} for s in ring)
    followed = all(any(s.follows(name) for s in ring) for name in names)
    if known and names <= seen and followed:
        check_turn_order(ring)
    else:
        with pytest.raises(ConfigurationError):
            check_turn_order(ring)


@given(st.lists(st.permutations(ENGAGEMENT), min_size=12, max_size=12))
def test_in_whatever_order_they_ask_nobody_starves_and_the_order_is_kept(rounds: list[list[Stream]]) -> None:
    last, waiting, ran = None, {}, []
    for asking in (s for asked in rounds for s in asked):
        if isinstance(decide(asking, last, waiting), Granted):
            waiting.pop(asking.name, None)
            last = Turn(asking.name, "done", 1)
            ran.append(asking.name)
        else:
            waiting[asking.name] = asking.accepts
    assert min(ran.count(s.name) for s in ENGAGEMENT) >= 3
    assert {(a, b) for a, b in pairwise(ran) if b != "ingestion"} <= {
        ("ingestion", "mutation"),
        ("mutation", "retention"),
    }


def test_an_interrupted_turn_is_gone_on_with_by_its_own_stream_alone() -> None:
    interrupted = Turn("mutation", "running", 7, "ingestion")
    verdicts = [decide(s, interrupted, {}) for s in ENGAGEMENT]
    assert verdicts[1] == Granted("ingestion", redo=True)
    assert verdicts[0] == verdicts[2] == Refused("the last turn, of mutation, is not done")


def test_a_stream_that_accepts_any_yields_to_the_one_that_waits_for_the_last() -> None:
    last = Turn("ingestion", "done", 1)
    assert decide(ENGAGEMENT[0], last, {"retention": frozenset({"mutation"})}) == Granted("ingestion")
    refused = decide(ENGAGEMENT[0], last, {"mutation": frozenset({"ingestion"})})
    assert refused == Refused("mutation waits for just what ingestion has done")


@pytest.mark.parametrize(
    ("ring", "named"),
    [
        ([stream("a", "b"), stream("b", "a")], "a waits for b; b waits for a"),
        ([stream("a", ANY), stream("b", "c")], r"b waits for c, and no stream is called that(.|\n)*a, b"),
        ([stream("a", ANY), stream("b", "c"), stream("c", "b")], "b waits for c; c waits for b"),
        ([stream("a", "b", first=True), stream("b", "a"), stream("c", "a")], "After c nobody could run"),
    ],
)
def test_a_ring_that_would_not_go_round_is_refused_naming_both(ring: list[Stream], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        check_turn_order(ring)


def test_the_engagement_ring_goes_round() -> None:
    check_turn_order(ENGAGEMENT)


@pytest.mark.parametrize("name", ["", "a/b", "../a", ANY, "ä"])
def test_a_name_that_is_no_part_of_a_path_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="is no name"):
        stream(name, ANY)


def test_a_stream_without_predecessor_must_be_first() -> None:
    stream("a", [], first=True)
    with pytest.raises(ConfigurationError, match="a accepts no predecessor"):
        stream("a", [])


def test_a_token_is_refused_where_a_greater_one_is() -> None:
    check_claim("table", None, 5)
    check_claim("table", 5, 5)
    with pytest.raises(ClaimRefused, match="table was claimed with token 6"):
        check_claim("table", 6, 5)
