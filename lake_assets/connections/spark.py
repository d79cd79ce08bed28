"""Spark sessions: on a Connect server, or inside this process if there is no server.

Both get the same configuration, `spark_conf`. The package `services` starts and stops a server. What Java prints in
this process goes to a log file, and if it does not start, the error says why.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from traceback import walk_tb
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from lake_assets.connections.addresses import spark_remote
from lake_assets.connections.catalog import open_catalog, spark_catalog_conf
from lake_assets.errors import ErrorText, ServiceError, chain_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake_assets.settings import Settings

CONNECT_PORT = 15002
"""The port of a Spark Connect server if its address names none."""

CONNECT_TIMEOUT_SECONDS = 10
HANDSHAKE_SECONDS = 30
MAX_RETRIES = 5
"""Of a Connect client: about 20 s."""

CONNECT_VARIABLES = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED")
"""With these, pyspark refuses to run Spark in the process. It sets the second one itself, also for child processes."""

EXTRA_JARS = ("postgresql", "s3")
"""Names of jars that only some catalogs and warehouses need: a JDBC driver, and Iceberg's client of AWS."""

QUERY_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")

SHARED_CODE = "spark.lake.sharedCode"
"""Spark property of a Connect server that says whether our sessions share compiled queries there. Its default is false:
with the queries they share the jars and files that any client of that server adds."""

STATIC_CONF = {
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions,"
    "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.ui.enabled": "false",
    # Each query is also described for that page, which takes a tenth of the time of a small one by default.
    "spark.sql.ui.explainMode": "simple",
    "spark.log.level": "WARN",
    # The queries of a pipeline compile to more than the 100 classes that are cached by default.
    "spark.sql.codegen.cache.maxEntries": "2000",
    SHARED_CODE: "true",
}
"""Configuration that only the start of a JVM can set. A Connect session that sets it only gets a warning."""

SHARED_CODE_CONF = {
    "spark.sql.artifact.isolation.enabled": "false",
    "spark.sql.artifact.isolation.alwaysApplyClassloader": "false",
}
"""With it, a session of Spark Connect uses the queries that other sessions have compiled; see `share_compiled_code`."""

MASTER = "spark.master"
LOCAL = "local"
LOCAL_CONF = {
    MASTER: "local[2]",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # For local sizes: two cores need two partitions, and adaptive execution costs each query more than it saves.
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    # Delta's VACUUM makes as many tasks as this: 10,000 by default, however few files there are.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
}
"""What is right for the cores of one machine."""

CLASS_PATH = "spark.driver.extraClassPath"
LOCAL_FILES_JAR = "hadoop-bare-naked-local-fs-*.jar"
LOCAL_FILES = "com.globalmentor.apache.hadoop.fs.BareLocalFileSystem"
"""Hadoop's files of this machine by Java's own calls. Hadoop itself starts a process for each file that it writes."""

CLUSTER_CONF = {
    # Adaptive execution merges the partitions of a shuffle by their size, so small hours stay small and large ones are
    # spread over all executors.
    "spark.sql.adaptive.enabled": "true",
    # Executors come when tasks wait and leave when they are idle. The files of a shuffle keep an executor, and so do
    # checkpointed rows: the time after which Spark gives up an executor that has some is infinite by default.
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.executor.extraJavaOptions": "-Duser.timezone=UTC",
}
"""What is right for a cluster, whose master is not `local`."""


def spark_conf(settings: Settings) -> dict[str, str]:
    """Return the configuration of a session, with the catalog `lake`. So data directories can share a server."""
    return {
        **spark_catalog_conf(settings),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
    }


def jvm_conf(settings: Settings) -> dict[str, str]:
    """Return the configuration at the start of a JVM: `STATIC_CONF`, master, memory and jars.

    LAKE_SPARK_PROPERTIES replaces any of it. A master of a cluster there brings `CLUSTER_CONF` instead of `LOCAL_CONF`.

    Raises:
        ServiceError: There are no jars.
    """
    given = settings.spark_properties
    return {
        **STATIC_CONF,
        **(LOCAL_CONF | _local_files(settings) if is_local(given.get(MASTER, LOCAL)) else CLUSTER_CONF),
        "spark.driver.extraJavaOptions": " ".join(
            ["-Duser.timezone=UTC -XX:+UseSerialGC", *_kept_classes(settings), settings.spark_java_options]
        ),
        "spark.jars": ",".join(str(jar) for jar in jars(settings)),
        "spark.driver.memory": settings.spark_memory,
        "spark.sql.warehouse.dir": str(settings.home / "spark-warehouse"),
        **given,
    }


