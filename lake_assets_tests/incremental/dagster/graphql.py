"""What Dagster's UI shows, by the queries that it sends: the real schema, on an instance of a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dagster._core.test_utils import in_process_test_workspace
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster_graphql.test.utils import execute_dagster_graphql

# Loaded before a test opens Spark: resources without a Spark server make pyspark forget the one of the test.
from lake_assets import definitions
from lake_assets_tests.incremental.in_process_daemon import asset_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    import dagster as dg
    from dagster._core.workspace.context import WorkspaceRequestContext

CHECKS = """query Checks($key: AssetKeyInput!) {
  assetNodeOrError(assetKey: $key) { ... on AssetNode { assetChecksOrError { ... on AssetChecks {
    checks { name executionForLatestMaterialization { status evaluation { severity description } } } } } } } }"""

STALE = """query Stale($key: AssetKeyInput!, $partition: String) {
  assetNodeOrError(assetKey: $key) { ... on AssetNode {
    staleStatus(partition: $partition) staleCauses(partition: $partition) { category reason } } } }"""


@dataclass
class Ui:
    """The UI of the code location that Dagster really loads, `lake_assets.definitions`."""

    workspace: WorkspaceRequestContext

    def checks(self, table: str) -> dict[str, str]:
        """Check → the status that the asset shows: SUCCEEDED, WARN (failed as a warning), FAILED, SKIPPED, …"""
        found = self.node(CHECKS, table)["assetChecksOrError"]["checks"]
        return {check["name"]: _status(check["executionForLatestMaterialization"]) for check in found}

    def stale(self, table: str, partitions: Sequence[str]) -> dict[str, tuple[str, list[str]]]:
        """Partition → its stale status, and the causes of it."""
        shown = {}
        for partition in partitions:
            node = self.node(STALE, table, partition=partition)
            shown[partition] = (node["staleStatus"], [cause["reason"] for cause in node["staleCauses"]])
        return shown

    def node(self, query: str, table: str, **variables: object) -> dict[str, Any]:
        key = {"path": list(asset_key(table).path)}
        request = self.workspace.process_context.create_request_context()  # it caches what it has read
        found = execute_dagster_graphql(request, query, variables={"key": key, **variables})
        node: dict[str, Any] = found.data["assetNodeOrError"]
        return node


def _status(execution: dict[str, Any] | None) -> str:
    if execution is None:
        return "NOT EXECUTED"
    evaluation = execution["evaluation"]
    is_warning = execution["status"] == "FAILED" and evaluation["severity"] == "WARN"
    return "WARN" if is_warning else str(execution["status"])


@contextmanager
def ui(instance: dg.DagsterInstance) -> Iterator[Ui]:
    """The UI on an instance."""
    location = LoadableTargetOrigin(executable_path="python", module_name=definitions.__name__)
    with in_process_test_workspace(instance, location) as workspace:
        yield Ui(workspace)
