"""The proxy that disturbs what passes to a server."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import httpx
import pytest

from benchmarks.cluster.proxy import CALM, Disturbance, Proxy

SECONDS = 120


class Counting(BaseHTTPRequestHandler):
    """Answers each request with its body, and keeps the bodies."""

    protocol_version = "HTTP/1.1"
    bodies: list[bytes]

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.bodies.append(body)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_request(self, code: object = "-", size: object = "-") -> None:
        """Print nothing."""


@pytest.fixture
def handler() -> type[Counting]:
    return type("Handler", (Counting,), {"bodies": []})


@pytest.fixture
def proxy(handler: type[Counting]) -> Iterator[Proxy]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    Thread(target=server.serve_forever, daemon=True).start()
    with Proxy(server.server_port, random.Random(1)).serving() as proxy:
        yield proxy
    server.shutdown()
    server.server_close()


def put(proxy: Proxy, body: bytes) -> httpx.Response:
    return httpx.put(f"http://127.0.0.1:{proxy.port}/", content=body, timeout=SECONDS)


def test_what_happens_to_a_request_on_its_way(proxy: Proxy, handler: type[Counting]) -> None:
    large = bytes(3_000_000)
    assert put(proxy, large).content == large
    proxy.disturbance = Disturbance(status=503)
    assert put(proxy, b"refused").status_code == 503
    proxy.disturbance = Disturbance(is_lost=True)
    with pytest.raises(httpx.TransportError):
        put(proxy, b"lost")
    proxy.disturbance = Disturbance(status=500, delay_seconds=0.01, is_lost=True, share=0)
    assert put(proxy, b"slow").content == b"slow"
    proxy.disturbance = CALM
    assert put(proxy, b"calm").content == b"calm"
    assert handler.bodies == [large, b"lost", b"slow", b"calm"]


def test_a_cut_holds_requests_back_and_ends_with_their_connections(proxy: Proxy, handler: type[Counting]) -> None:
    proxy.disturbance = Disturbance(is_cut=True)
    with ThreadPoolExecutor() as pool:
        cut = pool.submit(put, proxy, b"cut")
        while not proxy.held and not cut.done():
            time.sleep(0.01)
        proxy.disturbance = CALM
        with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):  # the connection ended; it is no time limit
            cut.result(SECONDS)
    assert handler.bodies == []
    assert put(proxy, b"afterwards").content == b"afterwards"
