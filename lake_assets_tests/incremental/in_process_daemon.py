"""What the daemon does, in the test's process: evaluate the real sensors, run what they request, one by one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING

import dagster as dg
from dagster._core.definitions.sensor_definition import SensorExecutionData

from lake_assets.base.hours import hour_key, parse_hour
from lake_assets.incremental.dagster.asset_specs import asset_key, partitions_of
from lake_assets.incremental.dagster.assets import incremental_definitions
from lake_assets.incremental.dagster.lake_resource import LAKE
from lake_assets.incremental.dagster.sensors import SensedTarget, SensorTiming, sessions_sensor

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

    from lake_assets.incremental.dagster.sensors import Clock
    from lake_assets.incremental.declaration import Pipeline


@dataclass
class InProcessDaemon:
    """cursors: of each sensor, as the real daemon keeps them."""

    pipeline: Pipeline
    instance: dg.DagsterInstance
    repository: dg.RepositoryDefinition
    resources: dict[str, object]
    cursors: dict[str, str | None] = field(default_factory=dict)

    def tick(self, sensor: str) -> SensorExecutionData:
        """One evaluation of a sensor; its asset events are stored, its requests are returned."""
        context = dg.build_sensor_context(
            self.instance,
            self.cursors.get(sensor),
            repository_def=self.repository,
            sensor_name=sensor,
            resources=self.resources,
        )
        found = self.repository.get_sensor_def(sensor).evaluate_tick(context)
        self.cursors[sensor] = found.cursor
        for event in found.asset_events:
            self.instance.report_runless_asset_event(event)
        return found

    def run(self, request: dg.RunRequest) -> dg.ExecuteInProcessResult:
        """The run that a sensor requested, as the daemon would launch it: of its assets and checks alone."""
        job = self.repository.get_implicit_job_def_for_assets(request.asset_selection or [])
        assert job is not None
        selected = job.get_subset(
            asset_selection=frozenset(request.asset_selection or ()),
            asset_check_selection=frozenset(request.asset_check_keys) if request.asset_check_keys is not None else None,
        )
        return selected.execute_in_process(tags=dict(request.tags), instance=self.instance, raise_on_error=False)

    def execute_checks(self, table: str, *names: str, hours: Sequence[int] = ()) -> dg.ExecuteInProcessResult:
        """A run of checks alone, as the button "Execute" launches it. hours: of its configuration; none by default."""
        key = asset_key(table)
        job = self.repository.get_implicit_job_def_for_assets([key])
        assert job is not None
        checks = frozenset(dg.AssetCheckKey(key, name) for name in names)
        selected = job.get_subset(asset_selection=frozenset(), asset_check_selection=checks)
        keys = [hour_key(self.pipeline.start_hour + hour) for hour in hours]
        config = {"ops": {key.to_python_identifier(): {"config": {"hours": keys}}}} if keys else {}
        return selected.execute_in_process(run_config=config, instance=self.instance, raise_on_error=False)

    def execute(self, *tables: str, tags: dict[str, str]) -> dg.ExecuteInProcessResult:
        """A run of targets and all their checks, as the UI would launch it."""
        keys = [asset_key(table) for table in tables]
        job = self.repository.get_implicit_job_def_for_assets(keys)
        assert job is not None
        return job.execute_in_process(asset_selection=keys, tags=tags, instance=self.instance, raise_on_error=False)

    def catch_up(self, *names: str) -> dict[str, list[list[int]]]:
        """Ticks and runs of all targets or some, in order, until nothing is requested: target → for each run, the hours
        it marked."""
        self.tick("raw_tables_sensor")
        marked: dict[str, list[list[int]]] = {}
        for target in self.pipeline.in_order():
            if names and target.name not in names:
                continue
            while requests := self.tick(f"{target.name}_sensor").run_requests:
                result = self.run(requests[0])
                marked.setdefault(target.name, []).append(self.hours_marked(result))
        return marked

    def hours_marked(self, result: dg.ExecuteInProcessResult) -> list[int]:
        """The hours that a run reported as materialized, counted from the pipeline's start."""
        events = result.get_asset_materialization_events()
        return [self.hour(event.partition) for event in events if event.partition]

    def hours_of(self, table: str) -> list[int]:
        """The hours that Dagster shows as materialized."""
        return sorted(map(self.hour, self.instance.get_materialized_partitions(asset_key(table))))

    def hour(self, key: str) -> int:
        return parse_hour(key) - self.pipeline.start_hour


@contextmanager
def in_process_daemon(
    pipeline: Pipeline,
    catalog: Catalog,
    clock: Clock,
    *,
    end: str,
    timing: SensorTiming | None = None,
    spark: SparkSession | None = None,
    configuration: Mapping[str, object] | None = None,
) -> Iterator[InProcessDaemon]:
    """The pipeline's own definitions on a fresh Dagster instance, with the test's catalog and Spark as resources.

    configuration: of that instance, as in `dagster.yaml`.

    Each target also has a sensor of its own, `<target>_sensor`, so that a test can look at one of them alone.
    """
    handed = SimpleNamespace(catalog=lambda: catalog, spark_session=spark)
    resources = {LAKE: dg.ResourceDefinition.hardcoded_resource(handed)}
    single = []
    for target in pipeline.targets:
        sensed = SensedTarget(target, partitions_of(target.grain, pipeline.start, end, clock()))
        name = f"{target.name}_sensor"
        single.append(sessions_sensor(pipeline, [sensed], timing or SensorTiming(), clock, name=name))
    definitions = dg.Definitions.merge(
        incremental_definitions(pipeline, clock=clock, end=end, timing=timing),
        dg.Definitions(resources=resources, sensors=single),
    )
    with dg.instance_for_test(overrides=configuration) as instance:
        yield InProcessDaemon(pipeline, instance, definitions.get_repository_def(), dict(resources))
