"""What zones do to their files, one after the other, in any order, killed anywhere: they end with the same files."""

from __future__ import annotations

from datetime import timedelta

import pytest

from lake_assets.base import failpoints
from lake_assets.base.failpoints import FILE_POINTS
from lake_assets.errors import FileDamaged, LandingError, UsageError
from lake_assets.landing.heal import decide
from lake_assets.landing.operations import GroupLimits, merge, remove_unscrubbed, sweep
from lake_assets.landing.records import last_offsets, offsets, shards
from lake_assets.landing.reshard import reshard
from lake_assets.landing.state import Round, SharedState
from lake_assets.settings import Settings
from lake_assets_tests.landing.made import key_of, path_of
from lake_assets_tests.landing.scenario import EVER, NOW, OF, TOPIC, WHOLE, Landed, quarantine, sent
from lake_assets_tests.matrices import one_now

EVERYTHING = [sent(partition, offset) for partition in range(2) for offset in range(12)]


@pytest.fixture
def landed(bare_home: Settings) -> Landed:
    found = Landed(bare_home)
    found.land_all()
    return found


def both(landed: Landed, operation: str) -> None:
    """In both zones, until neither waits for the other."""
    for zone in ("a", "b", "a", "b"):
        landed.run(operation, zone)


def test_files_of_both_zones_verify_each_other(bare_home: Settings) -> None:
    landed = Landed(bare_home)
    assert landed.land("a", 0, 0) == "provisional"
    assert landed.land("b", 0, 0) == "verified"
    assert [entry.verdict for entry in landed.manifest.entries()] == ["verified", "verified"]
    assert landed.records("a") == landed.records("b") == EVERYTHING[:3]


@pytest.mark.parametrize("operation", ["columns", "merge", "reshard"])
def test_what_changes_no_content_conserves_the_sum(landed: Landed, operation: str) -> None:
    before = landed.sums("a")
    both(landed, operation)
    landed.assert_equal()
    assert landed.sums("a") == before
    assert landed.records("a") == EVERYTHING


def test_merging_makes_columnar_files_of_several_partitions(landed: Landed) -> None:
    landed.run("merge", "a")
    assert {f.kind for f in landed.files("a")} == {"columnar"}
    assert [len(f.made_from) for f in landed.files("a")] == [3, 3, 2]
    landed.run("merge", "a")
    assert len(landed.files("a")) == 3, "the next round needs these verified"


def test_a_scrub_takes_what_was_sent_by_the_time_of_the_request(landed: Landed) -> None:
    landed.clock = NOW + timedelta(minutes=1)
    landed.ask("person 1", "r1", sent_through=6_000)
    both(landed, "scrub")
    landed.assert_equal()
    gone = [r for r in EVERYTHING if r.key == b"person 1" and r.timestamp <= 6_000]
    assert gone
    assert landed.records("b") == [r for r in EVERYTHING if r not in gone]
    assert {f.deletions for f in landed.files("b")} == {frozenset({"r1"})}


def test_files_that_hold_what_was_scrubbed_go_once_both_zones_have_scrubbed(landed: Landed) -> None:
    landed.ask("person 1", "r1", sent_through=1_000_000)
    landed.run("scrub", "a")
    assert remove_unscrubbed(landed.writers["a"], TOPIC, now=NOW) is None
    landed.run("scrub", "b")
    aside = landed.files("a")[0]
    quarantine(landed.writers["a"].manifest, "a", aside.name)
    assert remove_unscrubbed(landed.writers["a"], TOPIC, now=NOW) is None
    (last,) = landed.manifest.entries("a", stages=("retired",))
    assert (last.file.name,) == aside.made_from
    landed.writers["a"].manifest.release("a", aside.name, now=NOW)
    assert remove_unscrubbed(landed.writers["a"], TOPIC, now=NOW) == [last.file.name]
    quarantine(landed.writers["a"].manifest, "a", aside.name)
    landed.writers["a"].manifest.release("a", aside.name, now=NOW)
    both(landed, "columns")
    assert remove_unscrubbed(landed.writers["a"], TOPIC, now=NOW) == []
    assert len(landed.manifest.entries("a", stages=("retired",))) == 8, "readers may have them open"
    landed.run("sweep", "a")
    assert landed.writers["a"].zone.names(EVER) == sorted(f.name for f in landed.files("a"))
    landed.assert_equal()


def test_scrubs_in_another_order_come_to_the_same(landed: Landed) -> None:
    landed.ask("person 1", "r1", sent_through=9_000)
    landed.run("scrub", "a")
    landed.ask("person 2", "r2", sent_through=3_000)
    both(landed, "scrub")
    landed.assert_equal()


def test_what_lands_late_is_scrubbed_for_all_requests_before(landed: Landed) -> None:
    landed.ask("person 3", "r1", sent_through=1_000_000)
    both(landed, "scrub")
    for zone in ("a", "b"):
        landed.land(zone, 0, 12)
    both(landed, "scrub")
    landed.assert_equal()
    assert not [r for r in landed.records("a") if r.key == b"person 3"]


