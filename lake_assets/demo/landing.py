"""The landing demo: two zones land topics, a file rots and is mended, shards split, an id is erased, files merge."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from lake_assets.connections.catalog import open_catalog
from lake_assets.demo.home import check, console, expect_command, headline, prepare_home
from lake_assets.incremental.engine.iceberg import load
from lake_assets.landing.operations import GroupLimits, select
from lake_assets.landing.records import Checksum, DataFile, merged_ranges
from lake_assets.membership.raw import RAW, SIGNUPS
from lake_assets.services.lifecycle import lake_services

if TYPE_CHECKING:
    from pathlib import Path

    from lake_assets.settings import Settings

TOPIC = SIGNUPS.table
SHARDS = 4
SETTINGS = {"LAKE_LANDING_FILE_MESSAGES": "100", "LAKE_LAKES": ""}

EXAMPLE: Mapping[str, Mapping[int, tuple[int, int]]] = {
    "A": {1: (1, 2), 2: (1, 2)},
    "B": {3: (2, 3), 4: (2, 3)},
    "C": {2: (4, 6), 3: (4, 6)},
    "D": {1: (4, 6), 4: (4, 6)},
    "E": {2: (7, 8)},
}
"""Five files of one shard → partition → first and last offset."""

MERGED = {1: (1, 2), 2: (1, 8), 3: (2, 6), 4: (2, 3)}
"""Offsets of the file that A, B, C and E become, by partition."""


def run() -> None:
    """Play all scenes in the data directory of the settings, with services that end with them.

    Raises:
        ServiceError: A service did not start.
        LakeError: A scene ended in another way than it should.
        UsageError: The data directory is not the demo's own.
    """
    began = time.monotonic()
    own = prepare_home(fixed=SETTINGS)
    console.print("[dim]Starting spark, zookeeper, kafka ...[/]")
    with lake_services(own) as home:
        sent = _land(home)
        _mend(home)
        _reshard(home)
        _erase(home)
        _show_example()
        _compact(home)
        headline("The proof", "All that was sent is in both zones and in the raw tables, but nothing of the erased id.")
        erased = sent - _rows(home)
        check(f"of {sent:,} messages, all are rows but the {erased} of the erased id", 0 < erased < sent, expected=True)
        _expect(home, 0, "landing", "verify")
        _expect(home, 0, "landing", "page")
    console.print(f"\n{time.monotonic() - began:.0f} s in all.")


def _land(home: Settings) -> int:
    """Send a simulated day and land it; return the number of messages."""
    headline("Two zones", "Each reads Kafka by itself, cuts files at the same offsets, and compares them by checksum.")
    _expect(home, 0, "init")
    said = _expect(home, 0, "landing", "simulate", "--accounts", "400", "--hours", "8", "--partitions", "2")
    sent = int(re.sub(r"\D", "", said.splitlines()[-1]))
    _expect(home, 0, "landing", "run", "--once", "--no-heartbeats")
    _expect(home, 0, "landing", "verify")
    check("each message is a row of its raw table", _rows(home), sent)
    return sent


def _mend(home: Settings) -> None:
    headline("A file rots", "One bit of one file in zone a is turned. Each check reads the bytes again.")
    file = max(_files(home, "a"), key=lambda file: (file.stat().st_size, file.name))
    sound = file.read_bytes()
    middle = len(sound) // 2
    file.write_bytes(sound[:middle] + bytes([sound[middle] ^ 1]) + sound[middle + 1 :])
    _expect(home, 1, "landing", "verify")
    _expect(home, 0, "landing", "repair")
    _expect(home, 0, "landing", "verify")
    rows = _rows(home)
    _expect(home, 0, "landing", "run", "--once", "--no-heartbeats")
    check("no row is there twice because of it", _rows(home), rows)


def _reshard(home: Settings) -> None:
    headline("Shards", f"The records of {TOPIC} are spread over {SHARDS} shards by account; both zones check copies.")
    _expect(home, 0, "landing", "reshard", TOPIC, str(SHARDS))
    _expect(home, 0, "landing", "verify")
    _expect(home, 0, "landing", "status")


def _erase(home: Settings) -> None:
    headline("An erasure", "One command erases an account from the files of both zones and from the tables.")
    account = load(open_catalog(home), TOPIC).scan(selected_fields=("account_id",)).to_arrow()["account_id"][0].as_py()
    _expect(home, 0, "erase", "account", account)
    _expect(home, 0, "erasure", "certify", "account", account)
    _expect(home, 0, "landing", "verify")


def _show_example() -> None:
    headline(
        "Which files may become one",
        "Across are offsets, a line for each partition. A, B and E without C would leave a cycle: C comes after A and"
        " before E. The files are taken in a topological order, the smallest first.",
    )
    files = [_file(name, ranges) for name, ranges in EXAMPLE.items()]
    ((*chosen,),) = select(files, GroupLimits(max_files=4, max_bytes=1_000))
    names = {file.name for file in chosen}
    for partition in sorted(MERGED):
        cells = []
        for offset in range(1, 9):
            owner = [name for name, ranges in EXAMPLE.items() if _covers(ranges, partition, offset)]
            cells.append(f"[green]{owner[0]}[/]" if owner and owner[0] in names else owner[0] if owner else "·")
        console.print(f"    partition {partition}  {' '.join(cells)}")
    check("A, B, C and E become one file, and D stays", "".join(sorted(names)), "ABCE")
    check("the new file has the offsets of all four", dict(merged_ranges(chosen)), MERGED)


def _compact(home: Settings) -> None:
    headline("Compaction", "Both zones merge the same verified files of the topics, and compare the new ones.")
    before = len(_files(home, "a"))
    _expect(home, 0, "landing", "compact", "--keep-hours", "0")
    after = {zone: sorted(file.name for file in _files(home, zone)) for zone in ("a", "b")}
    check(f"zone a has fewer files than {before} now", len(after["a"]) < before, expected=True)
    check("both zones have files of the same names", after["a"], after["b"])


def _expect(home: Settings, exit_code: int, *arguments: str) -> str:
    addresses = {"LAKE_SPARK_REMOTE": str(home.spark_remote), "LAKE_KAFKA": str(home.kafka)}
    return expect_command(home, exit_code, *arguments, **addresses)


def _rows(home: Settings) -> int:
    catalog = open_catalog(home)
    return sum(load(catalog, raw.table).scan().count() for raw in RAW)


def _files(home: Settings, zone: str) -> list[Path]:
    return [file for file in sorted((home.landing_folder / zone).rglob("*.*")) if file.suffix in (".avro", ".parquet")]


def _covers(ranges: Mapping[int, tuple[int, int]], partition: int, offset: int) -> bool:
    first, last = ranges.get(partition, (1, 0))
    return first <= offset <= last


def _file(name: str, ranges: Mapping[int, tuple[int, int]]) -> DataFile:
    count = sum(last - first + 1 for first, last in ranges.values())
    # D is the largest, so that it comes last of those that are free.
    return DataFile(name, 50 if name == "D" else count, f"{TOPIC}-0-of-1", ranges, frozenset(), count, Checksum())
