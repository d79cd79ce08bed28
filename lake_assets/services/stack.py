"""Which services one machine runs, each described once: what is particular to a service, not how it is kept.

A further service is one more function, here or in a module of its own, and one more line in `services_of`.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from pydantic import SecretStr

from lake_assets.connections.spark import jvm_conf, spark_environment, spark_home
from lake_assets.services.kafka import kafka
from lake_assets.services.service import Service, accepts, answers, log_says, python_module
from lake_assets.services.zookeeper import zookeeper
from lake_assets.settings import PROJECT, Settings

DEFINITIONS = "lake_assets.definitions"
LOCATIONS = (
    "%7BworkspaceOrError%7B...on%20Workspace%7BlocationEntries%7BlocationOrLoadError%7B__typename%7D%7D%7D%7D%7D"
)
LISTENING = ("spark", "zookeeper", "kafka", "kafka-controller", "code", "webserver")


def services_of(settings: Settings, ports: Mapping[str, int]) -> list[Service]:
    """All services. A Spark, Kafka or ZooKeeper that the settings name is somebody else's to run."""
    own = []
    if not settings.spark_remote:
        own.append(spark(settings, ports["spark"]))
    if not settings.zookeeper:
        own.append(zookeeper(settings.home, ports["zookeeper"]))
    if not settings.kafka:
        own.append(kafka(settings, ports["kafka"], ports["kafka-controller"]))
    addresses = {
        "spark_remote": settings.spark_remote or f"sc://127.0.0.1:{ports['spark']}",
        "zookeeper": settings.zookeeper or f"127.0.0.1:{ports['zookeeper']}",
        "kafka": settings.kafka or f"127.0.0.1:{ports['kafka']}",
    }
    told = settings.model_copy(update=addresses)
    return [*own, code(told, ports["code"]), webserver(told, ports), daemon(told, ports)]


def spark(settings: Settings, port: int) -> Service:
    """The Spark Connect server. It names no catalog: every session brings its own, so one can serve several homes."""
    conf = {
        **jvm_conf(settings),
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
    }
    submit = (
        str(spark_home() / "bin" / "spark-submit"),
        "--class",
        "org.apache.spark.sql.connect.service.SparkConnectServer",
    )
    return Service(
        name="spark",
        command=(
            *submit,
            *(word for key, value in conf.items() for word in ("--conf", f"{key}={value}")),
            "spark-internal",
        ),
        home=settings.home,
        port=port,
        environment=spark_environment(),
        ready=accepts(port),
        remedy="Java 17 or 21 must be there, and LAKE_SPARK_MEMORY must fit this machine.",
    )


def code(settings: Settings, port: int) -> Service:
    """The one process that has the definitions loaded: webserver and daemon ask it, and it starts the runs.

    Those two begin after it: Dagster's tables, too, are created by whoever comes first, and by two at once they break.
    """
    where = ("--host", "127.0.0.1", "--port", str(port), "--location-name", "lake_assets")
    what = ("--module-name", DEFINITIONS, "--working-directory", str(PROJECT))
    return Service(
        name="code",
        command=python_module("dagster", "api", "grpc", *where, *what),
        home=settings.home,
        port=port,
        environment=dagster_environment(settings),
        ready=accepts(port),
        remedy="The definitions did not load: correct what the log names, or LAKE_PIPELINES.",
    )


def webserver(settings: Settings, ports: Mapping[str, int]) -> Service:
    """Dagster's UI, behind the guard that refuses requests of foreign web pages."""
    port = ports["webserver"]
    return Service(
        name="webserver",
        command=python_module(
            "lake_assets.services.webserver", "--port", str(port), "--workspace", str(_workspace(settings))
        ),
        home=settings.home,
        port=port,
        after=ports["code"],
        environment=dagster_environment(settings),
        # It serves pages before it has read the code server's definitions: ready is when it has.
        ready=answers(f"http://127.0.0.1:{port}/graphql?query={LOCATIONS}", '"RepositoryLocation"'),
        remedy="Correct what the log names, such as LAKE_WEBSERVER_HOSTS, then run `lake up` again.",
    )


def daemon(settings: Settings, ports: Mapping[str, int]) -> Service:
    log = settings.home / "logs" / "daemon.log"
    return Service(
        name="daemon",
        command=python_module("dagster._daemon", "run", "--workspace", str(_workspace(settings))),
        home=settings.home,
        after=ports["code"],
        environment=dagster_environment(settings),
        ready=log_says(log, "Instance is configured with the following daemons"),
    )


def write_dagster_files(settings: Settings, code_port: int) -> None:
    """Dagster's folder in the home: the project's `dagster.yaml`, and where the code server listens."""
    folder = dagster_home(settings)
    folder.mkdir(parents=True, exist_ok=True)
    if (PROJECT / "dagster.yaml").exists():
        shutil.copyfile(PROJECT / "dagster.yaml", folder / "dagster.yaml")
    server = f"{{host: 127.0.0.1, port: {code_port}, location_name: lake_assets}}"
    _workspace(settings).write_text(f"load_from:\n  - grpc_server: {server}\n")


def dagster_home(settings: Settings) -> Path:
    return settings.home / "dagster"


def dagster_environment(settings: Settings) -> dict[str, str]:
    """The settings as variables: a service must see those of `lake up`, wherever they came from."""
    values = {name: getattr(settings, name) for name in type(settings).model_fields}
    variables = {f"LAKE_{name.upper()}": _spelled(value) for name, value in values.items() if value is not None}
    dagster = {"DAGSTER_HOME": str(dagster_home(settings)), "PYTHONUNBUFFERED": "1"}
    return {**variables, **spark_environment(), **_python_path(), **dagster}


def _python_path() -> dict[str, str]:
    """PYTHONPATH in absolute folders: a relative one is meant from where `lake up` was called, not from the home."""
    given = os.environ.get("PYTHONPATH")
    if not given:
        return {}
    folders = [str(Path(folder).absolute()) for folder in given.split(os.pathsep)]
    return {"PYTHONPATH": os.pathsep.join(folders)}


def _spelled(value: object) -> str:
    """A secret as it is: what `str` makes of it is a mask, and that would be the key of everything hashed with it.

    What is more than one word as JSON: settings read it so.
    """
    if isinstance(value, dict):
        return json.dumps(value)
    return str(value.get_secret_value()) if isinstance(value, SecretStr) else str(value)


def _workspace(settings: Settings) -> Path:
    return dagster_home(settings) / "workspace.yaml"
