"""A partition that closes a file each minute for hours has a bounded number of live files. The time is passed in."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import dagster as dg
from dagster import DagsterRun, DagsterRunStatus

from lake_assets.landing.dagster import PAUSE_SECONDS, SHARDS, compaction_job, merging_sensor
from lake_assets_tests.landing.scenario import NOW, WHOLE, Landed

if TYPE_CHECKING:
    from lake_assets.settings import Settings

LIMIT = 12
MINUTES = 60
LATE = 3
"""A run merges so many minutes after the tick that requested it."""


class _Busy:
    """Two zones that close a file a minute, a sensor that is evaluated each minute, and the runs that it requests."""

    def __init__(self, settings: Settings, instance: dg.DagsterInstance) -> None:
        self.landed = Landed(settings)
        self.instance = instance
        service = SimpleNamespace(zones=list(self.landed.writers.values()), manifest=self.landed.manifest)
        self.resources: dict[str, Any] = {"lake_assets_landing": SimpleNamespace(service=lambda: service)}
        self.job = compaction_job(lambda: self.landed.clock)
        self.sensor = merging_sensor(self.job, lambda: self.landed.clock, most_unmerged=LIMIT)
        definitions = dg.Definitions(jobs=[self.job], sensors=[self.sensor], resources=self.resources)
        self.repository = definitions.get_repository_def()
        self.requests: list[dg.RunRequest] = []

    def tick(self) -> None:
        context = dg.build_sensor_context(self.instance, repository_def=self.repository, resources=self.resources)
        result = self.sensor.evaluate_tick(context)
        for request in result.dynamic_partitions_requests or ():
            self.instance.add_dynamic_partitions(str(SHARDS.name), list(request.partition_keys))
        known = {request.run_key for request in self.requests}  # Dagster requests a key once
        self.requests += [request for request in result.run_requests or () if request.run_key not in known]

    def run(self, request: dg.RunRequest) -> None:
        done = self.job.execute_in_process(
            partition_key=request.partition_key, instance=self.instance, resources=self.resources, tags=request.tags
        )
        assert done.success

    def live(self) -> int:
        return max(len(self.landed.files(zone)) for zone in self.landed.zones)


def test_a_busy_partition_has_a_bounded_number_of_files(bare_home: Settings, instance: dg.DagsterInstance) -> None:
    busy = _Busy(bare_home, instance)
    done, most, waiting = 0, 0, 0
    for minute in range(MINUTES):
        busy.landed.clock = NOW + timedelta(minutes=minute)
        for zone in busy.landed.zones:
            busy.landed.land(zone, 0, 3 * minute)
        busy.tick()
        waiting = waiting + 1 if len(busy.requests) > done else 0
        if waiting > LATE:
            busy.run(busy.requests[done])
            done, waiting = done + 1, 0
        most = max(most, busy.live())
    merged = 1
    assert most <= merged + LIMIT + LATE
    assert done >= MINUTES // (LIMIT + LATE) - 1, "a run for each few minutes, and not for each tick"
    assert len(busy.landed.records("a")) == len(busy.landed.records("b")) == 3 * MINUTES
    busy.landed.assert_equal()


def test_a_run_that_merged_nothing_is_requested_again_after_a_pause(
    bare_home: Settings, instance: dg.DagsterInstance
) -> None:
    busy = _Busy(bare_home, instance)
    for number in range(LIMIT - 1):
        for zone in busy.landed.zones:
            busy.landed.land(zone, 0, 3 * number)
    busy.tick()
    assert busy.requests == []
    for zone in busy.landed.zones:
        busy.landed.land(zone, 0, 3 * LIMIT - 3)
    busy.tick()
    busy.tick()
    (request,) = busy.requests
    assert request.partition_key == str(WHOLE)
    failed = DagsterRun(busy.job.name, status=DagsterRunStatus.FAILURE, tags=request.tags)
    instance.add_run(failed)
    busy.tick()
    assert len(busy.requests) == 1
    busy.landed.clock += timedelta(days=36_500, seconds=PAUSE_SECONDS)  # the clock of Dagster's runs is a real one
    busy.tick()
    assert [found.run_key for found in busy.requests] == [f"{WHOLE}:0:1", f"{WHOLE}:0:2"]
