"""The wheel has what the package reads and no tests, and the package works without the packages of an extra."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from lake_assets.base.extras import EXTRAS, installed
from lake_assets.settings import PROJECT

PACKAGE = PROJECT / "lake_assets"
CONFIGURATION = tomllib.loads((PROJECT / "pyproject.toml").read_text())
FIND = CONFIGURATION["tool"]["setuptools"]["packages"]["find"]
DATA = CONFIGURATION["tool"]["setuptools"]["package-data"]["lake_assets"]

WITHOUT = """
import json, runpy, sys
from importlib.abc import MetaPathFinder

BLOCKED = {blocked!r}

class Blocked(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocked())
{program}
"""
LOAD = """
from typer.testing import CliRunner
from lake_assets.cli.main import app
from lake_assets.definitions import defs
from lake_assets.incremental.from_settings import open_engine
from lake_assets.services.lifecycle import PORT_NAMES, services_of
from lake_assets.settings import settings
groups = {node.group_name for node in defs().resolve_asset_graph().asset_nodes}
services = [service.name for service in services_of(settings(), dict.fromkeys(PORT_NAMES, 1))]
open_engine(settings()).create_tables()
outputs = [CliRunner().invoke(app, command).output for command in (["plan", "signup_fact"], ["--help"])]
print(json.dumps([sorted(groups), services, *outputs]))
"""
LAKE = "sys.argv = ['lake', *{arguments!r}]; runpy.run_module('lake_assets.cli.main', run_name='__main__')"

ENGAGEMENT = {"engagement_email_event", "engagement_meeting_event", "engagement_voice_insight"}
GROUPS: Mapping[str, set[str]] = {
    "landing": {"raw", "core", "serving"},
    "serving": {"raw", "core", "landing", *ENGAGEMENT},
}
"""Extra that is not installed → the groups of assets that are left, whether or not `pages` is installed."""

COMMAND: Mapping[str, tuple[str, ...]] = {
    "landing": ("engagement", "status", "email_event"),
    "serving": ("serving", "serve"),
    "pages": ("report",),
}


def without(extras: Sequence[str], program: str, home: Path) -> subprocess.CompletedProcess[str]:
    """Run a program that finds none of the packages of some extras."""
    blocked = [package for extra in extras for package in EXTRAS[extra]]
    code = WITHOUT.format(blocked=blocked, program=program)
    environment = {**os.environ, "LAKE_HOME": str(home), "LAKE_ZOOKEEPER": "127.0.0.1:1", "LAKE_KAFKA": ""}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def matches_data(file: Path) -> bool:
    """Whether setuptools takes a file along: `**/` also stands for no folder."""
    name = file.relative_to(PACKAGE).as_posix()
    return any(fnmatch(name, pattern) or fnmatch(f"x/{name}", pattern) for pattern in DATA)


def test_every_file_that_the_package_reads_is_in_the_wheel() -> None:
    others = [file for file in PACKAGE.rglob("*") if file.is_file() and file.suffix not in (".py", ".pyc")]
    names = {file.relative_to(PACKAGE).as_posix() for file in others}
    assert {
        "py.typed",
        "pages/page.html",
        "services/configuration/dagster.yaml",
        "services/configuration/workspace.yaml",
        "services/configuration/ivy.xml",
        "services/configuration/ivy-kafka.xml",
        "services/configuration/ivy-postgresql.xml",
        "services/configuration/ivy-s3.xml",
        "services/configuration/jars.lock",
    } <= names
    assert [file for file in others if not matches_data(file)] == []


def test_no_tests_are_in_the_wheel() -> None:
    found = set()
    for folder in PROJECT.iterdir():
        included = any(fnmatch(folder.name, pattern) for pattern in FIND["include"])
        excluded = any(fnmatch(folder.name, pattern) for pattern in FIND["exclude"])
        if folder.is_dir() and included and not excluded:
            found.add(folder.name)
    assert found - {"lake_assets.egg-info"} == {"lake_assets"}
    assert not list(PACKAGE.rglob("test_*"))


def test_the_configuration_of_dagster_has_one_source() -> None:
    assert (PACKAGE / "services" / "configuration" / "dagster.yaml").resolve() == PROJECT / "dagster.yaml"


def test_the_extras_are_those_of_the_project() -> None:
    declared = CONFIGURATION["project"]["optional-dependencies"]
    required = {re.split(r"[\[<>=]", line)[0] for line in CONFIGURATION["project"]["dependencies"]}
    distributions = packages_distributions()
    for extra, packages in EXTRAS.items():
        names = {distributions[package][0] for package in packages}
        own = [line for line in declared[extra] if not line.startswith("lake-assets[")]
        assert {re.split(r"[\[<>=]", line)[0] for line in own} == names
        assert installed(extra)
        assert not names & required
    assert declared["all"] == [f"lake-assets[{','.join([*EXTRAS, 'dg'])}]"]


@pytest.mark.parametrize("extra", GROUPS)
def test_pipelines_load_and_plan_without_an_extra(extra: str, tmp_path: Path) -> None:
    loaded = without((extra, "pages"), LOAD, tmp_path)
    assert loaded.returncode == 0, loaded.stderr
    groups, services, planned, helped = json.loads(loaded.stdout)
    assert set(groups) == GROUPS[extra]
    assert ("kafka" in services) == (extra != "landing")
    assert planned.startswith("No session: ")
    assert "catch-up" in helped


@pytest.mark.parametrize("extra", EXTRAS)
def test_a_command_names_the_extra_that_it_lacks(extra: str, tmp_path: Path) -> None:
    done = without((extra,), LAKE.format(arguments=COMMAND[extra]), tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(rf"Error: \w+ is not installed: run pip install 'lake-assets\[{extra}\]'\.\n", done.stderr)
