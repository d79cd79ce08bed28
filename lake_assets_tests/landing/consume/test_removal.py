"""Kafka forgets what both zones landed long ago, and nothing else. On a real broker; the time is passed in."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from lake_assets.landing.kafka import remove_landed, topic_states
from lake_assets.landing.state import Retention
from lake_assets_tests.landing.one_topic import NOW, OneTopic, named

if TYPE_CHECKING:
    from datetime import datetime

    from lake_assets.settings import Settings

WEEK = timedelta(hours=168)


def test_messages_are_removed_a_week_after_they_landed_in_both_zones(bare_home: Settings, kafka: str) -> None:
    one = OneTopic(bare_home, kafka)

    def remove(at: datetime) -> dict[int, int]:
        return remove_landed(one.manifest, kafka, one.topic, zones=("a", "b"), now=at)

    def earliest() -> dict[int, int]:
        return dict(topic_states(kafka, [one.topic])[one.topic].earliest)

    one.send(range(25))
    one.land()
    assert remove(NOW) == remove(NOW + 2 * WEEK) == {}, "no retention is recorded"
    Retention(one.manifest).keep(one.topic, 168)
    assert remove(NOW) == {}
    one.send(range(25, 45))
    one.land("a")
    assert remove(NOW + WEEK - timedelta(seconds=1)) == {}
    assert remove(NOW + WEEK) == {0: 20}, "two files of ten; the messages after them have not landed yet"
    assert earliest() == {0: 20, 1: 0}
    assert remove(NOW + 3 * WEEK) == {}, "what only zone a has landed stays, however old"
    one.land()
    assert remove(NOW + 3 * WEEK) == {}
    assert remove(NOW + 4 * WEEK) == {0: 40}
    assert earliest() == {0: 40, 1: 0}

    one.send(range(45, 50))
    tailers = one.land()
    assert [tailer.stopped for tailer in tailers] == [{}, {}], "zones continue after the messages that are gone"
    assert one.load() == named(range(50))
    assert one.findings() == []
    one.recreate()
    assert remove(NOW + 9 * WEEK) == {}, "a topic that was created again is left alone"
