"""A zone finds partitions and topics that are created while it lands."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import timedelta
from typing import TYPE_CHECKING

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions

from lake_assets.engagement.topics import KafkaTopic
from lake_assets.landing.accept import accept
from lake_assets.landing.cutover import Policy
from lake_assets.landing.kafka import existing_partitions
from lake_assets.landing.state import Stops
from lake_assets.landing.tail import Delivery
from lake_assets.landing.zone_tailer import DISCOVERY, ZoneTailer
from lake_assets_tests.landing.kafka_scenario import LANDED_MS, NOW, POLICY, Landings
from lake_assets_tests.landing.one_topic import FILE, OneTopic, named
from lake_assets_tests.landing.one_topic import NOW as ACCEPTED_AT
from lake_assets_tests.processes import wait_until

if TYPE_CHECKING:
    from lake_assets.settings import Settings

DEADLINE_SECONDS = 120


def test_new_topics_and_partitions_are_landed_within_a_minute_without_a_restart(
    bare_home: Settings, kafka: str
) -> None:
    assert timedelta(0) < DISCOVERY <= timedelta(minutes=1)
    landings, now = Landings(bare_home, kafka), NOW
    topic = landings.feeds[0].topic
    tailer = ZoneTailer(
        Delivery(landings.writer("a"), lambda: now), kafka, landings.feeds, policy=POLICY, alarm=landings.alarms.append
    )

    def landed() -> set[int]:
        tailer.step()
        return {partition for entry in landings.manifest.entries("a", topic) for partition in entry.file.ranges}

    with tailer:
        assert landed() == set()
        KafkaTopic(kafka, topic).create(1)
        fill(kafka, topic, 0)
        assert landed() == set()
        now += DISCOVERY
        wait_until(lambda: landed() == {0}, DEADLINE_SECONDS)
        admin = AdminClient({"bootstrap.servers": kafka})
        admin.create_partitions([NewPartitions(topic, 2)])[topic].result(60)
        wait_until(lambda: existing_partitions(kafka, [topic]) == {topic: (0, 1)}, DEADLINE_SECONDS)
        fill(kafka, topic, 1)
        now += DISCOVERY
        wait_until(lambda: landed() == {0, 1}, DEADLINE_SECONDS)
    assert (tailer.stopped, landings.alarms) == ({}, [])


def fill(kafka: str, topic: str, partition: int) -> None:
    """Send so many messages into a partition that they close a file."""
    producer = Producer({"bootstrap.servers": kafka})
    for _ in range(POLICY.max_messages):
        producer.produce(topic, b"broken", partition=partition, timestamp=LANDED_MS)
    assert producer.flush(60) == 0


def test_what_a_person_accepts_is_landed_within_a_minute_without_a_restart(bare_home: Settings, kafka: str) -> None:
    one, now = OneTopic(bare_home, kafka), ACCEPTED_AT
    one.send(range(20))
    one.land()
    one.send(range(20, 25))
    policy = Policy(max_messages=FILE, max_bytes=1 << 20, max_age_ms=1 << 40)
    with ExitStack() as stack:
        tailers = []
        for writer in one.writers:
            delivery = Delivery(writer, lambda: now)
            tailers.append(stack.enter_context(ZoneTailer(delivery, kafka, [one.feed], policy=policy)))

        def step() -> list[int]:
            return [tailer.step() for tailer in tailers]

        one.recreate()
        one.send(range(100, 135))
        one.send(range(200, 210), partition=1)  # a partition that had no message
        now += DISCOVERY
        wait_until(lambda: bool(step() and all(tailer.stopped for tailer in tailers)), DEADLINE_SECONDS)
        accept(one.writers, kafka, one.topic, now=now)
        now += DISCOVERY
        wait_until(lambda: bool(step() and [tailer.stopped for tailer in tailers] == [{}, {}]), DEADLINE_SECONDS)
        wait_until(
            lambda: bool(step() and one.load() == named(range(20), range(100, 130), range(200, 210))), DEADLINE_SECONDS
        )

        one.send(range(135, 160))
        wait_until(
            lambda: bool(step() and one.load() == named(range(20), range(100, 160), range(200, 210))), DEADLINE_SECONDS
        )
    assert Stops(one.manifest).all() == []
    assert one.findings() == []
