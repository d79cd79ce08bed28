"""`lake` is instant, complete, and prints errors without a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from typer.main import get_command
from typer.testing import CliRunner

from lake_assets.cli.main import app
from lake_assets_tests.doors.lake_door import Done, LakeDoor

SLOW = ("dagster", "kazoo", "plotly", "pyarrow", "pyiceberg", "pyspark")
COMMANDS = """
audit backup catch-up check complete completion demo doctor down init inspect land maintain migrate
new plan rebuild repair report restart restore sessions setup signal status up verify why erase
engagement: accept changes dashboard dead-letters graph ingest init maintain metrics mutate pause reclaim
engagement: resume retain run simulate status
erasure: certify
landing: accept compact dead-letters init load migrate page policy read repair reshard
landing: run scrub simulate status tail verify
landing quarantine: discard list release
serving: clean-up delete lineage list push query revert serve verify
serving pinot: lineage list push revert
session: commit init publish
"""


def expected() -> set[str]:
    found = set()
    for line in COMMANDS.strip().splitlines():
        group, _, names = line.rpartition(":")
        found |= {f"{group} {name}".strip() for name in names.split()}
    return found


def commands(group: Any, path: str = "") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{path}{name} ")
        else:
            yield f"{path}{name}", command


ALL = dict(commands(get_command(app)))


def lake(home: Path, *arguments: str, **variables: str) -> Done:
    """A command in a home, run in the first folder above it."""
    folder = next(folder for folder in home.parents if folder.is_dir())
    return LakeDoor(folder).run(*arguments, LAKE_HOME=str(home), **variables)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (home := tmp_path / "home").mkdir()
    return home


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
    listed = "import sys, typer, lake_assets.cli.main as lake; dict(typer.main.get_command(lake.app).commands)"
    code = f"{listed}; print([name for name in {SLOW} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_an_error_is_a_message_with_a_remedy(home: Path) -> None:
    done = lake(home, "erase", "account")
    assert (done.code, done.out) == (1, "")
    assert done.err.splitlines() == [
        "Error: The command needs an id to erase, a file of ids, or --sweep.",
        "  → Run `lake erase account ID`, `lake erase account --from FILE` or `lake erase --sweep`.",
    ]


def test_an_invalid_setting_is_named(home: Path) -> None:
    done = lake(home, "status", LAKE_TICK_SECONDS="0")
    assert (done.code, done.out) == (1, "")
    problem, remedy = done.err.splitlines()
    assert problem.startswith("Error: LAKE_TICK_SECONDS is '0': ")
    assert remedy.startswith("  → Correct or unset it in the environment or in lake.env")


def test_a_setting_that_does_not_exist_is_named_with_the_one_that_was_meant(home: Path) -> None:
    (home / "lake.env").write_text("LAKE_TICK_SECOND=3\nOTHER=1\n")
    done = lake(home, "status", LAKE_PIPELINE="x", LAKE_TEST_SEED="1", LAKE_QQQQ="1")
    assert done.code == 0
    assert done.err.splitlines() == [
        "Warning: LAKE_PIPELINE, set in the environment, is no setting and has no effect.",
        "  → Did you mean LAKE_PIPELINES?",
        "Warning: LAKE_QQQQ, set in the environment, is no setting and has no effect.",
        "  → Unset it; lake_assets/settings.py has all settings.",
        f"Warning: LAKE_TICK_SECOND, set in {home / 'lake.env'}, is no setting and has no effect.",
        "  → Did you mean LAKE_TICK_SECONDS?",
    ]


def test_an_error_in_a_pipelines_module_names_its_line(home: Path) -> None:
    (home / "mine.py").write_text("import json\n\nPIPELINE = json.loads('{')\n")
    (home / "broken.py").write_text("\nPIPELINE = (\n")
    for module, line, error in (
        ("mine", 3, "JSONDecodeError: Expecting property name"),
        ("broken", 2, "SyntaxError: '(' was never"),
    ):
        done = lake(home, "init", LAKE_PIPELINES=f"{module}:PIPELINE", PYTHONPATH=str(home))
        problem, remedy, log = done.err.splitlines()
        named = f"Error: LAKE_PIPELINES names '{module}:PIPELINE', which fails at home/{module}.py:{line}: {error}"
        assert problem.startswith(named)
        assert remedy == "  → Correct the module, then run the command again."
        assert log == f"  Details: {home / 'logs' / 'errors.log'}"
    logged = (home / "logs" / "errors.log").read_text()
    assert logged.count("UTC lake init\nTraceback") == 2
    assert "json.decoder.JSONDecodeError" in logged


@pytest.mark.parametrize(("interrupt", "code"), [("KeyboardInterrupt()", 130), ("SystemExit(143)", 143)])
def test_an_interrupt_that_c_reports_as_an_error_is_an_interrupt(home: Path, interrupt: str, code: int) -> None:
    program = f"""
