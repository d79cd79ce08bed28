"""The Iceberg catalog `lake`: one address, which pyiceberg opens here and Spark gets as configuration.

Both commit to the same rows. On one machine these are in one SQLite file, so each waits for the other's lock instead of
failing. A REST or PostgreSQL catalog needs no other change than `LAKE_CATALOG_URI`.

The properties of the catalog and its files have the names of Iceberg's own pages, such as `s3.endpoint`. Where
pyiceberg and Spark differ, a property is given once, under either name, and each client gets the one that it reads.

The data directory remembers the tables of its catalog, so that a lost catalog is not taken for a new one.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit
from uuid import uuid4

from lake_assets.base.described import recognise
from lake_assets.connections.addresses import make_private
from lake_assets.errors import (
    ConfigurationError,
    ServiceError,
    StoredByNewerVersion,
    StoredStateError,
    catalog_lost,
    chain_text,
)
from lake_assets.settings import CATALOG, __version__

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.io.pyarrow import PyArrowFileIO

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
        StoredStateError: It has no tables, but the data directory had some; or the data directory was moved.
        StoredByNewerVersion: A later version has written the data directory.
    """
    check_home(settings.home)
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

    from lake_assets.connections.sql_catalog import reading_once

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
    remembered = read_remembered(settings.home)
    names = set(remembered.tables) if remembered else set()
    for name, folder in local_tables(settings.warehouse_address).items():
        if has_snapshots(folder):
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

    remembered = read_remembered(settings.home)
    known = remembered.tables if remembered else {}
    locations = {}
    for name in sorted(set(present).difference(known)):
        # A table may be dropped meanwhile, or its metadata may be damaged: its reader reports that.
        with suppress(NoSuchTableError, ValidationError, OSError, ValueError):
            locations[name] = catalog.load_table(name).location()
    if locations:
        add_remembered(settings.home, safe_address(settings.catalog_address), locations)


def _check_not_lost(catalog: Catalog, settings: Settings) -> None:
    had = lost_tables(settings)
    # Another process may have created the tables meanwhile.
    if not had or table_names(catalog):
        return
    remembered = read_remembered(settings.home)
    raise catalog_lost(
        safe_address(settings.catalog_address),
        home=settings.home,
        tables=had,
        former=remembered.catalog if remembered else None,
    )


def spark_catalog_conf(settings: Settings) -> dict[str, str]:
    """Return the catalog as Spark configuration."""
    prefix = f"spark.sql.catalog.{NAME}"
    address = settings.catalog_address
    kind = _kind(address)
    # V1 is the schema that pyiceberg creates, too; with V0, Java would not find its tables.
    opened = {"type": "rest", "uri": address} if kind == "http" else {"type": "jdbc", "jdbc.schema-version": "V1"}
    if kind == "postgresql":
        opened |= jdbc_properties(address)
    if kind == "sqlite":
        opened["uri"] = f"jdbc:sqlite:{_file_with_folder(address)}"
        opened["jdbc.busy_timeout"] = str(LOCK_SECONDS * 1000)
        # One connection: SQLite has one writer anyway, and every Spark Connect session opens a pool of its own.
        opened["clients"] = "1"
    properties = {
        **spark_properties(settings, chooses_io=kind == "http"),
        **opened,
        "warehouse": settings.warehouse_address,
        "cache-enabled": "false",  # with its cache, Spark would read a stale head after a commit of pyiceberg
    }
    conf = {prefix: "org.apache.iceberg.spark.SparkCatalog"}
    for name, value in properties.items():
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

    from lake_assets.connections.sql_catalog import locations_in

    assert isinstance(catalog, SqlCatalog)
    return locations_in(catalog)


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


ENDPOINT = "s3.endpoint"
PATH_STYLE = "s3.path-style-access"
"""Spark's name: whether the bucket is in the path of an address, and not in its host name."""

VIRTUAL_HOSTS = "s3.force-virtual-addressing"
"""The opposite, as pyiceberg names it."""

REGION_OF_PYICEBERG = "s3.region"
REGION_OF_SPARK = "client.region"
DEFAULT_REGION = "us-east-1"
"""The region of S3 servers other than Amazon's. Without one, pyiceberg asks Amazon where the bucket is."""

