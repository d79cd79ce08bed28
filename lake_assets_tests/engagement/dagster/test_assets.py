"""Streams and metrics under Dagster, on real Kafka, ZooKeeper, Spark and Delta: sensors, runs, figures and checks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest

from lake_assets.engagement.batch import run_batch
from lake_assets.engagement.dagster.assets import engagement_definitions
from lake_assets.engagement.dagster.checks import refused_turns
from lake_assets.engagement.dagster.graph import delta_resources, engagement_key
from lake_assets.engagement.dagster.sensors import RETRY_SECONDS
from lake_assets.engagement.lake import STREAMS
from lake_assets.engagement.tables import ENGAGEMENT_METRICS, open_tables
from lake_assets.engagement.turn_order import MAINTENANCE
from lake_assets.errors import LockLost
from lake_assets.incremental.dagster.lake_resource import LAKE
from lake_assets_tests.conftest import with_zookeeper
from lake_assets_tests.engagement.scenario import ORGS, PARTITIONS, SESSION_SECONDS, START, Losing, Traffic

if TYPE_CHECKING:
    from dagster._core.definitions.sensor_definition import SensorExecutionData
    from pyspark.sql import SparkSession

    from lake_assets.settings import Settings


SECONDS = 600
RETAIN_HOURS = 72
Checks = dict[str, bool]


class Daemon:
    """A lake's own definitions on a Dagster instance of their own. now: what the sensors take for the time."""

    def __init__(self, mail: Traffic, instance: dg.DagsterInstance) -> None:
        self.instance, self.now = instance, datetime(2026, 1, 1, tzinfo=UTC)
        services = SimpleNamespace(
            tables=lambda lake: open_tables(mail.home, lake),
            kafka_servers=lambda: mail.servers,
            zookeeper_hosts=lambda: mail.home.zookeeper,
        )
        handed = {"lake_assets_engagement": services, LAKE: SimpleNamespace(spark_session=mail.spark)}
        self.resources = {name: dg.ResourceDefinition.hardcoded_resource(value) for name, value in handed.items()}
        self.resources |= delta_resources(mail.home)
        lakes = [mail.lake, replace(mail.lake, name="untouched")]
        streams = engagement_definitions(
            lakes,
            seconds=dict.fromkeys(STREAMS, SECONDS),
            maintenance_seconds=SECONDS,
            retain_hours=RETAIN_HOURS,
            max_wait=SESSION_SECONDS,
            clock=lambda: self.now,
        )
        self.repository = dg.Definitions.merge(streams, dg.Definitions(resources=self.resources)).get_repository_def()
        self.cursors: dict[str, str | None] = {}

    def tick(self, sensor: str) -> SensorExecutionData:
        """One evaluation of a sensor; new partitions are added."""
        context = dg.build_sensor_context(
            self.instance,
            self.cursors.get(sensor),
            repository_def=self.repository,
            sensor_name=sensor,
            resources=dict(self.resources),
        )
        found = self.repository.get_sensor_def(sensor).evaluate_tick(context)
        self.cursors[sensor] = found.cursor
        for request in found.dynamic_partitions_requests or ():
            self.instance.add_dynamic_partitions(request.partitions_def_name, list(request.partition_keys))
        return found

    def run(self, job: str, **how: Any) -> dg.ExecuteInProcessResult:
        """A run of a job, as the daemon or the UI would launch it."""
        return self.repository.get_job(job).execute_in_process(instance=self.instance, raise_on_error=False, **how)

    def turn(self, stream: str) -> tuple[dict[str, Any], Checks]:
        """A turn that succeeds: its figures, and what its checks say."""
        result = self.run(f"mail_{stream}_job")
        assert result.success
        [event] = result.get_asset_materialization_events()
        figures = event.step_materialization_data.materialization.metadata
        return {name: value.value for name, value in figures.items()}, checks(result)


def checks(result: dg.ExecuteInProcessResult) -> Checks:
    return {found.check_name: found.passed for found in result.get_asset_check_evaluations()}


@pytest.fixture
def mail(home: Settings, spark: SparkSession, kafka: str, zookeeper: str) -> Traffic:
    return Traffic(with_zookeeper(home, zookeeper), spark, kafka)


@pytest.fixture
def daemon(mail: Traffic) -> Iterator[Daemon]:
    with dg.instance_for_test() as instance:
        yield Daemon(mail, instance)


