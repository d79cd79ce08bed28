"""The Iceberg catalog `lake`: one address, opened by pyiceberg here and described to Spark's side there.

Both sides commit to the same rows. On one machine these lie in one SQLite file, so each side waits for the other's lock
instead of failing; a REST or PostgreSQL address needs no change but `LAKE_CATALOG_URI`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from lake_assets.errors import ConfigurationError, ServiceError

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from lake_assets.settings import Settings

NAME = "lake"
LOCK_SECONDS = 60
"""How long a commit waits for another process that writes the SQLite file."""


def open_catalog(settings: Settings) -> Catalog:
    """The pyiceberg catalog; its database and folders are made when missing. `ServiceError` if it cannot be reached."""
    from pyiceberg.catalog import load_catalog

    address = settings.catalog_address
    properties = {"warehouse": settings.warehouse_address}
    kind = "rest" if _scheme(address) == "http" else "sql"
    if _scheme(address) == "sqlite":
        file = _file_made(address)
        address = f"sqlite:///{file}?timeout={LOCK_SECONDS}"
    try:
        return _open_once_more(lambda: load_catalog(NAME, type=kind, uri=address, **properties))
    except Exception as error:  # of SQLAlchemy, requests or the REST client: whatever the address leads to
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ServiceError(
            f"The catalog {_without_password(settings.catalog_address)} cannot be opened: {reason}",
            remedy="Check LAKE_CATALOG_URI, and that its server or folder can be reached from here.",
        ) from error


def spark_catalog_conf(settings: Settings) -> dict[str, str]:
    """The same catalog in Spark's words. With its cache, Spark would read a stale head after a commit of pyiceberg."""
    properties = {"warehouse": settings.warehouse_address, "cache-enabled": "false", **_spark_address(settings)}
    prefix = f"spark.sql.catalog.{NAME}"
    return {prefix: "org.apache.iceberg.spark.SparkCatalog", **{f"{prefix}.{k}": v for k, v in properties.items()}}


def sqlite_file(address: str) -> Path:
    """The file of a `sqlite:///path` address."""
    path = unquote(urlsplit(address).path)[1:]
    if not path:
        raise ConfigurationError(
            f"The catalog {address} has no file.", remedy="Set LAKE_CATALOG_URI=sqlite:////absolute/path.db."
        )
    return Path(path).absolute()


def _spark_address(settings: Settings) -> dict[str, str]:
    address = settings.catalog_address
    if _scheme(address) == "http":
        return {"type": "rest", "uri": address}
    # V1 is the layout that pyiceberg makes too; with V0, Java would not see its tables as tables.
    jdbc = {"type": "jdbc", "jdbc.schema-version": "V1"}
    if _scheme(address) == "sqlite":
        # One connection: SQLite has one writer anyway, and every Spark Connect session opens a pool of its own.
        wait = {"jdbc.busy_timeout": str(LOCK_SECONDS * 1000), "clients": "1"}
        return {**jdbc, **wait, "uri": f"jdbc:sqlite:{_file_made(address)}"}
    return {**jdbc, **_postgres_address(address)}


def _postgres_address(address: str) -> dict[str, str]:
    parts = urlsplit(address)
    where = f"{parts.hostname}:{parts.port}" if parts.port else f"{parts.hostname}"
    query = f"?{parts.query}" if parts.query else ""
    found = {"uri": f"jdbc:postgresql://{where}{parts.path}{query}"}
    if parts.username:
        found["jdbc.user"] = unquote(parts.username)
    if parts.password:
        found["jdbc.password"] = unquote(parts.password)
    return found


def _scheme(address: str) -> str:
    """`sqlite`, `http` or `postgresql`; the driver of `postgresql+psycopg2` and the s of https do not matter here."""
    scheme = urlsplit(address).scheme.split("+")[0]
    found = {"sqlite": "sqlite", "http": "http", "https": "http", "postgresql": "postgresql", "postgres": "postgresql"}
    if scheme not in found:
        raise ConfigurationError(
            f"LAKE_CATALOG_URI is {address!r}.",
            remedy="Use sqlite:///FILE, postgresql+psycopg2://..., or a REST address http(s)://...",
        )
    return found[scheme]


def _file_made(address: str) -> Path:
    file = sqlite_file(address)
    file.parent.mkdir(parents=True, exist_ok=True)
    return file


def _open_once_more(load: Callable[[], Catalog]) -> Catalog:
    """Two processes that open a new catalog at once both create its tables; the loser finds them at the next try."""
    from sqlalchemy.exc import DBAPIError

    try:
        return load()
    except DBAPIError:
        return load()


def _without_password(address: str) -> str:
    password = urlsplit(address).password
    return address.replace(f":{password}@", ":***@") if password else address
