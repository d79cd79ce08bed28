"""Histories of versions of keys: the hours of a plan suffice for every key to stand where its last version says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hypothesis import given
from hypothesis import strategies as st

from lake_assets.base.hours import ranges
from lake_assets.incremental.declaration import Mode, Stateful, Stateless
from lake_assets.incremental.engine.model import Committed, PlanningInput, SessionPlan
from lake_assets.incremental.engine.planning import committed_after, plan
from lake_assets.incremental.engine.source_changes import EarlierVersions, SourceChanges, Watermark
from lake_assets_tests.incremental.planning.plan.random_inputs import (
    PROCESS,
    SPAN,
    START,
    hours,
    mark,
    snapshot,
    source_changes,
    thorough,
)

Version = tuple[str, int, int | None, bool]
"""Key, order, hour and whether it deletes. A key has each order once in what is compared."""

versions = st.tuples(st.sampled_from("abc"), st.integers(0, 12), st.none() | hours, st.booleans())
batches = st.lists(st.lists(versions, min_size=1, max_size=3), min_size=1, max_size=6)
cuts = st.lists(st.booleans(), min_size=6, max_size=6)
modes = st.sampled_from([Stateless(), Stateful(load="changed", chunk_hours=None), Stateful(chunk_hours=None)])


def standing(rows: Sequence[Version]) -> dict[str, Version]:
    """Key → the version that stands, by trying all."""
    found = {}
    for row in rows:
        key, order, hour, deletes = row
        is_last = all(order >= other for other_key, other, _, _ in rows if other_key == key)
        if is_last and not deletes and hour is not None:
            found[key] = row
    return found


def valid(rows: Sequence[Version]) -> list[Version]:
    """Without rows that quarantine takes, and of each (key, order) the first that came: no ties."""
    found: dict[tuple[str, int], Version] = {}
    for row in rows:
        key, order, hour, deletes = row
        if hour is not None or deletes:
            found.setdefault((key, order), row)
    return list(found.values())


@dataclass
class Source:
    """A source, and a target that nothing but its plans builds."""

    mode: Mode
    rows: list[list[Version]] = field(default_factory=list)
    read: int = 0
    since: Watermark | None = None
    committed: Committed = field(default_factory=Committed)
    target: dict[int, dict[str, Version]] = field(default_factory=dict)

    def land(self, batch: Sequence[Version]) -> None:
        known = valid([row for rows in self.rows for row in rows])
        self.rows.append([row for row in valid([*known, *batch]) if row not in known])

    def earlier(self) -> list[Version]:
        new_keys = {key for rows in self.rows[self.read :] for key, *_ in rows}
        before = [row for rows in self.rows[: self.read] for row in rows]
        return [row for row in before if row[0] in new_keys]

    def changes(self) -> SourceChanges:
        head = mark("raw.a", len(self.rows), START + SPAN - 1)
        found = []
        for number, rows in enumerate(self.rows[self.read :], start=self.read + 1):
            touched = frozenset(hour for _, _, hour, _ in rows if hour is not None)
            found.append(snapshot(number, "append", touched, sum(hour is None for _, _, hour, _ in rows)))
        if self.since is None:
            return source_changes("raw.a", None, head, found)
        changes = source_changes("raw.a", self.since, head, found)
        earlier = self.earlier()
        hours_of_earlier = {hour for _, _, hour, _ in earlier if hour is not None}
        return replace(changes, earlier=EarlierVersions(bool(earlier), tuple(ranges(hours_of_earlier))))

    def session(self) -> SessionPlan | None:
        changes = self.changes()
        planned = plan(PlanningInput(PROCESS, self.mode, (changes,), self.committed, start=START))
        if not isinstance(planned, SessionPlan):
            return None
        if planned.load == "append":
            new = [row for rows in self.rows[self.read :] for row in rows]
            for key, row in standing(new).items():
                self.target.setdefault(int(row[2] or 0), {})[key] = row
        if planned.load == "overwrite":
            self.overwrite(planned.hour_numbers)
        self.committed = committed_after(self.mode, self.committed, planned, planned.hour_numbers)
        self.read, self.since = len(self.rows), changes.head
        return planned

    def overwrite(self, planned: Sequence[int]) -> None:
        stand = standing([row for rows in self.rows for row in rows])
        for number in planned:
            self.target[number] = {key: row for key, row in stand.items() if row[2] == number}

    def published(self) -> list[Version]:
        return sorted(row for rows in self.target.values() for row in rows.values())


@thorough
@given(mode=modes, landed=batches, cut=cuts)
def test_after_each_session_each_key_stands_once_where_its_last_version_says(
    mode: Mode, landed: list[list[Version]], cut: list[bool]
) -> None:
    source = Source(mode)
    for batch, now in zip(landed, cut, strict=False):
        source.land(batch)
        if not now:
            continue
        earlier, new = source.earlier(), source.rows[source.read :]
        planned = source.session()
        everything = [row for rows in source.rows for row in rows]
        assert source.published() == sorted(standing(everything).values())
        if isinstance(mode, Stateless) and not earlier and planned is not None:
            touched = {hour for rows in new for _, _, hour, _ in rows if hour is not None}
            assert (set(planned.hour_numbers), planned.load) in ((touched, "append"), (set(), "none"))


def test_the_reason_of_an_hour_names_the_versions_that_leave_it() -> None:
    source = Source(Stateless())
    source.land([("a", 1, START + 2, False), ("b", 1, START + 5, False)])
    source.session()
    source.land([("a", 2, START + 4, False), ("b", 2, None, True)])
    planned = source.session()
    assert planned is not None
    assert [hour.reason for hour in planned.hours] == [
        "earlier versions of changed keys of raw.a: event_ts 2026-01-01-02:00",
        "append 2 of raw.a: event_ts 2026-01-01-04:00",
        "earlier versions of changed keys of raw.a: event_ts 2026-01-01-05:00",
    ]
    assert planned.load == "overwrite"