import sys
from lake_assets.cli.main import app, main

@app.command()
def wait() -> None:
    raise SystemError("<class 'socket.socket'> returned a result with an exception set") from {interrupt}

sys.argv = ["lake", "wait"]
main()
"""
    environment = {**os.environ, "LAKE_HOME": str(home)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


def test_a_home_that_cannot_be_is_two_lines(home: Path) -> None:
    (home / "file").write_text("")
    done = lake(home / "file" / "home", "init")
    assert (done.code, done.out) == (1, "")
    assert done.err.splitlines() == [
        f"Error: The folder {home}/file/home of the catalog cannot be created: Not a directory.",
        "  → Set LAKE_HOME (or LAKE_CATALOG_URI) to a folder that you may write.",
    ]


def test_the_version_is_printed(home: Path) -> None:
    version = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["version"]
    assert lake(home, "--version").out == f"lake-assets {version}\n"


def test_bash_completes_commands_by_the_printed_script(tmp_path: Path) -> None:
    program = tmp_path / "lake"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m lake_assets.cli.main "$@"\n')
    program.chmod(0o755)
    script = (
        'source <(lake completion bash); COMP_WORDS=(lake ca); COMP_CWORD=1; _lake_completion lake; echo "$COMPREPLY"'
    )
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "LAKE_HOME": str(tmp_path)}
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("catch-up\n", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_asks_lake(shell: str) -> None:
    done = CliRunner().invoke(app, ["completion", shell])
    assert done.exit_code == 0
    assert f"_LAKE_COMPLETE=complete_{shell}" in done.output


def test_status_prints_a_row_for_each_service(home: Path) -> None:
    done = lake(home, "status")
    heading, *services = done.out.splitlines()
    assert heading.split() == ["service", "state", "pid", "port", "MB", "log", "detail"]
    assert services
    assert all(line.split()[1] == "stopped" for line in services)


@pytest.mark.parametrize("command", ["status", "up", "backup", "init"])
def test_a_home_of_a_later_version_is_refused(home: Path, command: str) -> None:
    (home / "tables.json").write_text('{"format": 2, "written_by": "9.9.0"}')
    done = lake(home, command)
    assert done.code == 1
    problem, remedy = done.err.splitlines()[-2:]
    assert problem.endswith(f"The data directory {home} has format 2, and this version reads formats up to 1.")
    assert remedy.startswith("  → Install lake-assets 9.9.0 or a later one.")
    assert [path.name for path in home.iterdir() if path.name != "logs"] == ["tables.json"]


@pytest.mark.parametrize("command", ["init", "doctor"])
def test_a_home_that_was_moved_is_refused(home: Path, command: str) -> None:
    former = home.with_name("former")
    tables = {"raw.a": f"file://{former}/warehouse/raw/a"}
    remembered = {"format": 1, "written_by": "0.1.0", "catalog": f"sqlite:///{former}/catalog.db", "tables": tables}
    (home / "tables.json").write_text(json.dumps(remembered))
    (home / "catalog.db").touch()
    done = lake(home, command)
    assert done.code == 1
    assert f"The data directory {home} was {former}, and its tables name their files by whole paths." in done.text
    assert f"→ Move it back to {former}, or make that a link to {home}." in done.text
    assert (home / "catalog.db").stat().st_size == 0


def test_services_of_a_later_version_can_be_stopped(home: Path) -> None:
    (home / "tables.json").write_text('{"format": 2, "written_by": "9.9.0"}')
    done = lake(home, "down")
    assert (done.code, done.out) == (0, "No service is running.\n")
