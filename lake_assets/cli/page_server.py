"""Serve a page on loopback until the process is interrupted: `--serve` of commands that write a page."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress

import typer

from lake_assets.connections.addresses import LOOPBACK
from lake_assets.errors import ServiceError
from lake_assets.pages.terminal.failures import log
from lake_assets.settings import settings


def serve_page(
    build: Callable[[], str],
    port: int,
    *,
    name: str,
    command: str,
    recorded: Callable[[int], AbstractContextManager[None]] = lambda _: nullcontext(),
) -> None:
    """Serve a page until the process is interrupted or terminated.

    Args:
        build: Builds the page. It is called at a request, at most once in a few seconds.
        port: A port of loopback; 0 takes a free one.
        name: What is served, at the start of a sentence: The report.
        command: Serves it again.
        recorded: Is given the port, and entered while the page is served.

    Raises:
        ServiceError: Another program listens on the port.
    """
    import time
    from dataclasses import replace

    import plotly  # noqa: F401 - says at the start that the extra is missing, and not at the first request
    import uvicorn

    from lake_assets.pages.live import application
    from lake_assets.services.webserver_guard import RequestGuard, parse_names

    found = settings()
    app = application(build, name=command, clock=time.monotonic, log=lambda error: log(error, found.home))
    with listening(port) as (listener, bound):
        names = parse_names(bound, found.webserver_hosts)
        own = replace(names, server=name, restart=f"start `{command}` again")
        server = uvicorn.Server(uvicorn.Config(RequestGuard(app, own), log_level="warning"))
        with suppress(KeyboardInterrupt), recorded(bound):
            typer.echo(f"{name} is served on http://{LOOPBACK}:{bound} until you press Ctrl-C.")
            server.run(sockets=[listener])


@contextmanager
def listening(port: int) -> Iterator[tuple[socket.socket, int]]:
    """Yield a socket that listens on a port of loopback, and the port; 0 takes a free one.

    Raises:
        ServiceError: Another program listens there.
    """
    with socket.socket() as found:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((LOOPBACK, port))
        except OSError as error:
            raise ServiceError(
                f"Port {port} of {LOOPBACK} cannot be used: {error.strerror}.",
                remedy="Name another one with --port, or leave --port out for a free one.",
            ) from None
        found.listen()
        yield found, found.getsockname()[1]
