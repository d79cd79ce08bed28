"""The output of a step is in its file while it runs, and in the output of the process afterwards."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import dagster as dg
import psutil
import pytest
from dagster._core.storage import local_compute_log_manager

from lake_assets.dagster_processes.code_server import captured, use_lean_capture


def test_output_is_captured_and_copied(tmp_path: Path) -> None:
    script = """
import os, sys
from pathlib import Path
from lake_assets.dagster_processes.code_server import captured
path = sys.argv[1]
with captured(sys.stdout, path):
    print("of Python, ü", flush=True)
    os.system("echo of a child")
    seen = Path(path).read_text()
assert seen == "earlier\\nof Python, ü\\nof a child\\n", seen
try:
    with captured(sys.stdout, path):
        print("of a failed one")
        raise ValueError
except ValueError:
    pass
print("afterwards")
"""
    path = tmp_path / "step.out"
    path.write_text("earlier\n")
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True)
    captured_lines = ["of Python, ü", "of a child", "of a failed one"]
    assert done.stdout.splitlines() == [*captured_lines, "afterwards"]
    assert path.read_text().splitlines() == ["earlier", *captured_lines]


def capturing() -> list[str]:
    """Return the commands of child processes by which Dagster captures the output of a step."""
    commands = []
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # other children may end meanwhile
            commands.append(" ".join(child.cmdline()))
    return [command for command in commands if "compute_logs" in command or "watch_orphans" in command]


@dg.op
def noisy() -> list[str]:
    print("from the step", flush=True)
    return capturing()


@dg.job(executor_def=dg.in_process_executor)
def shouting() -> None:
    noisy()


def test_a_run_captures_without_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "mirror_stream_to_file"
    monkeypatch.setattr(local_compute_log_manager, name, getattr(local_compute_log_manager, name))
    assert use_lean_capture() == ""
    (tmp_path / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        result = shouting.execute_in_process(instance=instance)
    assert result.output_for_node("noisy") == []
    files = list((tmp_path / "storage" / result.run_id / "compute_logs").glob("*.out"))
    assert [file.read_text() for file in files] == ["from the step\n"]


def test_a_name_that_has_moved_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(local_compute_log_manager, "mirror_stream_to_file")
    assert "mirror_stream_to_file" in use_lean_capture()


def test_a_closed_stream_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "step.out"
    with (tmp_path / "output").open("w") as stream, captured(stream, str(path)):
        stream.write("all of it")
        stream.flush()
    assert path.read_text() == "all of it"
