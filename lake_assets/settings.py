"""Every setting: its environment variable, type and default. No other module reads settings from the environment.

The data directory may contain a file `lake.env` with the same variables. Environment variables have precedence over it.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from dotenv import dotenv_values
from pydantic import Field, SecretStr, ValidationInfo, field_validator, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, InitSettingsSource, SettingsConfigDict
from pydantic_settings import PydanticBaseSettingsSource as Source

from lake_assets.errors import ConfigurationError

PROJECT = Path(__file__).resolve().parent.parent
"""The folder of the package's folder: of a checkout, or site-packages."""

CHECKOUT = PROJECT if (PROJECT / "requirements.lock").is_file() else None
"""The folder of the checkout that the package is in; None if the package was installed."""


def default_home() -> Path:
    """Return the data directory if LAKE_HOME is not set: `.lake` in the checkout, else in the current folder."""
    return (CHECKOUT or Path.cwd()) / ".lake"


def _jars_folder(name: str, found: Mapping[str, Any]) -> Path:
    """Return a folder of jars in the virtual environment; if there is none, in the data directory."""
    if CHECKOUT is not None:
        return CHECKOUT / ".venv" / name
    if sys.prefix != sys.base_prefix:
        return Path(sys.prefix) / name
    home: Path = found["home"]
    return home / name


TABLE = re.compile(r"[a-z][a-z0-9_]*\.[a-z][a-z0-9_]*")
"""A table with its namespace."""

SERVED_TABLE = re.compile(
    r"(?!.*_(?:OFFLINE|REALTIME)$)(?!(?:information_schema|main|memory|pg_catalog|system|temp)\.)"
    r"(?:[A-Za-z0-9_][A-Za-z0-9_-]*\.)?[A-Za-z0-9_][A-Za-z0-9_-]*",
    re.ASCII,
)
"""A served table, as Apache Pinot names tables: airlineStats, orders-eu, sales.orders. With a type at the end
(airlineStats_OFFLINE) it is the node of a cluster; schemas of DuckDB itself are no databases."""

YAML = (".yaml", ".yml")
"""Suffixes of the files that declare tables or lakes."""

OF_TESTS = "LAKE_TEST_"
"""Prefix of variables that only tests read."""


