"""What steps, checks and sensors get of a data directory: its catalog, and a Spark session that is opened on first use.

Keys of resources of this project begin with `lake_assets`, so that no key of a user is one of them.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from dagster_pyspark import LazyPySparkResource
from dagster_pyspark.resources import spark_session_from_config
from pydantic import BaseModel, Field

from lake_assets.connections.catalog import open_catalog
from lake_assets.connections.spark import prepare_client, require_listener, session_conf
from lake_assets.settings import Settings, settings, settings_at

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

LAKE = "lake_assets"
"""The key of `LakeResource`, in every code location that has the tables."""


class ConfiguredBySettings(BaseModel):
    """Has the settings of this process, unless a field says otherwise. A field may be a `dagster.EnvVar`."""

    home: str | None = Field(default=None, description="data directory, whose lake.env counts, too")
    catalog_uri: str | None = Field(default=None, description="catalog database or REST address")
    warehouse: str | None = Field(default=None, description="location of all tables")
    spark_remote: str | None = Field(default=None, description="Spark Connect server, sc://host:port")
    kafka: str | None = Field(default=None, description="Kafka bootstrap servers, host:port,...")
    zookeeper: str | None = Field(default=None, description="ZooKeeper ensemble, host:port,...")

    chosen: ClassVar[Settings | None] = None

    @classmethod
    def of(cls, chosen: Settings) -> Self:
        """Return the resource of given settings. Dagster does not show these, because they may have secrets."""
        kind: type[Self] = type(cls.__name__, (cls,), {"__module__": cls.__module__, "chosen": chosen})
        return kind()

    def given(self) -> dict[str, Any]:
        """Return the fields that say otherwise."""
        fields = {name: getattr(self, name) for name in ConfiguredBySettings.model_fields}
        return {name: value for name, value in fields.items() if value is not None}

    def settings(self) -> Settings:
        """Return the settings.

        Raises:
            ConfigurationError: They are not valid together.
        """
        if self.chosen is not None:
            return self.chosen
        given = self.given()
        return _settings(tuple(given.items())) if given else settings()


@lru_cache(maxsize=16)
def _settings(given: tuple[tuple[str, str], ...]) -> Settings:
    fields = dict(given)
    home = fields.pop("home", None)
    return settings_at(Path(home).expanduser().resolve() if home else settings().home, **fields)


class LakeResource(ConfiguredBySettings, LazyPySparkResource):
    """The tables of a data directory, for steps, checks and sensors: the parameter `lake_assets`.

    By default a client of Spark Connect waits for 15 minutes, without a word, for a server that is gone. This one
    raises `ServiceError` if no server listens, and gives up after 20 s later on.
    """

    spark_config: dict[str, Any] = Field(default={}, description="properties of the Spark session")

    def catalog(self) -> Catalog:
        """Return the pyiceberg catalog `lake`. A process has one for each home: opening one takes a connection."""
        return catalog_of(self.settings())

    def _init_session(self) -> None:
        if self._spark_session is not None:
            return
        conf = {**session_conf(self.settings()), **self.spark_config}
        remote = conf.get("spark.remote")
        if remote is not None:
            require_listener(remote)
        self._spark_session = spark_session_from_config(conf)  # type: ignore[no-untyped-call]
        if remote is not None:
            prepare_client(self._spark_session)


_catalogs: dict[tuple[str, str], Catalog] = {}


def catalog_of(found: Settings) -> Catalog:
    """Return the pyiceberg catalog of settings, which the process keeps."""
    key = found.catalog_address, found.warehouse_address
    if key not in _catalogs:
        _catalogs[key] = open_catalog(found)
    return _catalogs[key]
