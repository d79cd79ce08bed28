"""The record of the served report: it counts while its process lives, and only the server that wrote it removes it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from lake_assets.connections.addresses import REPORT_FILE, recorded_report, report_port, run_folder


def test_the_port_is_known_while_the_report_is_served(tmp_path: Path) -> None:
    assert report_port(tmp_path) is None
    with recorded_report(tmp_path, 4001):
        assert report_port(tmp_path) == 4001
        with recorded_report(tmp_path, 4002):
            assert report_port(tmp_path) == 4002
        assert report_port(tmp_path) is None
    with recorded_report(tmp_path, 4001):
        (run_folder(tmp_path) / REPORT_FILE).write_text('{"port": 4003}')  # of a later server
    assert [file.name for file in run_folder(tmp_path).iterdir()] == [REPORT_FILE]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        json.dumps({"port": 4001, "pid": os.getpid(), "started": 1.0}),  # another process had this pid
        json.dumps({"port": 4001, "pid": None, "started": 1.0}),
    ],
    ids=["empty", "no record", "no pid", "another process", "null"],
)
def test_a_record_of_a_dead_process_does_not_count(tmp_path: Path, content: str) -> None:
    run_folder(tmp_path).mkdir()
    (run_folder(tmp_path) / REPORT_FILE).write_text(content)
    assert report_port(tmp_path) is None
