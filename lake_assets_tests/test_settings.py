"""Where data and jars are kept: in a checkout, and where the package was installed without one."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from pydantic import SecretStr, ValidationError

from lake_assets import settings as module
from lake_assets.settings import PROJECT, Settings, variable_name

if TYPE_CHECKING:
    from pathlib import Path

INSTALLED = """
import json
import lake_assets
from lake_assets.services.servers import write_dagster_files
from lake_assets.settings import Settings, settings
write_dagster_files(settings(), 4001)
print(json.dumps([lake_assets.__file__, lake_assets.__version__, str(Settings().home), str(settings().home)]))
"""


def test_without_a_checkout_the_home_is_in_the_current_folder(tmp_path: Path) -> None:
    packages, folder = tmp_path / "site-packages", tmp_path / "folder"
    shutil.copytree(PROJECT / "lake_assets", packages / "lake_assets")
    metadata = packages / "lake_assets-9.8.7.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.4\nName: lake-assets\nVersion: 9.8.7\n")
    folder.mkdir()
    variables = {name: value for name, value in os.environ.items() if not name.startswith("LAKE_")}
    command, environment = [sys.executable, "-P", "-c", INSTALLED], {**variables, "PYTHONPATH": str(packages)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    home = folder / ".lake"
    assert json.loads(done.stdout) == [str(packages / "lake_assets/__init__.py"), "9.8.7", str(home), str(home)]
    assert (home / "dagster" / "dagster.yaml").read_text() == (PROJECT / "dagster.yaml").read_text()
    assert "{host: 127.0.0.1, port: 4001, location_name: lake_assets}" in (home / "dagster/workspace.yaml").read_text()
    assert sorted(path.name for path in packages.iterdir()) == ["lake_assets", "lake_assets-9.8.7.dist-info"]


def test_jars_are_in_the_environment_or_in_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LAKE_JARS", "LAKE_KAFKA_JARS"):
        monkeypatch.delenv(name, raising=False)
    found = Settings(home=tmp_path)
    assert (found.jars, found.kafka_jars) == (PROJECT / ".venv/jars", PROJECT / ".venv/kafka-jars")
    monkeypatch.setattr(module, "CHECKOUT", None)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "environment"))
    assert Settings(home=tmp_path).jars == tmp_path / "environment" / "jars"
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    found = Settings(home=tmp_path)
    assert (found.jars, found.kafka_jars) == (tmp_path / "jars", tmp_path / "kafka-jars")


def test_the_page_lists_every_setting_once_with_its_meaning_and_nothing_else() -> None:
    place = PROJECT / "docs" / "settings_table.py"
    shown = runpy.run_path(str(place))["on_page_markdown"]((PROJECT / "docs" / "settings.md").read_text())
    _, listed = shown.split("## All settings")
    rows = re.findall(r"^\| `(LAKE_\w+)` \| (.+) \| (.+) \|$", listed, re.MULTILINE)
    of_users = Settings.model_fields.keys() - {"failpoint"}  # which tests alone set
    assert sorted(variable for variable, _, _ in rows) == sorted(map(variable_name, of_users))
    defaults = {variable: default for variable, _, default in rows}
    assert defaults["LAKE_CATALOG_URI"] == "SQLite in the data directory"
    assert (defaults["LAKE_RUN_DAYS"], defaults["LAKE_ALERT_WEBHOOK"]) == ("`30`", "none")


@pytest.mark.parametrize("token", ["", " ", "sésame", "sesame\nX: y"])
def test_a_token_that_no_header_carries_is_refused(token: str) -> None:
    with pytest.raises(ValidationError, match="it is empty, or has other characters") as refused:
        Settings(serving_token=SecretStr(token))
    assert "sesame" not in str(refused.value)