SILENT = "-Xlog:cds=off -Xlog:cds+dynamic=off"
"""What a JVM says of classes that it keeps, or cannot use, it says on standard output."""


def kept_classes(settings: Settings) -> Path:
    """Return the file with the classes of Spark and its jars as the JVM keeps them, which `lake setup` makes."""
    return settings.jars / "classes.jsa"


def _kept_classes(settings: Settings) -> list[str]:
    """Return the options by which a JVM reads these classes: it starts, and does all that it does for the first time,
    with two thirds of the processor time. A file of another JVM or of other jars it leaves alone, without a word.
    """
    file = kept_classes(settings)
    return [shlex.quote(f"-XX:SharedArchiveFile={file}"), SILENT] if file.exists() else []


def _local_files(settings: Settings) -> dict[str, str]:
    """Return the configuration of `LOCAL_FILES`; none without its jar, or if the class path may be somebody else's."""
    found = sorted(settings.jars.glob(LOCAL_FILES_JAR))
    is_set = CLASS_PATH in settings.spark_properties or "SPARK_CONF_DIR" in os.environ
    if not found or is_set or os.pathsep in str(found[-1]):
        return {}
    return {CLASS_PATH: str(found[-1].resolve()), "spark.hadoop.fs.file.impl": LOCAL_FILES}


def is_local(master: str) -> bool:
    """Return whether a `spark.master` has its executor in the process of the driver."""
    return master == LOCAL or master.startswith(f"{LOCAL}[")


def session_conf(settings: Settings, *, in_process: bool = False) -> dict[str, str]:
    """Return the configuration of a session builder: `spark_conf`, with `spark.remote` or the options of a JVM.

    For a Spark in this process it also sets the environment of the process, from which pyspark takes its paths.

    Args:
        in_process: Whether to use no server, also if there is one.
    """
    remote = None if in_process else spark_remote(settings)
    if remote:
        return {**spark_conf(settings), **SHARED_CODE_CONF, "spark.remote": remote}
    os.environ.update(spark_environment())
    for variable in CONNECT_VARIABLES:
        os.environ.pop(variable, None)
    return {**jvm_conf(settings), **spark_conf(settings)}


def open_spark(settings: Settings, *, in_process: bool = False) -> SparkSession:
    """Return a new session on the server, which the caller stops; without a server, the session of this process.

    Args:
        in_process: Whether to use no server, also if there is one.

    Raises:
        ServiceError: No server listens at the address, or no Java that Spark can use is installed.
    """
    from pyspark.logger import PySparkLogger
    from pyspark.sql import SparkSession

    # If two Sparks open a new catalog at once, one fails: Java creates its tables in two steps. So create them here.
    open_catalog(settings)
    conf = session_conf(settings, in_process=in_process)
    builder: Any = SparkSession.builder.config(map=dict(conf))
    for name in QUERY_LOGGERS:  # else pyspark prints each refused query as JSON: the error that it raises says the same
        PySparkLogger.getLogger(name).disabled = True
    if "spark.remote" not in conf:
        return start_in_process(builder.appName("lake-assets"), settings.home)
    require_listener(conf["spark.remote"])
    session: SparkSession = builder.create()
    prepare_client(session)
    return session


class KeptSession:
    """The Spark session of a process that lives for long: opened on first use, and anew after the server has ended it.

    A server that has restarted knows no session of before, and a running one ends a session that was idle for an hour.
    What a session has made for itself (temporary views, cached rows) is gone with it, so take it again for each piece
    of work.
    """

    def __init__(self, open_session: Callable[[], SparkSession]) -> None:
        self._open = open_session
        self._session: SparkSession | None = None

    def session(self) -> SparkSession:
        """Return a session that the server knows.

        Raises:
            ServiceError: No server listens.
        """
        if self._session is not None and _is_lost(self._session):
            connected: Any = self._session
            connected.release_session_on_close = False  # the server would be asked in vain, for 20 s if it is gone
            self.close()
        if self._session is None:
            self._session = self._open()
        return self._session

    def close(self) -> None:
        """Stop the session, if there is one."""
        if self._session is not None:
            session, self._session = self._session, None
            session.stop()


def _is_lost(session: SparkSession) -> bool:
    """Return whether the server no longer answers in a session. It costs one message, and no job."""
    from pyspark.errors import PySparkException

    try:
        session.conf.get("spark.sql.session.timeZone")
    except PySparkException:
        return True
    return False