class Settings(BaseSettings):
    """What may differ from one machine to the next. Each field is the variable `LAKE_<NAME>`."""

    model_config = SettingsConfigDict(env_prefix="LAKE_", extra="ignore")

    home: Path = Field(
        default_factory=default_home,
        description="data directory: catalog, warehouse, logs and the data of local services; "
        "default: .lake in the checkout, or in the current folder if the package was installed",
    )
    catalog_uri: str | None = Field(
        default=None, description="catalog database or REST address; default: SQLite in the data directory"
    )
    catalog_properties: dict[str, SecretStr] = Field(
        default={},
        description="properties of the catalog and its files for Spark and pyiceberg, as JSON, or one by one: "
        "LAKE_CATALOG__S3__ENDPOINT is s3.endpoint; never shown",
    )
    warehouse: str | None = Field(
        default=None, description="location of all tables; default: a folder in the data directory"
    )
    jars: Path = Field(
        default_factory=partial(_jars_folder, "jars"),
        description="folder of the jars that `lake setup` downloads; default: in the virtual environment, "
        "otherwise in the data directory",
    )
    kafka_jars: Path = Field(
        default_factory=partial(_jars_folder, "kafka-jars"),
        description="folder of the jars of the local Kafka broker; default: beside the other jars",
    )
    spark_remote: str | None = Field(
        default=None,
        description="Spark Connect server, sc://host:port; default: the one that `lake up` started, "
        "otherwise Spark in the same process",
    )
    spark_memory: str = Field(default="1500m", description="heap of the local Spark Connect server")
    spark_properties: dict[str, str] = Field(
        default={},
        description="properties of the Spark that `lake up` starts, as JSON, which other users of the "
        "machine can see; default: none, it is local",
    )
    kafka: str | None = Field(
        default=None, description="Kafka bootstrap servers, host:port,...; default: the broker that `lake up` started"
    )
    kafka_properties: dict[str, SecretStr] = Field(
        default={},
        description="properties of all clients of LAKE_KAFKA, as JSON, or one by one: "
        "LAKE_KAFKA__SECURITY_PROTOCOL is security.protocol; never shown",
    )
    zookeeper: str | None = Field(
        default=None, description="ZooKeeper ensemble, host:port,...; default: the server that `lake up` started"
    )
    zookeeper_auth: SecretStr | None = Field(
        default=None, description="login to LAKE_ZOOKEEPER, name:password, in the scheme digest; never shown"
    )
    service_login: bool = Field(
        default=False, description="whether Kafka and ZooKeeper of `lake up` require a login, which is generated"
    )
    spark_java_options: str = Field(
        # With one compiler Java reserves 48 MB for compiled code. Spark fills it, and all further code is interpreted.
        # Java collects all garbage when the space of classes reaches a threshold: five times until the first session.
        # By default it also takes a third of the heap for new objects, touches it all, and gives little back.
        default="-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:MetaspaceSize=128m -XX:MaxNewSize=128m"
        " -XX:MinHeapFreeRatio=20 -XX:MaxHeapFreeRatio=40",
        description="Java options of the local Spark; the default starts fast, for many small sessions; "
        "set it to an empty text for large data or a larger heap",
    )
    pipelines: str = Field(
        default="lake_assets.membership:PIPELINE",
        description="module:attribute of each pipeline, or a folder or file of YAML that declares one, comma-separated;"
        " none if LAKE_LAKES is set alone; default: the demo's",
    )
    session_table: str = Field(
        default="etl.session", description="table of the sessions, namespace.table; a table that exists is not renamed"
    )
    high_watermark_table: str = Field(default="etl.high_watermark", description="table of the watermarks; likewise")
    lakes: str | None = Field(
        default=None,
        description="engagement lakes, comma-separated: YAML files, or lakes of the package (email_event,"
        " meeting_event, voice_insight); default: these three with the demo's pipeline, otherwise none",
    )
    start: str = Field(
        default="2026-01-01-00:00",
        description="first event hour of pipelines that name none; earlier rows are quarantined",
    )
    end: str | None = Field(
        default=None, description="hour after the last one that Dagster shows; default: the present hour"
    )
    tick_seconds: int = Field(
        default=1,
        description="minimum number of seconds between two evaluations of a sensor; "
        "with 1, at least 0.3 s while the catalog changes, unless it is a REST server",
        ge=1,
    )
    settle_seconds: int = Field(
        default=60, description="maximum number of seconds that a target waits for upstream targets to settle", ge=0
    )
    exact_hours_bytes: int = Field(
        default=64 << 20,
        description="size in bytes up to which planning reads the time column of a data file whose rows span more than"
        " 4 hours, of at most 32 files, to rebuild only the hours of its rows; 0 opens none",
        ge=0,
    )
    retain_hours: int = Field(
        default=72, description="maintenance keeps snapshots younger than this number of hours", ge=0
    )
    keep_snapshots: int = Field(
        default=10, description="number of newest snapshots of a table that are kept, regardless of their age", ge=1
    )
    most_snapshots: int = Field(
        default=100,
        description="number of newest snapshots that sessions keep of a target and of its raw tables, however young "
        "the others are, besides those that watermarks need",
        ge=10,
    )
    orphan_hours: int = Field(default=72, description="age in hours at which unreferenced files are removed", ge=24)
    max_runs: int | None = Field(
        default=None, description="runs of Dagster at once; default: 1 to 4, as memory and processors allow", ge=1
    )
    run_days: int = Field(
        default=30, description="age in days at which ended runs of Dagster are removed with logs", ge=1
    )
    maintenance_cron: str = Field(default="17 3 * * *", description="schedule of the maintenance of all tables, in UTC")
    verify_hours: int = Field(
        default=6, description="maximum number of hours of a target that a day compares with a rebuild", ge=1
    )
    verify_cron: str = Field(default="47 4 * * *", description="schedule of the comparison with a rebuild, in UTC")
    max_delay_minutes: int | None = Field(
        default=None,
        description="minutes after which a target without its own max_delay is late; default: it is never late",
        ge=0,
    )
    alert_webhook: SecretStr | None = Field(
        default=None,
        description="where alerts are sent: https://… gets JSON; slack://…, mailto://… and others a text, by Apprise; "
        "several with blanks between; never logged",
    )
    dagster_uri: SecretStr | None = Field(
        default=None, description="PostgreSQL database of Dagster; never shown; default: SQLite in the data directory"
    )
    code_locations: str = Field(
        default="", description="code servers of other projects that Dagster loads too, name=host:port,..."
    )
    webserver_port: int = Field(default=3000, description="port of Dagster's UI, on loopback")
    webserver_hosts: str = Field(
        default="",
        description="additional host names of Dagster's UI behind a proxy or a tunnel, as the address bar shows them,"
        " comma-separated: lake.example.com,localhost:8080; default: only loopback at its port",
    )
    erasure_key: SecretStr | None = Field(
        default=None,
        description="secret key that hashes erased ids; default: a generated key in the data directory, "
        "which only its owner can read",
    )
    no_ids: str = Field(
        default="undefined,null,none,nan,anonymous",
        description="texts that programs send for nobody, comma-separated: `lake erase` refuses them as nobody's id",
    )
    blank_ids: bool = Field(default=False, description="whether ids may begin or end with a blank when they are erased")
    landing: Path | str | None = Field(
        default=None,
        description="folder of landed files, with one folder for each zone, or its URL in an object store "
        "(s3://lake/landing), with the keys of LAKE_CATALOG__…; default: in the data directory",
    )
    landing_zones: dict[Literal["a", "b"], Path | str] = Field(
        default={},
        description='zones that are elsewhere, as JSON: folders or URLs, {"b": "s3://lake-b/landing"}; parameters of a '
        "URL are properties of its store alone: s3://lake-b/landing?endpoint=http://10.0.0.2:9000; default: none",
    )
    landing_manifest_uri: str | None = Field(
        default=None,
        description="database of the manifest of landed files; `{zone}` in it becomes the name of the zone; "
        "default: SQLite in the data directory, one for each zone",
    )
    landing_deadline_seconds: int = Field(
        default=900,
        description="seconds that a landed file may wait for the file of the other zone before an alarm is raised",
        ge=1,
    )
    landing_prefix: str = Field(
        default="", description="prefix of the topics of landing, before the names of the raw tables"
    )
    landing_message_bytes: int = Field(
        default=1 << 20, description="maximum size of a message in bytes; a longer one is a dead letter", ge=1
    )
    landing_file_messages: int = Field(
        default=10_000, description="number of messages at which a landed file is closed", ge=1
    )
    landing_file_bytes: int = Field(default=4 << 20, description="size in bytes at which a landed file is closed", ge=1)
    landing_age_seconds: int = Field(
        default=60,
        description="a heartbeat closes a landed file that began this many seconds before",
        ge=1,
    )
    landing_heartbeat_seconds: int = Field(
        default=5, description="seconds between two heartbeats into the same partition", ge=1
    )
    landing_retention_hours: int = Field(
        default=168,
        description="hours after which messages that both zones have landed are removed from Kafka, of topics that"
        " `lake landing init` creates; 0: never",
        ge=0,
    )
    landing_dead_letter_share: float = Field(
        default=0.1,
        description="share of dead letters among the messages of a topic beyond which complete-through of its raw "
        "table stands still and an alert is sent",
        ge=0,
        le=1,
    )
    landing_loads: Literal["verified", "provisional"] = Field(
        default="verified",
        description="files that are loaded into raw tables: verified, or also those not yet compared (provisional)",
    )
    ingestion_seconds: int = Field(default=3600, description="seconds between two turns of an ingestion", ge=1)
    mutation_seconds: int = Field(default=3600, description="seconds between two turns of a mutation", ge=1)
    retention_seconds: int = Field(default=86_400, description="seconds between two turns of a retention", ge=1)
    engagement_maintenance_seconds: int = Field(
        default=3600,
        description="minimum number of seconds between two maintenance turns of an engagement lake; "
        "maintenance follows retention",
        ge=1,
    )
    turn_seconds: float = Field(
        default=300,
        description="maximum number of seconds that a stream of an engagement lake waits for its turn",
        gt=0,
    )
    serving_folder: Path | str | None = Field(
        default=None,
        description="folder of the segments of served tables, or its URL in an object store (s3://lake/serving), with "
        "the keys of LAKE_CATALOG__…; default: in the data directory",
    )
    serving_cluster: str | None = Field(
        default=None,
        description="name of the cluster, the folder of ZooKeeper that has the lineage of served tables; two data "
        "directories on one ensemble need one each; default: none, the ensemble's root",
        pattern="^[A-Za-z0-9_-]+$",
    )
    serving_snapshots: int = Field(
        default=2, description="number of snapshots of a served table that are kept, including the newest", ge=2
    )
    serving_quota_mb: int | None = Field(
        default=None, description="maximum MB of a served table; default: no limit", ge=1
    )
    serving_groups: dict[str, list[str]] = Field(
        default={},
        description='groups of served tables whose pushes become visible together, as JSON: {"group": ["table", ...]};'
        " default: none",
    )
    serving_spark_rows: int = Field(
        default=50_000_000,
        description="number of rows of the lake's tables from which on Spark writes the segments of a push; fewer are "
        "written by the process that pushes",
        ge=0,
    )
    serving_retain_hours: float = Field(
        default=24, description="hours for which replaced segments, and those that a failed push left, are kept", ge=0
    )
    serving_port: int = Field(default=8090, description="port of the query endpoint, on loopback", ge=0, le=65535)
    serving_token: SecretStr | None = Field(
        default=None, description="bearer token that the query endpoint requires; default: it requires none"
    )
    pinot_controller: str | None = Field(
        default=None, description="controller of an Apache Pinot cluster, http://host:9000; default: no cluster"
    )
    pinot_authorization: SecretStr | None = Field(
        default=None, description="Authorization header for that controller, such as `Basic ...`; never logged"
    )
    query_seconds: float = Field(
        default=30, description="maximum duration of a query of served tables in seconds", gt=0
    )
    query_rows: int = Field(default=10_000, description="maximum number of rows that a query returns", ge=1)
    query_mb: int = Field(
        default=512,
        description="maximum memory of DuckDB's buffers in a query in MB; a query may take as much again",
        ge=32,
    )
    failpoint: str | None = Field(
        default=None, description="only for tests: name of the point at which the process dies"
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: Source,
        env_settings: Source,
        dotenv_settings: Source,
        file_secret_settings: Source,
    ) -> tuple[Source, ...]:
        """Return the sources, those with precedence first. Properties of the environment and the file are merged."""
        sources: list[Source] = [init_settings]
        for source in (env_settings, dotenv_settings):
            variables = source.env_vars  # type: ignore[attr-defined]
            passed = InitSettingsSource(settings_cls, dict(passed_properties(variables)))
            sources += [passed, source]
        return tuple(sources)

    @model_validator(mode="before")
    @classmethod
    def _without_the_demo(cls, given: dict[str, object]) -> dict[str, object]:
        """Who names lakes and no tables has no tables, not those of the demo."""
        return {"pipelines": "", **given} if given.get("lakes") else given

    @field_validator("pipelines", "lakes")
    @classmethod
    def _with_absolute_paths(cls, names: str | None, field: ValidationInfo) -> str | None:
        """Services have another working directory than the command that starts them."""
        found = []
        for name in pipeline_names(names or ""):
            module, colon, attribute = name.partition(":")
            of_file = is_path(name) or module.endswith(".py") if field.field_name == "pipelines" else "." in name
            found.append(f"{Path(module).expanduser().absolute()}{colon}{attribute}" if of_file else name)
        return names and ",".join(found)

    @field_validator("session_table", "high_watermark_table")
    @classmethod
    def _is_a_table(cls, name: str, field: ValidationInfo) -> str:
        if not TABLE.fullmatch(name):
            raise PydanticCustomError("table", "a table is namespace.table, in lower-case letters, digits and _")
        if name in ("etl.quarantine", "etl.erasure") or name == field.data.get("session_table"):
            raise PydanticCustomError("table", "another table of the engine has this name")
        return name

    @field_validator("serving_token", "pinot_authorization")
    @classmethod
    def _is_of_a_header(cls, secret: SecretStr | None) -> SecretStr | None:
        """A file often ends with a line break. An empty token would be one that anybody has."""
        if secret is None:
            return None
        text = secret.get_secret_value().strip()
        if not re.fullmatch(r"[ -~]+", text):
            raise PydanticCustomError("header", "it is empty, or has other characters than those of ASCII")
        return SecretStr(text)

    @property
    def ids_of_nobody(self) -> frozenset[str]:
        """Texts, case folded, that are nobody's id."""
        return frozenset(text.strip().casefold() for text in self.no_ids.split(","))

    @property
    def catalog_address(self) -> str:
        """The address of the catalog."""
        return self.catalog_uri or f"sqlite:///{self.home / 'catalog.db'}"

    def landing_manifest_address(self, zone: str) -> str:
        """Return the address of the manifest of a zone; see `landing_manifest_uri`.

        Without `{zone}` in it, zone `a` has what all zones of an earlier version shared, and the other one a file
        beside it, in SQLite, or a schema of its own.
        """
        address = self.landing_manifest_uri or f"sqlite:///{self.home / 'landing.db'}"
        if "{zone}" in address or zone == "a":
            return address.replace("{zone}", zone)
        from sqlalchemy import make_url

        url = make_url(address)
        if url.get_backend_name() == "sqlite":
            path = Path(str(url.database))
            url = url.set(database=str(path.with_name(f"{path.stem}-{zone}{path.suffix}")))
        else:
            options = f"{url.query.get('options', '')} -csearch_path=landing_{zone}".strip()
            url = url.update_query_dict({"options": options})
        return url.render_as_string(hide_password=False)

    @property
    def landing_folder(self) -> Path:
        """The folder of landed files; for zones in an object store, that of the locks and drafts of this machine."""
        found = self._landing_address
        return found if isinstance(found, Path) else self.home / "landing"

    def landing_address(self, zone: str) -> Path | str:
        """Return the folder of a zone; in an object store, its URL."""
        if zone in self.landing_zones:
            return storage_address(self.landing_zones[zone])
        found = self._landing_address
        if isinstance(found, Path):
            return found / zone
        url, mark, parameters = found.partition("?")
        return f"{url.rstrip('/')}/{zone}{mark}{parameters}"

    @property
    def _landing_address(self) -> Path | str:
        return storage_address(self.landing or self.home / "landing")

    @property
    def segments(self) -> Path | str:
        """The folder of the segments of served tables; in an object store, its URL."""
        return storage_address(self.serving_folder or self.home / "serving")

    @property
    def has_segments(self) -> bool:
        """Whether segments of served tables may be stored."""
        return isinstance(self.segments, str) or self.segments.is_dir()

    @property
    def warehouse_address(self) -> str:
        """The location of all tables."""
        return self.warehouse or f"file://{self.home / 'warehouse'}"


