"""What the endpoint refuses before it reads it, over real connections."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
import uvicorn
from fastapi.testclient import TestClient
from pydantic import SecretStr

from lake_assets.serving.http import MAX_BODY_BYTES, configuration, endpoint
from lake_assets.serving.served_tables import Serving, open_serving
from lake_assets.settings import Settings
from lake_assets_tests.serving.scenario import World, now

PATIENCE = 120
"""Seconds after which an answer counts as missing, on a machine under any load."""

NEVER = 3600.0
TOKEN = SecretStr("sesame")
BEARER = b"Authorization: Bearer sesame\r\n"
FEW = b"POST /query HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
MUCH = b"Content-Length: 400000000\r\n\r\n"


@pytest.fixture
def serving(served: World) -> Serving:
    return open_serving(served.zk, Settings(serving_folder=served.files.folder), clock=now)


@contextmanager
def listening(serving: Serving, *, head: float = NEVER, body: float = NEVER) -> Iterator[socket.socket]:
    """A connection to the endpoint, on a free port."""
    app = endpoint(serving, token=TOKEN, request_seconds=body)
    server = uvicorn.Server(configuration(app, port=0, head_seconds=head))
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        with socket.create_connection(listener.getsockname(), timeout=PATIENCE) as connection:
            yield connection
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def answer(connection: socket.socket) -> bytes:
    """All that the server sends until it closes the connection."""
    found = b""
    with suppress(ConnectionResetError):  # what was sent meanwhile is not read
        while part := connection.recv(65536):
            found += part
    return found


@pytest.mark.parametrize(
    ("request_head", "status"),
    [
        (FEW + MUCH, b"401"),
        (FEW + b"Authorization: Bearer wrong\r\n" + MUCH, b"401"),
        (FEW + b"Authorization: Basic sesame\r\n" + MUCH, b"401"),
        (FEW + b"Authorization: Bearer \xff\xfe\r\n" + MUCH, b"401"),
        (FEW + b"Transfer-Encoding: chunked\r\n\r\n", b"401"),
        (FEW + BEARER + MUCH, b"413"),
        (FEW + BEARER + b"Transfer-Encoding: chunked\r\n\r\nfffffff\r\n" + b" " * (MAX_BODY_BYTES + 1), b"413"),
    ],
    ids=["no token", "wrong token", "other scheme", "odd token", "chunked", "large", "large and chunked"],
)
def test_a_request_is_refused_before_its_body_has_come(serving: Serving, request_head: bytes, status: bytes) -> None:
    """The body never comes, so an endpoint that waited for it would not answer."""
    with listening(serving) as connection:
        connection.sendall(request_head)
        assert answer(connection).startswith(b"HTTP/1.1 " + status)


def test_a_head_that_never_ends_closes_its_connection(serving: Serving) -> None:
    with listening(serving, head=0.2) as connection:
        assert answer(connection) == b""
    with listening(serving, head=0.2) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX")
        assert answer(connection) == b""
    with listening(serving, head=0.2) as connection:  # the second request of a connection
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        connection.recv(65536)
        with suppress(ConnectionError):  # on a slow machine it may be closed by now
            connection.sendall(b"GET /health")
        answer(connection)


def test_a_body_that_never_ends_is_answered_and_closed(serving: Serving) -> None:
    with listening(serving, body=0.2) as connection:
        connection.sendall(FEW + BEARER + b'Content-Length: 30\r\n\r\n{"sql"')
        assert answer(connection).startswith(b"HTTP/1.1 408")


def test_a_request_with_the_token_is_answered(serving: Serving) -> None:
    body = b'{"sql": "select 1 as n"}'
    with listening(serving) as connection:
        connection.sendall(FEW + BEARER + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        assert b'"rows":[[1]]' in answer(connection)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (rb'{"sql": "select \u0027\ud800\u0027"}', 400),
        (rb'{"sql": "select 1 as \udfff"}', 400),
        (rb'{"sql": "select \u0000"}', 400),
        (rb'{"sql": "\ufeff\u202e\uffff"}', 400),
        (b'{"sql": "select \xff"}', 400),
        (b"\xff\xfe", 422),
        (rb'{"\ud800": 1}', 422),
        (rb'{"sql": ["\ud800"]}', 422),
        (b'{"sql": NaN}', 422),
        (b"not JSON", 422),
        (b"[" * 100_000, 400),
    ],
    ids=range(11),
)
def test_an_odd_character_is_the_mistake_of_the_asker(serving: Serving, body: bytes, status: int) -> None:
    client = TestClient(endpoint(serving), base_url="http://127.0.0.1", raise_server_exceptions=False)
    found = client.post("/query", content=body, headers={"Content-Type": "application/json"})
    assert (found.status_code, found.headers["content-type"]) == (status, "application/json"), found.text


@pytest.mark.parametrize("name", ["%ED%A0%80", "%00", "%FF", "a%2Fb", "%F0%9F%90%9F", "..%2f"])
def test_an_odd_table_is_the_mistake_of_the_asker(serving: Serving, name: str) -> None:
    client = TestClient(endpoint(serving), base_url="http://127.0.0.1", raise_server_exceptions=False)
    assert client.get(f"/lineage/{name}").status_code in (400, 404)
