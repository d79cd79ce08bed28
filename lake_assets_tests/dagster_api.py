"""What the UI of a home shows, asked by GraphQL as the UI asks it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from lake_assets.services import lifecycle
from lake_assets.settings import Settings

WORKSPACE = """{ workspaceOrError { ... on Workspace { locationEntries { name locationOrLoadError {
  __typename
  ... on PythonError { message }
  ... on RepositoryLocation { repositories {
    assetNodes { assetKey { path } assetChecksOrError { ... on AssetChecks { checks {
      name executionForLatestMaterialization { status }
    } } } }
    sensors { name sensorState { status ticks(limit: 50) { status error { message } } } }
  } }
} } } } }"""

RUNS = "{ runsOrError { ... on Runs { results { status assetSelection { path } tags { key value } } } } }"


@dataclass(frozen=True)
class Run:
    """asset: the only one that it builds. sensor: that requested it; empty if somebody started it by hand."""

    status: str
    asset: str
    sensor: str


def ask(home: Settings, query: str) -> Any:
    answer = httpx.post(f"{lifecycle.ui_address(home)}/graphql", json={"query": query}, timeout=30)
    found = answer.raise_for_status().json()
    assert "errors" not in found, found["errors"]
    return found["data"]


def loaded(home: Settings) -> Any:
    """The only code location of a home."""
    (entry,) = ask(home, WORKSPACE)["workspaceOrError"]["locationEntries"]
    location = entry["locationOrLoadError"]
    assert location["__typename"] == "RepositoryLocation", location
    (repository,) = location["repositories"]
    return repository


def runs(home: Settings) -> list[Run]:
    found = []
    for run in ask(home, RUNS)["runsOrError"]["results"]:
        tags = {tag["key"]: tag["value"] for tag in run["tags"]}
        (asset,) = run["assetSelection"] or [{"path": ["?"]}]
        found.append(Run(run["status"], "/".join(asset["path"]), tags.get("dagster/sensor_name", "")))
    return found


def checks_of(repository: Any) -> dict[str, dict[str, str]]:
    """Asset → check → how it ended for the newest materialization; empty before it was evaluated."""
    found: dict[str, dict[str, str]] = {}
    for node in repository["assetNodes"]:
        checks = found.setdefault("/".join(node["assetKey"]["path"]), {})
        for check in node["assetChecksOrError"]["checks"]:
            execution = check["executionForLatestMaterialization"]
            checks[check["name"]] = execution["status"] if execution else ""
    return found


def ended_ticks(sensor: Mapping[str, Any]) -> list[Any]:
    return [tick for tick in sensor["sensorState"]["ticks"] if tick["status"] != "STARTED"]


def failed_ticks(sensor: Mapping[str, Any]) -> list[Any]:
    return [tick for tick in sensor["sensorState"]["ticks"] if tick["error"] or tick["status"] == "FAILURE"]
