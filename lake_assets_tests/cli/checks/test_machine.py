"""The checks of settings, disk and services, each on what it is to find."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lake_assets.base.findings import Check, Finding, run_checks
from lake_assets.cli import machine
from lake_assets.connections import addresses
from lake_assets.connections.addresses import OWNER_VARIABLE, ServiceRecord
from lake_assets.settings import Settings, settings


@pytest.fixture
def home(home: Path) -> Path:
    home.mkdir()
    return home


def levels(found: list[Finding]) -> list[str]:
    return [each.level for each in found]


def test_variables_that_are_unknown_or_malformed_are_named_and_secrets_are_not_shown(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert levels(list(machine.check_settings())) == ["ok"]
    (home / "lake.env").write_text("LAKE_KAFKAA=localhost:9092\nLAKE_TICK_SECONDS=soon\nOTHER=1\n")
    monkeypatch.setenv("LAKE_NONSENSE_AT_ALL", "1")
    settings.cache_clear()
    malformed, typo, nonsense = machine.check_settings()
    assert (malformed.level, typo.level, nonsense.level) == ("error", "warning", "warning")
    assert malformed.text.startswith("LAKE_TICK_SECONDS is 'soon': ")
    assert (typo.remedy, str(home / "lake.env") in typo.text) == ("Did you mean LAKE_KAFKA?", True)
    assert nonsense.text == "LAKE_NONSENSE_AT_ALL, set in the environment, is no setting and has no effect."
    assert machine.valid_settings() is None


def test_a_pipeline_that_cannot_be_loaded_is_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE_PIPELINES", "nowhere:PIPELINE")
    settings.cache_clear()
    (found,) = machine.check_settings()
    assert found.level == "error"
    assert "nowhere:PIPELINE" in found.text
    assert machine.loaded_pipeline(settings()) is None


def test_an_address_of_alerts_that_nothing_can_be_sent_to_is_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE_ALERT_WEBHOOK", "https://a.example/token slak://token")
    settings.cache_clear()
    (found,) = machine.check_settings()
    assert (found.level, "slak://" in found.text, "token" in found.text) == ("error", True, False)


def test_a_key_that_others_can_read_is_closed_and_a_damaged_memory_is_named(home: Path) -> None:
    assert levels(list(machine.check_disk(home))) == ["ok"]
    key = home / "erasure.key"
    key.write_text("secret")
    key.chmod(0o644)
    (home / "tables.json").write_text("{")
    opened, memory = machine.check_disk(home)
    assert "erasure.key" in opened.text
    assert "tables.json" in memory.text
    assert opened.repair
    opened.repair.run()
    assert key.stat().st_mode & 0o777 == 0o600


def test_a_home_of_a_later_version_is_named(home: Path) -> None:
    assert list(machine.check_version(home)) == []
    (home / "tables.json").write_text('{"format": 2, "written_by": "9.9.0"}')
    (found,) = machine.check_version(home)
    assert (found.level, found.repair) == ("error", None)
    assert found.text == f"The data directory {home} has format 2, and this version reads formats up to 1."
    assert found.remedy.startswith("Install lake-assets 9.9.0 or a later one.")
    assert levels(list(machine.check_disk(home))) == ["ok"]


def test_services_that_ended_are_forgotten_only_when_no_process_is_left(home: Path) -> None:
    found = Settings(home=home)
    addresses.write_records(home, [ServiceRecord("spark", 1), ServiceRecord("code", 2)])
    environment = {**os.environ, OWNER_VARIABLE: str(home)}
    program = [sys.executable, "-c", "print(flush=True), input()"]
    pipe = subprocess.PIPE
    with subprocess.Popen(program, stdin=pipe, stdout=pipe, env=environment) as process:
        assert process.stdout is not None
        process.stdout.readline()  # while a process begins, the system does not show its environment yet
        (home / "run" / "spark.pid").write_text(str(process.pid))
        (partial,) = machine.check_services(found)
        assert (partial.level, partial.repair) == ("error", None)
        assert "code" in partial.text
        assert "spark" not in partial.text
        process.communicate(b"\n", timeout=30)
    (stale,) = machine.check_services(found)
    assert stale.level == "warning"
    assert stale.repair
    stale.repair.run()
    assert [each.text for each in machine.check_services(found)] == ["No service was started here."]


def test_a_service_that_fails_at_every_start_is_named(home: Path) -> None:
    found = Settings(home=home)
    addresses.write_records(home, [ServiceRecord("spark", 1)])
    log = home / "logs" / "supervisor.log"
    log.parent.mkdir()
    log.write_text("2026-01-01 12:00:00,123 WARN exited: spark (exit status 1; not expected)\n" * 3)
    (failing,) = machine.check_services(found)
    assert (failing.level, failing.text) == (
        "error",
        "spark fails at every start: it ended by itself 3 times, last with code 1.",
    )


def test_a_java_that_is_missing_or_too_old_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    (found,) = machine.check_java_version()
    assert (found.level, found.text) == ("error", "Java is 11; 17 or later is needed.")


def test_a_check_that_raises_is_an_error_and_what_it_found_before_stays() -> None:
    def broken() -> Iterator[Finding]:
        yield Finding("one", "ok", "before")
        raise ZeroDivisionError("of what is diagnosed")

    before, error = run_checks([Check("one", broken)])
    assert (before.level, error.level) == ("ok", "error")
    assert "ZeroDivisionError: of what is diagnosed" in error.text
