"""Faults that both zones have, old files that are damaged, and deaths between a file and its dead letters: on Kafka."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from lake_assets.base import failpoints
from lake_assets.cli.landing import landing
from lake_assets.errors import FileDamaged, LandingError
from lake_assets.landing.heal import decide
from lake_assets.landing.kafka import Reader
from lake_assets.landing.operations import sweep, to_columns
from lake_assets.landing.records import Record
from lake_assets.landing.tail import Closed, Delivery
from lake_assets.settings import Settings, settings
from lake_assets_tests.landing.kafka_scenario import Landings
from lake_assets_tests.landing.made import path_of
from lake_assets_tests.landing.one_topic import PATIENCE_SECONDS, SENT_MS, OneTopic, named
from lake_assets_tests.landing.scenario import EVER, change_commands


class Dropping(Delivery):
    """A fault that both zones have: of each file, a record is dropped."""

    def take(self, closed: Closed) -> None:
        super().take(replace(closed, records=closed.records[1:]))


def test_a_record_that_both_zones_drop_is_missed_before_anything_is_added(bare_home: Settings, kafka: str) -> None:
    one = OneTopic(bare_home, kafka, delivery=Dropping)
    one.send(range(20), broken=[4])
    for tailer in one.land():
        (error,) = tailer.stopped.values()
        assert isinstance(error, LandingError)
        assert "gives 10 messages" in error.problem
        assert "but 9 records and dead letters" in error.problem
    assert one.manifest.entries() == []
    assert [writer.zone.names(EVER) for writer in one.writers] == [[], []], "no draft is left"
    sound = replace(one, delivery=Delivery)
    assert [tailer.stopped for tailer in sound.land()] == [{}, {}]
    assert sound.load() == named(n for n in range(20) if n != 4)


def send_in_transactions(one: OneTopic, outcomes: Mapping[int, bool]) -> None:
    """Five messages in each transaction. outcomes: the first name of each → whether it is committed."""
    producer = Producer({"bootstrap.servers": one.servers, "transactional.id": uuid4().hex})
    producer.init_transactions(PATIENCE_SECONDS)
    for first, is_committed in outcomes.items():
        producer.begin_transaction()
        for name in range(first, first + 5):
            value = f'{{"signup_id": "{name}", "account_id": "a", "event_ts": "2026-01-01T00:00:00Z"}}'
            producer.produce(one.topic, value.encode(), partition=0, timestamp=SENT_MS)
        producer.flush(PATIENCE_SECONDS)
        if is_committed:
            producer.commit_transaction(PATIENCE_SECONDS)
        else:
            producer.abort_transaction(PATIENCE_SECONDS)


def test_markers_and_aborted_messages_are_no_loss_and_beside_them_a_dropped_message_is_missed(
    bare_home: Settings, kafka: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = OneTopic(bare_home, kafka)
    send_in_transactions(one, {0: True, 100: False, 5: True, 10: True, 15: True})
    sound = Reader.read

    def dropping(reader: Reader, max_messages: int, *, seconds: float) -> list[tuple[str, Record]]:
        return [
            (topic, r) for topic, r in sound(reader, max_messages, seconds=seconds) if b'"7"' not in (r.value or b"")
        ]

    with monkeypatch.context() as patch:
        patch.setattr(Reader, "read", dropping)
        for tailer in one.land():
            assert [type(error) for error in tailer.stopped.values()] == [LandingError]
    assert one.files("a") == []
    assert [tailer.stopped for tailer in one.land()] == [{}, {}]
    assert one.load() == named(range(20))


def test_an_old_damaged_file_that_kafka_has_forgotten_comes_from_the_other_zone_and_new_messages_land(
    bare_home: Settings, kafka: str
) -> None:
    one = OneTopic(bare_home, kafka)
    one.send(range(30), broken=[2])
    one.land()
    damaged, lost = (file for file in one.files("a") if file.ranges[0][0] in (0, 10) and not file.holds_dead_letters)
    for writer, file in ((one.writers[0], damaged), (one.writers[0], lost), (one.writers[1], lost)):
        path_of(writer.zone, file.name).write_bytes(b"")
    for file in (damaged, lost):
        decide(one.writers, "a", file.name, "discard", now=EVER)
    one.forget(20)
    one.send(range(30, 40))
    first, second = one.land()
    assert (first.stopped, first.files) == ({}, 2), "the copy, and the new file"
    assert [type(error) for error in first.not_refetched.values()] == [FileDamaged]
    assert second.stopped == {}
    problems = {(found.zone, found.problem.split(" (")[0]) for found in one.findings()}
    assert ("b", "has other bytes than were written") in problems
    assert {zone for zone, _ in problems} == {"a", "b"}
    assert all(found.remedy for found in one.findings())
    spans = sorted(file.ranges[0] for file in one.files("a") if not file.holds_dead_letters)
    assert spans == [(0, 9), (20, 29), (30, 39)]


def test_a_zone_that_dies_between_dead_letters_and_file_goes_on_after_a_compaction(
    bare_home: Settings, kafka: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = OneTopic(bare_home, kafka)
    one.send(range(20), broken=[3, 14])

    class Death(BaseException):
        pass

    def strike(point: str) -> None:
        if point == "tailing-dead-letters-landed":
            raise Death

    with monkeypatch.context() as patch:
        patch.setattr(failpoints, "_strike", strike)
        with pytest.raises(Death):
            one.land("a")
    one.land("b")
    for writer in one.writers:
        to_columns(writer, one.topic, now=EVER.replace(year=2026))
        sweep(writer.manifest, writer.zone, retired_before=EVER)
    assert [tailer.stopped for tailer in one.land("aba")] == [{}, {}, {}]
    for writer in one.writers:
        to_columns(writer, one.topic, now=EVER.replace(year=2026))
    assert one.findings() == []
    assert one.load() == named(n for n in range(20) if n not in (3, 14))


def test_a_run_says_by_its_exit_code_that_partitions_stopped(
    bare_home: Settings, kafka: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    landings = Landings(bare_home, kafka)
    landings.create()
    environment = {
        "LAKE_HOME": str(bare_home.home),
        "LAKE_KAFKA": kafka,
        "LAKE_LANDING_PREFIX": landings.prefix,
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    settings.cache_clear()
    run = ["run", "--once", "--no-heartbeats"]
    assert CliRunner().invoke(landing, run, catch_exceptions=False).exit_code == 0
    change_commands(bare_home, "topic", lambda epoch: {**epoch, "topic_id": "another"})
    done = CliRunner().invoke(landing, run, catch_exceptions=False)
    settings.cache_clear()
    assert done.exit_code == 1
    assert "was deleted and created again" in done.output
    assert "zone b: 0 messages read" in done.output
