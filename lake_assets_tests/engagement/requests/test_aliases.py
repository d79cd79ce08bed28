"""Where rows belong by the time since which they are there, against a replay that knows time."""

from __future__ import annotations

import operator
from datetime import datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from lake_assets.engagement.requests import Alias, MutationRequest, aliases, changed_aliases, in_order
from lake_assets_tests.engagement.oracle import replay
from lake_assets_tests.engagement.requests.test_identity import HOURS, IDS, START, chain, histories

MINUTES = 3


def holding(found: list[Alias], identity: str, engaged_at: datetime, sent_at: datetime | None = None) -> list[Alias]:
    """The alias that a row has; at most one."""
    there = min(engaged_at, sent_at or engaged_at)
    of_id = [alias for alias in found if alias.old_id == identity]
    of_day = [alias for alias in of_id if alias.day == engaged_at.date()]
    of_row = [
        alias
        for alias in of_day or [each for each in of_id if each.day is None]
        if there <= alias.until and (alias.after is None or there > alias.after)
    ]
    assert len(of_row) <= 1
    return of_row


def follow(found: list[Alias], identity: str, engaged_at: datetime, sent_at: datetime | None = None) -> str | None:
    """The id that a row ends under."""
    of_row = holding(found, identity, engaged_at, sent_at)
    return of_row[0].new_id if of_row else identity


def since(
    requests: list[MutationRequest], identity: str, engaged_at: datetime, sent_at: datetime | None = None
) -> str | None:
    """The id of a row after replay of the requests that were executed since it engaged or was sent."""
    there = min(engaged_at, sent_at or engaged_at)
    acting = [request for request in in_order(requests) if request.executed_at >= there]
    return replay(acting, {"row": identity}, {"row": engaged_at}, {"row": there}).get("row")


def moments() -> st.SearchStrategy[datetime]:
    """Times at which rows engage, of which some are the last or the first of a day."""
    whole = st.integers(-1, MINUTES + 1).map(lambda number: START + number * HOURS)
    return st.builds(operator.add, whole, st.sampled_from([timedelta(microseconds=n) for n in (-1, 0, 1)]))


@settings(max_examples=300, deadline=None)
@given(histories(MINUTES, HOURS), st.sampled_from(IDS), moments(), st.none() | moments())
def test_a_request_that_names_a_day_acts_on_rows_of_that_day_that_are_there(
    requests: list[MutationRequest], identity: str, engaged_at: datetime, sent_at: datetime | None
) -> None:
    """Rows may be sent before they happen."""
    assert follow(aliases(requests), identity, engaged_at, sent_at) == since(requests, identity, engaged_at, sent_at)


@settings(max_examples=300, deadline=None)
@given(histories(MINUTES), st.sampled_from(IDS), st.integers(-1, MINUTES + 1))
def test_a_row_is_where_replay_since_it_engaged_leaves_it(
    requests: list[MutationRequest], identity: str, minute: int
) -> None:
    engaged_at = START + timedelta(minutes=minute)
    assert follow(aliases(requests), identity, engaged_at) == since(requests, identity, engaged_at)


def test_an_id_that_is_used_again_has_an_alias_for_each_time() -> None:
    first, second = START, START + timedelta(minutes=2)
    assert aliases(chain("a>b b>c ax")) == [
        Alias("a", "c", None, first),
        Alias("a", None, first, second),
        Alias("b", "c", None, START + timedelta(minutes=1)),
    ]


def test_a_late_row_that_comes_back_to_its_id_does_not_go_where_the_batch_moves_former_rows() -> None:
    first, *batch = chain("a>b a>c b>a")
    late, by_batch = changed_aliases([first], batch, {"a"}), aliases(batch)
    assert (follow(late, "a", START), follow(by_batch, "a", START)) == ("a", "c")


def test_rows_that_keep_their_id_need_none() -> None:
    assert aliases(chain("a>b b>a")) == [Alias("b", "a", None, START + timedelta(minutes=1))]
    assert aliases(chain("a>a")) == []
    assert changed_aliases(chain("a>b b>a"), [], {"b"}) == aliases(chain("a>b b>a"))
    assert changed_aliases(chain("a>b b>a"), [], ()) == []
