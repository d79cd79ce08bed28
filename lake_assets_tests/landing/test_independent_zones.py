"""Each zone lands and is loaded without the other one's database and storage; both agree when it is back."""

from __future__ import annotations

import json

import pytest

from lake_assets.errors import ZoneMismatch
from lake_assets.landing.cutover import Policy
from lake_assets.landing.files import ZONES
from lake_assets.landing.heal import decide, repair
from lake_assets.landing.manifest import ALL_STAGES, ALL_VERDICTS, CommandLog, Manifest, open_manifest
from lake_assets.landing.problems import problems
from lake_assets.landing.state import Round, SharedState
from lake_assets.settings import Settings
from lake_assets_tests.landing.loads import loader, rows, signup
from lake_assets_tests.landing.scenario import DEADLINE, NOW, TOPIC, WHOLE, Landed, sent

POLICY = Policy(max_messages=10, max_bytes=1 << 20, max_age_ms=60_000)


def land(landed: Landed, first: int) -> None:
    """Three signups from an offset on, in the zones."""
    for zone in landed.zones:
        landed.land(zone, 0, first, [signup(offset) for offset in range(first, first + 3)])


def names(home: Settings, *, provisional: bool) -> list[str]:
    list(loader(home, provisional=provisional).load())
    return rows(home)


def verdicts(manifest: Manifest, first: int) -> dict[str, str]:
    """Zone → the verdict of its file that begins at an offset, as a manifest has it."""
    entries = manifest.entries(stages=ALL_STAGES, verdicts=ALL_VERDICTS)
    return {entry.file.zone: entry.verdict for entry in entries if entry.file.ranges == {0: (first, first + 2)}}


@pytest.mark.parametrize("gone", ZONES)
@pytest.mark.parametrize("what", ["database", "storage", "both"])
def test_a_zone_goes_on_without_the_other_one_and_both_agree_when_it_is_back(
    bare_home: Settings, gone: str, what: str
) -> None:
    (left,) = {*ZONES} - {gone}
    land(Landed(bare_home), 0)
    assert names(bare_home, provisional=False) == [f"s{n}" for n in range(3)]
    database = bare_home.home / ("landing.db" if gone == "a" else "landing-b.db")
    lost = [database] if what != "storage" else []
    lost += [bare_home.landing_folder / gone] if what != "database" else []
    for path in lost:
        path.rename(path.with_name(f"{path.name}.away"))
    alone = Landed(bare_home, zones=(left,))
    land(alone, 3)
    assert verdicts(open_manifest(bare_home), 3) == {left: "provisional"}
    assert names(bare_home, provisional=False) == [f"s{n}" for n in range(3)]
    told = problems(bare_home, (), now=NOW)
    assert [problem.target for problem in told if problem.kind == "zone_gone"] == [f"zone {gone}"]
    assert names(bare_home, provisional=True) == [f"s{n}" for n in range(6)]
    for path in lost:
        path.with_name(f"{path.name}.away").rename(path)
    land(Landed(bare_home, zones=(gone,)), 3)
    both = Landed(bare_home)
    both.assert_equal()
    assert problems(bare_home, (), now=NOW) == []
    assert names(bare_home, provisional=True) == [f"s{n}" for n in range(6)]


def test_a_manifest_that_is_lost_lands_nothing_and_is_written_again_from_what_the_zone_has_published(
    bare_home: Settings,
) -> None:
    landed = Landed(bare_home)
    landed.land_all()
    landed.run("merge", "b")
    landed.ask("person 1", "r1", 2_000)
    before = [(e.file, e.stage, e.verdict) for e in landed.writers["b"].entries(stages=("live", "retired"))]
    (bare_home.home / "landing-b.db").unlink()
    again = Landed(bare_home)
    with pytest.raises(ZoneMismatch, match="is new or another one's"):
        again.land("b", 0, 12)
    (done,) = [each for each in repair(list(again.writers.values()), now=NOW, deadline=DEADLINE) if each.what]
    assert (done.zone, done.name) == ("b", "the manifest")
    assert [(e.file, e.stage, e.verdict) for e in again.writers["b"].entries(stages=("live", "retired"))] == before
    again.run("merge", "a")
    for operation in ("scrub", "merge"):
        for zone in ZONES:
            again.run(operation, zone)
    again.assert_equal()


