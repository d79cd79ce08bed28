"""What is mended without a decision, and what is left to one; a manifest of the version before goes on."""

from __future__ import annotations

import os
from collections.abc import Iterable

import sqlalchemy as sa

from lake_assets.landing.heal import Repaired, decide, repair
from lake_assets.landing.manifest import ENDS, RANGES, STOPS, FileRows, open_manifest
from lake_assets.settings import Settings
from lake_assets_tests.landing.made import path_of
from lake_assets_tests.landing.scenario import DEADLINE, EVER, NOW, Landed


def repaired(landed: Landed) -> list[Repaired]:
    return list(repair(list(landed.writers.values()), now=landed.clock, deadline=DEADLINE))


def lose_rows(landed: Landed, zones: Iterable[str]) -> None:
    """The manifest loses the first file of each zone; the files are old enough to be strays."""
    for zone in zones:
        file = landed.files(zone)[0]
        with landed.writers[zone].manifest.change() as (connection, _):
            FileRows(connection).remove(zone, file.name)
        for name in landed.writers[zone].zone.names(EVER):
            os.utime(path_of(landed.writers[zone].zone, name), (NOW.timestamp(), NOW.timestamp()))
    landed.clock = NOW + 2 * DEADLINE


def test_lost_rows_are_found_and_added_again_from_the_folders(bare_home: Settings) -> None:
    landed = Landed(bare_home)
    landed.land_all(files=2, partitions=1)
    before = landed.records("a")
    lose_rows(landed, "ab")
    holes = [finding.problem for finding in landed.findings() if "is in no file of this zone" in finding.problem]
    assert holes == ["p0:[0:2] is in no file of this zone"] * 2
    stray = path_of(landed.writers["a"].zone, "t-0-of-1-" + "0" * 32 + ".avro")
    stray.write_bytes(b"nothing that is known")
    os.utime(stray, (NOW.timestamp(), NOW.timestamp()))
    done = repaired(landed)
    assert sorted(repair.what for repair in done) == [
        "it was added to the manifest again",
        "it was added to the manifest again",
        "it was put in the folder `quarantine`: the manifest has no place for it",
    ]
    landed.assert_equal()
    assert landed.records("a") == before
    assert repaired(landed) == []


def test_a_lost_row_whose_file_is_gone_too_is_copied_from_the_other_zone(bare_home: Settings) -> None:
    landed = Landed(bare_home)
    landed.land_all(files=2, partitions=1)
    landed.writers["a"].zone.drop(landed.files("a")[0].name)
    lose_rows(landed, "a")
    with landed.writers["b"].manifest.change() as (connection, _):
        connection.execute(sa.delete(RANGES).where(RANGES.c.zone == "b"))
    assert [repair.what for repair in repaired(landed)] == [
        "its rows in the manifest were written again",
        "its rows in the manifest were written again",
        "it was copied from zone b",
    ]
    landed.assert_equal()


def test_a_damaged_file_is_written_again_though_the_other_zone_has_merged_its_own(bare_home: Settings) -> None:
    landed = Landed(bare_home)
    landed.land_all(files=3, partitions=1)
    before = landed.records("b")
    landed.run("merge", "b")
    landed.clock = NOW + DEADLINE
    landed.run("sweep", "b")
    damaged = landed.files("a")[1]
    path = path_of(landed.writers["a"].zone, damaged.name)
    path.unlink()
    assert [repair.what for repair in repaired(landed)] == ["it was written again with the records of the other zone"]
    landed.run("merge", "a")
    landed.run("sweep", "a")
    landed.assert_equal()
    assert landed.records("a") == before


def test_what_is_damaged_in_both_zones_is_left_to_a_decision(bare_home: Settings) -> None:
    landed = Landed(bare_home)
    landed.land_all(files=1, partitions=1)
    for zone, writer in landed.writers.items():
        path_of(writer.zone, landed.files(zone)[0].name).write_bytes(b"")
    first, second = repaired(landed)
    assert "cannot be restored (zone b: " in first.problem
    assert "cannot be restored (zone a: " in second.problem
    assert f"lake landing quarantine discard a {first.name}" in first.remedy
    decide(list(landed.writers.values()), "a", first.name, "discard", now=NOW)
    landed.land("a", 0, 0)
    assert [repair.zone for repair in repaired(landed)] == ["b"]
    landed.assert_equal()


def test_a_manifest_of_the_version_before_goes_on(bare_home: Settings) -> None:
    landed = Landed(bare_home)
    landed.land_all(files=2, partitions=1)
    with landed.manifest.engine.begin() as connection:
        for table in (ENDS, STOPS):
            table.drop(connection)
    later = Landed(bare_home)
    assert later.findings() == []
    for zone in "ab":
        later.land(zone, 0, 6)
    later.assert_equal()
    assert open_manifest(bare_home).entries("a")[-1].verdict == "verified"


def test_a_discarded_file_that_the_other_zone_has_only_merged_is_cut_from_the_merged_one(bare_home: Settings) -> None:
    """Kafka does not have its messages any more, so no zone could finish the round."""
    landed = Landed(bare_home)
    landed.land_all(files=5, partitions=1)
    before = landed.records("b")
    landed.run("merge", "b")
    landed.clock = NOW + DEADLINE
    landed.run("sweep", "b")
    lost = next(file for file in landed.files("a") if file.ranges == {0: (3, 5)})
    path_of(landed.writers["a"].zone, lost.name).write_bytes(b"damaged")
    decide(list(landed.writers.values()), "a", lost.name, "discard", now=landed.clock)
    landed.run("merge", "a")
    assert len(landed.files("a")) > len(landed.files("b")), "zone a waits for the file"
    (hole,) = [finding for finding in landed.findings() if "p0:[3:5] is in no file of this zone" in finding.problem]
    assert "lake landing repair" in hole.remedy

    assert [(done.name, done.what) for done in repaired(landed)] == [
        (lost.name, "it was cut from the merged files of zone b")
    ]
    landed.run("merge", "a")
    assert landed.records("a") == landed.records("b") == before
    landed.assert_equal()
    assert repaired(landed) == []
