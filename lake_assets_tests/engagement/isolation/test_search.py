"""The search for messages that make a batch fail: each message is processed or rejected, once, and only the bad are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lake_assets.engagement.checkpoint import Batch, Checkpoint, OffsetRange
from lake_assets.engagement.isolation import ATTEMPTS, after_failure, explain, next_part, replacement

MOST = 64
Place = tuple[int, int]


def whole(start: dict[int, int], end: dict[int, int]) -> OffsetRange:
    """What is left of a topic, at most `MOST` offsets of each partition."""
    return OffsetRange("mail", "t1", start, {p: min(end[p], start[p] + MOST) for p in end})


def places(messages: OffsetRange) -> list[Place]:
    return [(p, offset) for p, end in messages.end.items() for offset in range(messages.start[p], end)]


def play(end: dict[int, int], poison: set[Place]) -> tuple[list[Place], list[Place], int]:
    """All batches of a topic until nothing is left: messages that were processed, those rejected, failed attempts."""
    processed: list[Place] = []
    rejected: list[Place] = []
    failures = 0
    last: Checkpoint | None = None
    while True:
        start = dict(last.batch.messages.end) if last else dict.fromkeys(end, 0)
        messages, trouble = next_part(whole(start, end), last)
        if not messages.count:
            return processed, rejected, failures
        number = last.batch.batch_id + 1 if last else 1
        opened = Checkpoint(Batch(number, messages, {}), ("data",), trouble=trouble)
        while opened.batch.rejected is None and poison.intersection(places(opened.batch.messages)):
            failures += 1
            opened = after_failure(opened, "data", "ValueError")
            if opened.withdrawing:
                opened = replacement(opened, {})
        (processed if opened.batch.rejected is None else rejected).extend(places(opened.batch.messages))
        last = opened.with_done("data", 1)


@given(
    st.dictionaries(st.integers(0, 2), st.integers(0, 150), min_size=1),
    st.sets(st.tuples(st.integers(0, 2), st.integers(0, 149)), max_size=6),
)
def test_exactly_the_bad_messages_are_rejected_in_few_attempts(end: dict[int, int], poison: set[Place]) -> None:
    there = {(p, offset) for p in end for offset in range(end[p])}
    bad = poison & there
    processed, rejected, failures = play(end, poison)
    assert sorted(rejected) == sorted(bad)
    assert sorted(processed) == sorted(there - bad)
    halvings = (3 * MOST).bit_length() + 1
    assert failures <= len(bad) * (ATTEMPTS + halvings)


def test_a_batch_that_fails_without_its_message_is_tried_whole_again_and_cut_no_more() -> None:
    opened = Checkpoint(Batch(1, OffsetRange("mail", "t1", {0: 5}, {0: 6}), {}), ("data",))
    for _ in range(ATTEMPTS):
        assert opened.batch.rejected is None
        opened = after_failure(opened, "data", "ValueError")
    opened = replacement(opened, {"data": 4})
    assert (opened.batch.batch_id, opened.batch.rejected, opened.batch.reads) == (2, "ValueError", {"data": 4})
    opened = replacement(after_failure(opened, "data", "KeyError"), {})
    assert (opened.batch.batch_id, opened.batch.rejected) == (3, None)
    opened = after_failure(opened, "data", "KeyError")
    assert not opened.withdrawing
    found = explain("mail.ingestion", opened)
    assert found is not None
    assert found.problem == (
        "Batch 3 of mail.ingestion (1 offsets) is not done; failed attempts: 5, the last one in commit data: KeyError"
    )
    assert found.remedy.startswith("No message of the batch is the cause")


@pytest.mark.parametrize(("done", "count"), [({"data": 3}, 4), ({}, 0)])
def test_a_batch_without_messages_or_after_its_data_commit_is_never_cut(done: dict[str, int], count: int) -> None:
    opened = Checkpoint(Batch(1, OffsetRange("mail", "t1", {0: 0}, {0: count}), {}), ("data", "notification"), done)
    for _ in range(ATTEMPTS + 1):
        opened = after_failure(opened, "notification", "ValueError")
    assert not opened.withdrawing
