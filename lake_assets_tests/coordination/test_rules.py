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
from lake_assets.errors import ConfigurationError, CoordinationError

ENGAGEMENT = (stream("ingestion", ANY), stream("mutation", "ingestion"), stream("retention", "mutation"))
NAMES = "abcd"

accepts = st.one_of(st.just(frozenset({ANY})), st.frozensets(st.sampled_from(NAMES), min_size=1))
streams = st.builds(Stream, st.sampled_from(NAMES), accepts, st.booleans())
turns = st.builds(Turn, st.sampled_from(NAMES), st.sampled_from(["running", "done"]), st.just(1), st.just(None))
waiting = st.dictionaries(st.sampled_from(NAMES), accepts)
turn_orders = st.dictionaries(st.sampled_from(NAMES), st.tuples(accepts, st.booleans()), min_size=1).map(
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


@given(turn_orders)
def test_streams_that_pass_the_check_never_stop(streams: list[Stream]) -> None:
    try:
        check_turn_order(streams)
    except ConfigurationError:
        assume(False)
    for last in [None, *(Turn(s.name, "done", 1) for s in streams)]:
        refused = {s.name: s.accepts for s in streams if isinstance(decide(s, last, {}), Refused)}
        assert [s for s in streams if isinstance(decide(s, last, refused), Granted)], last


@given(turn_orders)
def test_a_turn_order_is_refused_only_if_a_stream_is_never_reached_or_never_followed(streams: list[Stream]) -> None:
    """Playing all courses of turns from the start tells the same as the check."""
    seen: set[str | None] = {None}
    while (
        more := {
            s.name
            for s in streams
            for name in seen
            if isinstance(decide(s, Turn(name, "done", 1) if name else None, {}), Granted)
        }
        - seen
    ):
        seen |= more
    names = {s.name for s in streams}
    known = all(s.accepts <= {ANY, *names} for s in streams)
    followed = all(any(s.follows(name) for s in streams) for name in names)
    if known and names <= seen and followed:
        check_turn_order(streams)
    else:
        with pytest.raises(ConfigurationError):
            check_turn_order(streams)


@given(st.lists(st.permutations(ENGAGEMENT), min_size=12, max_size=12))
def test_in_whatever_order_they_ask_nobody_starves_and_the_order_is_kept(rounds: list[list[Stream]]) -> None:
    last: Turn | None = None
    waiting: dict[str, frozenset[str]] = {}
    ran: list[str] = []
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
    assert refused == Refused("mutation is waiting to run after ingestion")


@pytest.mark.parametrize(
    ("streams", "named"),
    [
        ([stream("a", "b"), stream("b", "a")], "a waits for b; b waits for a"),
        ([stream("a", ANY), stream("b", "c")], r"b waits for c, but no stream has that name(.|\n)*a, b"),
        ([stream("a", ANY), stream("b", "c"), stream("c", "b")], "b waits for c; c waits for b"),
        ([stream("a", "b", first=True), stream("b", "a"), stream("c", "a")], "No stream accepts c as predecessor"),
    ],
)
def test_a_turn_order_that_stops_is_refused_naming_both_streams(streams: list[Stream], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        check_turn_order(streams)


def test_the_turn_order_of_engagement_lakes_never_stops() -> None:
    check_turn_order(ENGAGEMENT)


@pytest.mark.parametrize("name", ["", "a/b", "../a", ANY, "ä"])
def test_a_name_that_is_no_part_of_a_path_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a valid name"):
        stream(name, ANY)


def test_a_stream_without_predecessor_must_be_first() -> None:
    stream("a", [], first=True)
    with pytest.raises(ConfigurationError, match="a accepts no predecessor"):
        stream("a", [])


def test_a_token_is_refused_where_a_greater_one_is() -> None:
    check_claim("table", None, 5)
    check_claim("table", 5, 5)
    with pytest.raises(CoordinationError, match="table was claimed with token 6"):
        check_claim("table", 6, 5)


@pytest.mark.parametrize(("name", "accepts"), [("../other", "mutation"), ("mutation", "a/b"), ("", "mutation")])
def test_a_stream_has_a_name_that_can_be_part_of_a_path(name: str, accepts: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a valid name"):
        stream(name, accepts)
