"""Jars are those that were locked, and two set-ups at once take turns."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from lake_assets.errors import ServiceError
from lake_assets.services.jar_files import (
    LOCK_FILE,
    changed_jars,
    check_jars,
    locked_checksums,
    one_at_a_time,
)
from lake_assets.services.setup import CONFIGURATION
from lake_assets.settings import settings

PATIENCE = 120
HOLDER = """
import sys
from pathlib import Path
from lake_assets.services.jar_files import one_at_a_time
with one_at_a_time(print, Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def lock_of(folder: Path, **contents: bytes) -> Path:
    lines = [f"org:{name}:1.0 {hashlib.sha256(content).hexdigest()}" for name, content in contents.items()]
    lock = folder / LOCK_FILE
    lock.write_text("\n".join(["# comment", *lines, ""]))
    return lock


def test_a_jar_that_is_not_the_locked_one_is_refused(tmp_path: Path) -> None:
    lock = lock_of(tmp_path, one=b"first", other=b"second")
    (tmp_path / "one-1.0.jar").write_bytes(b"first")
    (tmp_path / "other-1.0.jar").write_bytes(b"second")
    check_jars(tmp_path, lock)
    assert changed_jars(tmp_path, lock) == []
    (tmp_path / "other-1.0.jar").write_bytes(b"Second")
    with pytest.raises(ServiceError, match=r"other-1\.0\.jar is not the one that was locked(.|\n)*Remove Ivy's copy"):
        check_jars(tmp_path, lock)
    assert changed_jars(tmp_path, lock) == ["other-1.0.jar"]
    (tmp_path / "other-1.0.jar").rename(tmp_path / "more-1.0.jar")
    with pytest.raises(ServiceError, match=r"has no checksum of more-1\.0\.jar"):
        check_jars(tmp_path, lock)
    assert changed_jars(tmp_path, lock) == []  # somebody's own


def test_jars_of_one_name_and_a_classifier(tmp_path: Path) -> None:
    (tmp_path / LOCK_FILE).write_text("a:x:1 00\nb:x:1 11\na:x:1:linux 22\n")
    assert locked_checksums(tmp_path / LOCK_FILE) == {"x-1.jar": {"00", "11"}, "x-1-linux.jar": {"22"}}


def test_every_jar_that_is_installed_here_is_locked() -> None:
    found = settings()
    for folder in (found.jars, found.kafka_jars):
        check_jars(folder, CONFIGURATION / LOCK_FILE)


def test_the_lock_has_no_address() -> None:
    assert "://" not in (CONFIGURATION / LOCK_FILE).read_text()


def test_two_processes_take_turns(tmp_path: Path) -> None:
    first = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert first.stdin
    assert first.stdout
    assert first.stdout.readline() == "held\n"
    said = threading.Event()
    entered = threading.Event()

    def second() -> None:
        with one_at_a_time(lambda line: said.set(), tmp_path):
            entered.set()

    thread = threading.Thread(target=second)
    thread.start()
    try:
        assert said.wait(PATIENCE)  # it found the lock taken
        assert not entered.is_set()
    finally:
        first.stdin.close()
        first.wait(PATIENCE)
        thread.join(PATIENCE)
        first.stdout.close()
    assert entered.is_set()