ENVIRONMENT_FILE = "lake.env"


def home_directory() -> Path:
    """Return the data directory of this process, also if another setting is invalid."""
    return Path(os.environ.get("LAKE_HOME", default_home())).expanduser().resolve()


@lru_cache(maxsize=1)
def settings() -> Settings:
    """Return the settings of this process, read once: from the environment, then from `lake.env`."""
    return settings_at(home_directory())


def settings_at(home: Path, **given: Any) -> Settings:
    """Return the settings of a data directory: those that are given, then the environment, then its `lake.env`."""
    require_private(home / ENVIRONMENT_FILE, Settings.model_fields)
    return Settings(_env_file=home / ENVIRONMENT_FILE, home=home, **given)  # type: ignore[call-arg]


@dataclass(frozen=True)
class PropertyGroup:
    """The variables of one kind of client.

    Attributes:
        setting: Field of the settings that has the properties.
        prefix: What the names of the variables begin with, in capitals.
        double: What `__` stands for in the rest of a name.
        single: What `_` stands for.
    """

    setting: str
    prefix: str
    double: str
    single: str

    def property_of(self, variable: str) -> str | None:
        """Return the property that a variable sets; None if it is not of this group."""
        capitals = variable.upper()
        if not capitals.startswith(self.prefix) or capitals == self.prefix:
            return None
        name = capitals.removeprefix(self.prefix).lower()
        parts = [part.replace("_", self.single) for part in name.split("__")]
        return self.double.join(parts)

    def variable_of(self, name: str) -> str:
        """Return the variable that sets a property."""
        words = name.replace(self.double, "\0").replace(self.single, "_").replace("\0", "__")
        return self.prefix + words.upper()


