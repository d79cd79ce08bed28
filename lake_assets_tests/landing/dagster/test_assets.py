"""Landing through Dagster: runs that land and load, checks that name what differs, a sensor that tells of lag."""

from __future__ import annotations

from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import dagster as dg

from lake_assets.demo.membership_simulator import worked_example
from lake_assets.errors import ServiceError
from lake_assets.landing.dagster import (
    KEEP,
    LAG,
    PERIOD,
    SHARDS,
    compaction_job,
    landing_definitions,
    load_key,
    reshard_job,
    topic_key,
    upkeep_job,
    verification_job,
    zone_key,
    zones_equal_check,
)
from lake_assets.landing.landing_service import LandingService
from lake_assets.landing.manifest import status
from lake_assets.landing.records import parse_shard
from lake_assets.landing.state import Ledger, Retention
from lake_assets.membership import PIPELINE
from lake_assets.membership.raw import SIGNUPS
from lake_assets_tests.landing.kafka_scenario import NOW, Landings, sent
from lake_assets_tests.landing.made import path_of

if TYPE_CHECKING:
    from lake_assets.settings import Settings

DEADLINE = timedelta(minutes=15)


def test_dagster_lands_loads_compares_compacts_and_reshards(
    bare_home: Settings, kafka: str, instance: dg.DagsterInstance
) -> None:
    landings = Landings(bare_home, kafka)
    landings.create()
    first = worked_example()[0]
    landings.send([first])
    landings.settle(first.landed_at + timedelta(hours=1))
    feeds, topic, now = landings.feeds, landings.feeds[0].topic, [NOW]
    settings = bare_home.model_copy(update={"landing_prefix": landings.prefix, "landing_file_messages": 100})
    service = LandingService(settings, kafka, landings.catalog, PIPELINE, lambda: now[0])
    handed: dict[str, Any] = {"lake_assets_landing": SimpleNamespace(service=lambda: service)}
    crons = {"maintenance_cron": "17 3 * * *", "verify_cron": "47 4 * * *"}
    definitions = landing_definitions(feeds, clock=lambda: now[0], deadline=DEADLINE, **crons)
    merged = dg.Definitions.merge(definitions, dg.Definitions(resources=handed))
    repository = merged.get_repository_def()

    def dead() -> LandingService:
        raise ServiceError("No Kafka runs.", remedy="Run `lake up`.")

    moved: list[dg.AssetKey] = []

    def tick(cursor: str | None, at: datetime) -> tuple[str | None, list[bool], list[str]]:
        """What a tick keeps, the verdicts that it reports, and the shards that it adds."""
        now[0] = at
        context = dg.build_sensor_context(instance, cursor, repository_def=repository, resources=handed)
        result = repository.get_sensor_def("landing_sensor").evaluate_tick(context)
        verdicts = [event.passed for event in result.asset_events if isinstance(event, dg.AssetCheckEvaluation)]
        moved[:] = [event.asset_key for event in result.asset_events if not isinstance(event, dg.AssetCheckEvaluation)]
        new = [key for request in result.dynamic_partitions_requests or () for key in request.partition_keys]
        instance.add_dynamic_partitions(str(SHARDS.name), new)
        return result.cursor, verdicts, new

    without = dg.build_sensor_context(
        instance, "{}", repository_def=repository, resources={"lake_assets_landing": SimpleNamespace(service=dead)}
    )
    skipped = repository.get_sensor_def("landing_sensor").evaluate_tick(without)
    assert (skipped.cursor, skipped.asset_events) == ("{}", [])
    assert "No Kafka runs." in str(skipped.skip_message)
    cursor, verdicts, new = tick(None, NOW)
    assert (verdicts, new) == ([True] * 8, [])
    cursor, verdicts, _ = tick(cursor, NOW + 2 * DEADLINE)
    assert verdicts == [False] * 8
    assert moved == []

    result = merged.resolve_implicit_global_asset_job_def().execute_in_process(instance=instance)
    assert {(e.check_name, e.passed) for e in result.get_asset_check_evaluations()} == {
        (LAG, True),
        ("zones_equal", True),
    }
    assert landings.rows() == sent([first])
    loaded = {
        e.asset_key: e.step_materialization_data.materialization.metadata
        for e in result.get_asset_materialization_events()
    }
    figures = loaded[load_key(topic)]
    assert figures["rows"].value == first.rows[SIGNUPS.table].num_rows
    cursor, verdicts, new = tick(cursor, NOW + 3 * DEADLINE)
    assert (verdicts, new) == ([True] * 8, sorted(f"{feed.topic}/0-of-1" for feed in feeds))
    landed = [(topic_key(f.topic), zone_key(f.topic, "a"), zone_key(f.topic, "b"), load_key(f.topic)) for f in feeds]
    assert moved == [key for keys in landed for key in keys]
    cursor, _, _ = tick(cursor, NOW + 3 * DEADLINE + PERIOD)
    assert moved == []

    def run(job: dg.JobDefinition, config: dict[str, Any] | None = None) -> None:
        done = job.execute_in_process(
            run_config=config, partition_key=f"{topic}/0-of-1", instance=instance, resources=handed
        )
        assert done.success

    run(compaction_job(lambda: now[0]))
    assert {e.file.kind for e in landings.manifest.entries(topic=topic)} == {"columnar"}
    run(reshard_job(lambda: now[0]), {"ops": {"reshard_shard": {"config": {"shards": 2}}}})
    assert {s.shard for s in status(landings.manifest) if parse_shard(s.shard).topic == topic} == {
        f"{topic}/0-of-2",
        f"{topic}/1-of-2",
    }
    assert landings.load() == []
    resharded = landings.manifest.entries(topic=topic)
    verification = verification_job(lambda: now[0], DEADLINE)
    now[0] += 2 * KEEP
    retention, epoch = Retention(landings.manifest), Ledger(landings.manifest).epoch(topic)
    retention.keep(topic, 168)
    assert epoch is not None
    assert retention.marks(epoch) == []
    for job in (upkeep_job(lambda: now[0]), verification):
        assert job.execute_in_process(instance=instance, resources=handed).success
    assert {mark.at for mark in retention.marks(epoch)} == {now[0]}
    assert landings.manifest.entries(topic=topic) == resharded
    assert landings.manifest.entries(topic=topic, stages=("retired",)) == []
    assert {e.file.kind for e in landings.manifest.entries(topic=feeds[1].topic)} == {"columnar"}
    damaged = path_of(service.zones[0].zone, landings.manifest.entries("a", feeds[1].topic)[0].file.name)
    content = damaged.read_bytes()
    damaged.write_bytes(b"")
    found = verification.execute_in_process(instance=instance, resources=handed, raise_on_error=False)
    assert not found.success
    damaged.write_bytes(content)

    landings.send([worked_example()[1]])
    landings.settle(first.landed_at + timedelta(hours=9))
    with service.tailer(service.zones[0], topic=topic) as tailer:
        tailer.drain()
    cursor, early, _ = tick(cursor, now[0])
    cursor, verdicts, _ = tick(cursor, now[0] + 2 * DEADLINE)
    assert [*early, *verdicts] == [False] * 8, (
        "a file waits for the other zone, and seven of eight times a zone for messages"
    )
    check = zones_equal_check(feeds[0], lambda: now[0], DEADLINE)
    verdict = check(dg.build_asset_check_context(resources=handed))
    assert isinstance(verdict, dg.AssetCheckResult)
    assert not verdict.passed
    assert "has waited for the other zone since" in str(verdict.description)
