"""Dagster as local services: the code server, the web server and the daemon, with their files and environment.

Dagster runs in their processes; nothing here imports it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from string import Template

from pydantic import SecretStr

from lake_assets.connections.addresses import dagster_folder
from lake_assets.connections.spark import spark_environment
from lake_assets.errors import ConfigurationError
from lake_assets.services.memory.budget import MOST_RUNS
from lake_assets.services.service import Service, accepts, answers, log_says, python_module
from lake_assets.settings import CHECKOUT, Settings

DEFINITIONS = "lake_assets.definitions"
LOCATION = "lake_assets"
CONFIGURATION = Path(__file__).with_name("configuration")
"""The files of the package that configure Dagster, and name the jars."""

CODE_LOCATION = re.compile(r"(?P<name>[A-Za-z][\w-]*)=(?P<host>[\w.-]+):(?P<port>\d{1,5})")
FOREIGN_LOCATION = '  - grpc_server: {{host: "{host}", port: {port}, location_name: "{name}"}}\n'

WRITTEN_RUNS = re.compile(r"max_concurrent_runs: \d+")

STORAGE_VARIABLE = "LAKE_DAGSTER_URI"
POSTGRESQL_STORAGE = f"""
# LAKE_DAGSTER_URI names a database. Dagster's UI shows this file, so the address is not in it.
storage:
  postgres:
    postgres_url: {{env: {STORAGE_VARIABLE}}}
"""

LOADED_LOCATIONS_QUERY = (
    "%7BworkspaceOrError%7B...on%20Workspace%7BlocationEntries%7BlocationOrLoadError%7B__typename%7D%7D%7D%7D%7D"
)
"""A GraphQL query, URL-encoded. Its answer names the type of each code location: a repository, or an error."""


def code_server(settings: Settings, port: int) -> Service:
    """Return the process that loads the definitions. The other two ask it, and it starts the runs.

    Args:
        settings: The settings that the definitions are loaded with.
        port: Port on loopback.
    """
    place = ("--host", "127.0.0.1", "--port", str(port), "--location-name", LOCATION)
    module = ("--module-name", DEFINITIONS, "--working-directory", str(CHECKOUT or settings.home))
    return Service(
        name="code",
        command=python_module("lake_assets.dagster_processes.dagster.code_server", *place, *module),
        home=settings.home,
        port=port,
        environment=dagster_environment(settings),
        ready=accepts(port),
        remedy="The definitions did not load. Correct what the log names, or LAKE_PIPELINES.",
    )


def webserver(settings: Settings, ports: Mapping[str, int]) -> Service:
    """Return Dagster's UI behind the guard that refuses requests of foreign web pages.

    Args:
        settings: The settings of the home.
        ports: The ports `code` and `webserver`.
    """
    port = ports["webserver"]
    options = ("--port", str(port), "--workspace", str(_workspace(settings)))
    return Service(
        name="webserver",
        command=python_module("lake_assets.services.webserver", *options),
        home=settings.home,
        port=port,
        # Dagster's first process creates the tables of its instance; two at once break them.
        after=ports["code"],
        environment=dagster_environment(settings),
        # It serves pages before it has loaded the definitions from the code server.
        ready=answers(f"http://127.0.0.1:{port}/graphql?query={LOADED_LOCATIONS_QUERY}", '"RepositoryLocation"'),
        remedy="Correct what the log names, such as LAKE_WEBSERVER_HOSTS, then run `lake up` again.",
    )


def daemon(settings: Settings, ports: Mapping[str, int]) -> Service:
    """Return Dagster's daemon, which evaluates sensors and schedules and starts queued runs.

    Args:
        settings: The settings of the home.
        ports: The port `code`.
    """
    log = settings.home / "logs" / "daemon.log"
    return Service(
        name="daemon",
        command=python_module("lake_assets.dagster_processes.dagster.daemon", "--workspace", str(_workspace(settings))),
        home=settings.home,
        after=ports["code"],
        environment=dagster_environment(settings),
        ready=log_says(log, "Instance is configured with the following daemons"),
    )


def write_dagster_files(settings: Settings, code_port: int, *, runs: int = MOST_RUNS) -> None:
    """Write Dagster's folder in the home: the package's `dagster.yaml`, and the addresses of the code servers.

    Args:
        settings: The settings of the home.
        code_port: The port of the code server.
        runs: How many runs may be at work at once.

    Raises:
        ConfigurationError: LAKE_CODE_LOCATIONS names a code server in another form than it should.
    """
    others = "".join(FOREIGN_LOCATION.format(**each) for each in _foreign_locations(settings.code_locations))
    folder = dagster_home(settings)
    folder.mkdir(parents=True, exist_ok=True)
    configuration = (CONFIGURATION / "dagster.yaml").read_text(encoding="utf-8")
    storage = POSTGRESQL_STORAGE if settings.dagster_uri else ""
    (folder / "dagster.yaml").write_text(WRITTEN_RUNS.sub(f"max_concurrent_runs: {runs}", configuration) + storage)
    workspace = Template((CONFIGURATION / "workspace.yaml").read_text(encoding="utf-8"))
    _workspace(settings).write_text(workspace.substitute(port=code_port, location=LOCATION) + others)


def _foreign_locations(setting: str) -> list[dict[str, str]]:
    """Return name, host and port of each code server of another project."""
    found = []
    for part in filter(None, map(str.strip, setting.split(","))):
        location = CODE_LOCATION.fullmatch(part)
        if location is None or location["name"] == LOCATION:
            raise ConfigurationError(
                f"LAKE_CODE_LOCATIONS has {part!r}, which is not the code server of another project.",
                remedy=f"Write each one as name=host:port, with another name than {LOCATION}: flights=10.0.0.7:4000.",
            )
        found.append(location.groupdict())
    return found


def dagster_home(settings: Settings) -> Path:
    """Return Dagster's folder in the home."""
    return dagster_folder(settings.home)


def dagster_environment(settings: Settings) -> dict[str, str]:
    """Return the environment of Dagster's processes: all settings as `LAKE_*` variables, and Dagster's own."""
    variables = {}
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        if value is not None:
            variables[f"LAKE_{name.upper()}"] = _format_setting(value)
    dagster = {"DAGSTER_HOME": str(dagster_home(settings)), "PYTHONUNBUFFERED": "1"}
    return {**variables, **spark_environment(), **_python_path(), **dagster}


def _python_path() -> dict[str, str]:
    """Return PYTHONPATH with absolute folders: services have another working directory than `lake up`."""
    given = os.environ.get("PYTHONPATH")
    if not given:
        return {}
    folders = [str(Path(folder).absolute()) for folder in given.split(os.pathsep)]
    return {"PYTHONPATH": os.pathsep.join(folders)}


def _format_setting(value: object) -> str:
    if isinstance(value, dict):
        return json.dumps({name: _plain(each) for name, each in value.items()})
    return str(_plain(value))


def _plain(value: object) -> object:
    """Return a value without the mask of a secret. The mask would become the key of what is hashed with it."""
    return value.get_secret_value() if isinstance(value, SecretStr) else value


def _workspace(settings: Settings) -> Path:
    return dagster_home(settings) / "workspace.yaml"