def test_a_scrub_before_a_merge_in_one_zone_and_after_it_in_the_other(landed: Landed) -> None:
    landed.run("merge", "a")
    landed.ask("person 1", "r1", sent_through=1_000_000)
    landed.run("scrub", "b")
    both(landed, "merge")
    both(landed, "scrub")
    both(landed, "merge")
    landed.assert_equal()


def test_a_request_from_the_future_is_refused(landed: Landed) -> None:
    with pytest.raises(UsageError, match="Deletion request r1 is of 1767225600001 ms"):
        landed.ask("person 1", "r1", sent_through=int(NOW.timestamp() * 1000) + 1)
    landed.ask("person 1", "r1", sent_through=int(NOW.timestamp() * 1000))
    assert [asked.request_id for asked in SharedState(landed.manifest).deletions(TOPIC)] == ["r1"]


def test_the_old_shard_is_read_until_every_copy_is_verified(landed: Landed) -> None:
    landed.run("reshard", "a")
    assert {f.shard for f in landed.files("a")} == {str(WHOLE)}
    landed.run("reshard", "b")
    assert {f.shard for f in landed.files("b")} == {str(shard) for shard in shards(TOPIC, OF)}
    assert {f.shard for f in landed.files("a")} == {str(WHOLE)}
    landed.run("reshard", "a")
    landed.assert_equal()
    for file in landed.files("a"):
        assert {key_of(r) for r in landed.writers["a"].records(file)} <= {
            f"person {n}" for n in range(5) if landed_in(file.shard, f"person {n}")
        }


def landed_in(shard: str, person: str) -> bool:
    return next(str(s) for s in shards(TOPIC, OF) if s.takes(person)) == shard


def test_what_was_resharded_does_not_land_again_in_the_old_shard(landed: Landed) -> None:
    both(landed, "reshard")
    for writer in landed.writers.values():
        sweep(writer.manifest, writer.zone, retired_before=NOW + timedelta(seconds=1))
    with pytest.raises(LandingError, match="Offset 0 of partition 0 is in two files"):
        landed.land("a", 0, 0)
    landed.assert_equal()


def test_a_reshard_to_no_shards_or_to_others_than_those_under_way_is_refused(landed: Landed) -> None:
    landed.run("reshard", "a")
    for of, what in {0: "cannot be resharded to 0", 3: "being resharded to 2 shards, not to 3"}.items():
        with pytest.raises(UsageError, match=what):
            reshard(landed.writers["a"], TOPIC, of, key_of, now=NOW)


@pytest.mark.parametrize("numbers", one_now([(4, 3, 1), (2, 8, 2), (3, 5), (8, 3)]))
def test_shards_become_more_and_fewer_while_files_land(landed: Landed, numbers: tuple[int, ...]) -> None:
    everything = list(EVERYTHING)
    for step, of in enumerate(numbers):
        first = 12 + 3 * step
        for zone in "ab":
            landed.land(zone, 0, first)  # of no shard; it comes to the shards of the topic, too
        if step == 1:
            landed.ask("person 2", "r1", sent_through=1_000_000)
            both(landed, "scrub")
        everything += [sent(0, offset) for offset in range(first, first + 3)]
        kept = [record for record in sorted(everything) if step == 0 or record.key != b"person 2"]
        for zone in "aba":
            reshard(landed.writers[zone], TOPIC, of, key_of, now=NOW)
            assert landed.records("a") == landed.records("b") == kept  # the old shards are read until all is copied
        landed.assert_equal()
        assert {f.shard for f in landed.files("b")} == {str(shard) for shard in shards(TOPIC, of)}
        for file in landed.files("a"):
            shard = next(shard for shard in shards(TOPIC, of) if str(shard) == file.shard)
            assert all(shard.takes(key_of(record)) for record in landed.writers["a"].records(file))
        if step == 0:
            for shard in shards(TOPIC, of):  # shards have other files then, which come together again
                for zone in "abab":
                    merge(landed.writers[zone], shard, GroupLimits(2 + shard.number % 2, 1 << 20), now=NOW)
    assert {reshard(landed.writers[zone], TOPIC, numbers[-1], key_of, now=NOW).waits_for for zone in "ab"} == {None}


def test_a_shard_that_a_version_before_has_split_alone_comes_to_the_others(landed: Landed) -> None:
    both(landed, "reshard")
    old = Round(f"{TOPIC}/0-of-2", 1, last_offsets(landed.files("a")), of=2 * OF)
    SharedState(landed.manifest).propose_round(old)
    for zone in "aba":
        reshard(landed.writers[zone], TOPIC, 2 * OF, key_of, now=NOW)
    assert {f.shard for f in landed.files("a")} == {f"{TOPIC}/{shard}" for shard in ("0-of-4", "2-of-4", "1-of-2")}
    assert landed.records("a") == EVERYTHING
    for of in (2 * OF, 3):
        for zone in "aba":
            reshard(landed.writers[zone], TOPIC, of, key_of, now=NOW)
        landed.assert_equal()
        assert {f.shard for f in landed.files("a")} == {str(shard) for shard in shards(TOPIC, of)}
        assert landed.records("b") == EVERYTHING


