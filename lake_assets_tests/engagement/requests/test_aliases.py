"""Where rows belong by the time at which they engaged, against a replay that knows time."""

from __future__ import annotations

from datetime import datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from lake_assets.engagement.requests.aliases import Alias, aliases, late_aliases
from lake_assets.engagement.requests.identity import MutationRequest, in_order
from lake_assets_tests.engagement.oracle import replay
from lake_assets_tests.engagement.requests.test_identity import IDS, START, chain, histories

MINUTES = 3


def holding(found: list[Alias], identity: str, engaged_at: datetime) -> list[Alias]:
    """The alias that a row has; at most one."""
    of_row = [
        alias
        for alias in found
        if alias.old_id == identity and engaged_at <= alias.until and (alias.after is None or engaged_at > alias.after)
    ]
    assert len(of_row) <= 1
    return of_row


def follow(found: list[Alias], identity: str, engaged_at: datetime) -> str | None:
    """The id that a row ends under."""
    of_row = holding(found, identity, engaged_at)
    return of_row[0].new_id if of_row else identity


def follow_late(found: list[Alias], by_batch: list[Alias], identity: str, engaged_at: datetime) -> str | None:
    """The same of a late row, which goes the way of former rows unless it has an alias of its own."""
    of_row = holding(found, identity, engaged_at)
    return of_row[0].new_id if of_row else follow(by_batch, identity, engaged_at)


def since(requests: list[MutationRequest], identity: str, engaged_at: datetime) -> str | None:
    """The id of a row after replay of the requests that were executed since it engaged."""
    acting = [request for request in in_order(requests) if request.executed_at >= engaged_at]
    return replay(acting, {"row": identity}).get("row")


@settings(max_examples=300, deadline=None)
@given(histories(MINUTES), st.sampled_from(IDS), st.integers(-1, MINUTES + 1))
def test_a_row_is_where_replay_since_it_engaged_leaves_it(
    requests: list[MutationRequest], identity: str, minute: int
) -> None:
    engaged_at = START + timedelta(minutes=minute)
    assert follow(aliases(requests), identity, engaged_at) == since(requests, identity, engaged_at)


@settings(max_examples=300, deadline=None)
@given(histories(MINUTES), st.sets(st.integers(0, 20)), st.sampled_from(IDS), st.integers(-1, MINUTES + 1))
def test_a_late_row_meets_the_requests_of_its_batch_in_their_places(
    requests: list[MutationRequest], now: set[int], identity: str, minute: int
) -> None:
    engaged_at, every = START + timedelta(minutes=minute), in_order(requests)
    batch = [request for request in every if request.offset in now]
    applied = [request for request in every if request not in batch]
    found = follow_late(late_aliases(applied, batch), aliases(batch), identity, engaged_at)
    assert found == since(every, identity, engaged_at)


@settings(max_examples=150, deadline=None)
@given(
    histories(MINUTES),
    st.lists(st.tuples(st.sampled_from(IDS), st.integers(-1, MINUTES + 1), st.integers(0, 3)), max_size=6),
    st.lists(st.integers(0, MINUTES), max_size=3),
)
def test_any_cut_into_batches_and_any_arrival_of_rows_leave_what_replay_leaves(
    requests: list[MutationRequest], rows: list[tuple[str, int, int]], cuts: list[int]
) -> None:
    """rows: id, minute at which it engaged, batch that it arrives in. cuts: minutes after which a batch ends."""
    every = in_order(requests)
    ends = [START + timedelta(minutes=minute) for minute in sorted(set(cuts))]
    batches = [[r for r in every if sum(r.executed_at > end for end in ends) == number] for number in range(4)]
    engaged = [START + timedelta(minutes=minute) for _, minute, _ in rows]
    places: list[str | None] = [None] * len(rows)
    applied: list[MutationRequest] = []
    for number, batch in enumerate(batches):
        by_batch, late = aliases(batch), late_aliases(applied, batch)
        for row, (identity, _, arrives) in enumerate(rows):
            place = places[row]
            if arrives == number:
                places[row] = follow_late(late, by_batch, identity, engaged[row])
            elif place is not None:
                places[row] = follow(by_batch, place, engaged[row])
        applied += batch
    assert places == [since(every, rows[row][0], at) for row, at in enumerate(engaged)]


def test_an_id_that_is_used_again_has_an_alias_for_each_time() -> None:
    first, second = START, START + timedelta(minutes=2)
    assert aliases(chain("a>b b>c ax")) == [
        Alias("a", "c", None, first),
        Alias("a", None, first, second),
        Alias("b", "c", None, START + timedelta(minutes=1)),
    ]


def test_a_late_row_that_comes_back_to_its_id_does_not_go_where_the_batch_moves_former_rows() -> None:
    first, *batch = chain("a>b a>c b>a")
    late, by_batch = late_aliases([first], batch), aliases(batch)
    assert (follow_late(late, by_batch, "a", START), follow(by_batch, "a", START)) == ("a", "c")


def test_rows_that_keep_their_id_need_none() -> None:
    assert aliases(chain("a>b b>a")) == [Alias("b", "a", None, START + timedelta(minutes=1))]
    assert aliases(chain("a>a")) == []
    assert late_aliases(chain("a>b b>a"), []) == aliases(chain("a>b b>a"))
