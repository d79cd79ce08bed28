"""Other users are kept out of a data directory, and out of nothing else."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from lake_assets.cli.shell.private import close_to_others, exposed_secrets
from lake_assets.connections.catalog import open_catalog
from lake_assets.connections.own_secrets import create_spark_token
from lake_assets.settings import Settings


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


@pytest.mark.parametrize(
    ("permissions", "line", "secret"),
    [
        (0o644, "LAKE_SERVING_TOKEN=sesame", "LAKE_SERVING_TOKEN"),
        (0o640, "lake_serving_token=sesame", "lake_serving_token"),
        (0o604, "LAKE_KAFKA__SASL_PASSWORD=sesame", "LAKE_KAFKA__SASL_PASSWORD"),
        (0o600, "LAKE_SERVING_TOKEN=sesame", None),
        (0o644, "LAKE_TICK_SECONDS=3", None),
    ],
)
def test_a_secret_that_others_can_read_is_named(
    tmp_path: Path, permissions: int, line: str, secret: str | None
) -> None:
    file = tmp_path / "lake.env"
    file.write_text(f"OTHER=1\n{line}\n")
    file.chmod(permissions)
    found = exposed_secrets(tmp_path)
    if secret is None:
        assert found is None
    else:
        assert found is not None
        assert f"sets the secret {secret}," in str(found)
        assert f"chmod 600 {file}" in str(found)
        assert "sesame" not in str(found)


def test_a_command_closes_an_older_home_and_says_so_once(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "run").mkdir()
    (home / "lake.env").write_text("LAKE_SERVING_TOKEN=sesame\n")
    home.chmod(0o755)
    (home / "lake.env").chmod(0o644)
    command = [sys.executable, "-m", "lake_assets.cli.main", "status"]
    first, second = (
        subprocess.run(command, env={**os.environ, "LAKE_HOME": str(home)}, capture_output=True, text=True, check=True)
        for _ in range(2)
    )
    assert (mode(home), mode(home / "lake.env")) == (0o700, 0o644)
    assert first.stderr.startswith(f"Warning: Other users could enter {home}; now only its owner can.\n  → To share")
    assert second.stderr.startswith(f"Warning: {home / 'lake.env'} sets the secret LAKE_SERVING_TOKEN, and its perm")
