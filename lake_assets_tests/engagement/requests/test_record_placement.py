"""Where records end that requests carry, against replay."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from lake_assets.engagement.requests import MutationRequest, PlacedRecord, Record, place_records
from lake_assets_tests.engagement.oracle import replay
from lake_assets_tests.engagement.requests.test_identity import (
    DAY,
    HOURS,
    IDS,
    ROWS,
    START,
    apply,
    chain,
    collapse,
    histories,
)

DAYS = st.sampled_from([START.date(), (START + DAY).date()])
RECORDS = st.builds(Record, st.sampled_from([*ROWS, "new", "newer"]), st.sampled_from(IDS), DAYS)


@st.composite
def carrying(draw: st.DrawFn) -> list[MutationRequest]:
    """A history in which some requests carry records, of rows that are there and of new ones."""
    return [replace(request, record=draw(st.none() | RECORDS)) for request in draw(histories(3, HOURS))]


def put(requests: list[MutationRequest], rows: dict[str, str]) -> dict[str, str]:
    """Row → its id after the map, and then the records in their places."""
    found = apply(collapse(requests), rows)
    for record in place_records(requests):
        found.pop(record.engagement_id, None)
        if record.who_id is not None:
            found[record.engagement_id] = record.who_id
    return found


@settings(max_examples=300, deadline=None)
@given(carrying())
def test_the_map_and_the_records_together_leave_what_replay_leaves(requests: list[MutationRequest]) -> None:
    assert put(requests, ROWS) == replay(requests, ROWS)
    assert place_records(requests) == place_records(requests[::-1])


def test_a_record_goes_where_later_requests_lead_and_its_own_does_not_move_it() -> None:
    first, *rest = chain("a>b a>c cx")
    assert place_records([replace(first, record=Record("e1", "a"))]) == [PlacedRecord("e1", "r0", "a")]
    assert place_records([replace(first, record=Record("e1", "a")), *rest]) == [PlacedRecord("e1", "r0", None)]
    twice = [replace(request, record=Record("e1", "b")) for request in (first, *rest)]
    assert place_records(twice) == [PlacedRecord("e1", "r2", "b")]
