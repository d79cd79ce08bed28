"""A backup of a data directory and its restore: whole, killed at each point, damaged, and refused."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lake_assets.base.failpoints import BACKUP_POINTS, EXIT_CODE, RESTORE_POINTS
from lake_assets.cli.common import refuse_unusable_home
from lake_assets.cli.main import app
from lake_assets.connections.addresses import OWNER_VARIABLE
from lake_assets.errors import ServiceError, StoredStateError, UsageError
from lake_assets.services import lifecycle
from lake_assets.services.backup import back_up, restore
from lake_assets.settings import Settings, settings
from lake_assets_tests.processes import Child, environment
from lake_assets_tests.services.backup.child import (
    NOW,
    back_up_into,
    back_up_with_little_room,
    restore_from,
    unseen,
)

PLAIN = {
    "erasure.key": b"secret",
    "lake.env": b"LAKE_TICK_SECONDS=2\n",
    "warehouse/core/fact/data/1.parquet": b"rows" * 50_000,
    "zookeeper/data/version-2/snapshot.0": b"lineage",
    "run/ports.json": b"{}",
}
NOT_BACKED_UP = {"run/services.json": b"{}", "logs/daemon.log": b"log", "key-index/x": b"derived"}


@pytest.fixture
def home(tmp_path: Path) -> Settings:
    """A data directory with files, and a database of which the newest rows are in its journal."""
    found = tmp_path / "home"
    for name, content in {**PLAIN, **NOT_BACKED_UP}.items():
        (found / name).parent.mkdir(parents=True, exist_ok=True)
        (found / name).write_bytes(content)
    (found / "erasure.key").chmod(0o600)
    add_rows(found, 1, 2)
    return Settings(home=found)


def add_rows(home: Path, *rows: int) -> None:
    with closing(sqlite3.connect(home / "catalog.db")) as database, database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("CREATE TABLE IF NOT EXISTS t (x INTEGER)")
        database.executemany("INSERT INTO t VALUES (?)", [(row,) for row in rows])


def rows(home: Path) -> list[int]:
    with closing(sqlite3.connect(home / "catalog.db")) as database:
        return [x for (x,) in database.execute("SELECT x FROM t ORDER BY x")]


def plain_files(home: Path) -> dict[str, bytes]:
    found = (path for path in home.rglob("*") if path.is_file() and not path.name.startswith("catalog.db"))
    return {path.relative_to(home).as_posix(): path.read_bytes() for path in found}


def check_restored(home: Settings) -> None:
    assert rows(home.home) == [1, 2]
    found = plain_files(home.home)
    assert {name: found[name] for name in PLAIN} == PLAIN
    assert not found.keys() & NOT_BACKED_UP.keys()
    assert not (home.home / "restoring").exists()
    assert (home.home / "erasure.key").stat().st_mode & 0o777 == 0o600


def test_a_home_comes_back_as_it_was(home: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE_HOME", str(home.home))
    monkeypatch.setenv("LAKE_WAREHOUSE", "s3://bucket/w")
    settings.cache_clear()
    target = str(tmp_path / "backup")
    with closing(sqlite3.connect(home.home / "catalog.db")) as writer:  # keeps the journal, and has not committed
        writer.execute("INSERT INTO t VALUES (3)")
        made = CliRunner().invoke(app, ["backup", target])
    assert "Not in it: Files of tables: s3://bucket/w" in made.stdout
    assert (tmp_path / "backup").stat().st_mode & 0o777 == 0o700
    add_rows(home.home, 4)
    shutil.rmtree(home.home)
    (home.home / "logs").mkdir(parents=True)  # a command that failed meanwhile
    restored = CliRunner().invoke(app, ["restore", target])
    settings.cache_clear()
    assert restored.exit_code == 0, restored.output
    assert "Not restored: Files of tables: s3://bucket/w" in restored.stdout
    check_restored(home)


def test_a_killed_backup_or_restore_is_run_again(home: Settings, tmp_path: Path) -> None:
    target = tmp_path / "backup"
    for point in BACKUP_POINTS[:-1]:
        assert Child(back_up_into, str(target), environment(home, point)).end() == EXIT_CODE
        assert not target.exists()
    assert Child(back_up_into, str(target), environment(home, BACKUP_POINTS[-1])).end() == EXIT_CODE
    shutil.rmtree(home.home)
    for point in RESTORE_POINTS:
        assert Child(restore_from, str(target), environment(home, point)).end() == EXIT_CODE
        if point != RESTORE_POINTS[-1]:
            assert not (home.home / "catalog.db").exists()  # commands that do not know of the restore refuse as well
            with pytest.raises(StoredStateError, match="was interrupted"):
                refuse_unusable_home(home.home, [])
    refuse_unusable_home(home.home, [])
    check_restored(home)
    assert not list(tmp_path.glob("*.partial"))


def test_a_command_refuses_a_half_restored_home(home: Settings) -> None:
    (home.home / "restoring").mkdir()
    command = (sys.executable, "-m", "lake_assets.cli.main", "status")
    done = subprocess.run(command, env=environment(home), capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "  → Run the same `lake restore` again: it continues."


def test_a_full_disk_leaves_nothing_behind(home: Settings, tmp_path: Path) -> None:
    target = tmp_path / "backup"
    assert Child(back_up_with_little_room, str(target), environment(home)).said() == "OSError"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home"]
    back_up(home, target, now=NOW, progress=unseen)


def test_a_damaged_backup_restores_nothing(home: Settings, tmp_path: Path) -> None:
    target = tmp_path / "backup"
    back_up(home, target, now=NOW, progress=unseen)
    shutil.rmtree(home.home)
    file = target / "files" / "erasure.key"
    file.write_bytes(b"Secret")
    with pytest.raises(StoredStateError, match=r"erasure\.key does not have the checksum"):
        restore(home.home, target, progress=unseen)
    file.unlink()
    with pytest.raises(StoredStateError, match=r"erasure\.key is missing"):
        restore(home.home, target, progress=unseen)
    assert plain_files(home.home).keys() == {"run/up.lock"}
    file.write_bytes(b"secret")
    file.chmod(0o644)  # restored as it was
    restore(home.home, target, progress=unseen)
    check_restored(home)


def test_what_a_backup_refuses(home: Settings, tmp_path: Path) -> None:
    target = tmp_path / "backup"

    def refused(folder: Path = target) -> str:
        with pytest.raises((UsageError, StoredStateError)) as error:
            back_up(home, folder, now=NOW, progress=unseen)
        assert not target.exists()
        return error.value.problem

    assert refused(home.home / "backup") == f"{home.home}/backup lies in the data directory {home.home}."
    assert refused(home.home) == f"{home.home} exists."
    (tmp_path / "backup.partial" / "mine").mkdir(parents=True)
    assert refused() == f"{target}.partial exists, and no backup has left it."
    shutil.rmtree(tmp_path / "backup.partial")
    (home.home / "landing").symlink_to(tmp_path)
    assert refused().startswith(f"{home.home}/landing is a symbolic link")
    (home.home / "landing").unlink()
    (home.home / "landing.db").write_bytes(b"SQLite format 3\0" + b"x" * 5000)
    assert refused().startswith(f"{home.home}/landing.db cannot be backed up, because it is damaged: ")
    (home.home / "landing.db").unlink()
    with lifecycle.exclusive(home.home), pytest.raises(ServiceError, match="Another `lake up`"):
        back_up(home, target, now=NOW, progress=unseen)
    with subprocess.Popen(["sleep", "600"], env={OWNER_VARIABLE: str(home.home)}) as service:
        assert refused() == f"1 processes of {home.home} run."
        service.kill()


def test_a_home_that_changes_meanwhile_is_not_backed_up(home: Settings, tmp_path: Path) -> None:
    def commit(done: int, of: int) -> None:
        (home.home / "warehouse" / "new").write_bytes(b"rows")

    with pytest.raises(UsageError, match="warehouse/new was changed while the backup was made"):
        back_up(home, tmp_path / "backup", now=NOW, progress=commit)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home"]


def test_what_a_restore_refuses(home: Settings, tmp_path: Path) -> None:
    target = tmp_path / "backup"
    back_up(home, target, now=NOW, progress=unseen)
    with pytest.raises(UsageError, match=r"home is not empty: it has catalog\.db"):
        restore(home.home, target, progress=unseen)
    with pytest.raises(UsageError, match=f"is of {home.home}, and LAKE_HOME is {tmp_path}/other"):
        restore(tmp_path / "other", target, progress=unseen)
    with pytest.raises(UsageError, match=r"home is no backup: it has no contents\.json"):
        restore(home.home, home.home, progress=unseen)
    check_not_touched(home)


def check_not_touched(home: Settings) -> None:
    assert rows(home.home) == [1, 2]
    assert plain_files(home.home).keys() >= PLAIN.keys() | NOT_BACKED_UP.keys()
