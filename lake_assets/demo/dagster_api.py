"""Dagster's GraphQL API, as the demos use it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import httpx

from lake_assets.base.hours import parse_hour
from lake_assets.demo.home import START
from lake_assets.services import lifecycle

if TYPE_CHECKING:
    from lake_assets.settings import Settings

POLL_SECONDS = 0.5
ANSWER_SECONDS = 30

PARTITIONS_QUERY = """query($key: AssetKeyInput!) {
  runsOrError(filter: {statuses: [QUEUED, STARTING, STARTED]}) { ... on Runs { results { id } } }
  assetNodeOrError(assetKey: $key) { ... on AssetNode { assetPartitionStatuses {
    ... on TimePartitionStatuses { ranges { status startKey endKey } } } } } }"""

RUNS_QUERY = """{ runsOrError { ... on Runs { results {
  jobName repositoryOrigin { repositoryLocationName } } } } }"""

BACKFILL_QUERY = """query($id: String!) {
  partitionBackfillOrError(backfillId: $id) { ... on PartitionBackfill { status } } }"""

BACKFILL_MUTATION = """mutation($it: LaunchBackfillParams!) { launchPartitionBackfill(backfillParams: $it) {
  __typename ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message } } }"""

BACKFILL_RUNNING = ("REQUESTED", "COMPLETING")


def materialized_hours(home: Settings, name: str) -> list[int]:
    """Wait until no run is active, then return the materialized hours of a target, counted from the start, ascending.

    Args:
        home: The settings of the data directory.
        name: Name of the target, without its namespace.
    """
    deadline = time.monotonic() + home.settle_seconds
    key = {"path": ["core", name]}
    data = graphql(home, PARTITIONS_QUERY, {"key": key})
    while data["runsOrError"]["results"] and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
        data = graphql(home, PARTITIONS_QUERY, {"key": key})
    start = parse_hour(START)
    hours: set[int] = set()
    for span in data["assetNodeOrError"]["assetPartitionStatuses"]["ranges"]:
        if span["status"] == "MATERIALIZED":
            first = parse_hour(span["startKey"]) - start
            last = parse_hour(span["endKey"]) - start
            hours.update(range(first, last + 1))
    return sorted(hours)


def locations_of_runs(home: Settings) -> set[str]:
    """Return the code locations of all runs, by their names."""
    runs = graphql(home, RUNS_QUERY, {})["runsOrError"]["results"]
    return {run["repositoryOrigin"]["repositoryLocationName"] for run in runs}


def launch_backfill(home: Settings, table: str, partitions: list[str]) -> str:
    """Launch a backfill, as the UI does, and return its id; empty if Dagster refused it.

    Args:
        home: The settings of the data directory.
        table: The target.
        partitions: Keys of the hours.
    """
    selection = {"assetSelection": [{"path": table.split(".")}], "partitionNames": partitions}
    launched = graphql(home, BACKFILL_MUTATION, {"it": selection})["launchPartitionBackfill"]
    return str(launched.get("backfillId", ""))


def wait_for_backfill(home: Settings, backfill: str) -> str:
    """Wait until a backfill ends, and return its last status."""
    deadline = time.monotonic() + home.settle_seconds
    status = "REQUESTED"
    while status in BACKFILL_RUNNING and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
        found = graphql(home, BACKFILL_QUERY, {"id": backfill})["partitionBackfillOrError"]
        status = found.get("status", "UNKNOWN")
    return status


def runs_by_job(home: Settings) -> Counter[str]:
    """Return the name of each job → the number of its runs, whatever became of them."""
    data = graphql(home, RUNS_QUERY, {})
    return Counter(run["jobName"] for run in data["runsOrError"]["results"])


def graphql(home: Settings, query: str, variables: Mapping[str, Any]) -> Any:
    """Send a query or a mutation and return the data of the answer."""
    address = lifecycle.ui_address(home)
    answer = httpx.post(
        f"{address}/graphql",
        json={"query": query, "variables": variables},
        timeout=ANSWER_SECONDS,
    )
    return answer.raise_for_status().json()["data"]
