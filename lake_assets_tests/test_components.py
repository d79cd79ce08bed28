"""The components in a project of somebody else: found by their short names, scaffolded, loaded from YAML, and run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import pyarrow as pa
import pytest
from dagster.components.core.package_entry import discover_package_objects
from dagster.components.scaffold.scaffold import ScaffoldRequest, get_scaffolder

import lake_assets
from lake_assets import IncrementalTable, SourceTable
from lake_assets.components import write_table
from lake_assets.errors import UsageError
from lake_assets.incremental.engine.engine import Engine, utc_now
from lake_assets.incremental.sql.files import StoredColumns, columns_file, fingerprint, write_columns
from lake_assets.settings import PROJECT
from lake_assets_tests.incremental.sql.folders import open_all, pipeline_of
from lake_assets_tests.incremental.sql.test_sql_tables import MIDNIGHT, ROWS, payment

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from lake_assets.settings import Settings

PROJECT_FILE = """\
[tool.dg]
directory_type = "project"

[tool.dg.project]
root_module = "stranger_shop"
registry_modules = ["lake_assets"]
"""
REFUND = """\
type: lake_assets.IncrementalTable
attributes:
  table: core.refund_dim
  mode: {stateful: {load: changed}}
  sources: [{table: core.payment_fact, time_column: happened_at}]
  key: payment_id
  time_column: happened_at
  sql: SELECT payment_id, happened_at, 'x' AS kind FROM payment_fact
  audits: [unique_key]
"""
IN_A_PROCESS = """
import json
import sys
from pathlib import Path

import dagster as dg

defs = dg.load_from_defs_folder(path_within_project=Path(sys.argv[1]))
repository, name = defs.get_repository_def(), "sessions_sensor"
with dg.DagsterInstance.ephemeral() as instance:
    context = dg.build_sensor_context(
        instance, repository_def=repository, sensor_name=name, resources=dict(defs.resources)
    )
    (request,) = repository.get_sensor_def(name).evaluate_tick(context).run_requests
    job = repository.get_implicit_job_def_for_assets(request.asset_selection).get_subset(
        asset_selection=frozenset(request.asset_selection), asset_check_selection=frozenset()
    )
    result = job.execute_in_process(tags=dict(request.tags), instance=instance)
    (key,) = request.asset_selection
    checks = result.get_asset_check_evaluations()
    print(json.dumps({
        "asset": key.to_user_string(),
        "status": instance.get_run_by_id(result.run_id).status.value,
        "hours": sorted(instance.get_materialized_partitions(key)),
        "failed checks": sorted(check.check_name for check in checks if not check.passed),
        "checks": len(checks),
    }))
