"""Measure curves of what a session of an append costs on an object store, and write them into docs/sizing.md.

    python -m benchmarks.sizing --figures FILE [--rows [N ...]] [--rows-on-cluster [N ...]] [--executors [N ...]]
        [--partitions [N ...]] [--snapshots [N ...]] [--minutes 60] [--write]

Each option is a curve: one of the sizes is varied, and the others stay. For each size a lake of its own is
made, late rows of the newest 24 hours land, and one session builds them. A small session of another lake comes first
and does not count. Figures are appended to a file, and sizes that the file has are not measured again, so a command
that was ended, or whose minutes were over, can be given again. With `--write`, the page and its pictures get all curves
of the file.

Requests are those that the server of S3 (moto, a process of its own) has logged. Executors: 0 is one process with two
threads; otherwise workers of Spark standalone with one core each, with the properties that a cluster has by default.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import psutil
from pydantic import SecretStr

from benchmarks.cluster.stack import BUCKET, KEY, KEY_ID, s3
from benchmarks.cluster.standalone import EXECUTOR_CONF, master, master_address, worker
from benchmarks.event_log import logged, work
from benchmarks.history import Past
from benchmarks.processes import cpu_seconds, spark_server
from benchmarks.sizing.curves import CURVES, SMALL, Figures, Size, read, write_page
from benchmarks.sizing.lake import MB, SizedLake, Store
from lake_assets.connections.addresses import LOOPBACK, run_folder
from lake_assets.connections.spark import MASTER
from lake_assets.incremental.engine.model import SessionReport
from lake_assets.services.servers import spark as spark_service
from lake_assets.services.service import free_port, running
from lake_assets.settings import Settings, settings

FOR_FEW_ROWS = (
    "spark.executor.extraJavaOptions",
    "spark.sql.shuffle.partitions",
    "spark.databricks.delta.snapshotPartitions",
)
"""Properties of the small cluster of the demo that do not suit many rows."""

EXECUTOR_MEMORY, WORKER_MB = "2g", 2_300
"""The heap of an executor, and what its worker offers. One of 700 MB ends at 100 million rows."""

EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
"""The class of an executor of Spark standalone."""

FIRST = replace(SMALL, rows=1_000)
"""The session that does not count."""


@dataclass(frozen=True)
class Sparks:
    """The processes of Spark, and its event log."""

    server: psutil.Process
    workers: tuple[psutil.Process, ...]
    log: Path

    def processes(self) -> list[psutil.Process]:
        """Return the driver first, then the executors; with 0 executors, the driver alone."""
        found = [self.server]
        for parent in self.workers:
            for each in parent.children():  # beside processes that start an executor, and end
                with suppress(psutil.NoSuchProcess):
                    if EXECUTOR in each.cmdline():
                        found.append(each)
        return found


def main() -> None:
    """Measure the curves that are named, and write the page if that is wanted."""
    arguments = _arguments()
    ends = time.monotonic() + 60 * arguments.minutes
    known = {found.size for found in read(arguments.figures)}
    wanted = []
    for curve in CURVES:
        named = getattr(arguments, curve.name)
        if named is not None:
            wanted += [size for size in curve.sizes(named or curve.values) if size not in known]
    for executors in sorted({size.executors for size in wanted}):
        with tempfile.TemporaryDirectory(prefix="lake-sizing-") as folder:
            for found in measure(Path(folder), [size for size in wanted if size.executors == executors], ends):
                with arguments.figures.open("a") as file:
                    file.write(f"{json.dumps(asdict(found))}\n")
                print(found, flush=True)
    if arguments.write:
        write_page(read(arguments.figures))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for curve in CURVES:
        text = f"default: {', '.join(f'{value:,}' for value in curve.values)}"
        parser.add_argument(f"--{curve.name}", dest=curve.name, metavar="N", type=int, nargs="*", help=text)
    parser.add_argument("--figures", type=Path, required=True, help="a file of JSON lines, to which figures are added")
    parser.add_argument("--minutes", type=float, default=60, help="start no measurement later")
    parser.add_argument("--write", action="store_true", help="write docs/sizing.md and its pictures")
    return parser.parse_args()


def measure(folder: Path, wanted: Iterable[Size], ends: float) -> Iterator[Figures]:
    """Measure sizes, which have the same number of executors, each in a lake of its own.

    Args:
        folder: An empty folder.
        wanted: Those sizes.
        ends: No measurement starts later, in seconds of the monotonic clock.
    """
    wanted = list(dict.fromkeys(wanted))
    executors = wanted[0].executors
    log = folder / "events"
    log.mkdir()
    with ExitStack() as stack:
        store = Store(stack.enter_context(running(s3(folder / "s3", free_port()))))
        store.bucket.create()
        home = stack.enter_context(_spark(folder / "server", log, executors))
        sparks = _sparks(folder / "server", log, executors)
        for number, size in enumerate([replace(FIRST, executors=executors), *wanted]):
            if time.monotonic() > ends:
                print(f"The minutes are over: {len(wanted) - number + 1} sizes are left out.", flush=True)
                return
            found = _figures(on_store(home, store, folder / f"lake-{number}"), size, store, sparks)
            if number:
                yield found
            store.bucket.objects.all().delete()
            shutil.rmtree(folder / f"lake-{number}")


def _figures(home: Settings, size: Size, store: Store, sparks: Sparks) -> Figures:
    lake = SizedLake(home, Past(home.home, size.partitions), size.partitions, snapshots=size.snapshots)
    lake.land_rows(size.rows)
    processes = [psutil.Process(), *sparks.processes()]
    stored = store.megabytes()
    requests = store.requests()
    for process in processes:
        _forget_peak(process)
    cpu = [cpu_seconds(process) for process in processes]
    began = time.time()
    report = lake.engine.run(lake.pipeline.targets[0])
    ended = time.time()
    assert isinstance(report, SessionReport), report
    assert report.rows_written == size.rows, report
    lake.spark.stop()
    used = [cpu_seconds(process) - before for process, before in zip(processes, cpu, strict=True)]
    peaks = [_peak_megabytes(process) for process in processes]
    return Figures(
        size=size,
        load=psutil.getloadavg()[0],
        seconds=ended - began,
        cpu_session=used[0],
        cpu_spark=sum(used[1:]),
        requests=dict(store.requests() - requests),
        written_mb=store.megabytes() - stored,
        peak_session_mb=peaks[0],
        peak_driver_mb=peaks[1],
        tasks=work(sparks.log, {"": [(began, ended)]})[""],
    )


def _forget_peak(process: psutil.Process) -> None:
    Path(f"/proc/{process.pid}/clear_refs").write_text("5")


def _peak_megabytes(process: psutil.Process) -> float:
    """Return the largest resident size since `_forget_peak`."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
    assert found is not None
    return int(found.group(1)) * 1024 / MB


