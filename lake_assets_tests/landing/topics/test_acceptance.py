"""What is accepted as lost, against looking at each offset in each zone by itself."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lake_assets.landing.accept import Acceptance, Landed, decide
from lake_assets.landing.coverage import Cover
from lake_assets.landing.kafka import landed_ends
from lake_assets.landing.manifest import FileRows
from lake_assets.landing.state import Epoch
from lake_assets_tests.landing import scenario

if TYPE_CHECKING:
    from lake_assets.settings import Settings

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SPANS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4)).map(lambda s: (s[0], s[0] + s[1])), max_size=4)
ZONES = st.fixed_dictionaries({"a": SPANS, "b": SPANS})


def accepted(zones: dict[str, list[tuple[int, int]]], topic_id: str, earliest: int) -> tuple[Landed, Acceptance]:
    covers = {zone: [Cover({0: span}, readable=True) for span in spans] for zone, spans in zones.items()}
    every = [span for spans in zones.values() for span in spans]
    begun = {0: min(first for first, _ in every)} if every else {}
    ends = {0: max(last for _, last in every) + 1} if every else {}
    landed = Landed(Epoch("t", 1, "one", {}), covers, begun, ends)
    return landed, decide(landed, topic_id, {0: earliest}, now=NOW)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(ZONES, st.sampled_from(["one", "two"]), st.integers(0, 12))
def test_each_offset_that_kafka_has_no_more_is_lost_to_the_zones_that_do_not_have_it(
    zones: dict[str, list[tuple[int, int]]], topic_id: str, earliest: int
) -> None:
    landed, found = accepted(zones, topic_id, earliest)
    base = 0 if topic_id == "one" else landed.ends.get(0, 0)
    assert (found.epoch.topic_id, found.epoch.base(0)) == (topic_id, base)
    has = {zone: {o for first, last in spans for o in range(first, last + 1)} for zone, spans in zones.items()}
    expected: set[tuple[int, str, bool]] = set()
    for offset in range(landed.begun.get(0, earliest + base), earliest + base):
        lacking = [zone for zone in zones if offset not in has[zone]]
        expected |= {(offset, zone, len(lacking) == 2) for zone in lacking}
    told = set()
    for loss in found.losses:
        for offset in range(loss.first, loss.last + 1):
            told |= {(offset, zone, loss.for_good) for zone in loss.zones}
    assert told == expected


def test_another_topic_begins_behind_what_has_landed_though_rows_of_its_files_are_lost(bare_home: Settings) -> None:
    landed = scenario.Landed(bare_home)
    landed.land_all(files=2, partitions=1)
    for zone, writer in landed.writers.items():
        (last,) = [file for file in landed.files(zone) if file.ranges == {0: (3, 5)}]
        with writer.manifest.change() as (connection, _):
            FileRows(connection).remove(zone, last.name)
    assert landed_ends(landed.manifest, scenario.TOPIC) == {0: 6}
