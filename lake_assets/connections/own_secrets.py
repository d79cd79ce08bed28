"""What only the owner of a data directory can read: the directory, and the generated secrets of its local services.

A process that runs as another user of the machine can connect to loopback. It does not know these secrets.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile

SPARK_TOKEN = "spark.token"
KAFKA_PASSWORD = "kafka.password"
ZOOKEEPER_PASSWORD = "zookeeper.password"
USER = "lake"
"""The name that belongs to the passwords of Kafka and ZooKeeper."""

SECRET_BYTES = 32
OWNER_ONLY = 0o700


def make_private(home: Path) -> None:
    """Create a data directory that only its owner can enter, if there is none. Raises `OSError`."""
    if not home.exists():
        if not home.parent.exists():
            home.parent.mkdir(parents=True, exist_ok=True)
        home.mkdir(mode=OWNER_ONLY, exist_ok=True)


def spark_token(home: Path) -> str | None:
    """Return the token that the local Spark Connect server requires; None if it was started by a version without."""
    return _read(home / SPARK_TOKEN)


def create_spark_token(home: Path) -> None:
    """Generate the token of the local Spark Connect server, if there is none."""
    _create(home / SPARK_TOKEN)


def create_secrets(home: Path, *, login: bool) -> None:
    """Generate the secrets of the services that are about to start.

    Args:
        home: The data directory.
        login: Whether Kafka and ZooKeeper require a login. If not, Kafka's password is removed. ZooKeeper's stays until
            its nodes are open to all again.
    """
    create_spark_token(home)
    if login:
        _create(home / KAFKA_PASSWORD)
        _create(home / ZOOKEEPER_PASSWORD)
    else:
        (home / KAFKA_PASSWORD).unlink(missing_ok=True)


def kafka_password(home: Path) -> str | None:
    """Return the password that the local Kafka requires; None if it requires none."""
    return _read(home / KAFKA_PASSWORD)


def zookeeper_password(home: Path) -> str | None:
    """Return the password to which the nodes of the local ZooKeeper are open; None if they are open to all."""
    return _read(home / ZOOKEEPER_PASSWORD)


def spark_address(home: Path, port: int | None) -> str:
    """Return the address of the local Spark Connect server, with its token if there is one.

    pyspark sends a token without TLS only to the host `localhost`.
    """
    token = spark_token(home)
    return f"sc://localhost:{port}/;token={token}" if token else f"sc://127.0.0.1:{port}"


def _read(file: Path) -> str | None:
    try:
        return file.read_text() or None
    except FileNotFoundError:
        return None


def _create(file: Path) -> None:
    """Create a file with a secret; after a crash, or with concurrent calls, it is complete."""
    if file.exists():
        return
    make_private(file.parent)
    with NamedTemporaryFile("w", dir=file.parent, prefix=f"{file.name}.") as draft:  # only its owner can read it
        draft.write(secrets.token_urlsafe(SECRET_BYTES))
        draft.flush()
        with suppress(FileExistsError):  # another process created it first
            os.link(draft.name, file)
