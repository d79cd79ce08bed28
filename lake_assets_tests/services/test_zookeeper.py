"""ZooKeeper as a service: one server keeps its data through a restart, three elect a leader."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kazoo.client import KazooClient

from lake_assets.services.servers import ensemble, mode, zookeeper
from lake_assets.services.service import all_running, free_port, running


@contextmanager
def client(port: int | None) -> Iterator[KazooClient]:
    zk = KazooClient(f"127.0.0.1:{port}")
    zk.start()
    try:
        yield zk
    finally:
        zk.stop()
        zk.close()


def test_one_server_keeps_its_data_through_a_restart_on_another_port(tmp_path: Path) -> None:
    with running(zookeeper(tmp_path, free_port())) as service, client(service.port) as zk:
        zk.create("/kept", b"value")
    with running(zookeeper(tmp_path, free_port())) as service, client(service.port) as zk:
        assert zk.get("/kept")[0] == b"value"


def test_three_servers_are_one_ensemble_with_one_leader(tmp_path: Path) -> None:
    servers = ensemble(tmp_path)
    with all_running(servers):
        assert sorted(str(mode(s.port or 0)) for s in servers) == ["follower", "follower", "leader"]
        with client(servers[0].port) as one, client(servers[2].port) as other:
            one.create("/shared")
            other.sync("/shared")
            assert other.exists("/shared")
    assert mode(servers[0].port or 0) is None
