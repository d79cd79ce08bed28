"""Where late rows belong, against replay of the requests that were executed since they engaged."""

from __future__ import annotations

from datetime import datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from lake_assets.engagement.aliases import Alias, aliases
from lake_assets.engagement.identity import MutationRequest, in_order
from lake_assets_tests.engagement.oracle import replay
from lake_assets_tests.engagement.test_identity import IDS, START, chain, histories

MINUTES = 3


def follow(found: list[Alias], identity: str, engaged_at: datetime) -> str | None:
    """The id that a late row ends under."""
    holding = [
        alias
        for alias in found
        if alias.old_id == identity and engaged_at <= alias.until and (alias.after is None or engaged_at > alias.after)
    ]
    assert len(holding) <= 1
    return holding[0].new_id if holding else identity


@settings(max_examples=2000, deadline=None)
@given(histories(MINUTES), st.sampled_from(IDS), st.integers(-1, MINUTES + 1))
def test_a_late_row_is_where_replay_since_it_engaged_leaves_it(
    requests: list[MutationRequest], identity: str, minute: int
) -> None:
    engaged_at = START + timedelta(minutes=minute)
    since = [request for request in in_order(requests) if request.executed_at >= engaged_at]
    assert follow(aliases(requests), identity, engaged_at) == replay(since, {"row": identity}).get("row")


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