def prepare_client(session: SparkSession) -> None:
    """Change what a client of Spark Connect does if it waits, or if a session is forgotten.

    It uses queries that other sessions have compiled, if the server is one of our own.

    It gives up after 20 s without the server. By default it retries for 13 minutes, also at its exit.

    A session that the garbage collector finds closes nothing: the code that opened it stops it. By default it closes
    the pool of threads that all sessions of the process share, and waits for these threads. If one of them runs the
    garbage collector, it waits for itself, and every other session of the process waits for it.

    Each call of its API tries to import IPython. If that is not installed, Python would search all folders each time.
    """
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    if "__del__" in vars(ConnectSession):
        del ConnectSession.__del__
    # The error that follows says the same.
    warnings.filterwarnings("ignore", message=r"\[RETRIES_EXCEEDED\]")
    _retry_little(session)
    if share_compiled_code(session):
        _retry_little(session)  # it has another client now
    if find_spec("IPython") is None:
        sys.modules["IPython"] = None  # type: ignore[assignment]


def _retry_little(session: SparkSession) -> None:
    from pyspark.sql.connect.client.retries import DefaultPolicy

    connected: Any = session
    connected.client.set_retry_policies([DefaultPolicy(max_retries=MAX_RETRIES)])


def share_compiled_code(session: SparkSession) -> bool:
    """Let a session of Spark Connect use the queries that other sessions of the server have compiled.

    Spark keeps compiled queries by class loader. By default each session of Spark Connect has one of its own, for jars
    that it may add, and compiles all of its queries anew. These sessions add no jars, so `SHARED_CODE_CONF` gives them
    the server's. The server reads that before a client can set it, but it reads it again for a clone: so the session
    goes on as a clone of itself.

    Returns:
        False if the session stays as it was and compiles anew: the server has not set `SHARED_CODE`, or it cannot clone
        (it is older than Spark 4.1), or it does not answer, which the next call reports.
    """
    import grpc
    from pyspark.errors import PySparkException

    connected: Any = session
    first = connected.client
    try:
        if session.conf.get(SHARED_CODE, "false") != "true":
            return False
        clone = first.clone()
    except (grpc.RpcError, PySparkException):
        return False
    connected._client, connected._session_id = clone, clone._session_id
    with suppress(PySparkException):  # a server ends idle sessions by itself, too
        first.release_session()
    first._channel.close()  # its `close` would also end the threads that all sessions of the process use
    first._closed = True
    return True


def safe_remote(remote: str) -> str:
    """Return an address without its parameters, of which one may be a token."""
    return remote.partition("/;")[0]


def require_listener(remote: str) -> None:
    """Check that a server listens at an address `sc://host:port/;parameters`.

    Raises:
        ServiceError: None does, or it is none of Spark Connect.
    """
    address = urlsplit(remote)
    listener = (address.hostname or "", address.port or CONNECT_PORT)
    try:
        socket.create_connection(listener, timeout=CONNECT_TIMEOUT_SECONDS).close()
    except OSError as error:
        raise ServiceError(
            f"No Spark Connect server answers at {safe_remote(remote)}: {error}.",
            remedy="Start one with `lake up`, or correct LAKE_SPARK_REMOTE; without it, Spark runs in the process."
            " If it ended by itself, its logs/spark.log says why; with too little memory, raise LAKE_SPARK_MEMORY.",
        ) from None
    if not _speaks_connect(remote):
        raise ServiceError(
            f"What listens at {safe_remote(remote)} does not answer as a Spark Connect server.",
            remedy=f"Correct LAKE_SPARK_REMOTE: Spark Connect listens at port {CONNECT_PORT} unless it is configured"
            " otherwise. If it is the right one, it may hang: restart it.",
        )


def _speaks_connect(remote: str) -> bool:
    """Return whether a connection of Spark Connect opens. A client would try it again for minutes."""
    import grpc
    from pyspark.sql.connect.client import DefaultChannelBuilder

    channel = DefaultChannelBuilder(remote).toChannel()
    try:
        grpc.channel_ready_future(channel).result(timeout=HANDSHAKE_SECONDS)
    except grpc.FutureTimeoutError:
        return False
    finally:
        channel.close()
    return True


def extra_jars(settings: Settings, name: str) -> Path:
    """Return the folder of the jars that `lake setup --with NAME` downloads. It is beside that of the other jars."""
    return settings.jars.with_name(f"{settings.jars.name}-{name}")