CATALOG = PropertyGroup("catalog_properties", "LAKE_CATALOG__", double=".", single="-")
"""As pyiceberg reads its own variables."""

KAFKA = PropertyGroup("kafka_properties", "LAKE_KAFKA__", double="_", single=".")
"""Properties of Kafka's clients are words and dots."""

GROUPS = (CATALOG, KAFKA)


def storage_address(address: Path | str) -> Path | str:
    """Return where files are stored: a folder, or the URL of an object store."""
    text = str(address).removeprefix("file://")
    return text if "://" in text else Path(text)


def variable_name(field: str) -> str:
    """Return the variable of a setting."""
    return f"LAKE_{field.upper()}"


def passed_properties(variables: Mapping[str, str | None]) -> dict[str, dict[str, str]]:
    """Return the properties that variables set.

    Args:
        variables: Name → value, of all variables; None for a name without a value, which sets nothing.

    Returns:
        Setting → property → value, without settings that no variable sets.
    """
    found: dict[str, dict[str, str]] = {}
    for variable, value in variables.items():
        for group in GROUPS:
            name = group.property_of(variable)
            if name is not None and value is not None:
                found.setdefault(group.setting, {})[name] = value
    return found


def is_passed(variable: str) -> bool:
    """Return whether a variable sets a property."""
    return any(group.property_of(variable) for group in GROUPS)


