"""A real HTTP server that takes alerts, on loopback: it keeps what is POSTed and answers as it is told."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from pydantic import SecretStr

SECRET = "a-secret-token"


@dataclass
class Receiver:
    """statuses: answered one by one, the last for ever. seconds: before each answer. got: the bodies."""

    port: int = 0
    statuses: list[int] = field(default_factory=lambda: [200])
    seconds: float = 0
    got: list[dict[str, Any]] = field(default_factory=list)

    @property
    def url(self) -> SecretStr:
        return SecretStr(f"http://127.0.0.1:{self.port}/hook?token={SECRET}")


@contextmanager
def receiver() -> Iterator[Receiver]:
    """A receiver that listens as long as the block lasts."""
    found = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            found.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            time.sleep(found.seconds)
            self.send_response(found.statuses.pop(0) if len(found.statuses) > 1 else found.statuses[0])
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the name it has in http.server
            """Nothing: a test's output is its own."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.port = server.server_port
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
