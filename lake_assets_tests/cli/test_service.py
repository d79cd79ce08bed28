"""The systemd unit, held against what systemd itself reads from it if it is installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from pydantic import SecretStr

from lake_assets.cli.services import NAME, unit
from lake_assets.errors import ConfigurationError
from lake_assets.settings import Settings


def test_the_unit_starts_and_stops_the_services_of_this_home(tmp_path: Path) -> None:
    environment = {"LAKE_PIPELINES": 'my "tables":100%', "LAKE_KAFKA": "k:9092", "PATH": "/usr/bin", "TERM": "xterm"}
    lake = tmp_path / "bin" / "lake"
    lake.parent.mkdir()
    lake.write_text("#!/bin/sh\n")
    lake.chmod(0o755)
    text = unit(Settings(home=tmp_path), environment, lake)
    lines = text.splitlines()
    assert f'Environment="LAKE_HOME={tmp_path}"' in lines
    assert 'Environment="LAKE_PIPELINES=my \\"tables\\":100%%"' in lines
    assert 'Environment="LAKE_KAFKA=k:9092"' in lines
    assert 'Environment="PATH=/usr/bin"' in lines
    assert "TERM" not in text
    assert f'ExecStart="{lake}" up' in lines
    assert f"PIDFile={tmp_path}/run/supervisor.pid" in lines
    if analyze := shutil.which("systemd-analyze"):
        file = tmp_path / NAME
        file.write_text(text)
        done = subprocess.run([analyze, "verify", str(file)], capture_output=True, text=True, timeout=60, check=False)
        assert NAME not in done.stdout + done.stderr


def test_a_secret_does_not_enter_the_unit(tmp_path: Path) -> None:
    found = Settings(home=tmp_path, erasure_key=SecretStr("the key"))
    with pytest.raises(ConfigurationError, match=r"LAKE_ERASURE_KEY .*secret(.|\n)*lake\.env") as refused:
        unit(found, {"LAKE_ERASURE_KEY": "the key"}, Path("lake"))
    assert "the key" not in str(refused.value)
