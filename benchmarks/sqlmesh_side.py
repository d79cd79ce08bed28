"""SQLMesh as one side of the comparison: its incremental-by-time-range models, on the same Spark and raw tables.

The models of `sqlmesh_project/` define the facts of this project in SQL, with audits that both systems have. SQLMesh
has its own virtual environment, because its requirements conflict with ours. The first use creates it.
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
from lake_assets.incremental.engine import iceberg
from lake_assets.incremental.engine.engine import Engine
from lake_assets.settings import PROJECT, Settings

if TYPE_CHECKING:
    from pyiceberg.table.snapshots import Summary
    from pyspark.sql import SparkSession

    from lake_assets.incremental.declaration import Target

VENV = PROJECT / ".venv-sqlmesh"
LOG_LINES = 20
LOCK = Path(__file__).parent / "requirements-sqlmesh.txt"
SERVER = Path(__file__).parent / "sqlmesh_project" / "serve.py"
MODELS = frozenset(path.stem for path in (SERVER.parent / "models").glob("*.sql"))
"""Names of the targets that have a model."""


class SqlMeshSide:
    """Models of SQLMesh in the schema `facts`. SQLMesh runs in its own process until the side is closed."""

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
        """Run the model of a target as of `now`.

        Raises:
            ServiceError: SQLMesh failed; the message has the end of its log.
        """
        request = {"model": f"facts.{target.name}", "execution_time": now.isoformat()}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{json.dumps(request)}\n")
        self._process.stdin.flush()
        if self._process.stdout.readline() != "done\n":
            tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-LOG_LINES:])
            raise ServiceError(f"SQLMesh ended:\n{tail}", remedy=f"Look at {LOCK.name} and the models.")
        return self._written(target)

    def missed(self, target: Target) -> int:
        """Compare with the rows that this engine builds from the same raw tables in one session."""
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
        """Return what the new snapshots of the model's table wrote."""
        found = self._truth.catalog.list_tables("sqlmesh__facts")
        name = next(".".join(table) for table in found if table[-1].startswith(f"facts__{target.name}__"))
        snapshots = iceberg.load(self._truth.catalog, name).metadata.snapshots
        new = [s.summary for s in snapshots[self._seen.get(name, 0) :] if s.summary]
        self._seen[name] = len(snapshots)
        return Done(rows=_total(new, "added-records"), hours=_total(new, "changed-partition-count"))


def _total(summaries: list[Summary], figure: str) -> int:
    return sum(int(summary.additional_properties.get(figure, 0)) for summary in summaries)


def prepare() -> None:
    """Create SQLMesh's environment if it is missing or its requirements have changed.

    Raises:
        CalledProcessError: The packages cannot be installed.
    """
    done = VENV / "packages.done"
    if done.exists() and done.read_text() == LOCK.read_text():
        return
    version = re.search(r"^sqlmesh==\S+", LOCK.read_text(), re.MULTILINE)
    assert version is not None
    print(f"Installing {version[0]} and its own pyspark into {VENV.name}, for the comparison only", flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", VENV], check=True)
    pip = [VENV / "bin" / "python", "-m", "pip", "install", "--no-deps", "--require-hashes", "-r", LOCK]
    subprocess.run(pip, check=True)
    done.write_text(LOCK.read_text())


def _conf(home: Settings) -> dict[str, str]:
    # SQLMesh does not set the overwrite mode on Spark Connect. Without it, an interval would replace the table.
    return {**session_conf(home), "spark.sql.sources.partitionOverwriteMode": "dynamic"}