@pytest.mark.journey
@pytest.mark.timeout(1200)
def test_streams_take_their_turns_and_metrics_follow(mail: Traffic, daemon: Daemon) -> None:
    mail.send(range(12), [b"{"])
    assert_no_turn_of_a_paused_lake_is_asked_for(mail, daemon)
    assert_a_stream_is_asked_for_when_its_interval_is_over(daemon)
    figures, verdicts = daemon.turn("ingestion")
    assert {name: figures[name] for name in ("batch", "predecessor", "lag", "resumed")} == {
        "batch": 1,
        "predecessor": "none",
        "lag": 0,
        "resumed": False,
    }
    assert (figures["rows inserted"], figures["rows updated"], figures["rows deleted"]) == (12, 0, 0)
    assert (figures["dead letters"], figures["seconds: data"] > 0) == (1, True)
    assert json.loads(figures["end offsets"]) == mail_ends(mail)
    assert figures["commit version"] == json.loads(figures["commit versions"])["data"]
    assert figures["lock wait (seconds)"] >= 0
    assert verdicts
    assert all(verdicts.values())
    assert_requests_without_rows_and_refused_turns_are_told(mail, daemon)
    assert_repeated_engagements_are_told(mail, daemon)
    assert_metrics_follow_by_org(mail, daemon)
    assert_maintenance_follows_retention(daemon)


@pytest.mark.journey
def test_batches_of_streams_that_run_on_are_reported_without_runs(mail: Traffic) -> None:
    """Nothing requests their turns; maintenance is requested, as its run waits for its turn."""
    mail.lake = replace(mail.lake, continuous=True)
    mail.send(range(6))
    with dg.instance_for_test() as instance:
        daemon = Daemon(mail, instance)
        early = daemon.tick("mail_ingestion_sensor")
        assert (early.run_requests, early.asset_events) == ([], [])
        assert early.skip_message == "mail.ingestion runs on by itself, 6 offsets behind."
        mail.run()
        [event] = daemon.tick("mail_ingestion_sensor").asset_events
        assert isinstance(event, dg.AssetMaterialization)
        figures: dict[str, Any] = {name: value.value for name, value in event.metadata.items()}
        assert json.loads(figures["end offsets"]) == mail_ends(mail)
        assert {name: figures[name] for name in ("batch", "lag", "rows inserted")} == {
            "batch": 1,
            "lag": 0,
            "rows inserted": 6,
        }
        assert figures["commit version"] == json.loads(figures["commit versions"])["data"] == 1
        assert event.asset_key == engagement_key(mail.lake, "ingestion")
        assert daemon.tick("mail_ingestion_sensor").asset_events == []
        mail.ask("acme", "convert", "lead 0", "lead 1")
        mail.run("mutation")
        [event] = daemon.tick("mail_mutation_sensor").asset_events
        assert event.metadata["predecessor"].value == "ingestion"
        assert daemon.tick("mail_maintenance_sensor").run_requests


def mail_ends(mail: Traffic) -> dict[str, int]:
    ends = mail.stream().topic().end
    assert len(ends) == PARTITIONS
    return {str(partition): end for partition, end in ends.items()}


def assert_maintenance_follows_retention(daemon: Daemon) -> None:
    """It is asked for after a turn of retention, and refused after any other but its own."""
    daemon.turn("mutation")
    waiting = daemon.tick("mail_maintenance_sensor")
    assert waiting.run_requests == []
    assert "it waits for maintenance or retention, and mutation ran last" in str(waiting.skip_message)
    refused = daemon.run("mail_maintenance_job")
    assert (refused.success, checks(refused)) == (False, {"turn_in_time": False})
    assert daemon.turn("retention")[1] == {
        "turn_in_time": True,
        "notifications_equal_commits": True,
        "kafka_records_equal_requests": True,
    }
    assert daemon.tick("mail_maintenance_sensor").run_requests
    figures, verdicts = daemon.turn(MAINTENANCE)
    assert verdicts == {"turn_in_time": True}
    assert figures["files"] < figures["files before"]
    assert figures["files removed"] == sum(json.loads(figures["files removed by table"]).values())
    assert [figures[name] for name in ("orgs compacted", "orgs sorted", "hours kept")] == [len(ORGS), 0, RETAIN_HOURS]
    daemon.now += timedelta(seconds=SECONDS)
    assert "nobody else has had a turn since" in str(daemon.tick("mail_maintenance_sensor").skip_message)


def assert_no_turn_of_a_paused_lake_is_asked_for(mail: Traffic, daemon: Daemon) -> None:
    mail.tables.set_paused("2026-01-01T08:00:00Z")
    for sensor in ("ingestion", "maintenance", "metrics"):
        skipped = daemon.tick(f"mail_{sensor}_sensor")
        assert skipped.skip_message == "mail is paused since 2026-01-01T08:00:00Z: `lake engagement resume mail`."
    mail.tables.set_paused(None)


def assert_a_stream_is_asked_for_when_its_interval_is_over(daemon: Daemon) -> None:
    skipped = daemon.tick("untouched_ingestion_sensor")
    assert (skipped.run_requests, skipped.skip_message) == (
        [],
        "untouched is not initialised: `lake engagement init untouched`.",
    )
    assert "not initialised" in str(daemon.tick("untouched_metrics_sensor").skip_message)
    [request] = daemon.tick("mail_ingestion_sensor").run_requests or []
    assert request.tags["lake/offsets_behind"] == "13"
    daemon.now += timedelta(seconds=SECONDS - 10)
    early = daemon.tick("mail_ingestion_sensor")
    assert early.skip_message == "mail.ingestion is 13 offsets behind; its next turn is in 10 s."
    daemon.now += timedelta(seconds=10)
    assert daemon.tick("mail_ingestion_sensor").run_requests


