"""`lake` is instant, complete, and prints errors without a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from typer.main import get_command

from lake_assets.cli.main import app

SLOW = ("dagster", "kazoo", "plotly", "pyarrow", "pyiceberg", "pyspark")
COMMANDS = """
audit catch-up complete demo down init maintain new plan rebuild report sessions status up why erase
engagement: dashboard ingest init maintain metrics mutate reclaim retain simulate status
erasure: certify
landing: compact init page policy reshard run scrub simulate status verify
landing quarantine: discard list release
serving: clean-up delete lineage list push query revert serve
serving pinot: list push revert
session: commit init publish
"""


def expected() -> set[str]:
    found = set()
    for line in COMMANDS.strip().splitlines():
        group, _, names = line.rpartition(":")
        found |= {f"{group} {name}".strip() for name in names.split()}
    return found


def commands(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{path}{name} ")
        else:
            yield f"{path}{name}", command


ALL = dict(commands(get_command(app)))


def lake(home: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lake_assets.cli.main", *arguments]
    environment = {**os.environ, "LAKE_HOME": str(home), **variables}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_every_command_is_there() -> None:
    assert set(ALL) == expected()


@pytest.mark.parametrize("name", sorted(ALL))
def test_a_command_and_its_options_are_described_in_sentences(name: str) -> None:
    command = ALL[name]
    assert command.help
    assert command.help.endswith(".")
    for parameter in command.params:
        text = getattr(parameter, "help", None)
        if parameter.name != "help":
            assert text, parameter.name
            assert text[0].isupper(), text
            assert text.endswith("."), text


def test_help_imports_nothing_slow() -> None:
    code = f"import sys, lake_assets.cli.main; print([name for name in {SLOW} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_an_error_is_a_message_with_a_remedy(tmp_path: Path) -> None:
    done = lake(tmp_path, "erase", "account")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines() == [
        "Error: The command needs an id to erase, or --sweep.",
        "  → Run `lake erase account ID` or `lake erase --sweep`.",
    ]


def test_an_invalid_setting_is_named(tmp_path: Path) -> None:
    done = lake(tmp_path, "status", LAKE_TICK_SECONDS="0")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: LAKE_TICK_SECONDS is '0': ")


def test_status_prints_a_row_for_each_service(tmp_path: Path) -> None:
    done = lake(tmp_path, "status")
    heading, *services = done.stdout.splitlines()
    assert heading.split() == ["service", "state", "pid", "port", "MB", "log", "detail"]
    assert services
    assert all(line.split()[1] == "stopped" for line in services)
