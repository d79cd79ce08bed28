"""ZooKeeper as a local service, from pyspark's own jars: one server, or an ensemble for tests and tools."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

from lake_assets.connections.spark import spark_home
from lake_assets.services.service import Check, Service, free_port, java

MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
TICK_MS = 500
"""ZooKeeper's unit of time: sessions last 2 to 20 ticks, so from 1 s, what tests want, to 60 s by the setting below."""

LONGEST_SESSION_MS = 60_000


def zookeeper(home: Path, port: int) -> Service:
    """One server. It listens to `port` on loopback and keeps its data in the home."""
    return _server(home, "zookeeper", port)


def ensemble(home: Path, size: int = 3) -> list[Service]:
    """The servers of one ensemble, on free ports. It serves while more than half of them run."""
    peers = [f"server.{n}=127.0.0.1:{free_port()}:{free_port()};127.0.0.1:{free_port()}" for n in range(1, size + 1)]
    return [
        _server(home, f"zookeeper-{number}", int(peer.rsplit(":", 1)[1]), number=number, peers=peers)
        for number, peer in enumerate(peers, start=1)
    ]


def _server(home: Path, name: str, port: int, number: int = 1, peers: Sequence[str] = ()) -> Service:
    folder = home / name
    config = folder / "zoo.cfg"
    # In an ensemble, a peer's own line says where clients connect.
    client = () if peers else (f"clientPort={port}", "clientPortAddress=127.0.0.1")
    return Service(
        name=name,
        command=(*java(str(spark_home() / "jars" / "*"), heap_mb=256), MAIN, str(config)),
        home=home,
        port=port,
        files={config: "\n".join((*_common(folder), *client, *peers, "")), folder / "data" / "myid": f"{number}\n"},
        ready=serves(port),
        remedy="Java 17 or 21 must be there. Its folder in the home keeps the lineage of served tables, too: if it is "
        "damaged, restore it from a backup; do not remove it.",
    )


def _common(folder: Path) -> tuple[str, ...]:
    return (
        f"dataDir={folder / 'data'}",
        f"tickTime={TICK_MS}",
        "initLimit=20",
        "syncLimit=6",
        f"maxSessionTimeout={LONGEST_SESSION_MS}",
        "admin.enableServer=false",
        "4lw.commands.whitelist=srvr",
        "autopurge.purgeInterval=24",
        "autopurge.snapRetainCount=3",
    )


def serves(port: int) -> Check:
    """Ready when the server has a role: alone, as a leader, or as a follower of a quorum."""

    def check() -> bool:
        return mode(port) is not None

    return check


def mode(port: int) -> str | None:
    """The role of the server: `standalone`, `leader`, `follower`; None while it serves nobody."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(b"srvr")
            answer = b"".join(iter(lambda: connection.recv(4096), b"")).decode(errors="replace")
    except OSError:
        return None
    return next((line.split(": ")[1] for line in answer.splitlines() if line.startswith("Mode: ")), None)