def assert_requests_without_rows_and_refused_turns_are_told(mail: Traffic, daemon: Daemon) -> None:
    """A request that has met no row for a day, and a stream out of turn, which fails and names whom it awaits."""
    mail.ask("acme", "convert", "nobody", "somebody")
    without_row = {
        "turn_in_time": True,
        "notifications_equal_commits": True,
        "kafka_records_equal_requests": True,
        "no_dead_requests": False,
    }
    assert daemon.turn("mutation")[1] == without_row
    refused = daemon.run("mail_mutation_job")
    assert not refused.success
    [late] = refused.get_asset_check_evaluations()
    assert (late.check_name, late.passed) == ("turn_in_time", False)
    assert "it waits for ingestion, and mutation ran last" in str(late.metadata["reason"].value)
    [problem] = refused_turns(daemon.instance, [mail.lake])
    assert (problem.target, problem.kind, problem.run_id) == ("mail.mutation", "turn_refused", refused.run_id)
    assert_a_stream_out_of_turn_is_not_asked_for(daemon)
    idle, verdicts = daemon.turn("ingestion")
    assert idle["batch"] == "none was due"
    assert all(verdicts.values())
    assert daemon.tick("mail_mutation_sensor").run_requests
    daemon.now += timedelta(seconds=RETRY_SECONDS - 10)
    assert "its next turn is in 10 s" in str(daemon.tick("mail_mutation_sensor").skip_message)
    idle, verdicts = daemon.turn("mutation")
    assert (idle["batch"], verdicts) == ("none was due", without_row)
    assert [*refused_turns(daemon.instance, [mail.lake])] == []


def assert_a_stream_out_of_turn_is_not_asked_for(daemon: Daemon) -> None:
    """No run waits for its turn: the sensor does, and beyond the maximum wait it fails the check once."""
    early = daemon.tick("mail_mutation_sensor")
    assert (early.run_requests, early.asset_events) == ([], [])
    daemon.now += timedelta(seconds=SESSION_SECONDS)
    late = daemon.tick("mail_mutation_sensor")
    assert late.run_requests == []
    [event] = late.asset_events
    assert isinstance(event, dg.AssetCheckEvaluation)
    assert (event.check_name, event.passed, event.asset_key.path[-1]) == ("turn_in_time", False, "mutation")
    assert "it waits for ingestion, and mutation ran last" in str(event.metadata["reason"].value)
    assert daemon.tick("mail_mutation_sensor").asset_events == []


def assert_repeated_engagements_are_told(mail: Traffic, daemon: Daemon) -> None:
    mail.send([1, 100], engaged_at=(START + timedelta(days=7)).isoformat())
    mail.resend(mail.sent[-1:])
    with pytest.raises(LockLost):
        run_batch(mail.stream(), Losing(confirmed=2))
    figures, verdicts = daemon.turn("ingestion")
    assert (figures["resumed"], figures["rows inserted"], figures["repeated"]) == (True, 2, 1)
    assert figures["commit version"] == json.loads(figures["commit versions"])["data"]
    assert verdicts == {
        "turn_in_time": True,
        "notifications_equal_commits": True,
        "kafka_records_equal_rows": True,
        "unique_engagement_ids": False,
    }


def assert_metrics_follow_by_org(mail: Traffic, daemon: Daemon) -> None:
    key = engagement_key(mail.lake, ENGAGEMENT_METRICS)
    assert daemon.tick("mail_metrics_sensor").run_requests
    assert sorted(daemon.instance.get_dynamic_partitions("mail_org")) == list(ORGS)
    assert daemon.run("mail_metrics_job").success
    assert sorted(daemon.instance.get_materialized_partitions(key)) == list(ORGS)
    assert daemon.tick("mail_metrics_sensor").run_requests == []
    assert_a_batch_without_rows_is_shown_once(mail, daemon)
    again = daemon.run("mail_metrics_job", partition_key="globex")
    assert again.success
    assert [event.partition for event in again.get_asset_materialization_events()] == ["globex"]
    idle = daemon.run("mail_metrics_job")
    assert idle.success
    assert idle.get_asset_materialization_events() == []


def assert_a_batch_without_rows_is_shown_once(mail: Traffic, daemon: Daemon) -> None:
    """Dead letters alone: the metrics take note of the commit, and are not asked for again."""
    mail.spoil("ingestion", [b"{"])
    daemon.turn("ingestion")
    assert daemon.tick("mail_metrics_sensor").run_requests
    shown = daemon.run("mail_metrics_job")
    assert (shown.success, shown.get_asset_materialization_events()) == (True, [])
    assert daemon.tick("mail_metrics_sensor").run_requests == []
