"""Which of Kafka's messages are not needed any more: decided from marks, against a slow oracle, and from real files."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from lake_assets.landing.manifest import RETENTION_MARKS, open_manifest
from lake_assets.landing.records import Shard
from lake_assets.landing.state import Epoch, Mark, Retention, kept_marks, landed_everywhere, removable
from lake_assets_tests.landing.scenario import NOW, TOPIC, Landed, quarantine, sent

if TYPE_CHECKING:
    from lake_assets.settings import Settings

HOURS = 10
LOOKS = st.lists(
    st.tuples(st.integers(1, 15), st.dictionaries(st.integers(0, 2), st.integers(0, 30), max_size=3)), max_size=12
)
"""Hours since the look before, and how far the partitions had landed at a look."""


@given(LOOKS)
def test_what_had_not_landed_long_enough_ago_is_kept(looks: list[tuple[int, dict[int, int]]]) -> None:
    """The oracle remembers all looks; the marks that are kept give the same answer at each look."""
    marks: list[Mark] = []
    every: list[tuple[int, dict[int, int]]] = []
    hour = 0
    for passed, landed in looks:
        hour += passed
        every.append((hour, landed))
        before = NOW + timedelta(hours=hour - HOURS)
        expected = {}
        for partition, end in landed.items():
            old = [seen[partition] for at, seen in every if at <= hour - HOURS and partition in seen]
            if old:
                expected[partition] = min(end, max(old))
        assert removable(marks, landed, before=before) == expected
        now = NOW + timedelta(hours=hour)
        marks = kept_marks(marks, landed, before=before, now=now)
        assert len(marks) <= 3 * (HOURS + 2), "their number is bounded"


def test_only_what_both_zones_have_verified_has_landed(bare_home: Settings) -> None:
    landed = Landed(bare_home)
    landed.land_all(files=3, partitions=2)

    def everywhere() -> dict[int, int]:
        return landed_everywhere(landed.manifest, TOPIC, landed.zones)

    assert everywhere() == {0: 9, 1: 9}
    landed.land("a", 0, 9)
    assert everywhere() == {0: 9, 1: 9}, "zone b has not landed it yet"
    landed.run("merge", "a")
    assert everywhere() == {0: 0, 1: 0}, "merged files are provisional until the other zone has merged, too"
    landed.run("merge", "b")
    landed.land("b", 0, 9)
    assert everywhere() == {0: 12, 1: 9}
    last = next(file for file in landed.files("b") if file.ranges == {0: (9, 11)})
    quarantine(landed.writers["b"].manifest, "b", last.name)
    assert everywhere() == {0: 9, 1: 9}
    writer = landed.writers["a"]
    dead = Shard(TOPIC, dead_letters=True)
    writer.land(writer.zone.draft(str(dead), {1: (3, 5)}, [sent(1, 4)]), now=NOW)
    assert everywhere() == {0: 9, 1: 3}, "its dead letters are not verified"


def test_marks_belong_to_the_topic_of_an_id(bare_home: Settings) -> None:
    retention = Retention(open_manifest(bare_home))
    first, second = Epoch(TOPIC, 1, "one", {}), Epoch(TOPIC, 2, "two", {0: 5})
    mark = Mark(0, 5, NOW)
    retention.replace_marks(first, [mark])
    assert (retention.marks(first), retention.marks(second)) == ([mark], [])


def test_a_manifest_of_the_version_before_keeps_all(bare_home: Settings) -> None:
    manifest = open_manifest(bare_home)
    with manifest.engine.begin() as connection:
        RETENTION_MARKS.drop(connection)
    retention = Retention(open_manifest(bare_home))
    assert retention.hours(TOPIC) is None
    assert [retention.keep(TOPIC, hours) for hours in (0, 168, 168, 24, 0)] == [False, True, False, True, True]
    assert retention.hours(TOPIC) is None
