"""Every environment variable, typed, with its default. No other module reads the environment for settings.

A home may carry a `lake.env` file with the same variables; real environment variables win over it.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

PROJECT = Path(__file__).resolve().parent.parent


class Settings(BaseSettings):
    """What may differ from one machine to the next. Each field is the variable `LAKE_<NAME>`."""

    model_config = SettingsConfigDict(env_prefix="LAKE_", extra="ignore")

    home: Path = Field(PROJECT / ".lake", description="everything local: catalog, warehouse, jars, logs, service data")
    catalog_uri: str | None = Field(None, description="catalog database or REST address; default: SQLite in the home")
    warehouse: str | None = Field(None, description="where tables are stored; default: a folder in the home")
    jars: Path = Field(PROJECT / ".venv" / "jars", description="jars that `make setup` resolved")
    kafka_jars: Path = Field(PROJECT / ".venv" / "kafka-jars", description="the same, of the local Kafka broker")
    spark_remote: str | None = Field(
        None, description="Spark Connect, sc://host:port; default: what `lake up` started, else a Spark in the process"
    )
    spark_memory: str = Field("1500m", description="heap of the local Spark Connect server")
    kafka: str | None = Field(None, description="bootstrap servers, host:port,...; default: what `lake up` started")
    zookeeper: str | None = Field(None, description="ensemble, host:port,...; default: what `lake up` started")
    spark_java_options: str = Field(
        # With one compiler Java keeps room for 48 MB of code: Spark fills it, and then all new code is interpreted.
        "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m",
        description="of the local Spark; by default quick to warm up, for many small sessions; empty for large data",
    )
    pipelines: str = Field(
        "lake_assets.membership:PIPELINE", description="module:attribute of each pipeline, comma-separated"
    )
    start: str = Field("2026-01-01-00:00", description="first event hour; earlier rows are quarantined")
    end: str | None = Field(None, description="hour after the last one that Dagster shows; default: now")
    tick_seconds: int = Field(2, description="least seconds between two evaluations of a sensor", ge=1)
    settle_seconds: int = Field(60, description="how long at most a target waits for upstream targets to settle", ge=0)
    retain_hours: int = Field(72, description="snapshots younger than this are kept, needed or not", ge=0)
    keep_snapshots: int = Field(10, description="so many of a table's newest snapshots are kept, however old", ge=1)
    orphan_hours: int = Field(72, description="files that nothing refers to are removed when they are older", ge=24)
    maintenance_cron: str = Field("17 3 * * *", description="when all tables are maintained, in UTC")
    max_delay_minutes: int | None = Field(
        None, description="a target that declares no max_delay is late after so many; default: it never is", ge=0
    )
    alert_webhook: SecretStr | None = Field(
        None, description="where failed audits, crashed sessions and late tables are POSTed as JSON; never logged"
    )
    webserver_port: int = Field(3000, description="port of Dagster's UI, on loopback")
    webserver_hosts: str = Field(
        "",
        description="further names of Dagster's UI, behind a proxy or a tunnel, as the address bar shows them,"
        " comma-separated: lake.example.com,localhost:8080; default: loopback at its port alone",
    )
    erasure_key: SecretStr | None = Field(
        None, description="secret that hashes erased ids; default: made once, in the home, readable by its owner alone"
    )
    landing: Path | None = Field(
        None, description="folder of landed files, one of each zone in it; default: in the home"
    )
    landing_manifest_uri: str | None = Field(
        None, description="manifest of landed files, a database that the zones share; default: SQLite in the home"
    )
    landing_deadline_seconds: int = Field(
        900, description="a landed file that waits longer for the other zone's is an alarm", ge=1
    )
    landing_prefix: str = Field("", description="of the topics of landing, before the names of their raw tables")
    landing_message_bytes: int = Field(1 << 20, description="a longer message is a dead letter", ge=1)
    landing_file_messages: int = Field(10_000, description="a landed file is closed when it has so many messages", ge=1)
    landing_file_bytes: int = Field(4 << 20, description="or so many bytes", ge=1)
    landing_age_seconds: int = Field(60, description="or a message so much older or younger than its first one", ge=1)
    landing_heartbeat_seconds: int = Field(5, description="from one heartbeat into each partition to the next", ge=1)
    landing_loads: Literal["verified", "provisional"] = Field(
        "verified", description="files that go into raw tables: those found equal in both zones, or others, too"
    )
    ingestion_seconds: int = Field(
        3600, description="from one turn to the next of an engagement lake's ingestion", ge=1
    )
    mutation_seconds: int = Field(3600, description="the same, of its mutation", ge=1)
    retention_seconds: int = Field(86_400, description="the same, of its retention", ge=1)
    engagement_maintenance_seconds: int = Field(
        3600, description="from one maintenance of an engagement lake to the next at least; it follows retention", ge=1
    )
    turn_seconds: float = Field(300, description="so long a stream of an engagement lake waits for its turn", gt=0)
    serving_folder: Path | None = Field(None, description="where segments are stored; default: a folder in the home")
    serving_snapshots: int = Field(2, description="of a served table: kept, the newest included", ge=2)
    serving_quota_mb: int | None = Field(None, description="what a served table may take; default: no limit", ge=1)
    serving_groups: dict[str, list[str]] = Field(
        {}, description='served tables that are pushed in one switch, JSON: {"group": ["table", ...]}; default: none'
    )
    serving_retain_hours: float = Field(24, description="what a push replaced, or left, is kept so long", ge=0)
    serving_port: int = Field(8090, description="port of the query endpoint, on loopback", ge=0, le=65535)
    serving_token: SecretStr | None = Field(None, description="what the query endpoint asks for; default: nothing")
    pinot_controller: str | None = Field(
        None, description="controller of an Apache Pinot cluster, http://host:9000; default: none is pushed to"
    )
    pinot_authorization: SecretStr | None = Field(
        None, description="the Authorization header that it asks for, such as `Basic ...`; never logged"
    )
    query_seconds: float = Field(30, description="so long a query of served tables may take", gt=0)
    query_rows: int = Field(10_000, description="so many rows of a result are returned", ge=1)
    query_mb: int = Field(
        512, description="memory of DuckDB's buffers in a query, and as much again beside them", ge=32
    )
    failpoint: str | None = Field(None, description="tests only: name of the point at which the process dies")

    @property
    def catalog_address(self) -> str:
        return self.catalog_uri or f"sqlite:///{self.home / 'catalog.db'}"

    @property
    def landing_manifest_address(self) -> str:
        return self.landing_manifest_uri or f"sqlite:///{self.home / 'landing.db'}"

    @property
    def landing_folder(self) -> Path:
        return self.landing or self.home / "landing"

    @property
    def segments(self) -> Path:
        return self.serving_folder or self.home / "serving"

    @property
    def warehouse_address(self) -> str:
        return self.warehouse or f"file://{self.home / 'warehouse'}"


@lru_cache(maxsize=1)
def settings() -> Settings:
    """The settings of this process, read once: environment first, then `lake.env` of the home."""
    home = Path(os.environ.get("LAKE_HOME", PROJECT / ".lake")).expanduser().resolve()
    return Settings(_env_file=home / "lake.env", home=home)  # type: ignore[call-arg]
