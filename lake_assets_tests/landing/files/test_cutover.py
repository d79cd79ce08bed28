"""Cuts against an oracle that looks at each file as a whole; and the same cuts, however messages come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate, takewhile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lake_assets.errors import ConfigurationError, SourceError
from lake_assets.landing.cutover import Cutter, Policy, Span, cut
from lake_assets.landing.records import Record

OLD = st.just(False)  # the rule of the versions before: any two timestamps close a file
POLICIES = st.builds(Policy, st.integers(1, 5), st.integers(1, 300), st.integers(1, 50), by_heartbeats=OLD)
IDLE_POLICIES = st.builds(
    Policy,
    st.integers(1, 9),
    st.integers(100, 900),
    st.integers(1, 50),
    max_idle_ms=st.integers(1, 120),
    by_heartbeats=OLD,
)
BEATING_POLICIES = st.builds(
    Policy, st.integers(1, 9), st.integers(100, 900), st.integers(1, 50), max_idle_ms=st.none() | st.integers(1, 120)
)


@st.composite
def streams(draw: st.DrawFn) -> list[Record]:
    """Up to 25 messages of a partition; offsets have gaps, times go back."""
    gaps = draw(st.lists(st.integers(1, 3), max_size=25))
    return [
        Record(0, offset, draw(st.integers(0, 120)), None, draw(st.binary(max_size=60))) for offset in accumulate(gaps)
    ]


def slow_cut(messages: list[Record], policy: Policy) -> list[Span]:
    """Of every beginning of what is left, the shortest that has reached a limit is a file."""
    for end in range(1, len(messages) + 1):
        file, size = messages[:end], sum(len(m.canonical) for m in messages[:end])
        age = abs(file[-1].timestamp - file[0].timestamp)
        if len(file) >= policy.max_messages or size >= policy.max_bytes or age >= policy.max_age_ms:
            return [Span(file[0].offset, file[-1].offset, end, size), *slow_cut(messages[end:], policy)]
    return []


@given(streams(), POLICIES)
def test_cuts_are_where_a_limit_is_reached(messages: list[Record], policy: Policy) -> None:
    assert cut(messages, policy) == slow_cut(messages, policy)


def slow_idle_cut(messages: list[tuple[Record, bool]], policy: Policy) -> list[tuple[int, int]]:
    """The same with heartbeats: age counts from the first message that is none, or else from the first one."""
    for end in range(1, len(messages) + 1):
        file = [message for message, _ in messages[:end]]
        others = [message for message, is_heartbeat in messages[:end] if not is_heartbeat]
        age = abs(file[-1].timestamp - (others or file)[0].timestamp)
        max_age = policy.max_age_ms if others else policy.max_idle_ms or 0
        is_full = len(file) >= policy.max_messages or sum(len(m.canonical) for m in file) >= policy.max_bytes
        if is_full or age >= max_age:
            return [(file[0].offset, file[-1].offset), *slow_idle_cut(messages[end:], policy)]
    return []


@settings(deadline=None)
@given(streams(), IDLE_POLICIES, st.lists(st.booleans(), min_size=25, max_size=25))
def test_heartbeats_alone_keep_a_file_open_for_longer(
    messages: list[Record], policy: Policy, beats: list[bool]
) -> None:
    marked = list(zip(messages, beats, strict=False))
    cutter = Cutter(policy)
    found = []
    for message, is_heartbeat in marked:
        span = cutter.add(message, is_heartbeat=is_heartbeat)
        if span is not None:
            found.append((span.first, span.last))
    assert found == slow_idle_cut(marked, policy)


def slow_beating_cut(messages: list[tuple[Record, bool]], policy: Policy) -> list[tuple[int, int]]:
    """Age by heartbeats: only one of them closes a file, and what is no heartbeat only says when the file began."""
    for end in range(1, len(messages) + 1):
        file = messages[:end]
        beats = [message.timestamp for message, beat in file if beat]
        others = [message.timestamp for message, beat in file if not beat]
        is_full = len(file) >= policy.max_messages or sum(len(m.canonical) for m, _ in file) >= policy.max_bytes
        is_old = False
        if file[-1][1]:
            is_idle = policy.max_idle_ms is not None and not others
            before = [message.timestamp for message, _ in takewhile(lambda marked: marked[1], file)]
            if file[0][1]:  # heartbeats, then perhaps others: age begins with the last heartbeat before these
                began = before[-1] if others and policy.max_idle_ms is not None else before[0]
            else:
                is_near = 0 <= beats[0] - others[0] <= policy.max_age_ms // 2
                began = others[0] if is_near else beats[0]
            is_old = abs(beats[-1] - began) >= (
                policy.max_idle_ms if is_idle and policy.max_idle_ms else policy.max_age_ms
            )
        if is_full or is_old:
            return [(file[0][0].offset, file[-1][0].offset), *slow_beating_cut(messages[end:], policy)]
    return []


@settings(deadline=None)
@given(streams(), BEATING_POLICIES, st.lists(st.booleans(), min_size=25, max_size=25))
def test_files_close_by_the_clock_of_heartbeats(messages: list[Record], policy: Policy, beats: list[bool]) -> None:
    marked = list(zip(messages, beats, strict=False))
    cutter = Cutter(policy)
    spans = [cutter.add(message, is_heartbeat=is_heartbeat) for message, is_heartbeat in marked]
    assert [(span.first, span.last) for span in spans if span] == slow_beating_cut(marked, policy)


NOON = 1_767_225_900_000
CLOCKS: dict[str, Callable[[int, int], int]] = {
    "seconds": lambda i, at: at // 1000 if i % 2 else at,
    "seconds of one in a hundred": lambda i, at: at // 1000 if i % 100 == 0 else at,
    "microseconds": lambda i, at: at * 1000 if i % 2 else at,
    "no time": lambda i, at: -1 if i % 3 else at,
    "the far future": lambda i, at: 4_070_908_800_000 if i % 2 else at,
    "a year of history, shuffled": lambda i, at: at - (i * 7919) % 365 * 86_400_000,
    "two clocks, 61 s apart": lambda i, at: at + 61_000 * (i % 2),
}


@pytest.mark.parametrize("clock", CLOCKS)
def test_whatever_clocks_producers_have_an_hour_has_few_files(clock: str) -> None:
    """Two messages a second for an hour, a heartbeat every five seconds, files of a minute: not more than twice 60."""
    cutter = Cutter(Policy(max_messages=10_000, max_bytes=4 << 20, max_age_ms=60_000, max_idle_ms=6 * 3_600_000))
    files = []
    for i in range(7_200):
        at = NOON + 500 * i
        is_heartbeat = i % 10 == 9
        message = Record(0, i, at if is_heartbeat else CLOCKS[clock](i, at), None, b"x" * 200)
        files += [span] if (span := cutter.add(message, is_heartbeat=is_heartbeat)) else []
    assert 50 <= len(files) <= 120
    assert max(span.count for span in files) <= 140  # of 65 s, and what came before the first heartbeat


@given(streams(), POLICIES, st.lists(st.integers(1, 7), min_size=1))
def test_however_messages_are_fed_the_cuts_are_the_same(
    messages: list[Record], policy: Policy, chunks: list[int]
) -> None:
    """By chunks, with a restart after each: what was open is read again, from behind the last closed file."""
    found: list[Span] = []
    seen = 0
    while seen < len(messages):
        seen += chunks[seen % len(chunks)]
        unread = [m for m in messages[:seen] if not found or m.offset > found[-1].last]
        found += cut(unread, policy)
    assert found == cut(messages, policy)


@given(streams(), POLICIES, POLICIES, st.integers(1, 40))
def test_a_file_follows_the_policy_of_its_first_offset(
    messages: list[Record], one: Policy, other: Policy, effective: int
) -> None:
    found = cut(messages, [replace(other, from_offset=effective), one])
    before = [span for span in cut(messages, one) if span.first < effective]
    last = before[-1].last if before else -1
    assert found[: len(before)] == before
    rest = [m for m in messages if m.offset > last]
    assert found[len(before) :] == (cut(rest, other) if rest and rest[0].offset >= effective else [])


@pytest.mark.parametrize("limit", ["max_messages", "max_bytes"])
def test_the_message_that_reaches_a_limit_exactly_is_the_last_of_its_file(limit: str) -> None:
    messages = [Record(0, offset, 10 * offset, None, b"value") for offset in range(3)]
    reached = {"max_messages": 2, "max_bytes": 2 * messages[0].size}[limit]
    far = Policy(max_messages=1_000, max_bytes=1_000_000, max_age_ms=1_000)
    found = cut(messages, replace(far, **{limit: reached}))  # type: ignore[arg-type]
    assert [(span.first, span.last) for span in found] == [(0, 1)]
    assert cut(messages[:2], replace(far, **{limit: reached + 1})) == []  # type: ignore[arg-type]


def test_a_heartbeat_closes_the_last_file_of_an_idle_partition() -> None:
    cutter = Cutter(Policy(max_messages=100, max_bytes=10_000, max_age_ms=60_000))
    message, *beats = (Record(0, 7 + n, at, None, b"value") for n, at in enumerate((1_000, 31_000, 60_999, 61_000)))
    assert cutter.add(message) is None
    found = [cutter.add(beat, is_heartbeat=True) for beat in beats]
    assert found == [None, None, Span(7, 10, 4, 4 * message.size)]


def test_what_cannot_be_cut_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="max_bytes of a cutover policy is 0"):
        Policy(1, 0, 1)
    with pytest.raises(ConfigurationError, match="max_idle_ms of a cutover policy is 0"):
        Policy(1, 1, 1, max_idle_ms=0)
    with pytest.raises(ConfigurationError, match="effective at offset 3"):
        cut([Record(0, 3, 0, None, None)], [Policy(1, 1, 1, from_offset=4)])
    cutter = Cutter(Policy(9, 900, 900))
    cutter.add(Record(0, 3, 0, None, None))
    with pytest.raises(SourceError, match="Offset 3 follows offset 3"):
        cutter.add(Record(0, 3, 0, None, None))
