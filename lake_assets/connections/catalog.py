"""The Iceberg catalog `lake`: one address, which pyiceberg opens here and Spark gets as configuration.

Both commit to the same rows. On one machine these are in one SQLite file, so each waits for the other's lock instead of
failing. A REST or PostgreSQL catalog needs no other change than `LAKE_CATALOG_URI`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from lake_assets.errors import ConfigurationError, ServiceError
from lake_assets.errors.infrastructure import recognise
from lake_assets.errors.texts import chain_text

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from lake_assets.settings import Settings

NAME = "lake"
LOCK_SECONDS = 60
"""How long a commit waits for another process that writes the SQLite file."""

KINDS = {
    "sqlite": "sqlite",
    "http": "http",
    "https": "http",
    "postgresql": "postgresql",
    "postgres": "postgresql",
}
"""Scheme of an address → kind of catalog."""


def open_catalog(settings: Settings) -> Catalog:
    """Return the pyiceberg catalog. Its database and folders are created if they are missing.

    Raises:
        ServiceError: It cannot be reached.
    """
    from pyiceberg.catalog import load_catalog

    address = settings.catalog_address
    kind = _kind(address)
    if kind == "sqlite":
        file = _file_with_folder(address)
        address = f"sqlite:///{file}?timeout={LOCK_SECONDS}"
    properties = {
        "type": "rest" if kind == "http" else "sql",
        "uri": address,
        "warehouse": settings.warehouse_address,
    }
    try:
        return _open_once_more(lambda: load_catalog(NAME, **properties))
    except Exception as error:  # of SQLAlchemy, requests or the REST client, depending on the address
        known = recognise(chain_text(error))
        if known is not None:
            raise ServiceError(known.problem, remedy=known.remedy) from error
        message = str(error) or type(error).__name__
        raise ServiceError(
            f"The catalog {_without_password(settings.catalog_address)} cannot be opened: {message.splitlines()[0]}",
            remedy="Check LAKE_CATALOG_URI, and that its server or folder can be reached from here.",
        ) from error


def spark_catalog_conf(settings: Settings) -> dict[str, str]:
    """Return the catalog as Spark configuration."""
    prefix = f"spark.sql.catalog.{NAME}"
    conf = {
        prefix: "org.apache.iceberg.spark.SparkCatalog",
        f"{prefix}.warehouse": settings.warehouse_address,
        f"{prefix}.cache-enabled": "false",  # with its cache, Spark would read a stale head after a commit of pyiceberg
    }
    for name, value in _spark_address(settings).items():
        conf[f"{prefix}.{name}"] = value
    return conf


def sqlite_file(address: str) -> Path:
    """Return the file of a `sqlite:///path` address.

    Raises:
        ConfigurationError: The address has no path.
    """
    path = unquote(urlsplit(address).path)[1:]
    if not path:
        raise ConfigurationError(
            f"The catalog {address} has no file.", remedy="Set LAKE_CATALOG_URI=sqlite:////absolute/path.db."
        )
    return Path(path).absolute()


def _spark_address(settings: Settings) -> dict[str, str]:
    address = settings.catalog_address
    kind = _kind(address)
    if kind == "http":
        return {"type": "rest", "uri": address}
    # V1 is the schema that pyiceberg creates, too; with V0, Java would not find its tables.
    jdbc = {"type": "jdbc", "jdbc.schema-version": "V1"}
    if kind == "sqlite":
        return {**jdbc, **_sqlite_address(address)}
    return {**jdbc, **_postgres_address(address)}


def _sqlite_address(address: str) -> dict[str, str]:
    return {
        "uri": f"jdbc:sqlite:{_file_with_folder(address)}",
        "jdbc.busy_timeout": str(LOCK_SECONDS * 1000),
        # One connection: SQLite has one writer anyway, and every Spark Connect session opens a pool of its own.
        "clients": "1",
    }


def _postgres_address(address: str) -> dict[str, str]:
    parts = urlsplit(address)
    host = f"{parts.hostname}:{parts.port}" if parts.port else f"{parts.hostname}"
    query = f"?{parts.query}" if parts.query else ""
    found = {"uri": f"jdbc:postgresql://{host}{parts.path}{query}"}
    if parts.username:
        found["jdbc.user"] = unquote(parts.username)
    if parts.password:
        found["jdbc.password"] = unquote(parts.password)
    return found


def _kind(address: str) -> str:
    """`sqlite`, `http` or `postgresql`, without the driver of `postgresql+psycopg2` and the s of https."""
    scheme = urlsplit(address).scheme.split("+")[0]
    if scheme not in KINDS:
        raise ConfigurationError(
            f"LAKE_CATALOG_URI is {address!r}.",
            remedy="Use sqlite:///FILE, postgresql+psycopg2://..., or a REST address http(s)://...",
        )
    return KINDS[scheme]


def _file_with_folder(address: str) -> Path:
    """The SQLite file of an address; its folder is created."""
    file = sqlite_file(address)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ServiceError(
            f"The folder {file.parent} of the catalog cannot be created: {error.strerror}.",
            remedy="Set LAKE_HOME (or LAKE_CATALOG_URI) to a folder that you may write.",
        ) from None
    return file


def _open_once_more(load: Callable[[], Catalog]) -> Catalog:
    """Two processes that open a new catalog at once both create its tables; the second try of the loser finds them."""
    from sqlalchemy.exc import DBAPIError

    try:
        return load()
    except DBAPIError:
        return load()


def _without_password(address: str) -> str:
    password = urlsplit(address).password
    return address.replace(f":{password}@", ":***@") if password else address
