"""`lake landing`, as a person calls it, on files that two zones have landed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from typer.testing import CliRunner, Result

from lake_assets.cli.landing import landing
from lake_assets.errors import FilesDiffer, LakeError
from lake_assets.landing.cutover import Policy
from lake_assets.landing.records import Record
from lake_assets.landing.state import SharedState
from lake_assets.settings import Settings, settings
from lake_assets_tests.landing.made import path_of
from lake_assets_tests.landing.scenario import Landed

TOPIC = "raw.signups"


@pytest.fixture
def landed(bare_home: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Landed]:
    monkeypatch.setenv("LAKE_HOME", str(bare_home.home))
    settings.cache_clear()
    yield Landed(settings(), clock=datetime.now(UTC))
    settings.cache_clear()


def signup(offset: int, account: str) -> Record:
    """A message as the topic's feed takes it."""
    row = {"signup_id": f"s{offset}", "account_id": account, "event_ts": "2026-01-01T00:00:00"}
    return Record(0, offset, offset, account.encode(), json.dumps(row).encode())


def lake(*arguments: str) -> str:
    """What a command prints; its error is raised."""
    done: Result = CliRunner().invoke(landing, [*arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_files_are_merged_scrubbed_and_spread_and_verify_finds_nothing(landed: Landed) -> None:
    assert lake("status") == "Nothing has landed.\n"
    messages = [signup(offset, f"account {offset % 2}") for offset in range(12)]
    for zone in "ab":
        for first in range(0, 12, 3):
            landed.land(zone, 0, first, messages[first : first + 3])
    assert "a: 2 columnar files made, 0 old ones removed" in lake("compact", TOPIC, "--max-files", "3")
    assert "b: files that still hold it: 6 removed" in lake("scrub", TOPIC, "account 1", "--request", "r1")
    assert landed.records("a") == [m for m in messages if m.key == b"account 0"]
    assert "in a: 0 copies made; done" in lake("reshard", TOPIC, "2")
    assert {f.shard for f in landed.files("b")} == {f"{TOPIC}/{n}-of-2" for n in range(2)}
    assert json.loads(lake("status", "--json"))[0]["next"] == {"0": 12}
    assert "8 files, 12 records" in lake("verify")
    SharedState(landed.manifest).policies(TOPIC, 0, default=Policy(10_000, 8 << 20, 60_000))
    changed = "partition 0: files that begin at offset 13 or later: 5,000 messages, 8,388,608 bytes or 60 s"
    assert changed in lake("policy", TOPIC, "--messages", "5000")
    landed.assert_equal()
    damaged = landed.files("b")[0]
    path = path_of(landed.writers["b"].zone, damaged.name)
    path.write_bytes(path.read_bytes()[:-1])
    done = CliRunner().invoke(landing, ["verify"])
    found, remedy, summary = done.stdout.splitlines()
    assert (done.exit_code, found) == (1, f"b  {damaged.name}  has other bytes than were written")
    assert remedy.startswith("  → `lake landing repair`")
    assert summary.endswith("bytes read: 1 finding.")
    assert lake("repair") == f"b  {damaged.name}  it was written again with the records of the other zone.\n"
    landed.assert_equal()
    assert lake("repair") == ""


def test_what_differs_is_listed_until_somebody_decides(landed: Landed) -> None:
    landed.land("a", 0, 0, [signup(0, "account 0")])
    with pytest.raises(FilesDiffer):
        landed.land("b", 0, 0, [signup(0, "account 1")])
    (bad,) = json.loads(lake("quarantine", "list", "--json"))
    name = bad["file"]["name"]
    assert "is quarantined" in CliRunner().invoke(landing, ["verify"]).output
    assert f"{name} of zone a is quarantined." in lake("quarantine", "release", "b", name)
    assert landed.records("b") == [signup(0, "account 1")]
    lake("quarantine", "discard", "a", name)
    assert landed.land("a", 0, 0, [signup(0, "account 1")]) == "verified"
    assert lake("quarantine", "list") == "Nothing is quarantined.\n"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["verify", "--zone", "c"], "There is no zone 'c'"),
        (["quarantine", "release", "c", "x"], "There is no zone 'c'"),
        (["quarantine", "discard", "a", "../x"], "Zone a has no file ../x"),
        (["reshard", "nothing", "2"], "No raw table is fed by the topic 'nothing'"),
        (["reshard", TOPIC, "0"], "cannot be resharded to 0"),
        (["policy", "nothing", "--bytes", "5"], "No cutover policy of nothing is recorded"),
        (["compact", "nothing"], "Nothing of the topic 'nothing' has landed"),
        (["scrub", TOPIC, "x", "--request", "r", "--sent-through", "2099-01-01T00:00:00"], "of 4070908800000 ms"),
    ],
)
def test_what_is_not_there_is_named(landed: Landed, arguments: list[str], problem: str) -> None:
    with pytest.raises(LakeError, match=problem):
        CliRunner().invoke(landing, arguments, catch_exceptions=False)
