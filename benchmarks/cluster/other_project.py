"""Another project on the same servers: its code location has a server of its own, and its tables the same catalog.

The project is `examples/flights`. Its server is Dagster's own command, and the lake names it by `LAKE_CODE_LOCATIONS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from pathlib import Path

from examples.flights.__main__ import open_engine
from examples.flights.data import observe, package
from examples.flights.landing import batches, land
from examples.flights.replay import verdict
from lake_assets.demo.home import check, console, headline
from lake_assets.demo.membership import wait_until_idle
from lake_assets.demo.stage import Stage, graphql
from lake_assets.services.servers import LOCATION, dagster_environment
from lake_assets.services.service import LOOPBACK, Service, accepts, python_module
from lake_assets.settings import PROJECT, Settings

NAME = "flights"
DEFINITIONS = "examples.flights.definitions"
DAYS = 2


def code_server(home: Path, lake: Path, variables: Mapping[str, str], port: int) -> Service:
    """Return the code server of the other project.

    Args:
        home: Data directory that the process belongs to.
        lake: Data directory of the lake. It names the Spark Connect server of `lake up`.
        variables: The settings of the lake.
        port: Port on loopback.
    """
    place = ("--host", LOOPBACK, "--port", str(port), "--location-name", NAME)
    module = ("--module-name", DEFINITIONS, "--working-directory", str(PROJECT))
    return Service(
        name=NAME,
        command=python_module("dagster", "api", "grpc", *place, *module),
        home=home,
        port=port,
        environment={**dagster_environment(Settings(home=lake)), **variables},
        ready=accepts(port),
    )


def play(stage: Stage) -> None:
    """Land some days of flights, let Dagster build the tables of the other project, and compare them with pandas."""
    headline(
        "Another project",
        f"{DAYS} days of real flights land in the tables of a second code location. Its sensor requests the sessions, "
        "and its own server starts their runs.",
    )
    engine = open_engine(stage.home)
    engine.create_tables()
    observations = observe(*package())
    start = engine.pipeline.start_hour
    for day in islice(batches(start, start + 24 * DAYS), DAYS):
        for table, rows in land(engine.catalog, observations, day).items():
            console.print(f"  [cyan]→[/] {table}: {rows} rows")
    wait_until_idle(Stage(stage.home, engine, stage.spark))
    for comparison in verdict(engine, observations):
        check(f"{comparison.table}: {comparison.rows} rows, equal to pandas", comparison.equal, True)
    query = "{ runsOrError { ... on Runs { results { repositoryOrigin { repositoryLocationName } } } } }"
    runs = graphql(stage.home, query, {})["runsOrError"]["results"]
    locations = {run["repositoryOrigin"]["repositoryLocationName"] for run in runs}
    check("each code server has started runs", locations, {LOCATION, NAME})
