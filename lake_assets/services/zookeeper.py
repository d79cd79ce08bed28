"""ZooKeeper as a local service, from pyspark's own jars: one server, or an ensemble for tests and tools."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lake_assets.connections.addresses import USER, ZOOKEEPER_PASSWORD, Login, zookeeper_password
from lake_assets.connections.spark import spark_home
from lake_assets.services.service import CONNECT_SECONDS, Check, Service, free_port, java

if TYPE_CHECKING:
    from lake_assets.settings import Settings

MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
HEAP_MB = 256
TICK_MS = 500
"""ZooKeeper's unit of time. A session lasts at least 2 ticks, so tests can use sessions of 1 s."""

MAX_SESSION_MS = 60_000
ROLE_PREFIX = "Mode: "


def zookeeper(home: Path, port: int) -> Service:
    """Return one server. It listens to `port` on loopback and keeps its data in the home."""
    listen = [f"clientPort={port}", "clientPortAddress=127.0.0.1"]
    return _server(home, "zookeeper", port, number=1, lines=listen)


def ensemble(home: Path, size: int = 3) -> list[Service]:
    """Return the servers of one ensemble, on free ports. It serves while more than half of them run."""
    ports = {number: free_port() for number in range(1, size + 1)}
    # The line of a peer also says where it listens for clients.
    peers = []
    for number, port in ports.items():
        peers.append(f"server.{number}=127.0.0.1:{free_port()}:{free_port()};127.0.0.1:{port}")
    return [_server(home, f"zookeeper-{number}", port, number=number, lines=peers) for number, port in ports.items()]


def _server(home: Path, name: str, port: int, *, number: int, lines: Sequence[str]) -> Service:
    folder = home / name
    config = folder / "zoo.cfg"
    text = "\n".join((*_common(folder), *lines, ""))
    return Service(
        name=name,
        command=(*java(str(spark_home() / "jars" / "*"), heap_mb=HEAP_MB), MAIN, str(config)),
        home=home,
        port=port,
        files={config: text, folder / "data" / "myid": f"{number}\n"},
        ready=serves(port),
        remedy=f"ZooKeeper needs Java 17 or 21. If its folder {folder} is damaged, restore the folder from a backup. Do"
        " not remove it: it also holds the lineage of served tables.",
    )


def _common(folder: Path) -> tuple[str, ...]:
    return (
        f"dataDir={folder / 'data'}",
        f"tickTime={TICK_MS}",
        "initLimit=20",
        "syncLimit=6",
        f"maxSessionTimeout={MAX_SESSION_MS}",
        "admin.enableServer=false",
        "4lw.commands.whitelist=srvr",
        "autopurge.purgeInterval=24",
        "autopurge.snapRetainCount=3",
    )


def serves(port: int) -> Check:
    """Return a check that the server has a role: standalone, leader, or follower of a quorum."""

    def check() -> bool:
        return mode(port) is not None

    return check


def mode(port: int) -> str | None:
    """Return the role of a server: `standalone`, `leader` or `follower`; None while it serves no client."""
    try:
        answer = _ask(port, b"srvr")
    except OSError:
        return None
    for line in answer.splitlines():
        if line.startswith(ROLE_PREFIX):
            return line.removeprefix(ROLE_PREFIX)
    return None


def _ask(port: int, command: bytes) -> str:
    """Send a four-letter command and return the whole answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=CONNECT_SECONDS) as connection:
        connection.sendall(command)
        with connection.makefile("rb") as answer:
            return answer.read().decode(errors="replace")


def apply_login(settings: Settings, port: int) -> None:
    """Close the nodes of the local server to all who do not have its password, or open them to all again.

    Args:
        settings: Whether the services require a login, and the home.
        port: Of the server, on loopback.
    """
    from lake_assets.connections.zookeeper import access_of, set_access, zookeeper_client

    password = zookeeper_password(settings.home)
    if settings.zookeeper or password is None:
        return
    login = Login(USER, password)
    with zookeeper_client(f"127.0.0.1:{port}", login=login) as zk:
        set_access(zk, access_of(login if settings.service_login else None))
    if not settings.service_login:
        (settings.home / ZOOKEEPER_PASSWORD).unlink(missing_ok=True)
