"""The guard tries again until the services start: a busy machine or a full disk must not end the lake for good."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lake_assets.connections import addresses
from lake_assets.errors import ServiceError
from lake_assets.services import lifecycle, supervisor
from lake_assets.services.lifecycle import start_again
from lake_assets.services.service import Service
from lake_assets.settings import settings
from lake_assets_tests.processes import wait_until

RECORDS = [addresses.ServiceRecord("spark", 1234), addresses.ServiceRecord("daemon", None)]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A data directory whose services cannot start: there are no jars."""
    monkeypatch.setenv("LAKE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LAKE_JARS", str(tmp_path / "nowhere"))
    settings.cache_clear()
    yield tmp_path / "home"
    settings.cache_clear()


def test_the_records_stay_if_the_services_do_not_start(home: Path) -> None:
    addresses.write_records(home, RECORDS)
    with pytest.raises(ServiceError, match="There are no jars"):
        start_again()
    assert addresses.read_records(home) == RECORDS


@pytest.mark.journey
def test_the_guard_tries_again_until_somebody_calls_down(home: Path) -> None:
    addresses.write_records(home, RECORDS)
    steady = Service("steady", ("sleep", "600"), home, ready=lambda: True)
    process = supervisor.start([steady, supervisor.guard(settings())], home)
    log = home / "logs" / "restarts.log"
    try:
        wait_until(lambda: addresses.process_of(home, "guard") is not None, 240)
        process.kill()
        process.wait(60)
        wait_until(lambda: log.exists() and log.read_text().count("There are no jars") >= 2, 240)
        wait_until(lambda: addresses.read_records(home) == RECORDS, 240)
    finally:
        lifecycle.down(settings(), report=print)
    assert addresses.processes_of(home) == []
    assert addresses.read_records(home) == []
