"""What verification finds in the manifest and in the folders, and from which moment on."""

from __future__ import annotations

import os
from datetime import timedelta

import pytest

from lake_assets.landing import heal
from lake_assets.landing.files import DRAFT
from lake_assets.landing.manifest import FileRows
from lake_assets.settings import Settings
from lake_assets_tests.landing.made import path_of
from lake_assets_tests.landing.scenario import DEADLINE, NOW, Landed

SECOND = timedelta(seconds=1)


def test_a_compacted_file_is_compared_with_the_files_that_it_was_made_from(bare_home: Settings) -> None:
    """Both zones agree on the compacted file, so only its origin shows what is wrong."""
    landed = Landed(bare_home)
    landed.land_all(files=3, partitions=1)
    for zone in ("a", "b"):
        landed.run("merge", zone)
    assert landed.findings() == []
    (merged,) = landed.files("a")
    with landed.manifest.change() as (connection, _):
        FileRows(connection).change("a", merged.made_from[1], sum=f"{7:064x}")
    (finding,) = landed.findings()
    assert (finding.zone, finding.name) == ("a", merged.name)
    assert finding.problem.startswith(f"has the checksum {merged.checksum}, but the files that it was made from have ")
    landed.writers["a"].manifest.forget("a", merged.made_from[:1])
    assert landed.findings() == []  # its whole origin is not known any more


def test_what_is_in_work_is_found_after_the_deadline_and_not_before(bare_home: Settings) -> None:
    landed = Landed(bare_home)
    landed.land("a", 0, 0)
    (waiting,) = landed.files("a")
    folder = path_of(landed.writers["a"].zone)
    for name in (f"{DRAFT}x", "unknown.avro"):
        (folder / name).touch()
    for path in folder.iterdir():
        os.utime(path, (NOW.timestamp(), NOW.timestamp()))
    landed.clock = NOW + DEADLINE
    assert landed.findings() == []
    landed.clock += SECOND
    assert [(found.name, found.problem) for found in landed.findings()] == [
        (f"{DRAFT}x", "is a draft that nobody finished"),
        ("unknown.avro", "is not in the manifest"),
        (
            waiting.name,
            "(p0:[0:2]) has waited 901 s for the other zone's file: that zone lags, or a manifest write was lost",
        ),
    ]


def test_several_processes_find_what_one_finds(bare_home: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    landed = Landed(bare_home)
    landed.land_all(files=3, partitions=1)
    rotten = landed.files("b")[1]
    path_of(landed.writers["b"].zone, rotten.name).write_bytes(b"rotten")
    monkeypatch.setattr(heal, "PROCESS_BYTES", 1)
    writers = list(landed.writers.values())
    (found,) = heal.verify(writers, now=landed.clock, deadline=DEADLINE, processes=2).findings
    assert (found.zone, found.name, found.problem) == ("b", rotten.name, "has other bytes than were written")
    assert [found] == landed.findings()
