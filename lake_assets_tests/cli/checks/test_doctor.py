"""`lake doctor` as a person runs it, on a home for a pipeline of one's own."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from lake_assets.cli.main import app, main
from lake_assets.errors import StoredStateError

if TYPE_CHECKING:
    from typer.testing import Result


def lake(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments, catch_exceptions=False)


def test_a_home_is_diagnosed_and_its_lost_catalog_repaired(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE_PIPELINES", "lake_assets_tests.incremental.clicks:CLICKS")
    never = lake("doctor")
    assert never.exit_code == 1
    assert "was never initialised" in never.stdout
    assert "Run `lake init`" in never.stdout
    assert not home.exists()
    assert lake("init").exit_code == 0

    sound = lake("doctor")
    assert sound.exit_code == 0, sound.stdout
    assert "catalog.db has 7 tables." in sound.stdout
    assert " error" not in sound.stdout.replace("0 errors", "")

    (home / "catalog.db").write_bytes(b"")
    with pytest.raises(StoredStateError):
        lake("init")
    lost = lake("doctor", "--json")
    assert lost.exit_code == 1
    (error,) = [found for found in json.loads(lost.stdout)["findings"] if found["level"] == "error"]
    assert (error["check"], error["repair"], len(error["details"])) == ("catalog", "registers 7 tables again", 7)

    repaired = lake("doctor", "--repair", "--json")
    assert repaired.exit_code == 0, repaired.stdout
    document = json.loads(repaired.stdout)
    assert document["repaired"] == [{"check": "catalog", "what": "registers 7 tables again", "failure": ""}]
    assert lake("init").stdout == "Nothing to create.\n"


def test_an_unknown_variable_is_reported_once(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LAKE_QQQQ", "1")
    monkeypatch.setattr(sys, "argv", ["lake", "doctor"])
    terminated = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit):
            main()
    finally:
        signal.signal(signal.SIGTERM, terminated)
    said = capsys.readouterr()
    assert (said.out + said.err).count("LAKE_QQQQ") == 1
