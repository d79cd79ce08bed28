"""Pushes to a Pinot cluster's controller, over HTTP: one switch, and what fails is reverted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr
from typer.testing import CliRunner

from lake_assets.base.failpoints import EXIT_CODE, PINOT_POINTS
from lake_assets.cli.serving import pinot as pinot_commands
from lake_assets.errors import ServingError, UsageError
from lake_assets.serving.pinot import PinotController, pinot_at, segment_of
from lake_assets.settings import Settings, settings
from lake_assets_tests.serving.pinot_controller import SECRET, Controller, archive, controller


@pytest.fixture
def cluster() -> Iterator[Controller]:
    with controller() as found:
        yield found


@pytest.fixture
def pinot(cluster: Controller) -> Iterator[PinotController]:
    named = Settings(pinot_controller=cluster.address, pinot_authorization=SecretStr(SECRET))
    with pinot_at(named) as found:
        yield found


@pytest.fixture
def configured(cluster: Controller, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What commands read from the environment."""
    monkeypatch.setenv("LAKE_PINOT_CONTROLLER", cluster.address)
    monkeypatch.setenv("LAKE_PINOT_AUTHORIZATION", SECRET)
    settings.cache_clear()
    yield
    settings.cache_clear()


def snapshot(folder: Path, number: int) -> list[Path]:
    return [archive(folder, f"members_{number}_{part}") for part in range(3)]


def names(number: int) -> list[str]:
    return [f"members_{number}_{part}" for part in range(3)]


def test_a_table_may_have_a_name_as_pinot_has_it(pinot: PinotController) -> None:
    with pytest.raises(ServingError, match="GET /segments/airlineStats"):  # by the cluster, which has no such table
        pinot.segments("airlineStats")


def test_a_push_switches_and_a_revert_goes_back(cluster: Controller, pinot: PinotController, tmp_path: Path) -> None:
    first = pinot.push("members", snapshot(tmp_path, 1))
    assert (first.replaced, cluster.seen) == ((), names(1))
    second = pinot.push("members", snapshot(tmp_path, 2))
    assert (list(second.replaced), list(second.segments)) == (names(1), names(2))
    assert list(pinot.segments("members")) == names(2) == cluster.seen
    pinot.revert("members", second.entry_id)
    assert cluster.seen == names(1)


@pytest.mark.parametrize("reply", ["refused", "lost"])
@pytest.mark.parametrize("call", ["POST startReplaceSegments", "POST segments", "POST endReplaceSegments"])
def test_what_fails_is_reverted(
    cluster: Controller, pinot: PinotController, tmp_path: Path, call: str, reply: str
) -> None:
    pinot.push("members", snapshot(tmp_path, 1))
    (cluster.failing if reply == "refused" else cluster.lost_replies).add(call)
    with pytest.raises(ServingError, match=call.split()[1]):
        pinot.push("members", snapshot(tmp_path, 2))
    assert cluster.seen == names(1)
    assert cluster.states == {
        ("POST startReplaceSegments", "refused"): ["COMPLETED"],
        ("POST startReplaceSegments", "lost"): ["COMPLETED", "IN_PROGRESS"],  # nobody knows its id: hidden until forced
    }.get((call, reply), ["COMPLETED", "REVERTED"])

    cluster.failing.clear()
    cluster.lost_replies.clear()
    pinot.push("members", snapshot(tmp_path, 3), force=True)
    assert cluster.seen == names(3)


def test_a_push_that_cannot_be_reverted_says_so(cluster: Controller, pinot: PinotController, tmp_path: Path) -> None:
    cluster.failing.update({"POST endReplaceSegments", "POST revertReplaceSegments"})
    with pytest.raises(ServingError, match="endReplaceSegments") as caught:
        pinot.push("members", snapshot(tmp_path, 1))
    assert "revertReplaceSegments" in caught.value.__notes__[0]
    assert cluster.seen == []


def test_no_segment_is_refreshed_under_its_name(cluster: Controller, pinot: PinotController, tmp_path: Path) -> None:
    pinot.push("members", snapshot(tmp_path, 1))
    with pytest.raises(ServingError, match="readers see them already"):
        pinot.push("members", snapshot(tmp_path, 1))
    assert cluster.seen == names(1)
    assert cluster.states == ["COMPLETED"]


def die(cluster: Controller, archives: list[Path], point: str) -> None:
    """A forced push in a process of its own, which is killed at a point."""
    variables = {"LAKE_PINOT_CONTROLLER": cluster.address, "LAKE_PINOT_AUTHORIZATION": SECRET, "LAKE_FAILPOINT": point}
    command = [
        sys.executable,
        "-m",
        "lake_assets.cli.main",
        "serving",
        "pinot",
        "push",
        "members",
        *map(str, archives),
        "--force",
    ]
    died = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=False)
    assert died.returncode == EXIT_CODE, died.stderr


def test_wherever_a_push_dies_queries_see_a_whole_snapshot(
    cluster: Controller, pinot: PinotController, tmp_path: Path
) -> None:
    pinot.push("members", snapshot(tmp_path, 0))
    for number, point in enumerate(PINOT_POINTS, 1):
        die(cluster, snapshot(tmp_path, number), point)
        assert cluster.seen == names(number if point == "pinot-ended" else 0)
    assert cluster.uploaded == {*names(0), *names(len(PINOT_POINTS))}


@pytest.mark.usefixtures("configured")
def test_the_commands(cluster: Controller, tmp_path: Path) -> None:
    def lake(*words: str | Path) -> str:
        return CliRunner().invoke(pinot_commands, [*map(str, words)], catch_exceptions=False).stdout

    assert lake("list", "members") == "No segments.\n"
    told = lake("push", "members", *snapshot(tmp_path, 1))
    (entry_id,) = cluster.lineage.entries
    back = f"lake serving pinot revert members {entry_id}"
    assert told == f"members: 3 segments instead of 0.\nTo go back: {back}\n"
    assert json.loads(lake("list", "members", "--json")) == names(1)
    assert json.loads(lake("push", "members", *snapshot(tmp_path, 2), "--json"))["replaced"] == names(1)
    assert lake("revert", "members", list(cluster.lineage.entries)[-1]).startswith("members is as it was before ")
    assert lake("list", "members").split() == names(1)


def test_a_file_that_is_no_segment_is_refused(tmp_path: Path) -> None:
    text, empty, hostile = tmp_path / "text", tmp_path / "empty.tar.gz", archive(tmp_path, "ok")
    text.write_text("no archive")
    tarfile.open(empty, "w:gz").close()
    with tarfile.open(hostile, "w:gz") as packed:
        (tmp_path / "metadata.properties").write_text("segment.name = ../../x\n")
        packed.add(tmp_path / "metadata.properties", "x/metadata.properties")
    for file in (text, empty, hostile, tmp_path / "gone"):
        with pytest.raises(UsageError):
            segment_of(file)


def test_a_cluster_has_to_be_named_and_to_be_there() -> None:
    with pytest.raises(UsageError, match="LAKE_PINOT_CONTROLLER"), pinot_at(Settings()):
        pass
    for address in ("http://127.0.0.1:1", "nowhere", "http://["):
        with (
            pytest.raises(ServingError, match="Pinot did not carry out"),
            pinot_at(Settings(pinot_controller=address)) as found,
        ):
            found.segments("members")
