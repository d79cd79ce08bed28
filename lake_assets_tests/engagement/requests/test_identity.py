"""Where rows end that engaged before all requests, against replay; and the cases that are easy to get wrong."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lake_assets.engagement.requests import OPS, MutationRequest, Op, aliases
from lake_assets.errors import UsageError
from lake_assets_tests.engagement.oracle import replay

START = datetime(2026, 1, 1, tzinfo=UTC)
IDS = "abcd"
MINUTE, HOURS, DAY = timedelta(minutes=1), timedelta(hours=12), timedelta(days=1)


def collapse(requests: list[MutationRequest]) -> dict[str, str | None]:
    """Id → where its rows go that engaged before all requests."""
    return {alias.old_id: alias.new_id for alias in aliases(requests) if (alias.after, alias.day) == (None, None)}


def apply(final: dict[str, str | None], rows: dict[str, str]) -> dict[str, str]:
    """Row → its id after one update by the map."""
    found = {row: final.get(identity, identity) for row, identity in rows.items()}
    return {row: identity for row, identity in found.items() if identity is not None}


def request(number: int, op: Op, old: str, new: str | None = None, *, at: int | None = None) -> MutationRequest:
    """Request `r<number>`, executed at a minute: by default in the order of the numbers. The offset is the number."""
    minute = number if at is None else at
    return MutationRequest(f"r{number}", op, old, new, START + timedelta(minutes=minute), 0, number)


def chain(text: str) -> list[MutationRequest]:
    """`1>2 2>3 3x`: in this order, a conversion of 1 to 2, of 2 to 3, a deletion of 3."""
    steps = enumerate(text.split())
    return [
        request(n, "delete", step[:-1]) if step.endswith("x") else request(n, "convert", *step.split(">"))
        for n, step in steps
    ]


@st.composite
def histories(draw: st.DrawFn, minutes: int = 3, step: timedelta = MINUTE) -> list[MutationRequest]:
    """Up to ten requests over four ids, many at the same instant, some with a request id that was there before.

    step: what `minutes` counts. Steps of hours cross midnight, and then some requests name a day.
    """
    count = draw(st.integers(0, 10))
    days = st.none() if step == MINUTE else st.none() | st.sampled_from([START.date(), (START + DAY).date()])
    ids, ops, names = st.sampled_from(IDS), st.sampled_from(OPS), st.integers(0, 2 * count)
    return [
        MutationRequest(
            request_id=f"r{draw(names)}",
            op=draw(ops),
            old_id=draw(ids),
            new_id=draw(ids),
            executed_at=START + step * draw(st.integers(0, minutes)),
            partition=draw(st.integers(0, 1)),
            offset=offset,
            engagement_date=draw(days),
        )
        for offset in range(count)
    ]


ROWS = {f"row of {identity}": identity for identity in IDS}


@settings(max_examples=300, deadline=None)
@given(histories())
def test_the_map_applied_once_leaves_what_replay_leaves(requests: list[MutationRequest]) -> None:
    assert apply(collapse(requests), ROWS) == replay(requests, ROWS)


@settings(max_examples=150, deadline=None)
@given(histories(), st.randoms(use_true_random=False))
def test_neither_the_order_given_nor_a_repetition_matters(
    requests: list[MutationRequest], chance: random.Random
) -> None:
    repeated = requests + requests[: len(requests) // 2]
    chance.shuffle(repeated)
    assert collapse(repeated) == collapse(requests)


@settings(max_examples=150, deadline=None)
@given(histories())
def test_it_names_only_ids_that_change_in_order(requests: list[MutationRequest]) -> None:
    final = collapse(requests)
    assert all(identity != state for identity, state in final.items())
    assert set(final) <= {r.old_id for r in requests}
    assert list(final) == sorted(final)


@settings(max_examples=150, deadline=None)
@given(histories(), st.integers(0, 3))
def test_two_batches_one_after_the_other_are_one(requests: list[MutationRequest], cut: int) -> None:
    once = list({r.request_id: r for r in requests}.values())
    before = [r for r in once if r.executed_at < START + timedelta(minutes=cut)]
    after = [r for r in once if r not in before]
    assert apply(collapse(after), apply(collapse(before), ROWS)) == apply(collapse(once), ROWS)


@pytest.mark.parametrize(
    ("steps", "final"),
    [
        ("1>2 2>3 3>4", {"1": "4", "2": "4", "3": "4"}),
        ("2>3 1>2", {"1": "2", "2": "3"}),
        ("1>2 2>1", {"2": "1"}),
        ("1>t 2>1 t>2", {"1": "2", "2": "1", "t": "2"}),
        ("1>2 2x", {"1": None, "2": None}),
        ("2x 1>2", {"1": "2", "2": None}),
        ("1x 2>1", {"1": None, "2": "1"}),
        ("1>1", {}),
        ("1>2 1>3", {"1": "2"}),
        ("", {}),
    ],
    ids=[
        "chain",
        "against time",
        "cycle",
        "swap",
        "deleted after",
        "deleted before",
        "used again",
        "itself",
        "",
        "none",
    ],
)
def test_cases_that_are_easy_to_get_wrong(steps: str, final: dict[str, str | None]) -> None:
    assert collapse(chain(steps)) == final


def test_of_equal_instants_the_place_in_kafka_decides() -> None:
    first, second = request(1, "convert", "a", "b", at=0), request(2, "convert", "b", "c", at=0)
    assert collapse([second, first]) == {"a": "c", "b": "c"}


def test_a_deletion_has_no_use_for_a_new_id() -> None:
    assert collapse([request(1, "delete", "a", "b"), request(2, "convert", "b", "c")]) == {"a": None, "b": "c"}


def test_requests_that_cannot_be_replayed_are_refused() -> None:
    with pytest.raises(UsageError, match="r1, a merge, has no new_id"):
        request(1, "merge", "a")
    with pytest.raises(UsageError, match="asks for 'rename'"):
        request(1, "rename", "a", "b")  # type: ignore[arg-type]
