"""SQLMesh as one of those compared: its incremental-by-time-range models, on the same Spark, over the same raw tables.

The models of `sqlmesh_project/` say in SQL what the facts of this project say, with audits that both have. SQLMesh has
a virtual environment of its own, for its requirements and ours do not go together; it is made at the first use.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.sides import Done, opened
from lake_assets.connections.spark import session_conf
from lake_assets.errors import ServiceError
from lake_assets.incremental.execution.engine import Engine
from lake_assets.incremental.metadata import tables
from lake_assets.services import bootstrap
from lake_assets.settings import PROJECT, Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake_assets.incremental.declaration import Target

VENV = PROJECT / ".venv-sqlmesh"
LOCK = Path(__file__).parent / "requirements-sqlmesh.txt"
SERVER = Path(__file__).parent / "sqlmesh_project" / "serve.py"
MODELS = frozenset(path.stem for path in (SERVER.parent / "models").glob("*.sql"))
"""The targets that there is a model of, by name."""


class SqlMeshSide:
    """Models kept by SQLMesh, in the schema `facts`. It runs in a process of its own as long as the side is open."""

    def __init__(self, home: Settings, spark: SparkSession) -> None:
        self._truth = opened(Engine, home, spark)
        self._spark = spark
        self._seen: dict[str, int] = {}
        options = {"spark": _conf(home), "state": str(home.home / "models.db"), "cache": str(home.home / "models")}
        self._log = home.home / "sqlmesh.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [str(VENV / "bin" / "python"), str(SERVER), json.dumps(options)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def run(self, target: Target, now: datetime) -> Done:
        """One `run` of its model, as of now. Raises `ServiceError` with the end of its log if that fails."""
        asked = {"model": f"facts.{target.name}", "execution_time": now.isoformat()}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{json.dumps(asked)}\n")
        self._process.stdin.flush()
        if self._process.stdout.readline() != "done\n":
            said = self._log.read_text(errors="replace").splitlines()[-20:]
            raise ServiceError("SQLMesh ended:\n" + "\n".join(said), remedy=f"Look at {LOCK.name} and the models.")
        return self._written(target)

    def missed(self, target: Target) -> int:
        """The truth is what this engine makes of the same raw tables, in one session from nothing."""
        self._truth.run(target)
        model = self._spark.table(f"lake.facts.{target.name}").select(*target.columns)
        return self._spark.table(f"lake.{target.table}").exceptAll(model).count()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        finally:
            self._process.kill()
            self._spark.stop()

    def _written(self, target: Target) -> Done:
        """What the snapshots of the model's table say that came since the last look."""
        found = self._truth.catalog.list_tables("sqlmesh__facts")
        name = next(".".join(table) for table in found if table[-1].startswith(f"facts__{target.name}__"))
        snapshots = tables.load(self._truth.catalog, name).metadata.snapshots
        new = [s.summary for s in snapshots[self._seen.get(name, 0) :] if s.summary]
        self._seen[name] = len(snapshots)
        rows, hours = (
            sum(int(s.additional_properties.get(figure, 0)) for s in new)
            for figure in ("added-records", "changed-partition-count")
        )
        return Done(rows, hours)


def prepare() -> None:
    """Make SQLMesh's environment if it is missing or its requirements have changed. Raises `bootstrap.SetupError`."""
    content = ".".join(map(str, sys.version_info[:2])).encode() + LOCK.read_bytes()
    step = bootstrap.Step("sqlmesh", content, _install)
    if not step.is_done(VENV):
        step.take(VENV)


def _install() -> None:
    version = re.search(r"^sqlmesh==\S+", LOCK.read_text(), re.MULTILINE)
    assert version is not None
    bootstrap.say(f"For the comparison, {version[0]} and a pyspark of its own go into {VENV.name}, and nowhere else")
    bootstrap.make_environment(VENV)
    bootstrap.install_packages(VENV, LOCK)


def _conf(home: Settings) -> dict[str, str]:
    # SQLMesh sets the overwrite mode itself, but not on Spark Connect; without it, an interval would replace the table.
    return {**session_conf(home), "spark.sql.sources.partitionOverwriteMode": "dynamic"}
