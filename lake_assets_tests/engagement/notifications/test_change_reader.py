"""How far a reader may go: to the first batch that was not told of, whatever else is committed in between."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lake_assets.engagement.delta_log import mark, parse_mark
from lake_assets.engagement.notifications import notified_through

WRITERS = ("mail.ingestion.data", "mail.mutation.data")
OTHER_MARKS = st.sampled_from([None, "", "by hand", "note:x", "mail.ingestion.notification:1"])


@st.composite
def logs(draw: st.DrawFn) -> dict[int, str | None]:
    """Version → mark: batches of two writers, each numbered from 1, and commits of nobody's batch."""
    found: dict[int, str | None] = {}
    count = dict.fromkeys(WRITERS, 0)
    for version in range(1, draw(st.integers(0, 12)) + 1):
        writer = draw(st.sampled_from([*WRITERS, None]))
        if writer is None:
            found[version] = draw(OTHER_MARKS)
        else:
            count[writer] += 1
            found[version] = mark(writer, count[writer])
    return found


@given(logs(), st.fixed_dictionaries({writer: st.integers(0, 5) for writer in WRITERS}), st.integers(0, 12))
def test_all_is_read_in_order_up_to_the_first_batch_that_was_not_told_of(
    log: dict[int, str | None], told: dict[str, int], cursor: int
) -> None:
    def is_told(version: int) -> bool:
        app_id, batch_id = parse_mark(log[version])
        return app_id not in WRITERS or batch_id <= told[app_id]

    since = {version: found for version, found in log.items() if version > cursor}
    reach = [last for last in since if all(is_told(version) for version in since if version <= last)]
    last, versions = notified_through(cursor, since, told)
    assert last == max(reach, default=cursor)
    assert versions == [version for version in reach if parse_mark(log[version])[0] in WRITERS]


@given(st.text(), st.integers(0))
def test_a_mark_tells_its_id_and_batch(app_id: str, batch_id: int) -> None:
    assert parse_mark(mark(app_id, batch_id)) == (app_id, batch_id)