def test_two_files_that_differ_are_seen_by_both_zones_though_neither_saw_the_other_one_first(
    bare_home: Settings,
) -> None:
    """Published in the dark, and a release decides it for both."""
    landed = Landed(bare_home)
    for zone in ZONES:
        landed.land(zone, 0, 0)
    folder = bare_home.landing_folder / "a"
    folder.rename(folder.with_name("away"))
    landed.land("b", 0, 3)
    folder.with_name("away").rename(folder)
    hidden = (bare_home.landing_folder / "b") / "published"
    hidden.rename(hidden.with_name("hidden"))
    landed.land("a", 0, 3, [sent(0, 3), sent(0, 4)])
    hidden.with_name("hidden").rename(hidden)
    for _ in range(2):
        for zone in ZONES:
            assert verdicts(landed.writers[zone].manifest, 3) == {"a": "provisional", "b": "quarantined"}
    (wrong,) = landed.writers["b"].entries(verdicts=("quarantined",))
    assert ((bare_home.landing_folder / "b") / "quarantine" / wrong.file.name).exists()
    decide(list(landed.writers.values()), "b", wrong.file.name, "release", now=NOW)
    for zone in ZONES:
        assert verdicts(landed.writers[zone].manifest, 3) == {"a": "quarantined", "b": "verified"}
    decide(list(landed.writers.values()), "a", wrong.file.name, "discard", now=NOW)
    landed.land("a", 0, 3)
    landed.assert_equal()


def test_of_two_commands_with_one_key_the_first_one_counts_in_both_zones(bare_home: Settings) -> None:
    landed = Landed(bare_home)
    landed.land_all(files=2, partitions=1)
    one, other = (SharedState(landed.writers[zone].manifest) for zone in ZONES)
    first = one.propose_round(Round(str(WHOLE), 1, {0: 5}))
    assert other.propose_round(Round(str(WHOLE), 1, {0: 2})) == first
    log = bare_home.landing_folder / "commands.jsonl"
    whole = log.read_bytes()
    log.write_bytes(whole + b'{"kind": "rou')  # a process died
    other.propose_round(Round(str(WHOLE), 2, {0: 5}))
    assert [found.number for found in one.rounds(WHOLE)] == [1, 2]
    log.unlink()  # lost: it is written again from a copy
    one.propose_round(Round(str(WHOLE), 3, {0: 5}))
    assert [found.number for found in other.rounds(WHOLE)] == [1, 2, 3]
    assert [json.loads(line)["body"]["number"] for line in log.read_text().splitlines()[1:]] == [1, 2, 3]


def test_a_zone_takes_commands_from_the_other_one_while_it_cannot_read_the_log(
    bare_home: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    landed = Landed(bare_home)
    landed.land_all(files=1, partitions=1)
    landed.ask("person 1", "r1", 2_000)
    monkeypatch.setattr(landed.writers["b"].manifest, "_log", CommandLog(bare_home.home / "nowhere"))
    assert [request.request_id for request in SharedState(landed.writers["b"].manifest).deletions(TOPIC)] == ["r1"]


def test_a_policy_begins_at_the_horizon_beyond_which_no_zone_has_begun_a_file(bare_home: Settings) -> None:
    landed = Landed(bare_home)
    landed.land_all(files=1, partitions=1)
    one, other = (SharedState(landed.writers[zone].manifest) for zone in ZONES)
    assert one.policies(TOPIC, 0, default=POLICY, begin=3) == [POLICY]
    changed = other.change_policies(TOPIC, max_messages=5)[0]
    assert (changed.from_offset, changed.max_messages) == (83, 5)
    for begin in (13, 43, 70):  # the horizon moves on, not the policy
        assert one.policies(TOPIC, 0, default=POLICY, begin=begin) == [POLICY, changed]
    assert other.change_policies(TOPIC, max_messages=6)[0].from_offset == 110
