"""Speed of landing, reading and verifying files on one core, and the time to choose files to compact.

python -m benchmarks.landing_files [--messages 50000] [--bytes 1024] [--files 100000]
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO

from lake_assets.landing import formats
from lake_assets.landing.files import Draft
from lake_assets.landing.heal import verify
from lake_assets.landing.operations import GroupLimits, select
from lake_assets.landing.records import NOTHING, SUFFIXES, DataFile, Kind, Record, checksum
from lake_assets.landing.zones import ZoneWriter, open_zones
from lake_assets.settings import Settings

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SHARD = "bench/0-of-1"
RUNS = 3
PARTITIONS = 4
MEGABYTE = 1e6
MAX_FILE_BYTES = 1 << 24
LIMITS = GroupLimits(100, 1 << 28)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--bytes", type=int, default=1024, help="of a message's value")
    parser.add_argument("--files", type=int, default=100_000, help="to choose from")
    arguments = parser.parse_args()
    records = _records(arguments.messages, arguments.bytes)
    megabytes = arguments.messages * arguments.bytes / MEGABYTE
    print(f"{arguments.messages:,} messages of {arguments.bytes:,} bytes; best of {RUNS}, by CPU time")
    seconds = _best(lambda: checksum(record.canonical for record in records))
    print(f"checksum alone: {megabytes / seconds:.0f} MB/s")
    with tempfile.TemporaryDirectory(prefix="lake-bench-") as folder:
        _files(Settings(home=Path(folder)), records, megabytes)
    for count in (arguments.files // 4, arguments.files // 2, arguments.files):
        files = _small_files(count)
        seconds = _best(lambda files=files: select(files, LIMITS))
        print(f"select among {count:,} files: {seconds:.2f} s")


def _records(count: int, size: int) -> list[Record]:
    """Return records with random values of `size` bytes."""
    chance = random.Random(1)
    return [Record(0, number, number, b"person %d" % number, chance.randbytes(size)) for number in range(count)]


def _files(settings: Settings, records: list[Record], megabytes: float) -> None:
    one, other = open_zones(settings)
    for kind in SUFFIXES:
        with tempfile.TemporaryFile() as opened:
            seconds = _best(lambda opened=opened, kind=kind: _write(opened, kind, records))
        print(f"{kind}: write alone {megabytes / seconds:.0f} MB/s")
        seconds = _best(lambda kind=kind: _draft(one, records, kind).path.unlink())
        print(f"{kind}: checksum, write, sync and read again {megabytes / seconds:.0f} MB/s")
    for writer in (one, other):
        for partition in range(PARTITIONS):
            _land(writer, [record._replace(partition=partition) for record in records])
    landed = 2 * PARTITIONS * megabytes
    files = [entry.file for entry in one.manifest.entries(one.zone.name)]
    reading = 2 * _best(lambda: [_read(one, file) for file in files], time.perf_counter)
    print(f"reading {landed:,.0f} MB of files, checking nothing: {landed / reading:.0f} MB/s")
    for processes in (1, 2):
        verifying = _best(lambda processes=processes: _verify(one, other, processes), time.perf_counter)
        print(f"verify of the same files, {processes} processes: {landed / verifying:.0f} MB/s of wall time")


def _verify(one: ZoneWriter, other: ZoneWriter, processes: int) -> None:
    verify([one, other], now=NOW, deadline=timedelta(hours=1), processes=processes)


def _best(act: Callable[[], object], clock: Callable[[], float] = time.process_time) -> float:
    """Return the smallest time of several runs, in seconds of CPU by default, because others use the machine, too."""
    took = []
    for _ in range(RUNS):
        began = clock()
        act()
        took.append(clock() - began)
    return min(took)


def _write(opened: IO[bytes], kind: Kind, records: list[Record]) -> None:
    opened.seek(0)
    formats.write(kind, opened, records)


def _draft(writer: ZoneWriter, records: list[Record], kind: Kind) -> Draft:
    return writer.zone.draft(SHARD, {records[0].partition: (0, len(records) - 1)}, records, kind=kind)


def _land(writer: ZoneWriter, records: list[Record]) -> None:
    writer.land(_draft(writer, records, "append"), now=NOW)


def _read(writer: ZoneWriter, file: DataFile) -> None:
    """Decode a file without any check."""
    with writer.zone.path(file.name).open("rb") as opened:
        deque(formats.read(file.kind, opened), maxlen=0)


def _small_files(count: int, partitions: int = 64) -> list[DataFile]:
    """Return files of random size, each of one partition."""
    chance = random.Random(1)
    files = []
    for number in range(count):
        size = chance.randrange(MAX_FILE_BYTES)
        offsets = {number % partitions: (number, number)}
        files.append(DataFile(f"f{number:09}", size, SHARD, offsets, frozenset(), 0, NOTHING))
    return files


if __name__ == "__main__":
    main()
