"""Settings are not taken from a file that sets a secret and that others may read or change. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lake_assets.errors import ConfigurationError
from lake_assets.settings import settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    monkeypatch.setenv("LAKE_HOME", str(tmp_path))
    settings.cache_clear()
    yield tmp_path
    settings.cache_clear()


@pytest.mark.parametrize(
    ("permissions", "line", "secret"),
    [
        (0o644, "LAKE_SERVING_TOKEN=sesame", "LAKE_SERVING_TOKEN"),
        (0o640, "lake_serving_token=sesame", "lake_serving_token"),
        (0o602, "LAKE_ZOOKEEPER_AUTH=me:sesame", "LAKE_ZOOKEEPER_AUTH"),
        (0o604, "LAKE_KAFKA__SASL_PASSWORD=sesame", "LAKE_KAFKA__SASL_PASSWORD"),
        (0o600, "LAKE_SERVING_TOKEN=sesame", None),
        (0o644, "LAKE_START=2025-01-01-00:00", None),
    ],
)
def test_a_file_with_a_secret_is_refused_if_others_can_read_it(
    home: Path, permissions: int, line: str, secret: str | None
) -> None:
    file = home / "lake.env"
    file.write_text(f"LAKE_TICK_SECONDS=3\n{line}\n")
    file.chmod(permissions)
    if secret is None:
        assert settings().tick_seconds == 3
        return
    with pytest.raises(ConfigurationError, match=f"sets the secret {secret},") as caught:
        settings()
    assert f"chmod 600 {file}" in caught.value.remedy
    assert "sesame" not in str(caught.value)


def test_a_home_without_the_file_has_the_defaults(home: Path) -> None:
    assert settings().home == home
