"""The manifest: what it takes, what it refuses, and what is left of a change that was not finished."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from threading import Barrier

import pytest
import sqlalchemy as sa

from lake_assets.errors import (
    ConfigurationError,
    FilesDiffer,
    LandingError,
    PublishConflict,
    StoredByNewerVersion,
    UsageError,
)
from lake_assets.landing.cutover import Policy
from lake_assets.landing.files import PUBLISHED
from lake_assets.landing.manifest import ALL_STAGES, ALL_VERDICTS, FORMATS, Manifest, divide, files_of, open_manifest
from lake_assets.landing.records import DataFile, Shard, checksum, file_name, names_of
from lake_assets.landing.state import DeletionRequest, Round, SharedState
from lake_assets.settings import Settings
from lake_assets_tests.landing.made import path_of
from lake_assets_tests.landing.scenario import DEADLINE, NOW, TOPIC, WHOLE, Landed, quarantine, sent, share_manifest

POLICY = Policy(10, 1_000, 60_000)


@pytest.fixture
def configured(bare_home: Settings, address: str | None) -> Settings:
    """A home whose manifest is in one store or in the other."""
    return bare_home.model_copy(update={"landing_manifest_uri": address})


@pytest.fixture
def manifest(configured: Settings) -> Manifest:
    return open_manifest(configured)


def file(zone: str, first: int, last: int, *records: bytes, partition: int = 0) -> DataFile:
    ranges = {partition: (first, last)}
    found = checksum(records)
    return DataFile(
        file_name(str(WHOLE), ranges, (), "append"), 1, str(WHOLE), ranges, frozenset(), found.count, found, zone
    )


def test_what_zones_of_a_version_before_formats_shared_is_divided_and_a_later_version_is_refused(
    configured: Settings,
) -> None:
    share_manifest(configured, "INSERT INTO landing_deletion VALUES ('r', 'raw.signups', 'hash', 7)")
    for zone in ("b", "a"):
        manifest = open_manifest(configured, zone)
        assert SharedState(manifest).deletions("raw.signups") == [DeletionRequest("r", "raw.signups", "hash", 7)]
        manifest.add(file(zone, 0, 1, b"x", b"y"), now=NOW)
        assert len(open_manifest(configured, zone).entries()) == 1
    assert not divide(configured)
    with manifest.engine.begin() as connection:
        assert list(connection.execute(sa.select(FORMATS.c.format)).scalars()) == [4]
        connection.execute(sa.insert(FORMATS).values(format=5, written_by="7.0"))
    refusal = r"The manifest .* has format 5, and this version reads formats up to 4(.|\n)*Install lake-assets 7\.0"
    with pytest.raises(StoredByNewerVersion, match=refusal):
        open_manifest(configured)


def test_another_database_is_refused_by_name(bare_home: Settings) -> None:
    asked = bare_home.model_copy(update={"landing_manifest_uri": "mysql://somewhere/landing"})
    with pytest.raises(ConfigurationError, match=r"cannot be kept in mysql(.|\n)*LAKE_LANDING_MANIFEST_URI"):
        open_manifest(asked)


def test_a_role_that_reads_an_old_snapshot_by_default_opens_a_manifest_like_others(
    bare_home: Settings, database: str
) -> None:
    asked = bare_home.model_copy(
        update={"landing_manifest_uri": f"{database}&options=-cdefault_transaction_isolation%3Drepeatable%5C%20read"}
    )
    with open_manifest(asked).engine.connect() as connection:
        assert connection.execute(sa.text("SHOW default_transaction_isolation")).scalar_one() == "repeatable read"
        assert connection.execute(sa.text("SHOW transaction_isolation")).scalar_one() == "read committed"


def test_equal_files_are_verified_and_the_same_again_is_no_change(manifest: Manifest) -> None:
    one, other = file("a", 0, 1, b"x", b"y"), file("b", 0, 1, b"y", b"x")
    assert [manifest.add(f, now=NOW) for f in (one, one, other, other, one)] == [
        "provisional",
        "provisional",
        "verified",
        "verified",
        "verified",
    ]
    assert [e.file for e in manifest.entries()] == [one, other]


def test_a_file_that_differs_is_quarantined_and_may_be_landed_again(manifest: Manifest) -> None:
    good, bad = file("a", 0, 1, b"x", b"y"), file("b", 0, 1, b"x", b"z")
    manifest.add(good, now=NOW)
    for _ in range(2):
        with pytest.raises(FilesDiffer) as raised:
            manifest.add(bad, now=NOW)
    for part in (bad.name, "p0:[0:1]", str(bad.checksum), str(good.checksum), "zone a"):
        assert part in raised.value.problem
    assert [(e.file.zone, e.verdict) for e in manifest.entries()] == [("a", "provisional")]
    assert manifest.add(replace(good, zone="b"), now=NOW) == "verified"


def test_other_records_under_a_name_that_is_there_are_refused(manifest: Manifest) -> None:
    manifest.add(file("a", 0, 1, b"x"), now=NOW)
    with pytest.raises(LandingError, match="is there with the checksum"):
        manifest.add(file("a", 0, 1, b"y"), now=NOW)


@pytest.mark.parametrize("offsets", [(0, 0), (1, 5), (2, 2), (0, 9)])
def test_overlapping_offsets_are_refused_with_the_names(manifest: Manifest, offsets: tuple[int, int]) -> None:
    there, more = file("a", 0, 2, b"x"), file("a", *offsets, b"y")
    manifest.add(there, now=NOW)
    with pytest.raises(LandingError, match="is in two files") as raised:
        manifest.add(more, now=NOW)
    assert there.name in raised.value.problem
    assert more.name in raised.value.problem
    manifest.add(file("a", *offsets, b"y", partition=1), now=NOW)
    manifest.add(file("b", *offsets, b"y"), now=NOW)


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"name": "../x"}, "is not the name of a landed file"),
        ({"shard": "raw.signups/4-of-4"}, "There is no shard 4 of 4"),
        ({"shard": "raw.signups"}, "is not a shard"),
        ({"shard": "raw.signups/1-of-4"}, "raw.signups was never resharded to 4 shards"),
        ({"deletions": frozenset({"r1"})}, "scrubbed for r1, which nobody requested"),
        ({"ranges": {0: (2, 1)}}, "offsets 2 to 1 of partition 0"),
        ({"ranges": {}}, "has no offsets"),
        ({"zone": ""}, "has no zone"),
    ],
)
def test_what_is_no_file_is_refused(manifest: Manifest, changed: dict[str, object], what: str) -> None:
    with pytest.raises(Exception, match=what):
        manifest.add(replace(file("a", 0, 1, b"x"), **changed), now=NOW)  # type: ignore[arg-type]
    assert manifest.entries() == []


def test_who_waits_too_long_is_told_of(manifest: Manifest) -> None:
    manifest.add(file("a", 0, 1, b"x"), now=NOW)
    assert manifest.overdue(NOW + DEADLINE, DEADLINE) == []
    assert [e.file.zone for e in manifest.overdue(NOW + DEADLINE + timedelta(seconds=1), DEADLINE)] == ["a"]
    manifest.add(file("b", 0, 1, b"x"), now=NOW)
    assert manifest.overdue(NOW + 2 * DEADLINE, DEADLINE) == []


def test_replacing_what_somebody_else_has_replaced_is_refused(manifest: Manifest) -> None:
    taken = [file("a", 0, 1, b"x"), file("a", 2, 3, b"y")]
    for each in taken:
        manifest.add(each, now=NOW)
    both = file("a", 0, 3, b"x", b"y")
    manifest.replace("compaction", taken, both, now=NOW)
    assert manifest.replace("compaction", taken, both, now=NOW) == "provisional"
    with pytest.raises(PublishConflict, match="found provisional, retired"):
        manifest.replace("compaction", taken[:1], file("a", 0, 2, b"x"), now=NOW)
    assert [e.file for e in manifest.entries()] == [both]


def test_the_first_proposal_of_a_round_counts(manifest: Manifest) -> None:
    state = SharedState(manifest)
    first = Round(str(WHOLE), 1, {0: 5}, (({0: (0, 2)}, {0: (3, 5)}),))
    second = Round(str(WHOLE), 2, {0: 8}, of=4)
    assert state.propose_round(first) == first
    assert state.propose_round(replace(first, cut={0: 8})) == first
    assert state.propose_round(second) == second
    assert state.rounds(WHOLE) == [first, second]
    assert state.rounds(Shard(TOPIC, 1, 4)) == []
    for _ in range(2):
        state.finish_round("a", second)
    assert (state.finished_rounds("a", WHOLE), state.finished_rounds("b", WHOLE)) == (
        frozenset({second.number}),
        frozenset(),
    )


def test_the_first_policy_counts_for_all_and_the_next_begins_where_no_zone_has_cut(manifest: Manifest) -> None:
    state = SharedState(manifest)
    assert state.policies(TOPIC, 0, default=POLICY) == [POLICY]
    assert state.policies(TOPIC, 0, default=replace(POLICY, max_messages=5)) == [POLICY]
    manifest.add(file("b", 0, 9, b"x"), now=NOW)
    later = replace(POLICY, max_messages=5, from_offset=11, max_idle_ms=90_000)
    assert state.change_policies(TOPIC, max_messages=5, max_idle_ms=90_000) == {0: later}
    assert state.policies(TOPIC, 0, default=POLICY) == [POLICY, later]
    state.policies(TOPIC, 1, default=POLICY)
    changed = state.change_policies(TOPIC, max_bytes=500)
    assert changed == {
        0: replace(later, max_bytes=500, from_offset=12),
        1: replace(POLICY, max_bytes=500, from_offset=1),
    }
    assert state.policies(TOPIC, 0, default=POLICY)[-1] == changed[0]
    with pytest.raises(UsageError, match="No cutover policy of nothing is recorded"):
        state.change_policies("nothing", max_bytes=500)


def test_a_released_file_takes_the_place_of_the_other_zones(configured: Settings) -> None:
    landed = Landed(configured)
    landed.land("a", 0, 0, [sent(0, 0), sent(0, 1)])
    with pytest.raises(FilesDiffer):
        landed.land("b", 0, 0)
    (bad,) = landed.manifest.entries(verdicts=("quarantined",))
    with pytest.raises(UsageError, match="is provisional"):
        landed.writers["a"].manifest.discard("a", bad.file.name)
    (other,) = landed.writers["b"].manifest.release("b", bad.file.name, now=NOW)
    assert other.file.zone == "a"
    assert [(e.file.zone, e.verdict) for e in landed.manifest.entries()] == [("b", "verified")]
    landed.writers["a"].manifest.discard("a", other.file.name)
    assert landed.land("a", 0, 0) == "verified"


def test_zones_that_add_at_the_same_time_verify_each_other(configured: Settings) -> None:
    def add(zone: str) -> None:
        manifest = open_manifest(configured)
        for number in range(20):
            manifest.add(file(zone, number, number, b"%d" % number), now=NOW)
        manifest.engine.dispose()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(add, "ab"))
    found = open_manifest(configured).entries()
    assert len(found) == 40
    assert {e.verdict for e in found} == {"verified"}
    assert sorted({e.version for e in found}) == sorted(e.version for e in found)


def test_what_several_processes_of_a_zone_change_at_the_same_time_is_published_once_and_whole(
    configured: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lake_assets.landing.manifest.MOST_PUBLISHED", 5)
    Landed(configured).land("b", 9, 0)  # so that the storage of the zone is known
    other = open_manifest(configured, "a")

    def add(partition: int) -> None:
        manifest = open_manifest(configured, "b")
        for number in range(12):
            manifest.add(file("b", number, number, b"%d" % number, partition=partition), now=NOW)
            other.version()  # reads while the others publish
        manifest.engine.dispose()

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(add, range(3)))
    own = [entry.file for entry in open_manifest(configured, "b").entries("b")]
    assert len(own) == 3 * 12 + 1
    assert {found.name: found for found in own} == {entry.file.name: entry.file for entry in other.entries("b")}
    published = sorted(path.name for path in (configured.landing_folder / "b" / "published").iterdir())
    assert len(published) <= 5  # one with all rows has replaced those before it
    assert all(name.endswith(".json") for name in published)


def test_processes_that_open_a_new_manifest_at_the_same_time_create_its_tables_once(configured: Settings) -> None:
    start = Barrier(8)

    def open_with_the_others(_: int) -> int:
        start.wait()
        manifest = open_manifest(configured)
        found = manifest.version()
        manifest.engine.dispose()
        return found

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(open_with_the_others, range(8))) == [0] * 8
    manifest = open_manifest(configured)
    with manifest.engine.connect() as connection:
        assert len(connection.execute(sa.select(FORMATS)).all()) == 1


def test_with_a_discarded_file_go_the_retired_files_of_its_records_and_no_others(bare_home: Settings) -> None:
    landed = Landed(bare_home)
    landed.land_all(files=4, partitions=1)
    for zone in ("a", "b"):
        landed.run("merge", zone)
    last, compacted = sorted(landed.files("a"), key=lambda file: len(file.made_from))
    assert (len(last.made_from), len(compacted.made_from)) == (0, 3)
    quarantine(landed.writers["a"].manifest, "a", compacted.name)
    removed = landed.writers["a"].manifest.discard("a", compacted.name)
    assert sorted(removed) == sorted([compacted.name, *compacted.made_from])
    left = landed.manifest.entries("a", stages=ALL_STAGES, verdicts=ALL_VERDICTS)
    assert names_of(files_of(left)) == [last.name]


def test_a_manifest_of_a_backup_has_what_its_zone_published_once_the_storage_answers(bare_home: Settings) -> None:
    """The folder of publications is a file meanwhile: listing it fails, as with a storage that does not answer."""
    landed = Landed(bare_home, zones=("a",))
    database = sa.make_url(bare_home.landing_manifest_address("a")).database
    assert database
    landed.land("a", 0, 0)
    kept = Path(database).read_bytes()
    landed.land("a", 0, 3)
    landed.manifest.engine.dispose()
    Path(database).write_bytes(kept)
    published = path_of(landed.writers["a"].zone, PUBLISHED)
    away = published.rename(published.with_name("away"))
    published.touch()
    opened = open_manifest(bare_home, "a")
    assert len(opened.entries()) == 1
    published.unlink()
    away.rename(published)
    assert len(opened.entries()) == 2
