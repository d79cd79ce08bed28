"""The Iceberg catalog `lake`: one address, which pyiceberg opens here and Spark gets as configuration.

Both commit to the same rows. On one machine these are in one SQLite file, so each waits for the other's lock instead of
failing. A REST or PostgreSQL catalog needs no other change than `LAKE_CATALOG_URI`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from lake_assets.connections import remembered_tables, table_folders
from lake_assets.connections.clients.catalog_properties import pyiceberg_properties, spark_properties
from lake_assets.connections.clients.postgresql import jdbc_properties, python_address, safe_address
from lake_assets.connections.own_secrets import make_private
from lake_assets.errors import CatalogLost, ConfigurationError, ServiceError
from lake_assets.errors.infrastructure import recognise
from lake_assets.errors.texts import chain_text

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from lake_assets.settings import Settings

NAME = "lake"
LOCK_SECONDS = 60
"""How long a commit waits for another process that writes the SQLite file."""

KEY_INDEX = "lake.key-index"
"""Property of a catalog: the folder of the indexes of its tables, which are derived from them."""

SESSION_TABLE, HIGH_WATERMARK_TABLE = "lake.session-table", "lake.high-watermark-table"
"""Properties of a catalog: the names of the two tables of the session log."""

CATALOG_TABLES = 2
"""Number of tables that pyiceberg creates in a new database."""

REMOTE = "spark.remote"
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

    The data directory remembers the tables of the catalog, so that a lost catalog is not taken for a new one.

    Raises:
        ServiceError: It cannot be reached.
        CatalogLost: It has no tables, but the data directory had some.
        StoredByNewerVersion: A later version has written the data directory.
    """
    remembered_tables.check_version(settings.home)
    catalog = connect(settings)
    try:
        present = table_names(catalog)
    except Exception as error:  # as for `connect`
        if _kind(settings.catalog_address) == "http":
            return catalog  # a REST server may let its clients read tables but not list them
        raise _unreachable(settings, error) from error
    if not present:
        _check_not_lost(catalog, settings)
    remember_tables(catalog, present, settings)
    return catalog


def connect(settings: Settings) -> Catalog:
    """Return the pyiceberg catalog, without a check that it is the one of the data directory.

    Raises:
        ServiceError: It cannot be reached.
    """
    from pyiceberg.catalog import load_catalog

    from lake_assets.connections.clients.sql_catalog import reading_once

    address = settings.catalog_address
    kind = _kind(address)
    if kind == "sqlite":
        file = _file_with_folder(address, settings.home)
        address = f"sqlite:///{file}?timeout={LOCK_SECONDS}"
    if kind == "postgresql":
        address = python_address(address)
    properties = {
        **pyiceberg_properties(settings, chooses_io=kind == "http"),
        "type": "rest" if kind == "http" else "sql",
        "uri": address,
        "warehouse": settings.warehouse_address,
        KEY_INDEX: str(settings.home / "key-index"),
        **log_tables(settings),
    }
    try:
        if kind != "http":
            _require_readable(address)
        return reading_once(_open_again(lambda: load_catalog(NAME, **properties)))
    except Exception as error:  # of SQLAlchemy, requests or the REST client, depending on the address
        raise _unreachable(settings, error) from error


def log_tables(settings: Settings) -> dict[str, str]:
    """Return the properties of a catalog that name the tables of the session log."""
    return {SESSION_TABLE: settings.session_table, HIGH_WATERMARK_TABLE: settings.high_watermark_table}


def _unreachable(settings: Settings, error: Exception) -> ServiceError:
    known = recognise(chain_text(error))
    if known is not None:
        address = safe_address(settings.catalog_address)
        return ServiceError(f"The catalog {address} cannot be opened. {known.problem}", remedy=known.remedy)
    message = str(error) or type(error).__name__
    return ServiceError(
        f"The catalog {safe_address(settings.catalog_address)} cannot be opened: {message.splitlines()[0]}",
        remedy="Check LAKE_CATALOG_URI, and that its server or folder can be reached from here. "
        "`lake doctor` says more, also if a file is damaged.",
    )


def is_blank(settings: Settings) -> bool:
    """Return whether the catalog is an SQLite file that is missing or empty. To connect to it would write it."""
    if _kind(settings.catalog_address) != "sqlite":
        return False
    file = sqlite_file(settings.catalog_address)
    return not file.exists() or file.stat().st_size == 0


def table_names(catalog: Catalog) -> frozenset[str]:
    """Return the tables of a catalog, as `namespace.name`."""
    found = []
    for namespace in catalog.list_namespaces():
        for identifier in catalog.list_tables(namespace):
            found.append(".".join(identifier))
    return frozenset(found)


def lost_tables(settings: Settings) -> frozenset[str]:
    """Return the tables that a data directory had, according to what it remembers and to its warehouse."""
    remembered = remembered_tables.read(settings.home)
    names = set(remembered.tables) if remembered else set()
    for name, folder in table_folders.local_tables(settings.warehouse_address).items():
        if table_folders.has_snapshots(folder):
            names.add(name)
    return frozenset(names)


def remember_tables(catalog: Catalog, present: Iterable[str], settings: Settings) -> None:
    """Record the tables of the catalog in the data directory, with their locations.

    Args:
        catalog: The catalog.
        present: Its tables.
        settings: Name the data directory.
    """
    from pyiceberg.exceptions import NoSuchTableError, ValidationError

    remembered = remembered_tables.read(settings.home)
    known = remembered.tables if remembered else {}
    locations = {}
    for name in sorted(set(present).difference(known)):
        # A table may be dropped meanwhile, or its metadata may be damaged: its reader reports that.
        with suppress(NoSuchTableError, ValidationError, OSError, ValueError):
            locations[name] = catalog.load_table(name).location()
    if locations:
        remembered_tables.remember(settings.home, safe_address(settings.catalog_address), locations)


