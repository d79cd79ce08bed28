"""Where late rows belong, against replay of the requests that were executed since they engaged."""

from __future__ import annotations

from datetime import datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from lake_assets.engagement.requests.aliases import Alias, aliases
from lake_assets.engagement.requests.identity import MutationRequest, collapse, in_order
from lake_assets_tests.engagement.oracle import replay
from lake_assets_tests.engagement.requests.test_identity import IDS, START, chain, histories

MINUTES = 3


def follow(found: list[Alias], identity: str, engaged_at: datetime, *, otherwise: str | None) -> str | None:
    """The id that a late row ends under. otherwise: without an alias."""
    holding = [
        alias
        for alias in found
        if alias.old_id == identity
        and (alias.until is None or engaged_at <= alias.until)
        and (alias.after is None or engaged_at > alias.after)
    ]
    assert len(holding) <= 1
    return holding[0].new_id if holding else otherwise


@settings(max_examples=2000, deadline=None)
@given(histories(MINUTES), st.sampled_from(IDS), st.integers(-1, MINUTES + 1))
def test_a_late_row_is_where_replay_since_it_engaged_leaves_it(
    requests: list[MutationRequest], identity: str, minute: int
) -> None:
    engaged_at = START + timedelta(minutes=minute)
    since = [request for request in in_order(requests) if request.executed_at >= engaged_at]
    found = follow(aliases(requests), identity, engaged_at, otherwise=identity)
    assert found == replay(since, {"row": identity}).get("row")


@settings(max_examples=300, deadline=None)
@given(histories(MINUTES), st.sets(st.integers(0, 20)), st.sampled_from(IDS), st.integers(-1, MINUTES + 1))
def test_it_finds_the_requests_of_its_batch_in_their_places(
    requests: list[MutationRequest], now: set[int], identity: str, minute: int
) -> None:
    """What it has met no more waits for its time: the row engaged by then."""
    engaged_at, every = START + timedelta(minutes=minute), in_order(requests)
    batch = [request for request in every if request.offset in now]
    applied = [request for request in every if request not in batch]
    since = [request for request in every if request in batch or request.executed_at >= engaged_at]
    names_it = (n for n, request in enumerate(every) if request.old_id == identity and request in since)
    met_first = next(names_it, len(every))
    acting = [request for n, request in enumerate(every) if n >= met_first]
    final = collapse(batch)
    found = follow(aliases(applied, batch), identity, engaged_at, otherwise=final.get(identity, identity))
    assert found == replay(acting, {"row": identity}).get("row")


def test_an_id_that_is_used_again_has_an_alias_for_each_time() -> None:
    first, second = START, START + timedelta(minutes=2)
    assert aliases(chain("a>b b>c ax")) == [
        Alias("a", "c", None, first),
        Alias("a", None, first, second),
        Alias("b", "c", None, START + timedelta(minutes=1)),
    ]


def test_rows_that_keep_their_id_need_none() -> None:
    assert aliases(chain("a>b b>a")) == [Alias("b", "a", None, START + timedelta(minutes=1))]
    assert aliases(chain("a>a")) == []
