"""What needs no server of an engagement lake: its changes as programs read them, and that it is paused.

`benchmarks/home_before.py` has made the lakes: six engagements each, e0 to e5, then a batch without its notification.
"""

from __future__ import annotations

import tarfile

import pytest

from lake_assets import LakeError, Settings, read_changes
from lake_assets_tests.doors.golden_home import HOMES
from lake_assets_tests.doors.lake_door import LakeDoor

LAKES = "email_event,voice_insight"
SIX = [("insert", f"e{number}", f"w{number % 3}") for number in range(6)]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> LakeDoor:
    folder = tmp_path_factory.mktemp("changes")
    with tarfile.open(HOMES / "engagement.tar.xz") as packed:
        tables = [member for member in packed if member.name.startswith("home/warehouse/engagement")]
        packed.extractall(folder, members=tables, filter="data")
    return LakeDoor(folder, {"LAKE_LAKES": LAKES})


def test_each_change_is_read_once_and_none_before_its_notification(lake: LakeDoor) -> None:
    for name in LAKES.split(","):
        first = lake.json("engagement", "changes", name)
        assert [(row["_change_type"], row["engagement_id"], row["who_id"]) for row in first["rows"]] == SIX
        assert [(told["org_id"], told["inserted"]) for told in first["notifications"]] == [("acme", 6)]
        second = lake.json("engagement", "changes", name, "--since", first["cursor"])
        assert (second["rows"], second["notifications"], second["cursor"]) == ([], [], first["cursor"])
    assert "6 inserted, 0 updated, 0 deleted; the next cursor is 3@" in lake("engagement", "changes", name)


def test_the_call_reads_what_the_command_shows(lake: LakeDoor) -> None:
    settings = Settings(home=lake.home, lakes=LAKES)
    found = read_changes("email_event", None, "acme", settings=settings)
    assert [row["engagement_id"] for row in found.rows.read_all().to_pylist()] == [identity for _, identity, _ in SIX]
    other = read_changes("voice_insight", 0, settings=settings).cursor
    with pytest.raises(LakeError, match="cursor of another table"):
        read_changes("email_event", other, settings=settings)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--since", "x"], "'x' is no cursor."),
        (["--since", "5"], "5 is no cursor of"),
        (["--since", "3@00000000"], "3@00000000 is a cursor of another table"),
        (["--org", "globex"], "The lake email_event has no org 'globex'."),
    ],
)
def test_what_cannot_be_answered_is_refused_in_two_lines(lake: LakeDoor, words: list[str], problem: str) -> None:
    said = lake.refused("engagement", "changes", "email_event", *words)
    assert said.startswith(f"Error: {problem}")
    assert len(said.splitlines()) == 2


@pytest.mark.parametrize("words", [["ingest"], ["maintain"], ["run", "--once"], ["run", "mutation", "--once"]])
def test_no_turn_of_a_paused_lake_begins(lake: LakeDoor, words: list[str]) -> None:
    verb, *rest = words
    assert "paused since" in lake("engagement", "pause", "voice_insight")
    said = lake.refused("engagement", verb, "voice_insight", *rest)
    assert said.startswith("Error: The lake voice_insight is paused since 20")
    assert said.splitlines()[1:] == ["  → Let its turns begin again: `lake engagement resume voice_insight`."]
    assert "voice_insight goes on" in lake("engagement", "resume", "voice_insight")
    assert "paused" not in lake.refused("engagement", verb, "voice_insight", *rest)


def test_the_doctor_says_what_is_paused(lake: LakeDoor) -> None:
    lake("engagement", "pause", "email_event")
    since = lake("engagement", "pause", "email_event").split()[-1]
    said = lake.run("doctor").out
    lake("engagement", "resume", "email_event")
    assert f"email_event is paused since {since}" in said
    assert "is paused" not in lake.run("doctor").out
