"""Faults after which the same work is done again: a server of S3 that is overloaded, and servers that are restarted."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING

import pytest

from lake_assets.base.described import passes_by_itself
from lake_assets.connections.small_uploads import SmallUploadsIO
from lake_assets.errors import chain_text

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

ANSWER = "<?xml version='1.0'?><Error><Code>{code}</Code><Message>Please wait</Message></Error>"
OVERLOADED = {"InternalError": 500, "SlowDown": 503}


@pytest.fixture(params=OVERLOADED)
def overloaded(request: pytest.FixtureRequest) -> Iterator[FileIO]:
    """Files on a server of S3 that refuses each request with this code."""

    class Refusing(BaseHTTPRequestHandler):
        def refuse(self) -> None:
            body = b"" if self.command == "HEAD" else ANSWER.format(code=request.param).encode()
            self.send_response(OVERLOADED[request.param])
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    for method in ("GET", "HEAD", "PUT", "POST"):
        setattr(Refusing, f"do_{method}", Refusing.refuse)
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_port}"
        keys = {"s3.access-key-id": "any", "s3.secret-access-key": "any", "s3.region": "us-east-1"}
        yield SmallUploadsIO({"s3.endpoint": endpoint, **keys})
        server.shutdown()


def test_an_object_store_that_is_overloaded_passes(overloaded: FileIO) -> None:
    with pytest.raises(OSError, match="AWS Error") as read:
        overloaded.new_input("s3://lake/x").open()
    assert passes_by_itself(chain_text(read.value))
    with (
        pytest.raises(OSError, match="AWS Error") as written,
        overloaded.new_output("s3://lake/x").create(overwrite=True) as file,
    ):
        file.write(b"rows")
    assert passes_by_itself(chain_text(written.value))


@pytest.mark.parametrize(
    "text",
    [
        # Of a server that is stopped, of one that starts, and of Spark's driver when an executor ends under a task.
        "psycopg2.errors.AdminShutdown: terminating connection due to administrator command",
        "psycopg2.OperationalError: connection failed: FATAL:  the database system is starting up",
        "Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times: ExecutorLostFailure (executor 0 exited)",
    ],
)
def test_a_server_that_is_restarted_passes(text: str) -> None:
    assert passes_by_itself(text)


def test_what_a_user_has_to_mend_does_not_pass() -> None:
    refused = "OSError: AWS Error ACCESS_DENIED during PutObject operation (HTTP status 403)"
    assert not passes_by_itself(refused)