def _check_not_lost(catalog: Catalog, settings: Settings) -> None:
    had = lost_tables(settings)
    # Another process may have created the tables meanwhile.
    if not had or table_names(catalog):
        return
    remembered = remembered_tables.read(settings.home)
    raise CatalogLost(
        safe_address(settings.catalog_address),
        home=settings.home,
        tables=had,
        former=remembered.catalog if remembered else None,
    )


def spark_catalog_conf(settings: Settings) -> dict[str, str]:
    """Return the catalog as Spark configuration."""
    prefix = f"spark.sql.catalog.{NAME}"
    is_rest = _kind(settings.catalog_address) == "http"
    properties = {
        **spark_properties(settings, chooses_io=is_rest),
        **_spark_address(settings),
        "warehouse": settings.warehouse_address,
        "cache-enabled": "false",  # with its cache, Spark would read a stale head after a commit of pyiceberg
    }
    conf = {prefix: "org.apache.iceberg.spark.SparkCatalog"}
    for name, value in properties.items():
        conf[f"{prefix}.{name}"] = value
    return conf


def public_conf(conf: Mapping[str, str], settings: Settings) -> dict[str, str]:
    """Return a Spark configuration without what may be a secret: passed properties, and what a database asks for."""
    prefix = f"spark.sql.catalog.{NAME}."
    passed = {prefix + name for name in settings.catalog_properties}
    shown = {}
    for name, value in conf.items():
        if name not in passed and not name.startswith(f"{prefix}jdbc."):
            shown[name] = value
    if REMOTE in shown:
        shown[REMOTE] = shown[REMOTE].partition("/;")[0]  # without parameters, of which one is a token
    return shown


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


def watched_files(settings: Settings) -> list[Path] | None:
    """Return the files that each commit to the catalog writes; None if the catalog is a server."""
    if _kind(settings.catalog_address) != "sqlite":
        return None
    file = sqlite_file(settings.catalog_address)
    return [file, file.with_name(f"{file.name}-wal")]


def ask_catalog(settings: Settings) -> Callable[[], Hashable] | None:
    """Return a function whose answer changes with each commit; None if the catalog is not a database on a server.

    Each call is one query. It raises what the database raises.
    """
    if _kind(settings.catalog_address) != "postgresql":
        return None
    catalog = cache(partial(connect, settings))
    return lambda: frozenset(_locations(catalog()).items())


def _locations(catalog: Catalog) -> Mapping[str, str | None]:
    from pyiceberg.catalog.sql import SqlCatalog

    from lake_assets.connections.clients.sql_catalog import locations_in

    assert isinstance(catalog, SqlCatalog)
    return locations_in(catalog)


def _spark_address(settings: Settings) -> dict[str, str]:
    address = settings.catalog_address
    kind = _kind(address)
    if kind == "http":
        return {"type": "rest", "uri": address}
    # V1 is the schema that pyiceberg creates, too; with V0, Java would not find its tables.
    jdbc = {"type": "jdbc", "jdbc.schema-version": "V1"}
    if kind == "sqlite":
        return {**jdbc, **_sqlite_address(address)}
    return {**jdbc, **jdbc_properties(address)}


def _sqlite_address(address: str) -> dict[str, str]:
    return {
        "uri": f"jdbc:sqlite:{_file_with_folder(address)}",
        "jdbc.busy_timeout": str(LOCK_SECONDS * 1000),
        # One connection: SQLite has one writer anyway, and every Spark Connect session opens a pool of its own.
        "clients": "1",
    }


def _kind(address: str) -> str:
    """`sqlite`, `http` or `postgresql`, without the driver of `postgresql+psycopg2` and the s of https."""
    scheme = urlsplit(address).scheme.split("+")[0]
    if scheme not in KINDS:
        raise ConfigurationError(
            f"LAKE_CATALOG_URI is {safe_address(address)!r}.",
            remedy="Use sqlite:///FILE, postgresql+psycopg2://..., or a REST address http(s)://...",
        )
    return KINDS[scheme]


def _file_with_folder(address: str, home: Path | None = None) -> Path:
    """The SQLite file of an address; its folder is created, and open to its owner alone if it is the data directory."""
    file = sqlite_file(address)
    try:
        if file.parent == home:
            make_private(home)
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ServiceError(
            f"The folder {file.parent} of the catalog cannot be created: {error.strerror}.",
            remedy="Set LAKE_HOME (or LAKE_CATALOG_URI) to a folder that you may write.",
        ) from None
    return file


def _require_readable(address: str) -> None:
    """Raise what a database answers if it cannot be read now: pyiceberg would take that for a database without tables,
    and wait for a lock again and again.
    """
    import sqlalchemy as sa

    engine = sa.create_engine(address, poolclass=sa.NullPool)
    try:
        with engine.connect() as connection:
            if engine.dialect.name == "postgresql":
                connection.execute(sa.text(f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'"))
            connection.execute(sa.text("SELECT 1 FROM iceberg_tables LIMIT 1"))
    except sa.exc.DBAPIError as error:
        if recognise(chain_text(error)) is not None:
            raise


def _open_again(load: Callable[[], Catalog]) -> Catalog:
    """Open a catalog, again if another process creates one of its tables first: that process may be first twice."""
    from sqlalchemy.exc import DBAPIError

    for _ in range(CATALOG_TABLES):
        with suppress(DBAPIError):
            return load()
    return load()
