"""Topics that are created again, and messages that Kafka removed: loud until somebody accepts, then nothing is missing.

Each test counts what was sent against the rows of the raw table.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from typer.testing import CliRunner

from lake_assets.cli.landing import landing
from lake_assets.errors import PublishConflict, UsageError
from lake_assets.landing.accept import accept
from lake_assets.landing.dagster import compare_zones
from lake_assets.landing.kafka import logical_ends
from lake_assets.landing.records import Shard, Tally
from lake_assets.landing.state import Epoch, Ledger, Stops
from lake_assets.landing.tail import Closed, Delivery
from lake_assets.settings import Settings, settings
from lake_assets_tests.landing.one_topic import NOW, OneTopic, named
from lake_assets_tests.landing.scenario import DEADLINE, change_commands


@pytest.fixture
def one(bare_home: Settings, kafka: str, monkeypatch: pytest.MonkeyPatch) -> OneTopic:
    monkeypatch.setenv("LAKE_HOME", str(bare_home.home))
    monkeypatch.setenv("LAKE_KAFKA", kafka)
    settings.cache_clear()
    return OneTopic(bare_home, kafka)


def test_a_topic_created_again_stops_its_zones_until_it_is_accepted_and_then_lands_from_its_first_message(
    one: OneTopic,
) -> None:
    one.send(range(30))
    one.send(range(100, 110), partition=1)
    one.land()
    one.send(range(30, 34))  # in an open file: lost with the topic
    one.recreate()
    one.send(range(1000, 1040))
    for tailer in one.land():
        assert {error.problem.split(":")[0] for error in tailer.stopped.values()} == {
            f"Topic {one.topic} was deleted and created again"
        }
    assert one.load() == named(range(30), range(100, 110))
    stops = Stops(one.manifest).all()
    assert [(stop.zone, stop.partition) for stop in stops] == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]
    found = compare_zones(one.manifest, one.topic, now=NOW, deadline=DEADLINE)
    assert not found.passed
    assert f"lake landing accept {one.topic}" in found.description
    assert logical_ends(one.manifest, one.servers, one.topic) == {0: 70, 1: 10}, "40 messages are not landed"
    status = CliRunner().invoke(landing, ["status"])
    assert status.exit_code == 1
    assert "was deleted and created again" in status.output

    done = CliRunner().invoke(landing, ["accept", one.topic], catch_exceptions=False)
    assert f"{one.topic} partition 0: offset 0 of the new topic lands as offset 30." in done.output
    assert "its messages from p0:30 p1:10 on did not land" in done.output
    for tailer in one.land():
        assert (tailer.stopped, tailer.files) == ({}, 4)
    assert one.load() == named(range(30), range(100, 110), range(1000, 1040))
    assert CliRunner().invoke(landing, ["status"]).exit_code == 0
    assert one.findings() == []
    assert not accept(one.writers, one.servers, one.topic, now=NOW).losses
    assert one.load() == named(range(30), range(100, 110), range(1000, 1040))


def test_a_tailer_that_runs_while_its_topic_is_created_again_lands_what_it_read_of_the_former_one_alone(
    one: OneTopic,
) -> None:
    one.send(range(13), broken=[11])
    one.land("a")  # three messages are in an open file
    with one.tailer("a") as tailer:
        tailer.drain()
        one.recreate()
        one.send(range(100, 150))
        for _ in range(300):
            tailer.step()
            if tailer.stopped:
                break
    assert "was deleted and created again" in tailer.stopped.popitem()[1].problem
    assert [file.ranges[0] for file in one.files("a")] == [(0, 9)]
    done = accept(one.writers, one.servers, one.topic, now=NOW, feed=one.feed)
    assert [(closed.place.partition, closed.first, closed.last) for closed in done.closed] == [(0, 10, 12)]
    assert [epoch.bases for epoch in [done.epoch] if epoch] == [{0: 13, 1: 0}]
    assert one.load() == named(n for n in range(13) if n != 11)
    assert one.findings() == []


def test_what_retention_removed_before_it_landed_is_accepted_and_who_lacks_it_alone_gets_a_copy(one: OneTopic) -> None:
    one.send(range(22))
    one.land("a")  # two messages are in an open file; zone b has nothing
    one.send(range(22, 40), broken=[33])
    one.forget(25)
    for tailer in one.land():
        assert all("but Kafka holds offsets from" in error.problem for error in tailer.stopped.values())
        assert tailer.stopped
    done = accept(one.writers, one.servers, one.topic, now=NOW, feed=one.feed)
    lost = [(loss.partition, loss.first, loss.last, loss.zones, loss.for_good) for loss in done.losses]
    assert lost == [(0, 22, 24, ("a", "b"), True), (0, 0, 21, ("b",), False)]
    assert [zone for zone, _ in done.copied] == ["b", "b", "b"]
    assert [tailer.stopped for tailer in one.land()] == [{}, {}]
    assert one.load() == named(range(22), (n for n in range(25, 35) if n != 33))
    assert one.findings() == []
    output = CliRunner().invoke(landing, ["status"]).output
    assert f"{one.topic} partition 0: offsets 22 to 24 are lost to zones a, b (Kafka's retention removed them" in output


def test_a_zone_that_comes_after_retention_lacks_what_the_other_one_has_begun_to_read_and_gets_a_copy(
    one: OneTopic,
) -> None:
    one.send(range(5))
    one.writers[0].require_storage()
    one.land("a")  # its first file is open
    one.forget(3)
    with one.tailer("b") as tailer:
        tailer.drain()
        done = accept(one.writers, one.servers, one.topic, now=NOW, feed=one.feed)
        assert (done.losses, done.read) == ((), {0: ("a", 0)})
        one.send(range(5, 25))
        one.land("a")
        tailer.drain()
    assert [place.partition for place in tailer.stopped] == [0]
    done = accept(one.writers, one.servers, one.topic, now=NOW, feed=one.feed)
    assert [(loss.first, loss.last, loss.zones, loss.for_good) for loss in done.losses] == [(0, 2, ("b",), False)]
    assert [tailer.stopped for tailer in one.land()] == [{}, {}]
    assert [file.ranges for file in one.files("b")] == [{0: (0, 9)}, {0: (10, 19)}]
    assert one.findings() == []
    assert one.load() == named(range(20))


def test_a_zone_that_had_read_what_is_accepted_as_lost_meanwhile_begins_again_behind_it(one: OneTopic) -> None:
    one.send(range(5))
    with one.tailer("a") as tailer:  # its storage is not there yet, so nobody can see its open file
        tailer.drain()
        one.forget(3)
        one.land("b")
        done = accept(one.writers, one.servers, one.topic, now=NOW, feed=one.feed)
        assert [(loss.first, loss.last) for loss in done.losses if loss.for_good] == [(0, 2)]
        one.send(range(5, 25))
        tailer.drain()
    assert [tailer.stopped for tailer in one.land()] == [{}, {}]
    assert one.load() == named(range(3, 23))
    assert one.findings() == []


def test_a_partition_that_was_begun_further_on_and_has_no_file_goes_on_behind_that_when_its_topic_is_created_again(
    one: OneTopic,
) -> None:
    one.send(range(5))
    one.forget(3)
    one.land()
    one.recreate()
    one.send(range(10, 20))
    accept(one.writers, one.servers, one.topic, now=NOW, feed=one.feed)
    assert logical_ends(one.manifest, one.servers, one.topic) == {0: 13, 1: 0}
    assert [tailer.stopped for tailer in one.land()] == [{}, {}]
    assert one.load() == named(range(10, 20))
    assert one.findings() == []


class Dying(Delivery):
    """The process dies when it has landed the dead letters of a file, and not its rows."""

    def take(self, closed: Closed) -> None:
        shard = Shard(closed.place.topic, dead_letters=True)
        self.writer.land(self._draft(shard, closed, closed.dead, Tally()), now=self.clock())
        raise KeyboardInterrupt


def test_an_open_file_lands_though_its_process_died_when_it_had_landed_the_dead_letters(one: OneTopic) -> None:
    one.send(range(19), broken=[13])
    one.land("a")  # nine messages are in an open file
    one.send(range(19, 22), broken=[19])
    one.delivery = Dying
    with pytest.raises(KeyboardInterrupt), one.tailer("a") as tailer:
        tailer.drain()
    one.forget(21)
    done = accept(one.writers, one.servers, one.topic, now=NOW, feed=one.feed)
    assert [(closed.first, closed.last) for closed in done.closed] == [(10, 18)]
    assert [(loss.first, loss.last) for loss in done.losses if loss.for_good] == [(19, 20)]
    assert one.load() == named(n for n in range(19) if n != 13)
    assert one.findings() == []


def test_dead_letters_that_landed_beyond_what_is_lost_are_not_landed_again_and_those_behind_them_are(
    one: OneTopic,
) -> None:
    one.writers[0].require_storage()
    one.send(range(2))
    one.land("a")  # two messages are in an open file
    one.send(range(2, 10), broken=[3, 8])
    one.delivery = Dying
    with pytest.raises(KeyboardInterrupt), one.tailer("a") as tailer:
        tailer.drain()
    one.delivery = Delivery
    one.forget(5)
    done = accept(one.writers, one.servers, one.topic, now=NOW, feed=one.feed)
    assert [(closed.first, closed.last) for closed in done.closed] == [(0, 1)]
    assert [(loss.first, loss.last) for loss in done.losses if loss.for_good] == [(2, 4)]
    one.send(range(10, 30), broken=[12, 26])
    assert [tailer.stopped for tailer in one.land()] == [{}, {}]
    for writer in one.writers:
        dead = [file for file in one.files(writer.zone.name) if file.holds_dead_letters]
        found = sorted((file.ranges[0], [record.offset for record in writer.records(file)]) for file in dead)
        assert found == [((0, 9), [3, 8]), ((10, 14), [12])]
    assert one.load() == named(range(2), (n for n in range(5, 25) if n not in (8, 12)))
    assert one.findings() == []


def test_a_partition_of_which_dead_letters_alone_have_landed_stops_when_kafka_has_forgotten_the_rest(
    one: OneTopic,
) -> None:
    one.send(range(10), broken=[3])
    one.delivery = Dying
    with pytest.raises(KeyboardInterrupt), one.tailer("a") as tailer:
        tailer.drain()
    one.delivery = Delivery
    one.send(range(10, 25))
    one.forget(12)
    (tailer,) = one.land("a")
    assert [error.problem for error in tailer.stopped.values() if "but Kafka holds offsets from" in error.problem]
    done = accept(one.writers, one.servers, one.topic, now=NOW, feed=one.feed)
    assert [(loss.first, loss.last) for loss in done.losses if loss.for_good] == [(0, 11)]
    assert [tailer.stopped for tailer in one.land()] == [{}, {}]
    assert one.load() == named(range(12, 22))
    assert one.findings() == []


def test_the_manifest_of_the_version_before_learns_the_id_unless_kafka_ends_before_its_files(one: OneTopic) -> None:
    one.send(range(20))
    one.land()
    change_commands(one.home, "topic")
    one.send(range(20, 30))
    assert [tailer.stopped for tailer in one.land()] == [{}, {}]
    assert Ledger(one.manifest).epoch(one.topic) is not None
    change_commands(one.home, "topic")
    one.recreate(partitions=1)
    one.send(range(100, 110))
    assert "that was not recorded" in str(one.land("a")[0].stopped.popitem()[1])
    one.send(range(110, 140))  # the new topic reaches beyond the files: what was learnt stays
    assert one.land("a")[0].stopped
    assert [epoch.bases for epoch in [accept(one.writers, one.servers, one.topic, now=NOW).epoch] if epoch] == [{0: 30}]


def test_a_new_topic_with_fewer_partitions_is_not_accepted(one: OneTopic) -> None:
    for partition in range(2):
        one.send(range(10), partition=partition)
    one.land()
    one.recreate(partitions=1)
    with pytest.raises(UsageError, match="has 1 partitions, but 2 have landed"):
        accept(one.writers, one.servers, one.topic, now=NOW)


def test_two_acceptances_at_the_same_time_record_one(bare_home: Settings, kafka: str) -> None:
    ledger = Ledger(OneTopic(bare_home, kafka).manifest)
    first = ledger.learn("t", "one", now=NOW)
    assert ledger.learn("t", "two", now=NOW) == first
    second = replace(first, number=2, topic_id="two", bases={0: 5})
    ledger.accept(second, (), after=first, now=NOW)
    ledger.accept(second, (), after=first, now=NOW)
    with pytest.raises(PublishConflict, match="expected one, found two"):
        ledger.accept(Epoch("t", 2, "three", {}), (), after=first, now=NOW)
    assert ledger.epoch("t") == second
