"""What each change of Dagster's private names is worth: processor time of a sensor's evaluation and of a forked run.

    python -m benchmarks.private_names

Each line leaves one piece out. Processor time hardly depends on what else the machine does.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

import dagster as dg

from lake_assets.connections.dagster import use_engines, use_scripts
from lake_assets.dagster_processes.code_server import use_lean_capture
from lake_assets.dagster_processes.storages import kept_engines, known_scripts, read_migrations

TIMES = 10


def use_known_scripts() -> None:
    """Read the scripts of migrations once."""
    use_scripts(known_scripts)
    read_migrations()


PIECES: Mapping[str, Callable[[], object]] = {
    "engines": lambda: use_engines(kept_engines),
    "scripts": use_known_scripts,
    "output": use_lean_capture,
}


@dg.asset(partitions_def=dg.HourlyPartitionsDefinition("2026-01-01-00:00"))
def table() -> None:
    """Do nothing."""


@dg.sensor(job_name="job")
def sensor(context: dg.SensorEvaluationContext) -> dg.SkipReason:
    """Ask the instance what a sensor asks."""
    context.instance.get_latest_materialization_event(dg.AssetKey("table"))
    context.instance.get_run_records(limit=5)
    return dg.SkipReason("nothing is due")


JOB = dg.define_asset_job("job", [table], executor_def=dg.in_process_executor)
REPOSITORY = dg.Definitions(assets=[table], sensors=[sensor], jobs=[JOB]).get_repository_def()


def evaluate() -> None:
    """Evaluate the sensor as the code server does."""
    evaluation = import_module("dagster._grpc.impl").get_external_sensor_execution
    reference = dg.DagsterInstance.get().get_ref()
    for _ in range(TIMES):
        evaluation(REPOSITORY, None, reference, "sensor", None, None, None, None, None)


def run() -> None:
    """Run the job."""
    with dg.DagsterInstance.get() as instance:
        REPOSITORY.get_job("job").execute_in_process(instance=instance, partition_key="2026-01-01-00:00")


def milliseconds(work: Callable[[], None], forks: int) -> float:
    """Return the processor time of some work, in forks of this process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for _ in range(forks):
        fork = multiprocessing.get_context("fork").Process(target=work)
        fork.start()
        fork.join()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def main() -> None:
    """Measure each set of pieces in a fork of its own."""
    for without in ("", *PIECES, "all"):
        fork = multiprocessing.get_context("fork").Process(target=measure, args=(without,))
        fork.start()
        fork.join()


def measure(without: str) -> None:
    """Print the two times without a piece."""
    with TemporaryDirectory() as home:
        os.environ["DAGSTER_HOME"] = home
        (Path(home) / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
        for name, use in PIECES.items():
            if without not in (name, "all"):
                use()
        milliseconds(run, 1)  # creates the databases
        evaluation, job = milliseconds(evaluate, 1) / TIMES, milliseconds(run, TIMES) / TIMES
        sys.stderr.write(f"without {without or 'nothing':8} evaluation {evaluation:4.0f} ms, run {job:4.0f} ms\n")


if __name__ == "__main__":
    main()