def pipeline_names(pipelines: str) -> list[str]:
    """Return the names in `LAKE_PIPELINES`, or in another list."""
    return [name.strip() for name in pipelines.split(",") if name.strip()]


def is_path(name: str) -> bool:
    """Return whether a name in `LAKE_PIPELINES` is a folder or a file of YAML, and not that of a module."""
    path = Path(name)
    return ":" not in name and path.suffix != ".py" and ("/" in name or path.is_dir() or path.suffix in YAML)


OTHERS = stat.S_IRWXG | stat.S_IRWXO


def require_private(file: Path, fields: Mapping[str, FieldInfo]) -> None:
    """Refuse a file that sets a secret and that others may read or change.

    Args:
        file: The file; it may be missing.
        fields: Of the settings.

    Raises:
        ConfigurationError: Its permissions let others in. Nothing of it is to be used.
    """
    try:
        is_open = file.stat().st_mode & OTHERS
        secret = next(_secrets(file, fields), None) if is_open else None
    except (OSError, ValueError):  # reported when the settings are read
        return
    if secret is not None:
        raise ConfigurationError(
            f"{file} sets the secret {secret}, and its permissions let other users read it, so it is not used.",
            remedy=f"Run `chmod 600 {shlex.quote(str(file))}`, and change the secret if others had access.",
        )


def _secrets(file: Path, fields: Mapping[str, FieldInfo]) -> Iterator[str]:
    secret = {variable_name(name) for name, field in fields.items() if "SecretStr" in str(field.annotation)}
    for name in dotenv_values(file):
        if name.upper() in secret or is_passed(name):
            yield name


DISTRIBUTION = "lake-assets"


def _find_version() -> str:
    # A checkout is importable without being installed; a distribution installed beside it may have another version.
    if CHECKOUT is None:
        return version(DISTRIBUTION)
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))
    found: str = project["project"]["version"]
    return found


__version__ = _find_version()