@contextmanager
def _spark(home: Path, log: Path, executors: int) -> Iterator[Settings]:
    """Run a Connect server, with workers if executors are wanted; yield settings that name it."""
    found = Settings(home=home, jars=settings().jars, spark_memory="3g", spark_java_options="")
    with ExitStack() as stack:
        if executors:
            port = free_port()
            stack.enter_context(running(master(home, port)))
            for name in _workers(executors):
                stack.enter_context(running(worker(home, name, port, memory_mb=WORKER_MB)))
            properties = {**_executor_conf(executors), MASTER: master_address(port)}
            found = found.model_copy(update={"spark_properties": properties})
        service = stack.enter_context(running(logged(spark_service(found, free_port()), log)))
        yield found.model_copy(update={"spark_remote": f"sc://{LOOPBACK}:{service.port}", "spark_properties": {}})


def _executor_conf(executors: int) -> Mapping[str, str]:
    """Return small executors, all of which stay, so that their processor time can be read."""
    few = {name: value for name, value in EXECUTOR_CONF.items() if name not in FOR_FEW_ROWS}
    few["spark.executor.memory"] = EXECUTOR_MEMORY
    limits = dict.fromkeys(
        ("spark.dynamicAllocation.minExecutors", "spark.dynamicAllocation.maxExecutors"), str(executors)
    )
    return {**few, **limits}


def _workers(executors: int) -> list[str]:
    return [f"worker-{number}" for number in range(executors)]


def _sparks(home: Path, log: Path, executors: int) -> Sparks:
    pids = [int((run_folder(home) / f"{name}.pid").read_text()) for name in _workers(executors)]
    return Sparks(spark_server(home), tuple(map(psutil.Process, pids)), log)


def on_store(found: Settings, store: Store, home: Path) -> Settings:
    properties = {"s3.endpoint": store.address, "s3.access-key-id": KEY_ID, "s3.secret-access-key": KEY}
    hidden = {name: SecretStr(value) for name, value in properties.items()}
    places = {"home": home, "warehouse": f"s3://{BUCKET}/{home.name}", "catalog_properties": hidden}
    return found.model_copy(update=places)


if __name__ == "__main__":
    main()
