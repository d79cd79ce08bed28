"""An ensemble of three whose servers can be taken away for a while."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from lake_assets.connections.addresses import run_folder
from lake_assets.services.servers import ensemble, mode
from lake_assets.services.service import Service, all_running


class Ensemble:
    """The three servers."""

    def __init__(self, servers: list[Service], restarted: ExitStack) -> None:
        self.servers = servers
        self._restarted = restarted

    @property
    def hosts(self) -> str:
        return ",".join(f"127.0.0.1:{server.port}" for server in self.servers)

    def servers_in(self, role: str) -> list[Service]:
        return [server for server in self.servers if mode(server.port or 0) == role]

    @contextmanager
    def without(self, *servers: Service) -> Iterator[None]:
        """Kills servers (-9), and starts them again when the block ends."""
        for server in servers:
            os.kill(int((run_folder(server.home) / f"{server.name}.pid").read_text()), signal.SIGKILL)
        try:
            yield
        finally:
            self._restarted.enter_context(all_running(servers))


@contextmanager
def three_servers(folder: Path) -> Iterator[Ensemble]:
    """An ensemble of three, with its files in the folder; stopped at the end."""
    servers = ensemble(folder)
    with all_running(servers), ExitStack() as restarted:
        yield Ensemble(servers, restarted)