def jars(settings: Settings) -> list[Path]:
    """Return the jars that Spark needs in addition to pyspark's own, and those of `EXTRA_JARS` that are there.

    Raises:
        ServiceError: There are none.
    """
    found = sorted(settings.jars.glob("*.jar"))
    if not found:
        raise ServiceError(f"There are no jars in {settings.jars}.", remedy="Run `lake setup`, or set LAKE_JARS.")
    for name in EXTRA_JARS:
        found += sorted(extra_jars(settings, name).glob("*.jar"))
    return found


def spark_home() -> Path:
    """Return pyspark's folder, without importing pyspark, which takes half a second.

    Raises:
        ServiceError: pyspark is not installed.
    """
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ServiceError("pyspark is not installed.", remedy="Run `make setup`.")
    return Path(spec.origin).resolve().parent  # classes are kept for the paths of their jars


def spark_environment() -> dict[str, str]:
    """Return environment variables without which Spark may use another Spark or Python from the PATH."""
    return {
        "SPARK_HOME": str(spark_home()),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }


MIN_JAVA = 17
JAVA_SECONDS = 60
INSTALL = "Install Java 17 or 21 (such as openjdk-17-jre-headless), or set JAVA_HOME to one."
NOT_STARTED = "JAVA_GATEWAY_EXITED"
"""Pyspark's name of the error."""

STDERR = 2


def start_in_process(builder: Any, home: Path) -> SparkSession:
    """Start Spark in this process, or return the session that it has.

    Args:
        builder: A builder of pyspark.
        home: The data directory. Java writes its warnings to `logs/spark-in-process.log` in it.

    Raises:
        ServiceError: Java did not start.
    """
    log = home / "logs" / "spark-in-process.log"
    logging.getLogger().addFilter(_is_not_of_py4j)
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    try:
        with _stderr_to(log), _interrupts_kept():
            session: SparkSession = builder.getOrCreate()
    except BaseException as error:
        _end_java(error)
        if not isinstance(error, Exception):
            raise
        if NOT_STARTED not in chain_text(error) and not isinstance(error, OSError):
            raise
        found = explain_java(_java_version(), log)
        raise ServiceError(found.problem, remedy=found.remedy) from error
    return session


@contextmanager
def _interrupts_kept() -> Iterator[None]:
    """Keep what Ctrl-C does: pyspark has it call Java first, and that fails while another call waits for Java."""
    before = signal.getsignal(signal.SIGINT)
    yield
    if before is not None and threading.current_thread() is threading.main_thread():  # in others, pyspark sets none
        signal.signal(signal.SIGINT, before)


def _end_java(error: BaseException) -> None:
    """End the Java that pyspark was starting when an error or an interrupt came.

    pyspark then removes the folder in which Java says that it has started, and such a Java never ends.
    """
    for frame, _ in walk_tb(error.__traceback__):
        process = frame.f_locals.get("proc") if frame.f_code.co_name == "launch_gateway" else None
        if isinstance(process, subprocess.Popen):
            process.kill()
            process.wait()


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    """Leave out what py4j logs, with its traceback, if Java ends: the error that it raises then says the same."""
    return Path(record.pathname).parent.name != "py4j"


def explain_java(version: str | None, log: Path) -> ErrorText:
    """Return why Java did not start.

    Args:
        version: The output of `java -version`; None if there is no such program.
        log: The file with what Java printed.
    """
    if version is None:
        return ErrorText("Spark needs Java, and there is no program java in JAVA_HOME or PATH.", INSTALL)
    found = re.search(r'version "(?:1\.)?(\d+)', version)
    if found and int(found[1]) < MIN_JAVA:
        return ErrorText(
            f"Spark needs Java {MIN_JAVA} or later, and the installed Java is version {found[1]}.", INSTALL
        )
    return ErrorText(
        "Spark did not start, because Java ended.",
        f"Read {log}. If it reports too little memory, set LAKE_SPARK_MEMORY to less than the machine has.",
    )


def _java_version() -> str | None:
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else "java"
    try:
        done = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=JAVA_SECONDS, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stderr + done.stdout


@contextmanager
def _stderr_to(log: Path) -> Iterator[None]:
    """Send standard error to a file meanwhile; a Java that starts meanwhile keeps writing to it."""
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        file = log.open("ab")
    except OSError:  # without a log, Java may print
        yield
        return
    terminal = os.dup(STDERR)
    os.dup2(file.fileno(), STDERR)
    try:
        yield
    finally:
        os.dup2(terminal, STDERR)
        os.close(terminal)
        file.close()