S3_SCHEMES = ("s3", "s3a", "s3n")
S3_OF_SPARK = {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO"}

S3_OF_PYICEBERG = {"py-io-impl": "lake_assets.connections.small_uploads.SmallUploadsIO"}

PATIENCE_OF_SPARK = {"s3.retry.num-retries": "3", "s3.retry.min-wait-ms": "500", "s3.retry.max-wait-ms": "5000"}
PATIENCE_OF_PYICEBERG = {"s3.connect-timeout": "5", "s3.request-timeout": "30"}
"""Defaults: with their own, Spark takes minutes until it reports that a server cannot be reached."""

OWN = {
    "cache-enabled": "Spark always reads the present head of a table.",
    "catalog-impl": "Set LAKE_CATALOG_URI: its scheme says which catalog it is.",
    "jdbc.schema-version": "Spark and pyiceberg share version V1.",
    "type": "Set LAKE_CATALOG_URI: its scheme says which catalog it is.",
    "uri": "Set LAKE_CATALOG_URI.",
    "warehouse": "Set LAKE_WAREHOUSE.",
}
"""Properties that the engine sets itself → what to do instead."""


def is_on_s3(settings: Settings) -> bool:
    """Return whether the warehouse is on S3."""
    return urlsplit(settings.warehouse_address).scheme in S3_SCHEMES


def given_properties(settings: Settings) -> dict[str, str]:
    """Return the properties that the settings pass on, in plain text.

    Raises:
        ConfigurationError: One of them is set by the engine itself.
    """
    found = {}
    for name, value in settings.catalog_properties.items():
        if name in OWN:
            raise ConfigurationError(
                f"{CATALOG.variable_of(name)} sets {name}, which the engine sets itself.",
                remedy=f"Remove it. {OWN[name]}",
            )
        found[name] = value.get_secret_value()
    return found


def pyiceberg_properties(settings: Settings, *, chooses_io: bool) -> dict[str, str]:
    """Return the properties that pyiceberg gets in addition to the type, the address and the warehouse.

    Args:
        settings: The settings.
        chooses_io: Whether the catalog itself chooses how files are read, as a REST catalog does.
    """
    found = given_properties(settings)
    region = _region(found)
    if region is not None:
        found.setdefault(REGION_OF_PYICEBERG, region)
    path_style = _path_style(found)
    if path_style is not None:
        found[VIRTUAL_HOSTS] = _text(not path_style)
    if not is_on_s3(settings):
        return found
    return {**({} if chooses_io else S3_OF_PYICEBERG), **PATIENCE_OF_PYICEBERG, **found}


def file_io(settings: Settings, location: str) -> PyArrowFileIO:
    """Return what lists, reads and writes files at an address that is not the warehouse's, with the same properties.

    Parameters of the URL are properties of this address alone, by their names without `s3.`:
    s3://lake/landing?endpoint=http://10.0.0.2:9000&region=eu-west-1.

    Raises:
        ConfigurationError: The properties name something else than Arrow for it.
    """
    from pyiceberg.io import load_file_io
    from pyiceberg.io.pyarrow import PyArrowFileIO

    found = pyiceberg_properties(settings, chooses_io=True)
    if urlsplit(location).scheme in S3_SCHEMES:
        own = {f"s3.{name}": value for name, value in parse_qsl(urlsplit(location).query)}
        if ENDPOINT in own:
            found.setdefault(REGION_OF_PYICEBERG, DEFAULT_REGION)
        found = {**S3_OF_PYICEBERG, **PATIENCE_OF_PYICEBERG, **found, **own}
    io = load_file_io(found, location)
    if not isinstance(io, PyArrowFileIO):
        raise ConfigurationError(
            f"The files of {location} are read by {type(io).__name__}, which cannot list them.",
            remedy=f"Remove {CATALOG.variable_of('py-io-impl')}, or set it to pyiceberg.io.pyarrow.PyArrowFileIO.",
        )
    return io


def spark_properties(settings: Settings, *, chooses_io: bool) -> dict[str, str]:
    """Return the properties that Spark's catalog gets in addition to the type, the address and the warehouse.

    Args:
        settings: The settings.
        chooses_io: Whether the catalog itself chooses how files are read, as a REST catalog does.
    """
    found = given_properties(settings)
    region = _region(found)
    if region is not None:
        found.setdefault(REGION_OF_SPARK, region)
    path_style = _path_style(found)
    if path_style is not None:
        found[PATH_STYLE] = _text(path_style)
    if chooses_io or not is_on_s3(settings):
        return found
    return {**S3_OF_SPARK, **PATIENCE_OF_SPARK, **found}


def _region(given: Mapping[str, str]) -> str | None:
    default = DEFAULT_REGION if ENDPOINT in given else None
    return given.get(REGION_OF_SPARK) or given.get(REGION_OF_PYICEBERG) or default


def _path_style(given: Mapping[str, str]) -> bool | None:
    """Return whether buckets are in the path; None to leave it to the clients, which then agree."""
    if PATH_STYLE in given:
        return _is_true(given[PATH_STYLE])
    if VIRTUAL_HOSTS in given:
        return not _is_true(given[VIRTUAL_HOSTS])
    return True if ENDPOINT in given else None


def _is_true(text: str) -> bool:
    return text.strip().lower() == "true"


def _text(value: bool) -> str:
    return str(value).lower()


PYTHON_DRIVER = "postgresql+psycopg2"
HOST = "host"
PORT = "port"

_SECRET_PARAMETER = re.compile(r"([?&]\w*(?:password|secret|token)\w*=)[^&]*", re.IGNORECASE)


def jdbc_properties(address: str) -> dict[str, str]:
    """Return a PostgreSQL address as properties of Iceberg's JDBC catalog.

    The address that Java's errors show has no parameters: each is a property of its own, passwords among them.

    Raises:
        ConfigurationError: The address names no host, but a socket, which Java cannot connect to.
    """
    parts = urlsplit(address)
    parameters = dict(parse_qsl(parts.query, keep_blank_values=True))
    login = {"user": parts.username, "password": parts.password}
    parameters.update({name: unquote(value) for name, value in login.items() if value})
    server = _server(address, parts.hostname or parameters.pop(HOST, ""), parts.port or parameters.pop(PORT, None))
    named = {f"jdbc.{name}": value for name, value in parameters.items()}
    return {"uri": f"jdbc:postgresql://{server}{parts.path}", **named}


def python_address(address: str) -> str:
    """Return a PostgreSQL address with the driver that is installed; without one, SQLAlchemy looks for another."""
    scheme, separator, rest = address.partition("://")
    return address if "+" in scheme else f"{PYTHON_DRIVER}{separator}{rest}"


def _server(address: str, host: str, port: int | str | None) -> str:
    if not host or host.startswith("/"):
        raise ConfigurationError(
            f"LAKE_CATALOG_URI is {safe_address(address)!r}, which names no host; Spark cannot connect to a socket.",
            remedy="Name the host and the port: postgresql+psycopg2://user:password@localhost:5432/database.",
        )
    return f"{host}:{port}" if port else host


def safe_address(address: str) -> str:
    """Return the address of a database without its passwords."""
    password = urlsplit(address).password
    without = address.replace(f":{password}@", ":***@") if password else address
    return _SECRET_PARAMETER.sub(r"\1***", without)


TABLES_FILE = "tables.json"
"""In the data directory: the tables that its catalog has had, and where they are.

It is stored outside the catalog, so it shows that a catalog was lost. A data directory of an earlier version has no
such file: the first process that opens its catalog writes one. A table that is dropped stays in it.
"""

TABLES_FORMAT = 1
"""That of the data directory: a version that changes how state is stored raises it, so that earlier versions refuse the
directory. A version reads all formats up to its own."""


@dataclass(frozen=True)
class RememberedTables:
    """The content of `tables.json`.

    Attributes:
        catalog: Address of the catalog that had the tables, without a password.
        tables: Table → location.
    """

    catalog: str
    tables: Mapping[str, str]


def read_remembered(home: Path) -> RememberedTables | None:
    """Return the tables that a data directory remembers; None if the file is missing or damaged.

    Raises:
        StoredByNewerVersion: A later version has written the file.
    """
    try:
        return parse_remembered((home / TABLES_FILE).read_text(), home)
    except (OSError, ValueError):
        return None


def check_home(home: Path) -> None:
    """Refuse a data directory of a later version, and one that was moved: its tables name files by whole paths.

    Raises:
        StoredByNewerVersion: It is one of a later version.
        StoredStateError: It was moved.
    """
    remembered = read_remembered(home)
    if remembered is None:
        return
    former = Path(remembered.catalog.removeprefix("sqlite:///")).parent
    has_own_files = any(location.startswith(f"file://{former}/") for location in remembered.tables.values())
    if has_own_files and not former.exists() and (home / Path(remembered.catalog).name).exists():
        raise StoredStateError(
            f"The data directory {home} was {former}, and its tables name their files by whole paths.",
            remedy=f"Move it back to {former}, or make that a link to {home}.",
        )


def parse_remembered(text: str, home: Path) -> RememberedTables:
    """Return the content of the file.

    Args:
        text: The text of the file.
        home: The data directory, for messages.

    Raises:
        StoredByNewerVersion: A later version has written the file.
        ValueError: The file is damaged.
    """
    content: Any = json.loads(text)
    found = content.get("format") if isinstance(content, dict) else None
    if not isinstance(found, int):
        raise ValueError("it names no format")
    if found > TABLES_FORMAT:
        written_by = content.get("written_by")
        raise StoredByNewerVersion(
            f"The data directory {home}", found=found, readable=TABLES_FORMAT, written_by=written_by
        )
    tables = content.get("tables")
    if not isinstance(tables, dict):
        raise ValueError("it names no tables")
    return RememberedTables(str(content.get("catalog")), tables)


def add_remembered(home: Path, catalog: str, locations: Mapping[str, str]) -> None:
    """Add tables to the file, or replace their locations.

    If two processes write at once, one of them is lost, and the next process that opens the catalog adds it again.

    Args:
        home: The data directory.
        catalog: Address of the catalog, without a password.
        locations: Table → location.
    """
    before = read_remembered(home)
    known = before.tables if before else {}
    with suppress(OSError):  # a directory that cannot be written to can still be read
        _write_remembered(home, RememberedTables(catalog, {**known, **locations}))


def forget_tables(home: Path, names: Iterable[str]) -> None:
    """Remove tables from the file."""
    before = read_remembered(home)
    if before is None:
        return
    dropped = set(names)
    kept = {name: location for name, location in before.tables.items() if name not in dropped}
    _write_remembered(home, RememberedTables(before.catalog, kept))


def _write_remembered(home: Path, content: RememberedTables) -> None:
    """Replace the file in one step."""
    file = home / TABLES_FILE
    make_private(home)  # with catalog and warehouse elsewhere, nothing else may have made it
    partial = file.with_suffix(f".{uuid4().hex}")
    ordered = {**asdict(content), "tables": dict(sorted(content.tables.items()))}
    partial.write_text(json.dumps({"format": TABLES_FORMAT, "written_by": __version__, **ordered}, indent=1))
    partial.replace(file)


# The folders of tables in a local warehouse, found without a catalog. A warehouse in an object store is not searched:
# listing all of it may take long.

METADATA_FOLDER = "metadata"
METADATA_SUFFIX = ".metadata.json"
_HIVE_SUFFIX = ".db"
"""Some writers call the folder of a namespace `name.db`."""


def local_tables(warehouse: str) -> dict[str, Path]:
    """Return the tables of a warehouse by the names of their folders; none if it is not on this machine.

    Returns:
        `namespace.name` → the table's folder.
    """
    root = _local_path(warehouse)
    found: dict[str, Path] = {}
    if root is None:
        return found
    for metadata in sorted(root.glob(f"*/*/{METADATA_FOLDER}")):
        folder = metadata.parent
        if any(metadata.glob(f"*{METADATA_SUFFIX}")):
            namespace = folder.parent.name.removesuffix(_HIVE_SUFFIX)
            found[f"{namespace}.{folder.name}"] = folder
    return found


def has_snapshots(folder: Path) -> bool:
    """Return whether any metadata file of a table has a snapshot: an empty table has nothing to lose."""
    return any(content.get("snapshots") for content in _metadata(folder))


def _metadata(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the metadata files of a table, those with the highest version first, without damaged ones."""
    for file in sorted((folder / METADATA_FOLDER).glob(f"*{METADATA_SUFFIX}"), reverse=True):
        try:
            content = json.loads(_metadata_text(file))
        except (OSError, EOFError, ValueError):
            continue
        if isinstance(content, dict):
            yield content


def _metadata_text(file: Path) -> str:
    stored = file.read_bytes()
    is_compressed = file.name.endswith(f".gz{METADATA_SUFFIX}")
    return (gzip.decompress(stored) if is_compressed else stored).decode()


def _local_path(warehouse: str) -> Path | None:
    parts = urlsplit(warehouse)
    if parts.scheme not in ("", "file"):
        return None
    return Path(unquote(parts.path))
