"""Other users are kept out of a data directory, and out of nothing else."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from lake_assets.cli.common import close_to_others
from lake_assets.connections.addresses import create_spark_token
from lake_assets.connections.catalog import open_catalog
from lake_assets.settings import Settings
from lake_assets_tests.doors.lake_door import LakeDoor


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(
    ("before", "after"), [(0o755, 0o700), (0o777, 0o700), (0o700, 0o700), (0o2775, 0o2770), (0o2770, 0o2770)]
)
def test_an_older_home_is_closed_and_stays_shared_with_its_group(tmp_path: Path, before: int, after: int) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "catalog.db").touch()
    home.chmod(before)
    said = close_to_others(home)
    assert mode(home) == after
    assert (said is None) == (before == after)
    assert close_to_others(home) is None


def test_a_folder_that_is_no_data_directory_is_left_alone(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    assert close_to_others(tmp_path) is None
    assert mode(tmp_path) == 0o777
    assert close_to_others(tmp_path / "nowhere") is None


def test_a_new_home_is_open_to_its_owner_alone(bare_home: Settings, tmp_path: Path) -> None:
    open_catalog(bare_home)
    create_spark_token(tmp_path / "other")
    assert (mode(bare_home.home), mode(tmp_path / "other")) == (0o700, 0o700)


def test_a_command_closes_an_older_home_and_takes_nothing_from_a_file_that_others_can_read(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "run").mkdir(parents=True)
    file = home / "lake.env"
    file.write_text("LAKE_SERVING_TOKEN=sesame\n")
    home.chmod(0o755)
    file.chmod(0o644)

    run = LakeDoor(tmp_path).run
    closed, warning = run("status"), f"Warning: Other users could enter {home}; now only its owner can.\n  → To share"
    refused = f"Error: {file} sets the secret LAKE_SERVING_TOKEN, and its permissions let other users read it, so it"
    assert closed.err.startswith(warning)
    assert (mode(home), mode(file)) == (0o700, 0o644)
    again, doctor = run("status"), run("doctor")
    assert (again.code, doctor.code) == (1, 1)
    assert again.err.startswith(refused)
    assert again.err.count("\n") == 2, "one message"
    assert f"chmod 600 {file}" in doctor.out
    assert "sesame" not in again.err + doctor.out
    file.chmod(0o600)
    assert (run("status").code, run("status").err) == (0, "")
