"""Dagster's SQLite storages ask less under `lake up`, and answer as they do by themselves."""

from __future__ import annotations

import json
from collections import Counter
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import sqlalchemy
from alembic.script import ScriptDirectory, revision
from dagster._core.definitions.run_request import InstigatorType
from dagster._core.remote_origin import (
    RegisteredCodeLocationOrigin,
    RemoteInstigatorOrigin,
    RemoteRepositoryOrigin,
)
from dagster._core.scheduler.instigation import InstigatorState, InstigatorStatus

from lake_assets.connections import dagster as private_names
from lake_assets.connections.dagster import (
    SQLITE_STORAGES,
    STORAGE,
    Moved,
    use_engines,
    use_scripts,
)
from lake_assets.dagster_processes.storages import read_migrations, use_sparing_storages

SYNCHRONOUS_NORMAL = 1


@pytest.fixture
def unchanged(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Have Dagster's names as they were after the test."""
    for name in SQLITE_STORAGES:
        keep(monkeypatch, private_names._module(name), "create_engine")
    for name in (f"{STORAGE}.sql", "alembic.command"):
        keep(monkeypatch, private_names._module(name), "ScriptDirectory")
    return monkeypatch


def keep(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    monkeypatch.setattr(owner, name, getattr(owner, name))


@pytest.fixture
def calls(unchanged: pytest.MonkeyPatch) -> Counter[str]:
    """Count the statements of SQLite, the engines, and the scripts of migrations that are read, from now on."""
    found: Counter[str] = Counter()

    def counted(what: str, call: Any) -> Any:
        def counting(*arguments: Any, **named: Any) -> Any:
            found[what] += 1
            return call(*arguments, **named)

        return counting

    for name in SQLITE_STORAGES:
        module = private_names._module(name)
        unchanged.setattr(module, "create_engine", counted("engines", sqlalchemy.create_engine))
    unchanged.setattr(revision.RevisionMap, "__init__", counted("scripts", revision.RevisionMap.__init__))
    dialect: Any = sqlalchemy.engine.default.DefaultDialect
    unchanged.setattr(dialect, "do_execute", counted("statements", dialect.do_execute))
    unchanged.setattr(dialect, "connect", counted("connections", dialect.connect))
    return found


def work(folder: Path) -> list[object]:
    """Open an instance as a tick does, and use its three storages. Return what they answer."""
    answers: list[object] = []
    with dg.DagsterInstance.from_config(str(folder)) as instance:
        run = instance.create_run_for_job(job)
        instance.report_engine_event("noted", run)
        instance.report_runless_asset_event(dg.AssetMaterialization("table", partition="one"))
        sensor_origin = RemoteInstigatorOrigin(RemoteRepositoryOrigin(code_origin(), "all"), "a_sensor")
        state = InstigatorState(sensor_origin, InstigatorType.SENSOR, InstigatorStatus.RUNNING)
        storage = instance.schedule_storage
        assert storage is not None
        if not storage.all_instigator_state():
            storage.add_instigator_state(state)
        storage.update_instigator_state(state)
        answers += [event.message for event in instance.all_logs(run.run_id)]
        answers += sorted(map(str, instance.get_materialized_partitions(dg.AssetKey("table"))))
        answers += [each.status for each in storage.all_instigator_state()]
        answers.append(len(instance.get_runs()))
        answers.append(instance.get_latest_materialization_event(dg.AssetKey("table")) is not None)
    return answers


@dg.job
def job() -> None:
    """Do nothing."""


def code_origin() -> RegisteredCodeLocationOrigin:
    return RegisteredCodeLocationOrigin("here")


def test_storages_answer_the_same_and_ask_a_fraction(
    tmp_path: Path, unchanged: pytest.MonkeyPatch, calls: Counter[str]
) -> None:
    (tmp_path / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    work(tmp_path)
    calls.clear()
    own = work(tmp_path)
    by_itself = calls.copy()
    assert use_sparing_storages() == ""
    read_migrations()
    work(tmp_path)
    calls.clear()
    sparing = work(tmp_path)
    assert own[:-2] == sparing[:-2]
    assert own[-1] is sparing[-1] is True
    assert sparing[-2] == 4  # runs: one of each time
    assert by_itself["scripts"] >= 4
    assert calls["scripts"] == 0
    assert calls["engines"] == 1  # of the new run's own database
    assert by_itself["engines"] >= 20
    assert calls["connections"] <= by_itself["connections"] / 2  # the rest are to the own database of each run


def work_as_a_run(folder: Path, counts: Path) -> None:
    """Use the storages in a process that another one has started, and count the connections to databases."""
    opened: Counter[str] = Counter()
    pragmas = set()

    def count(connection: Any, _: object) -> None:
        (_, _, file) = connection.execute("PRAGMA database_list").fetchone()
        opened[Path(file).name] += 1

    def look(connection: Any, *_: object) -> None:
        pragmas.add(connection.execute("PRAGMA synchronous").fetchone()[0])

    sqlalchemy.event.listen(sqlalchemy.pool.Pool, "connect", count)
    sqlalchemy.event.listen(sqlalchemy.pool.Pool, "checkout", look)
    assert use_sparing_storages() == ""
    answers = work(folder)
    counts.write_text(json.dumps([len(answers), opened, sorted(pragmas)]))


def test_a_run_keeps_its_connections_and_leaves_whole_databases(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    by_itself = work(home)
    counts = tmp_path / "counts.json"
    run = get_context("spawn").Process(target=work_as_a_run, args=(home, counts))
    run.start()
    run.join(120)
    assert run.exitcode == 0
    answers, opened, pragmas = json.loads(counts.read_text())
    assert answers == len(by_itself)
    assert {"runs.db", "schedules.db", "index.db"} < set(opened)
    assert max(opened.values()) <= 2  # one beside another while a storage creates its tables
    assert pragmas == [SYNCHRONOUS_NORMAL]
    assert list(home.rglob("*.db"))
    assert not list(home.rglob("*-wal"))
    with dg.DagsterInstance.from_config(str(home)) as instance:
        runs = instance.get_runs()
        assert [[event.message for event in instance.all_logs(each.run_id)] for each in runs] == [["noted"]] * 2


def test_scripts_that_are_known_are_those_of_alembic(unchanged: pytest.MonkeyPatch) -> None:
    assert use_sparing_storages() == ""
    configuration, scripts = private_names.migrations()
    assert scripts is not ScriptDirectory
    assert scripts.from_config(configuration) is scripts.from_config(configuration)
    own = ScriptDirectory.from_config(configuration)
    assert scripts.from_config(configuration).get_current_head() == own.get_current_head()


@pytest.mark.parametrize(
    ("use", "module", "name"),
    [
        (use_engines, SQLITE_STORAGES[1], "create_engine"),
        (use_scripts, f"{STORAGE}.sql", "ScriptDirectory"),
    ],
    ids=["engines", "scripts"],
)
def test_a_name_that_has_moved_is_named(unchanged: pytest.MonkeyPatch, use: Any, module: str, name: str) -> None:
    unchanged.delattr(private_names._module(module), name)
    with pytest.raises(Moved, match=name):
        use(lambda before: before)
    assert name in use_sparing_storages()