"""


@pytest.fixture
def defs_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of definitions of an empty project."""
    (tmp_path / "pyproject.toml").write_text(PROJECT_FILE)
    folder = tmp_path / "stranger_shop" / "defs"
    folder.mkdir(parents=True)
    for place in (folder.parent, folder):
        (place / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    return folder


def test_the_components_are_found_by_their_short_names() -> None:
    found = {key.to_typename(): value for key, value in discover_package_objects(["lake_assets"]).items()}
    assert found == {
        "lake_assets.IncrementalTable": lake_assets.IncrementalTable,
        "lake_assets.SourceTable": lake_assets.SourceTable,
    }


def test_files_of_a_project_are_one_pipeline(defs_folder: Path) -> None:
    for component, name in ((IncrementalTable, "payment_fact"), (SourceTable, "visits")):
        scaffolder = get_scaffolder(component)
        assert isinstance(scaffolder, dg.Scaffolder)
        kind = f"lake_assets.{component.__name__}"
        request: ScaffoldRequest[Any] = ScaffoldRequest(kind, defs_folder / name, "yaml", None, None)
        scaffolder.scaffold(request)
    (defs_folder / "refund_dim").mkdir()
    (defs_folder / "refund_dim" / "defs.yaml").write_text(REFUND)
    fact, dim = open_all(defs_folder).tables
    columns = {"payment_id": "string", "happened_at": "timestamptz", "kind": "string"}
    of_fact = folder_pipeline_columns(defs_folder / "payment_fact")
    found = fingerprint(dim.sql, dim.attributes, {"core.payment_fact": of_fact})
    lineage = {"payment_id": ("core.payment_fact.payment_id",), "happened_at": (), "kind": ()}
    write_columns(columns_file(dim.declaration), StoredColumns(found, columns, lineage, ("happened_at",)))
    assert fact.table == "core.payment_fact"

    defs = dg.load_from_defs_folder(path_within_project=defs_folder)
    graph = defs.resolve_asset_graph()
    built = {key.to_user_string(): graph.get(key) for key in graph.get_all_asset_keys()}
    parents = {name: {key.to_user_string() for key in node.parent_keys} for name, node in built.items()}
    assert parents["raw/payments"] == parents["raw/visits"] == set()
    assert parents["core/payment_fact"] == {"raw/payments"}
    assert parents["core/refund_dim"] == {"core/payment_fact"}
    assert {job.name for job in defs.jobs or ()} == {"maintenance"}
    metadata = built["core/refund_dim"].metadata
    assert metadata["columns_of_unknown_source"] == "happened_at"
    assert set(metadata["dagster/column_lineage"].deps_by_column) == {"payment_id"}
    sensors = {sensor.name for sensor in defs.sensors or ()}
    assert {"sessions_sensor", "raw_tables_sensor", "targets_sensor"} <= sensors
    assert {"lake_assets", "lake_assets_io_manager"} <= set(defs.resources or {})


def test_a_run_that_a_sensor_requests_publishes_the_rows_of_a_project(
    defs_folder: Path, catalog: Catalog, home: Settings
) -> None:
    """In a process of its own: the components and the resources read the settings of their process."""
    write_table(defs_folder / "payment_fact")
    pipeline = pipeline_of(defs_folder, start="2026-01-01-00:00")
    Engine(catalog, pipeline, clock=utc_now).create_tables()
    rows = [payment("p1", "a", 5, 0), payment("p2", "b", 7, 2), payment("p3", "a", -1, 2)]
    catalog.load_table("raw.payments").append(pa.Table.from_pylist(rows, schema=ROWS))
    others = {name: value for name, value in os.environ.items() if not name.startswith(("LAKE_", "DAGSTER_"))}
    chosen = {"LAKE_HOME": str(home.home), "LAKE_SPARK_REMOTE": str(home.spark_remote), "LAKE_END": "2026-01-03-00:00"}
    done = subprocess.run(
        [sys.executable, "-c", IN_A_PROCESS, str(defs_folder)],
        env={**others, **chosen, "PYTHONPATH": str(defs_folder.parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "asset": "core/payment_fact",
        "status": "SUCCESS",
        "hours": ["2026-01-01-00:00", "2026-01-01-02:00"],
        "failed checks": ["quarantine"],
        "checks": 8,
    }
    found = catalog.load_table("core.payment_fact").scan().to_arrow().sort_by("payment_id")
    assert found.column("payment_id").to_pylist() == ["p1", "p2"]
    assert found.column("happened_at").to_pylist()[0] == MIDNIGHT.replace(minute=30)


def test_a_scaffolded_name_must_be_one_of_a_table(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'Payment-Fact'"):
        write_table(tmp_path / "Payment-Fact")


def folder_pipeline_columns(folder: Path) -> dict[str, str]:
    """The columns of the only table of a folder."""
    (target,) = pipeline_of(folder, start="2026-01-01-00:00").targets
    return dict(target.columns)


@pytest.mark.journey
def test_a_project_is_made_from_an_empty_folder_as_the_page_says(tmp_path: Path) -> None:
    page = (PROJECT / "docs" / "sql-tables.md").read_text().partition("## In a Dagster project\n")[2]
    told = {}
    for kind, text in re.findall(r"```(\w*)\n(.*?)```", page, re.DOTALL):
        if kind:
            name, _, content = text.partition("\n")
            (tmp_path / name.removeprefix("# ")).write_text(content)
            continue
        for command in text.splitlines():
            if command.startswith("export"):  # of commands of `lake`
                break
            if command.startswith("dg check"):
                with_variables(tmp_path)
            told[command.partition("  ")[0]] = in_a_shell(tmp_path, command)
    assert "lake_assets.IncrementalTable" in told["dg list components"]
    assert "All component YAML validated successfully." in told["dg check yaml && dg check defs"]
    assert "All definitions loaded successfully." in told["dg check yaml && dg check defs"]
    listed = ("raw/payments", "shop/payment_fact", "sessions_sensor")
    assert [name for name in listed if name not in told["dg list defs"]] == [], told["dg list defs"]


def with_variables(folder: Path) -> None:
    """Change the namespace of the table that was scaffolded to a variable."""
    file = folder / "shop" / "defs" / "payment_fact" / "defs.yaml"
    file.write_text(file.read_text().replace("core.payment_fact", "'{{ env.SHOP }}.payment_fact'"))


def in_a_shell(folder: Path, command: str) -> str:
    """Run a command in a folder as somebody does who has installed the package; return what it prints."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    variables = {"PATH": path, "LAKE_HOME": str(folder / "home"), "SHOP": "shop", "COLUMNS": "200"}
    done = subprocess.run(
        command, shell=True, cwd=folder, env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
