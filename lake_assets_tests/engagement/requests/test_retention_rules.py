"""Whom and what a request removes: all ids of a person, against a slow closure; and cut-offs of the request's time."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lake_assets.engagement.requests import MutationRequest, RetentionRequest, cut_off, erased_ids
from lake_assets.errors import UsageError
from lake_assets_tests.engagement.requests.test_identity import IDS, START, chain, histories


def gdpr(who_id: str, minute: int = 0) -> RetentionRequest:
    return RetentionRequest(f"erase {who_id}", "gdpr", None, who_id, START + timedelta(minutes=minute))


def ttl(days: int, *, at: datetime = START) -> RetentionRequest:
    return RetentionRequest(f"keep {days}", "ttl", days, None, at)


def closure(who_id: str, applied: list[MutationRequest]) -> set[str]:
    """All ids of a person: both ends of whatever touches one of them, until nothing is added."""
    pairs = [{r.old_id, r.target} for r in applied if r.target is not None]
    ids: set[str | None] = {who_id}
    while any(pair & ids and not pair <= ids for pair in pairs):
        ids = ids.union(*(pair for pair in pairs if pair & ids))
    return {identity for identity in ids if identity is not None}


@settings(max_examples=300, deadline=None)
@given(histories(), st.lists(st.tuples(st.sampled_from([*IDS, "stranger"]), st.integers(0, 3)), max_size=4))
def test_a_person_is_erased_under_all_ids_up_to_the_last_request(
    applied: list[MutationRequest], asked: list[tuple[str, int]]
) -> None:
    until: dict[str, datetime] = {}
    for who_id, minute in asked:
        at = START + timedelta(minutes=minute)
        for identity in closure(who_id, [each for each in applied if each.executed_at <= at]):
            until[identity] = max(until.get(identity, START), at)
    found = erased_ids([gdpr(who_id, minute) for who_id, minute in asked], applied)
    assert {identity: at for identity, (at, _) in found.items()} == until


@settings(max_examples=150, deadline=None)
@given(histories(), st.permutations([gdpr("a", 2), gdpr("b", 1), ttl(3)]))
def test_order_does_not_matter_and_ids_are_sorted(
    applied: list[MutationRequest], requests: list[RetentionRequest]
) -> None:
    found = erased_ids(requests, applied)
    assert found == erased_ids(requests[::-1], applied[::-1])
    assert list(found) == sorted(found)


def test_ids_are_followed_both_ways_and_a_deletion_connects_nobody() -> None:
    assert set(erased_ids([gdpr("b", 3)], chain("a>b b>c c>d"))) == {"a", "b", "c", "d"}
    assert set(erased_ids([gdpr("a", 3)], chain("ax b>c"))) == {"a"}
    assert set(erased_ids([gdpr("b", 1)], chain("a>b b>c c>d"))) == {"a", "b", "c"}


def test_of_several_policies_the_one_that_keeps_least_counts_from_its_own_time() -> None:
    later = START + timedelta(days=10)
    assert cut_off([ttl(30), ttl(35, at=later), gdpr("a")]) == START - timedelta(days=25)
    assert cut_off([ttl(30, at=later)]) == START - timedelta(days=20)
    assert cut_off([gdpr("a")]) is None
    assert cut_off([replace(gdpr("a"), ttl_days=30)]) is None


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (("ttl", 0, None), "r1 keeps 0 days"),
        (("ttl", 36_501, None), "r1 keeps 36501 days"),
        (("ttl", None, None), "r1 keeps None days"),
        (("gdpr", None, None), "r1, a gdpr, has no who_id"),
        (("forget", 1, "a"), "asks for 'forget'"),
    ],
)
def test_requests_that_say_too_little_are_refused(values: tuple[str, int | None, str | None], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        RetentionRequest("r1", *values, START)  # type: ignore[arg-type]


def test_ids_that_requests_connect_are_told_by_the_least_of_them() -> None:
    found = erased_ids([gdpr("c", 3), gdpr("d", 3)], chain("b>a c>b dx"))
    assert {identity: least for identity, (_, least) in found.items()} == {"a": "a", "b": "a", "c": "a", "d": "d"}
