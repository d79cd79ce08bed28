"""The HTTP server of the endpoint: uvicorn, which by itself waits for ever for the head of a request."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from lake_assets.connections.addresses import LOOPBACK
from lake_assets.serving.endpoints.request_gate import REQUEST_SECONDS

if TYPE_CHECKING:
    from fastapi import FastAPI


class TimedProtocol(H11Protocol):
    """A connection that is closed if the head of a request does not arrive in time."""

    head_seconds = REQUEST_SECONDS
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_answering:
            self._stop_timer()
        else:  # uvicorn stops its own timer of an idle connection at the first byte
            self._wait_for_head()

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _wait_for_head(self) -> None:
        """The first byte starts the time, further ones do not prolong it."""
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_seconds, self._close)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _close(self) -> None:
        self._head_timer = None
        if not self._is_answering:
            self.transport.close()


def configuration(app: FastAPI, *, port: int, head_seconds: float = REQUEST_SECONDS) -> uvicorn.Config:
    """Return the configuration of a server on loopback.

    Args:
        app: The endpoint.
        port: To listen to.
        head_seconds: For the head of a request to arrive.
    """
    protocol = type("Protocol", (TimedProtocol,), {"head_seconds": head_seconds})
    return uvicorn.Config(app, host=LOOPBACK, port=port, http=protocol, log_level="warning")


def serve(app: FastAPI, *, port: int) -> None:
    """Answer requests until the process is interrupted."""
    uvicorn.Server(configuration(app, port=port)).run()