def test_a_file_may_be_discarded_while_it_is_provisional_or_when_it_is_damaged(landed: Landed) -> None:
    writers, file = list(landed.writers.values()), landed.files("a")[0]
    with pytest.raises(UsageError, match="is verified"):
        decide(writers, "a", file.name, "discard", now=NOW)
    path_of(landed.writers["a"].zone, file.name).write_bytes(b"")
    decide(writers, "a", file.name, "discard", now=NOW)
    assert [f.problem for f in landed.findings()] == [
        f"({offsets(file)}) of zone b is missing here; the zone lands it again when it starts"
    ]
    ((partition, (first, _)),) = file.ranges.items()
    assert landed.land("a", partition, first) == "verified"
    assert landed.land("a", 0, 12, [sent(0, 12)]) == "provisional"
    (wrong,) = (f for f in landed.files("a") if f.count == 1)
    decide(writers, "a", wrong.name, "discard", now=NOW)
    landed.assert_equal()


def test_everything_after_everything(landed: Landed) -> None:
    for operation in ("columns", "merge", "sweep", "merge", "reshard", "sweep", "reshard", "merge", "sweep", "merge"):
        both(landed, operation)
    landed.ask("person 2", "r1", sent_through=1_000_000)
    landed.run("scrub", "b")
    landed.run("scrub", "a")
    landed.assert_equal()
    assert landed.records("a") == [r for r in EVERYTHING if r.key != b"person 2"]


def test_a_stale_reader_reads_on_until_the_sweep_and_is_then_told(landed: Landed) -> None:
    stale = landed.files("a")
    both(landed, "merge")
    assert sorted(r for f in stale for r in landed.writers["a"].records(f)) == EVERYTHING
    assert sweep(landed.manifest, landed.writers["a"].zone, retired_before=NOW) == []
    gone = sweep(landed.manifest, landed.writers["a"].zone, retired_before=NOW + timedelta(seconds=1))
    assert {f.name for f in stale} <= set(gone)
    landed.assert_equal()
    with pytest.raises(FileDamaged, match="is not where it was written"):
        list(landed.writers["a"].records(stale[0]))


STEPS_OF = {
    "columns": FILE_POINTS[1:4],
    "merge": FILE_POINTS[:4],
    "reshard": FILE_POINTS[:4],
    "scrub": FILE_POINTS[1:4],
}
PLAYED = dict(zip(("merge", "columns", "scrub", "reshard"), FILE_POINTS[:4], strict=True))
"""Operation → the step at which `make test` kills it; `make faults` does at the others, too."""


@pytest.mark.parametrize(
    ("operation", "step"),
    [
        pytest.param(operation, step, marks=() if step == PLAYED[operation] else pytest.mark.faults)
        for operation, steps in STEPS_OF.items()
        for step in steps
    ],
)
def test_killed_at_any_step_an_operation_is_finished_by_the_next_call(
    bare_home: Settings, operation: str, step: str
) -> None:
    landed = Landed(bare_home)
    landed.land_all(files=2)
    landed.ask("person 1", "r1", sent_through=9_000)
    landed.die(operation, "a", step)
    both(landed, operation)
    drafts = landed.writers["a"].zone.drop_drafts(EVER)
    assert len(drafts) == (step == "landing-drafted")
    landed.assert_equal()
    assert landed.records("a") == landed.records("b")


def test_a_zone_that_lags_finishes_an_earlier_reshard_before_the_next_one(
    landed: Landed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def more(zone: str) -> str | None:
        return reshard(landed.writers[zone], TOPIC, 4, key_of, now=NOW).waits_for

    landed.run("reshard", "a")
    copies = len(landed.manifest.entries("a", stages=("staged",)))
    added: list[str] = []

    def strike(point: str) -> None:
        added.extend([point] * (point == "landing-added"))
        if len(added) == copies:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(failpoints, "_strike", strike)
        with pytest.raises(KeyboardInterrupt):  # with its last copy, before its old files retire
            landed.run("reshard", "b")
    landed.run("reshard", "a")
    assert {file.shard for file in landed.files("a")} == {str(shard) for shard in shards(TOPIC, 2)}
    assert more("a")
    with pytest.raises(UsageError, match="is being resharded to 4 shards, not to 2"):
        landed.run("reshard", "b")
    assert [more("b"), more("a")] == [None, None]
    assert {file.shard for file in landed.files("b")} == {str(shard) for shard in shards(TOPIC, 4)}
    landed.assert_equal()
    assert landed.records("b") == EVERYTHING


def test_killed_when_the_old_shard_has_retired(landed: Landed) -> None:
    landed.run("reshard", "a")
    landed.run("reshard", "b")
    landed.die("reshard", "a", "landing-exchanged")
    landed.assert_equal()
    both(landed, "reshard")
    landed.assert_equal()


def test_killed_when_replaced_files_are_gone_and_the_manifest_still_names_them(landed: Landed) -> None:
    both(landed, "columns")
    landed.die("sweep", "a", "landing-swept")
    assert landed.findings() == []
    landed.run("sweep", "a")
    landed.assert_equal()
    assert landed.records("a") == EVERYTHING
