"""Idle spans count as far as every zone has read them; a day of heartbeats makes few files. Pure, and on Kafka."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from confluent_kafka import Producer
from hypothesis import given, settings
from hypothesis import strategies as st

from lake_assets.base.hours import hour_of
from lake_assets.engagement.topics import KafkaTopic
from lake_assets.incremental.engine.iceberg import complete_through, create_raw, load
from lake_assets.landing.cutover import Policy
from lake_assets.landing.landing_service import LandingService
from lake_assets.landing.manifest import open_manifest
from lake_assets.landing.messages import HEARTBEAT
from lake_assets.landing.state import IdleSpan, SharedState, SpansByZone, idle_heartbeats, idle_spans, with_idle
from lake_assets.membership import PIPELINE
from lake_assets_tests.landing.kafka_scenario import Landings
from lake_assets_tests.landing.scenario import share_manifest

if TYPE_CHECKING:
    from lake_assets.settings import Settings

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
SPANS = st.builds(
    lambda first, hour: IdleSpan("t", 0, first, first + 3, BEGIN + timedelta(hours=hour)),
    st.integers(0, 2),
    st.integers(0, 9),
)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from("abc"), SPANS), st.none() | st.integers(0, 2), st.booleans())
def test_a_heartbeat_counts_if_every_zone_has_read_it_from_the_loaded_offset_on(
    by_zone: dict[str, IdleSpan], offset: int | None, any_zone: bool
) -> None:
    spans: SpansByZone = {zone: {0: span} for zone, span in by_zone.items()}
    found = idle_heartbeats(spans, ["a", "b"], {0: offset, 1: 0}, any_zone=any_zone)
    fitting = {
        zone: span.heartbeat
        for zone, span in by_zone.items()
        if zone in "ab" and (offset is None or span.first == offset)
    }
    expected = None
    if any_zone:
        expected = max(fitting.values(), default=None)
    elif set(fitting) == {"a", "b"}:
        expected = min(fitting.values())
    assert found == ({} if expected is None else {0: expected})


def test_an_idle_span_is_no_lag() -> None:
    span = IdleSpan("t", 1, 5, 9, BEGIN)
    assert with_idle({0: 3, 1: 5}, {1: span}) == {0: 3, 1: 10}
    assert with_idle({1: 20}, {1: span}) == {1: 20}


def test_a_policy_that_a_version_before_has_recorded_goes_on_with_its_limits(bare_home: Settings) -> None:
    share_manifest(
        bare_home,
        *(f"INSERT INTO landing_policy VALUES ('t', {partition}, 0, 5, 6, 7, NULL)" for partition in (0, 2)),
        "CREATE TABLE landing_policy_idle AS SELECT * FROM landing_policy WHERE partition = 2",
        "ALTER TABLE landing_policy_idle ADD COLUMN max_idle_ms BIGINT",
        "UPDATE landing_policy_idle SET max_idle_ms = 8",
    )
    manifest = open_manifest(bare_home)
    state, default = SharedState(manifest), Policy(1, 1, 1, max_idle_ms=9)
    going_on = [Policy(5, 6, 7, by_heartbeats=False), Policy(5, 6, 7, from_offset=1)]
    assert state.policies("t", 0) == going_on[:1]
    assert state.policies("t", 2) == [Policy(5, 6, 7, max_idle_ms=8, by_heartbeats=False)]
    for _ in range(2):  # the limits stay, and the clock of heartbeats counts from where no zone can have cut yet
        assert state.policies("t", 0, default=default) == going_on
    assert state.policies("t", 1, default=default) == [default]
    assert state.change_policies("t", max_idle_ms=11)[0] == Policy(5, 6, 7, from_offset=2, max_idle_ms=11)


def test_a_day_of_heartbeats_completes_its_hours_and_makes_four_files_at_most(bare_home: Settings, kafka: str) -> None:
    landings = Landings(bare_home, kafka)
    feed = landings.feeds[0]
    KafkaTopic(kafka, feed.topic).create(1)
    create_raw(landings.catalog, feed.raw)
    producer = Producer({"bootstrap.servers": kafka})
    for minute in range(24 * 60 + 1):
        at = BEGIN + timedelta(minutes=minute)
        headers: list[tuple[str, str | bytes | None]] = [(HEARTBEAT, at.isoformat().encode())]
        producer.produce(feed.topic, b"", partition=0, timestamp=int(at.timestamp() * 1000), headers=headers)
    assert producer.flush(60) == 0

    end = BEGIN + timedelta(days=1)
    home = bare_home.model_copy(update={"landing_prefix": landings.prefix})
    service = LandingService(home, kafka, landings.catalog, PIPELINE, lambda: end)
    for writer in service.zones:
        with service.tailer(writer, topic=feed.topic) as tailer:
            tailer.drain()
        assert 1 <= tailer.files <= 4
    assert idle_spans(service.manifest, feed.topic).keys() == {"a", "b"}
    list(service.loader(feed).load())
    assert complete_through(load(landings.catalog, feed.raw.table), feed.raw.table) == hour_of(end) - 1
